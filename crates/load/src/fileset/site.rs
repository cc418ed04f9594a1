//! The files of a real site: a path, a size and a number of requests for each, and the list that
//! keeps them beside a manifest, since no formula gives them again.
//!
//! A path comes from a stranger's request, so nothing becomes a file name before it is safe: no
//! `..`, no hidden name, nothing a file system would cut or refuse. Refused paths are left out,
//! never repaired into another name. Two names meet only where a site has both `/a` and `/a/b`,
//! which a file system cannot hold: then `/a` becomes `/a/index.html`.

use std::collections::{BTreeMap, BTreeSet};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, utf8_percent_encode};

/// Bytes in one name; every common file system takes 255.
const NAME_BYTES_MAX: usize = 255;

/// Bytes in a whole path, well below the kernel's 4096, which include the set's own directory.
const PATH_BYTES_MAX: usize = 2048;

/// The first line of a list.
const LIST_HEAD: &str = "# headway-fileset list 1: size in bytes, requests, path";

/// What stays as it is in a path on the wire (RFC 3986, `pchar`) and is worth keeping readable.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'+')
    .remove(b',')
    .remove(b'=')
    .remove(b'@')
    .remove(b'(')
    .remove(b')');

/// One file of a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteFile {
    /// As a client asks for it: percent-encoded, from the root.
    pub path: String,
    /// The length of the file in bytes.
    pub size_bytes: u64,
    /// How often it was asked for.
    pub requests: u64,
}

/// The files of a site, the most popular first, each path once, none below another file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteFiles(Vec<SiteFile>);

/// Why a path cannot become a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unsafe {
    /// The path leads upwards, or has an encoded slash, a NUL or another control character, or is
    /// no path at all.
    Hostile,
    /// A name begins with a dot.
    Hidden,
    /// A name is longer than 255 bytes, or the whole than 2048.
    Long,
}

/// A list that is not as it was written.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub(crate) struct ListError {
    /// Counted from 1.
    pub line: usize,
    /// The mistake in that line.
    pub what: &'static str,
}

impl SiteFiles {
    /// Puts files in order: path to size in bytes and requests. The paths have to come from
    /// [`safe_path`].
    pub fn new(files: BTreeMap<String, (u64, u64)>) -> (SiteFiles, Conflicts) {
        let (files, conflicts) = without_conflicts(files);
        let mut files: Vec<SiteFile> = files
            .into_iter()
            .map(|(path, (size_bytes, requests))| SiteFile {
                path,
                size_bytes,
                requests,
            })
            .collect();
        // The order decides each file's number, and with it the content: popularity first, then the
        // name.
        files.sort_by(|one, other| {
            let popular = other.requests.cmp(&one.requests);
            popular.then_with(|| one.path.cmp(&other.path))
        });
        (SiteFiles(files), conflicts)
    }

    /// All files, in the order of their numbers.
    pub fn files(&self) -> &[SiteFile] {
        &self.0
    }

    /// How many directories the paths name.
    pub(crate) fn directories(&self) -> u64 {
        let mut directories = BTreeSet::new();
        for file in &self.0 {
            directories.extend(parents(&file.path));
        }
        directories.len() as u64
    }

    /// The text of the list.
    pub(crate) fn to_list(&self) -> String {
        let mut list = format!("{LIST_HEAD}\n");
        for file in &self.0 {
            list.push_str(&format!(
                "{} {} {}\n",
                file.size_bytes, file.requests, file.path
            ));
        }
        list
    }

    /// Reads what [`SiteFiles::to_list`] wrote, and refuses anything else: a path of a list is
    /// trusted no more than one of a log.
    pub(crate) fn from_list(list: &str) -> Result<SiteFiles, ListError> {
        let mut lines = list.lines().enumerate();
        let wrong = |index: usize, what| ListError {
            line: index + 1,
            what,
        };
        if lines.next().map(|(_, line)| line) != Some(LIST_HEAD) {
            return Err(wrong(0, "not the head of a list of version 1"));
        }
        let mut files = Vec::new();
        for (index, line) in lines {
            let mut parts = line.splitn(3, ' ');
            let mut number = || parts.next().and_then(|text| text.parse::<u64>().ok());
            let (size, requests) = (number(), number());
            let (Some(size_bytes), Some(requests), Some(path)) = (size, requests, parts.next())
            else {
                return Err(wrong(index, "not a size, a number of requests and a path"));
            };
            if safe_path(path.as_bytes()).as_deref() != Ok(path) {
                return Err(wrong(index, "the path is not a safe one"));
            }
            files.push(SiteFile {
                path: path.to_owned(),
                size_bytes,
                requests,
            });
        }
        Ok(SiteFiles(files))
    }
}

