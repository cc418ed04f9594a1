//! The redirect of a location: where it leads, and with which status.

use serde::{Deserialize, Serialize};

use super::error::Findings;
use super::keys::Setting;
use super::ranges::{span, value};
use super::settings::LocationSettings;

/// Not a permanent status: browsers would keep a mistake for long.
const STATUS: u32 = 302;
const STATUSES: [u32; 5] = [301, 302, 303, 307, 308];

/// Where the requests of a location are redirected to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redirect {
    /// A path or a URL with `http` or `https`. If [`keeps_rest`](Redirect::keeps_rest), it ends with
    /// a slash.
    pub target: String,
    /// Whether what follows the prefix, and the query, are appended.
    pub keeps_rest: bool,
    /// The status.
    pub status: u16,
}

impl Redirect {
    /// The target as it is written in the configuration.
    pub fn written(&self) -> String {
        let rest = if self.keeps_rest { "*" } else { "" };
        format!("{}{rest}", self.target)
    }
}

/// Returns the redirect of a location; `None` if it is wrong.
pub(super) fn redirect(
    key: &str,
    own: &LocationSettings,
    written: &str,
    to: &mut Findings<'_>,
) -> Option<Redirect> {
    let status = value(&own.redirect_status).unwrap_or(STATUS);
    if !STATUSES.contains(&status) {
        let problem = format!("{status} is not 301, 302, 303, 307 or 308");
        to.usage_error(
            &format!("{key}.redirect-status"),
            span(&own.redirect_status),
            problem,
        );
    }
    let text = |item: &Setting<String>| item.as_ref().map(|item| item.get_ref().clone());
    let problem = match (text(&own.path), text(&own.prefix)) {
        (Some(path), _) => problem_of_path(written, &path),
        (None, prefix) => problem_of(written, prefix.as_deref()),
    };
    if let Some(problem) = problem {
        to.usage_error(&format!("{key}.redirect"), span(&own.redirect), problem);
        return None;
    }
    let target = written.strip_suffix('*');
    Some(Redirect {
        target: target.unwrap_or(written).into(),
        keeps_rest: target.is_some(),
        status: status as u16,
    })
}

/// What is wrong with the target of one path.
fn problem_of_path(written: &str, path: &str) -> Option<String> {
    if written.ends_with('*') {
        return Some("a * stands for the rest behind a prefix; a path has none".into());
    }
    let place = written.split(['?', '#']).next();
    if place == Some(path) {
        return Some(format!(
            "`{written}` is that path, so the redirect leads to itself"
        ));
    }
    problem_of_form(written)
}

/// What is wrong with the target of a prefix.
fn problem_of(written: &str, prefix: Option<&str>) -> Option<String> {
    let Some(prefix) = prefix else {
        return Some("redirect needs a prefix or a path, not a suffix".into());
    };
    if let Some(problem) = problem_of_form(written) {
        return Some(problem);
    }
    let target = written.strip_suffix('*').unwrap_or(written);
    // A browser would follow it until it gives up.
    let below = format!("{}/", prefix.trim_end_matches('/'));
    (target.starts_with(&below) || target == prefix)
        .then(|| format!("`{written}` is below `{prefix}`, so the redirect leads to itself"))
}

/// What is wrong with a target, wherever it is redirected from.
fn problem_of_form(written: &str) -> Option<String> {
    let (target, keeps_rest) = match written.strip_suffix('*') {
        Some(target) => (target, true),
        None => (written, false),
    };
    let authority = ["http://", "https://"]
        .iter()
        .find_map(|scheme| target.strip_prefix(scheme));
    let is_path = target.starts_with('/') && !target.starts_with("//");
    let is_url = authority.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'));
    if !target.bytes().all(|byte| byte.is_ascii_graphic()) || target.contains('*') {
        return Some(
            "only visible ASCII is possible; escape other characters (%20), and write * at the end only".into(),
        );
    }
    if !is_path && !is_url {
        return Some(format!(
            "`{written}` is not a path or a URL, such as /new/* or https://www.example.com/*"
        ));
    }
    // Otherwise the rest of the path could become a part of the host name.
    let is_ambiguous =
        keeps_rest && (!target.ends_with('/') || authority.is_some_and(|rest| !rest.contains('/')));
    is_ambiguous.then(|| "write the * behind a slash, such as https://www.example.com/*".into())
}

#[cfg(test)]
mod tests {
    use super::{problem_of, problem_of_path};

    #[test]
    fn target_of_one_path_is_another_one_without_a_rest() {
        for written in [
            "/old/new",
            "/new?a=b",
            "/older",
            "https://example.com/old",
            "/",
        ] {
            assert_eq!(problem_of_path(written, "/old"), None, "{written}");
        }
        for (written, part) in [
            ("/new/*", "a path has none"),
            ("/old", "leads to itself"),
            ("/old?x", "leads to itself"),
            ("/old#x", "leads to itself"),
            ("new", "not a path or a URL"),
        ] {
            let problem = problem_of_path(written, "/old");
            assert!(problem.is_some_and(|text| text.contains(part)), "{written}");
        }
    }

    #[test]
    fn targets_are_paths_and_urls_that_lead_elsewhere() {
        for (written, prefix) in [
            ("/new/*", "/old/"),
            ("/new", "/old"),
            ("/", "/index.html"),
            ("/older/*", "/old"),
            ("https://www.example.com/*", "/"),
            ("http://example.com", "/"),
            ("https://example.com/a?b=c", "/x/"),
        ] {
            assert_eq!(problem_of(written, Some(prefix)), None, "{written}");
        }
    }

    #[test]
    fn targets_are_errors_when_they_are_ambiguous_or_lead_to_themselves() {
        for (written, prefix, part) in [
            ("new/*", "/old/", "not a path or a URL"),
            ("//example.com/*", "/old/", "not a path or a URL"),
            ("ftp://example.com/", "/old/", "not a path or a URL"),
            ("https:///x", "/old/", "not a path or a URL"),
            ("https://example.com*", "/old/", "behind a slash"),
            ("/new*", "/old/", "behind a slash"),
            ("/*/new", "/old/", "at the end only"),
            ("/a b", "/old/", "visible ASCII"),
            ("/a\r\nX: y", "/old/", "visible ASCII"),
            ("/new/ä", "/old/", "visible ASCII"),
            ("/old/new/*", "/old/", "leads to itself"),
            ("/old", "/old", "leads to itself"),
            ("/old/", "/old", "leads to itself"),
            ("/x", "/", "leads to itself"),
            ("", "/old/", "not a path or a URL"),
        ] {
            let problem = problem_of(written, Some(prefix));
            assert!(problem.is_some_and(|text| text.contains(part)), "{written}");
        }
        assert!(problem_of("/new/*", None).is_some());
    }
}
