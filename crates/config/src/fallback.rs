//! The setting `fallback`: what is served in place of a path that does not exist.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How a fallback names the path of the request.
const PATH: &str = "$path";

/// One path to try.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Fallback {
    /// This path, such as `/index.html`; here without its first slash.
    Path(String),
    /// The path of the request, and this behind it, such as `.html`.
    Suffix(String),
}

impl Fallback {
    /// The path to try for a request for this one, both without the first slash. `None` if this one is a
    /// directory, whose name takes no suffix.
    ///
    /// ```
    /// use headway_config::Fallback;
    ///
    /// let pages: Fallback = "$path.html".parse().unwrap();
    /// assert_eq!(pages.of(b"about").as_deref(), Some(&b"about.html"[..]));
    /// assert_eq!(pages.of(b"about/"), None);
    /// ```
    pub fn of(&self, path: &[u8]) -> Option<Vec<u8>> {
        match self {
            Fallback::Path(whole) => Some(whole.as_bytes().to_vec()),
            Fallback::Suffix(_) if path.is_empty() || path.ends_with(b"/") => None,
            Fallback::Suffix(suffix) => Some([path, suffix.as_bytes()].concat()),
        }
    }
}

impl FromStr for Fallback {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (fallback, named) = match (text.strip_prefix(PATH), text.strip_prefix('/')) {
            (Some(suffix), _) => (Fallback::Suffix(suffix.into()), suffix),
            (None, Some(path)) => (Fallback::Path(path.into()), path),
            (None, None) => {
                return Err(format!(
                    "`{text}` is not a path; write a path such as /index.html, or $path.html"
                ));
            }
        };
        let problem = if named.is_empty() || named.ends_with('/') {
            "names no file"
        } else if named.contains(['?', '#', '%', '*', '$', '\\', '\0']) {
            "has a character that is not possible here"
        } else if matches!(&fallback, Fallback::Path(path) if path.split('/').any(is_special))
            || matches!(&fallback, Fallback::Suffix(suffix) if suffix.split('/').skip(1).any(is_special))
        {
            "has an empty component, or one that begins with a dot"
        } else {
            return Ok(fallback);
        };
        Err(format!(
            "`{text}` {problem}; write a path such as /index.html, or $path.html"
        ))
    }
}

/// Whether a component of a path is not the name of a file that is served.
fn is_special(component: &str) -> bool {
    component.is_empty() || component.starts_with('.')
}

impl fmt::Display for Fallback {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fallback::Path(path) => write!(out, "/{path}"),
            Fallback::Suffix(suffix) => write!(out, "{PATH}{suffix}"),
        }
    }
}

impl TryFrom<String> for Fallback {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Fallback> for String {
    fn from(fallback: Fallback) -> String {
        fallback.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::Fallback;

    #[test]
    fn fallbacks_read_back_as_printed() {
        for text in [
            "/index.html",
            "/app/index.php",
            "$path.html",
            "$path/index.htm",
        ] {
            let fallback: Fallback = text.parse().unwrap();
            assert_eq!(fallback.to_string(), text);
        }
    }

    #[test]
    fn fallback_is_an_error_when_it_is_no_path_of_a_file() {
        for text in [
            "",
            "/",
            "index.html",
            "$path",
            "$path/",
            "/dir/",
            "/a//b",
            "/../a",
            "/.env",
            "/a/.git/b",
            "/a?b",
            "/%61",
            "/$path.html",
            "$path/../a",
            "$uri.html",
        ] {
            assert!(text.parse::<Fallback>().is_err(), "{text}");
        }
    }
}