/// Outcome of files that stood where a directory has to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conflicts {
    /// Files that became `index.html` of the directory.
    pub moved: u64,
    /// Requests for files for which even that name was a directory.
    pub requests_left_out: u64,
}

/// Makes room for directories: a file with files below it becomes their `index.html`.
fn without_conflicts(
    files: BTreeMap<String, (u64, u64)>,
) -> (BTreeMap<String, (u64, u64)>, Conflicts) {
    let directories: BTreeSet<String> = files
        .keys()
        .flat_map(|path| parents(path))
        .map(str::to_owned)
        .collect();
    let mut kept: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let mut conflicts = Conflicts::default();
    for (path, (size, requests)) in files {
        let mut name = path;
        if directories.contains(&name) {
            name.push_str("/index.html");
            if directories.contains(&name) || name.len() > PATH_BYTES_MAX {
                conflicts.requests_left_out += requests;
                continue;
            }
            conflicts.moved += 1;
        }
        let entry = kept.entry(name).or_default();
        *entry = (entry.0.max(size), entry.1.saturating_add(requests));
    }
    (kept, conflicts)
}

/// Every directory above a path, without the root: `/a/b/c` has `/a/b` and `/a`.
pub(super) fn parents(path: &str) -> impl Iterator<Item = &str> {
    let mut rest = path;
    std::iter::from_fn(move || {
        rest = &rest[..rest.rfind('/')?];
        (!rest.is_empty()).then_some(rest)
    })
}

/// The path of a request target, normalised, percent-encoded, and safe as a name below a directory.
/// Scheme, host, query and fragment go; a directory stands for its `index.html`.
pub(crate) fn safe_path(target: &[u8]) -> Result<String, Unsafe> {
    let path = path_of(target).ok_or(Unsafe::Hostile)?;
    let mut safe = String::new();
    for name in path.split(|&byte| byte == b'/') {
        let name: Vec<u8> = percent_decode(name).collect();
        match name.as_slice() {
            b"" | b"." => continue,
            b".." => return Err(Unsafe::Hostile),
            name if name
                .iter()
                .any(|&byte| byte == b'/' || byte < 32 || byte == 127) =>
            {
                return Err(Unsafe::Hostile);
            }
            [b'.', ..] => return Err(Unsafe::Hidden),
            name if name.len() > NAME_BYTES_MAX => return Err(Unsafe::Long),
            name => {
                safe.push('/');
                push_encoded(name, &mut safe);
            }
        }
    }
    if safe.is_empty() || path.ends_with(b"/") {
        safe.push_str("/index.html");
    }
    if safe.len() > PATH_BYTES_MAX {
        return Err(Unsafe::Long);
    }
    Ok(safe)
}

/// The bytes of a percent-encoded path, without the first slash.
pub(super) fn decoded(path: &str) -> Vec<u8> {
    percent_decode(path.trim_start_matches('/').as_bytes()).collect()
}

fn push_encoded(name: &[u8], out: &mut String) {
    for chunk in name.utf8_chunks() {
        out.extend(utf8_percent_encode(chunk.valid(), ENCODED));
        for byte in chunk.invalid() {
            out.push_str(percent_encoding::percent_encode_byte(*byte));
        }
    }
}

