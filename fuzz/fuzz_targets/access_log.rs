//! Any bytes as an access log: each line is counted once, and every path is safe to make a file of.
#![no_main]

use headway_load::fileset::read_access_log;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok((files, seen)) = read_access_log(&mut &bytes[..]) else {
        return;
    };
    let left_out =
        seen.other_methods + seen.other_statuses + seen.not_understood + seen.hostile + seen.hidden;
    let left_out = left_out + seen.long + seen.unknown_size + seen.conflicting + seen.beyond;
    assert_eq!(seen.used + left_out, seen.lines);
    for file in files.files() {
        let name = file.path.strip_prefix('/').expect("a path below the root");
        assert!(!name.contains('\0'));
        assert!(
            name.split('/')
                .all(|part| !part.is_empty() && !part.starts_with('.')),
            "{name}"
        );
    }
});
