//! Splits a URL's path into the program's name and its argument.
//!
//! Works on paths from [`headway_http::path::normalise`] with a leading slash: decoded, without
//! empty and dot segments. Whether a program of that name exists is not known here.
//!
//! Source: RFC 3875 sections 3.1, 4.1.5, 4.1.13.

use memchr::{memchr_iter, memmem};

/// A path in two parts; joined they are the path again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScriptSplit<'p> {
    /// `SCRIPT_NAME`: up to and including the program.
    pub script_name: &'p [u8],
    /// `PATH_INFO`: empty, or the rest with its leading slash.
    pub path_info: &'p [u8],
}

impl<'p> ScriptSplit<'p> {
    fn at(path: &'p [u8], at: usize) -> ScriptSplit<'p> {
        let (script_name, path_info) = path.split_at(at);
        ScriptSplit {
            script_name,
            path_info,
        }
    }
}

/// All splits of a path below `prefix`, the shortest program name first: `/cgi-bin/a/b` may be the
/// program `a` with the argument `/b`, or the program `a/b`. Empty if the path names no program.
///
/// ```
/// let names: Vec<_> = headway_gateway::cgi::splits_below(b"/cgi-bin/a/b", b"/cgi-bin/")
///     .map(|split| split.script_name)
///     .collect();
/// assert_eq!(names, [&b"/cgi-bin/a"[..], b"/cgi-bin/a/b"]);
/// ```
pub fn splits_below<'p>(
    path: &'p [u8],
    prefix: &[u8],
) -> impl Iterator<Item = ScriptSplit<'p>> + use<'p> {
    let start = match path.starts_with(prefix) {
        true => prefix.len(),
        false => path.len(),
    };
    let tail = &path[start..];
    let whole = (!tail.is_empty() && !tail.ends_with(b"/")).then_some(path.len());
    memchr_iter(b'/', tail)
        .filter(|at| *at > 0)
        .map(move |at| start + at)
        .chain(whole)
        .map(move |at| ScriptSplit::at(path, at))
}

/// The program is the first segment that ends in `suffix`, such as `.php`.
///
/// Only the first: otherwise `/upload.jpg/x.php` would run an uploaded picture.
pub fn split_at_suffix<'p>(path: &'p [u8], suffix: &[u8]) -> Option<ScriptSplit<'p>> {
    memmem::find_iter(path, suffix)
        .map(|at| at + suffix.len())
        .find(|end| matches!(path.get(*end), None | Some(b'/')))
        .map(|end| ScriptSplit::at(path, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn below(path: &str) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        splits_below(path.as_bytes(), b"/cgi/")
            .map(|split| (text(split.script_name), text(split.path_info)))
            .collect()
    }

    #[test]
    fn path_is_split_at_every_segment() {
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(below("/cgi/a"), [pair("/cgi/a", "")]);
        assert_eq!(below("/cgi/a/"), [pair("/cgi/a", "/")]);
        assert_eq!(
            below("/cgi/a/b"),
            [pair("/cgi/a", "/b"), pair("/cgi/a/b", "")]
        );
        assert!(below("/cgi/").is_empty());
        assert!(below("/other/a").is_empty());
    }

    #[test]
    fn path_is_split_at_the_first_segment_with_the_suffix() {
        let at = |path: &'static str| {
            split_at_suffix(path.as_bytes(), b".php").map(|split| split.path_info.to_vec())
        };
        assert_eq!(at("/a.php"), Some(b"".to_vec()));
        assert_eq!(at("/a.php/b/c.php"), Some(b"/b/c.php".to_vec()));
        assert_eq!(at("/a.phpx/b.php"), Some(b"".to_vec()));
        assert_eq!(at("/a.php.png"), None);
        assert_eq!(at("/"), None);
    }
}