/// The part of a target between the host and the query; `None` for `*` and for words.
fn path_of(target: &[u8]) -> Option<&[u8]> {
    let end = target
        .iter()
        .position(|&byte| byte == b'?' || byte == b'#')
        .unwrap_or(target.len());
    let path = &target[..end];
    let absolute = [&b"http://"[..], b"https://"]
        .iter()
        .find_map(|scheme| path.strip_prefix(*scheme));
    let path = match absolute {
        Some(rest) => rest.iter().position(|&byte| byte == b'/').map_or(
            // A host alone means its root.
            &b"/"[..],
            |slash| &rest[slash..],
        ),
        None => path,
    };
    path.starts_with(b"/").then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn path_from_a_log_is_safe_or_an_error() {
        let long_name = [b"/", "a".repeat(256).as_bytes()].concat();
        let long_path = "/abcdefg".repeat(300);
        for (target, expected) in [
            (&b"/a/b.html"[..], Ok("/a/b.html")),
            (b"/", Ok("/index.html")),
            (b"/a/?x=1", Ok("/a/index.html")),
            (b"//etc///passwd", Ok("/etc/passwd")),
            (b"/a/./b", Ok("/a/b")),
            (b"http://host:80/x", Ok("/x")),
            (b"https://host", Ok("/index.html")),
            (b"/a b", Ok("/a%20b")),
            (b"/%61%20b", Ok("/a%20b")),
            (b"/100%", Ok("/100%25")),
            (b"/caf\xc3\xa9", Ok("/caf%C3%A9")),
            (b"/caf\xe9", Ok("/caf%E9")),
            (b"/x#y", Ok("/x")),
            (b"/../etc/passwd", Err(Unsafe::Hostile)),
            (b"/a/%2e%2E/b", Err(Unsafe::Hostile)),
            (b"/a%2f..%2fb", Err(Unsafe::Hostile)),
            (b"/a%00b", Err(Unsafe::Hostile)),
            (b"/a\nb", Err(Unsafe::Hostile)),
            (b"*", Err(Unsafe::Hostile)),
            (b"relative", Err(Unsafe::Hostile)),
            (b"", Err(Unsafe::Hostile)),
            (b"/.git/config", Err(Unsafe::Hidden)),
            (b"/.headway-fileset.toml", Err(Unsafe::Hidden)),
            (&long_name, Err(Unsafe::Long)),
            (long_path.as_bytes(), Err(Unsafe::Long)),
        ] {
            let found = safe_path(target);
            let shown = String::from_utf8_lossy(target);
            assert_eq!(found, expected.map(str::to_owned), "{shown}");
        }
    }

    proptest! {
        #[test]
        fn safe_path_stays_below_its_directory_for_any_target(
            target in proptest::collection::vec(any::<u8>(), 0..80)
        ) {
            let target = [b"/", target.as_slice()].concat();
            if let Ok(path) = safe_path(&target) {
                let name = decoded(&path);
                prop_assert!(!name.is_empty() && !name.contains(&0));
                for part in name.split(|&byte| byte == b'/') {
                    prop_assert!(!part.is_empty() && part[0] != b'.');
                }
                // Safe once is safe for ever: the list is read by the same function.
                let again = safe_path(path.as_bytes());
                prop_assert_eq!(again.as_deref(), Ok(path.as_str()));
            }
        }
    }

    #[test]
    fn file_becomes_the_index_when_other_files_are_below_it() {
        let files = [
            // The larger size counts, whichever of the two names showed it.
            ("/blog", (30, 60)),
            ("/blog/index.html", (8, 40)),
            ("/wiki", (10, 5)),
            ("/wiki/Page", (7, 1)),
            ("/wiki/index.html", (20, 2)),
            ("/x", (1, 4)),
            ("/x/index.html", (1, 9)),
            ("/x/index.html/deep", (1, 3)),
        ];
        let files = files.map(|(path, file)| (path.to_owned(), file)).into();
        let (site, conflicts) = SiteFiles::new(files);
        let shown: Vec<_> = site
            .files()
            .iter()
            .map(|file| (file.path.as_str(), file.size_bytes, file.requests))
            .collect();
        assert_eq!(
            shown,
            [
                ("/blog/index.html", 30, 100),
                ("/x/index.html/index.html", 1, 9),
                ("/wiki/index.html", 20, 7),
                ("/x/index.html/deep", 1, 3),
                ("/wiki/Page", 7, 1),
            ]
        );
        assert_eq!((conflicts.moved, conflicts.requests_left_out), (3, 4));
        assert_eq!(site.directories(), 4);
    }

    #[test]
    fn list_is_the_same_when_written_and_read() {
        let files = [("/a%20b", (3, 2)), ("/c/d", (0, 1))];
        let (site, _) = SiteFiles::new(files.map(|(path, file)| (path.to_owned(), file)).into());
        assert_eq!(SiteFiles::from_list(&site.to_list()), Ok(site));
    }

    #[test]
    fn list_is_an_error_when_a_line_is_malformed() {
        for (lines, line) in [
            ("", 2),
            ("x 1 /a\n", 2),
            ("1 1\n", 2),
            ("1 1 /a\n1 1 /../b\n", 3),
            ("1 1 b\n", 2),
        ] {
            let list = format!("{LIST_HEAD}\n{lines}");
            let found = SiteFiles::from_list(&list).map_err(|error| error.line);
            if lines.is_empty() {
                assert!(found.is_ok_and(|site| site.files().is_empty()));
            } else {
                assert_eq!(found, Err(line), "{lines}");
            }
        }
        assert!(SiteFiles::from_list("").is_err());
    }
}
