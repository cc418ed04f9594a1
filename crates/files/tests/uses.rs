//! What the kernel takes for a use of a page: of two pages it keeps the one that was used twice.

use crate::common;
use common::{Served, directory, open, put, roots};
use headway_files::{OpenFile, ProbeKind, Residency, Waiter};
use headway_os::mapping::Mapping;
use headway_os::residency::page_bytes;
use headway_test_support::skip;
use std::fs;
use std::os::unix::fs::FileExt;

/// A page counts as used when it is read, and stays longer after a second use. Reading it into
/// memory is not a use.
#[test]
fn pages_count_as_unused_when_they_have_been_read_in() {
    const TEST: &str = "pages_count_as_unused_when_they_have_been_read_in";
    const USED: u64 = 1 << 2 | 1 << 6; // referenced, active
    let tree = directory();
    put(tree.path(), "unused", &vec![7; 400_000]);
    let file = open(tree.path(), "unused");
    rustix::fs::fsync(&file).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    if !matches!(
        Residency::with(ProbeKind::Mincore).resident(&file, 0, 400_000),
        Ok(false)
    ) {
        return skip(TEST, "the file system keeps files in memory");
    }
    let mut served = Served::new(&roots(tree.path(), &[], false));
    served
        .pool
        .submit_read_in(&file, 0, 400_000, Some(Waiter::new(1)))
        .unwrap();
    served.until_done(1);
    assert!(matches!(
        Residency::with(ProbeKind::Mincore).resident(&file, 0, 400_000),
        Ok(true)
    ));
    for page in [0, 1, 50, 97] {
        match page_flags(&file, "/unused", page) {
            Ok(flags) => assert_eq!(flags & USED, 0, "page {page}: {flags:#x}"),
            Err(reason) => return skip(TEST, &reason),
        }
    }
    let mut byte = [0];
    fs::File::open(tree.path().join("unused"))
        .unwrap()
        .read_exact_at(&mut byte, 50 * page_bytes())
        .unwrap();
    let read = page_flags(&file, "/unused", 50).unwrap();
    assert_ne!(read & USED, 0, "a read counts as a use: {read:#x}");
}

/// What the kernel says of a page of the file (`/proc/kpageflags`), or why it does not.
fn page_flags(file: &OpenFile, name: &str, page: u64) -> Result<u64, String> {
    let size = page_bytes();
    let length = ((page + 1) * size) as usize;
    let mapping = Mapping::new(file, 0, length).unwrap();
    let sink = tempfile::tempfile().unwrap();
    mapping.bring_in(0..length, &sink).unwrap();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.ends_with(name)).unwrap();
    let address = u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
    let entry = word_of("/proc/self/pagemap", address / size + page)?;
    match entry & ((1 << 55) - 1) {
        0 => Err("the kernel tells no page numbers".into()),
        number => word_of("/proc/kpageflags", number),
    }
}

/// Of a file of the kernel's that is a list of 64-bit words.
fn word_of(path: &str, index: u64) -> Result<u64, String> {
    let mut word = [0; 8];
    let file = fs::File::open(path).map_err(|error| format!("{path}: {error}"))?;
    file.read_exact_at(&mut word, index * 8)
        .map_err(|error| format!("{path}: {error}"))?;
    Ok(u64::from_ne_bytes(word))
}
