//! What to ask for: the paths of the addresses, a list of paths, a set of files, or a scenario.

use std::path::Path;
use std::sync::Arc;

use super::SessionError;
use super::settings::{Settings, WorkSource};
use crate::engine::{Conversation, Work};
use crate::scenario::{self, Scenario};
use headway_latency::run::description::{FileSetInfo, ScenarioInfo};

/// The engine's work, and what `run.json` says of it.
pub(super) struct CollectedWork {
    pub work: Work,
    pub fileset: Option<FileSetInfo>,
    pub conversation: Option<Box<dyn Conversation>>,
}

impl CollectedWork {
    fn of(work: Work) -> CollectedWork {
        CollectedWork {
            work,
            fileset: None,
            conversation: None,
        }
    }
}

/// The scenario, if the settings name one.
pub(super) fn scenario(settings: &Settings) -> Result<Option<Arc<Scenario>>, SessionError> {
    match &settings.work {
        WorkSource::Scenario(path) => Ok(Some(Arc::new(Scenario::read(path)?))),
        _ => Ok(None),
    }
}

/// What `run.json` says of it.
pub(super) fn describe(scenario: &Scenario) -> ScenarioInfo {
    ScenarioInfo {
        path: scenario.path().display().to_string(),
        checksum: scenario.checksum().to_owned(),
        steps: scenario.step_names(),
    }
}

/// Reads what has to be read.
pub(super) fn collect(
    settings: &Settings,
    scenario: Option<&Arc<Scenario>>,
) -> Result<CollectedWork, SessionError> {
    if let Some(scenario) = scenario {
        let (protocol, seed) = (settings.protocol, settings.seed);
        let clients = Arc::clone(scenario);
        let prefix = prefix(settings)?;
        let clients = scenario::conversation(clients, &prefix, protocol, seed, settings.agent);
        return Ok(CollectedWork {
            conversation: Some(clients),
            ..CollectedWork::of(scenario.work())
        });
    }
    match &settings.work {
        WorkSource::Addresses => Ok(CollectedWork::of(Work::paths(address_paths(settings)?))),
        WorkSource::Paths(file) => {
            let paths = read_paths(file, &prefix(settings)?)?;
            Ok(CollectedWork::of(Work::paths(paths)))
        }
        WorkSource::FileSet(directory) => {
            let prefix = prefix(settings)?;
            let (verify, directories) = (settings.verify, settings.directories);
            super::fileset::collect(directory, &prefix, verify, directories, settings.agent)
        }
        WorkSource::Scenario(path) => {
            let text = format!("{}: the scenario was not read", path.display());
            Err(SessionError::Content(text))
        }
    }
}

/// Every server is asked for the same paths, since a row knows its server and not its path.
fn address_paths(settings: &Settings) -> Result<Vec<String>, SessionError> {
    let of = |endpoint| {
        let same = settings
            .urls
            .iter()
            .filter(move |url| &url.endpoint == endpoint);
        same.map(|url| url.path.clone()).collect::<Vec<_>>()
    };
    let first = of(&settings.urls[0].endpoint);
    match settings.urls.iter().find(|url| of(&url.endpoint) != first) {
        None => Ok(first),
        Some(other) => Err(SessionError::Use(format!(
            "{other}: all servers get requests for the same paths; give each URL the same path, or use --paths"
        ))),
    }
}

/// With --paths, --fileset or --scenario, the path of the URL is a prefix.
fn prefix(settings: &Settings) -> Result<String, SessionError> {
    let first = &settings.urls[0];
    if let Some(other) = settings.urls.iter().find(|url| url.path != first.path) {
        return Err(SessionError::Use(format!(
            "{other}: with --fileset, --paths or --scenario, all URLs need the same path, best none"
        )));
    }
    if first.path.contains('?') {
        return Err(SessionError::Use(format!(
            "{first}: with --fileset, --paths or --scenario, the URL cannot have a query"
        )));
    }
    Ok(first.path.trim_end_matches('/').to_owned())
}

/// One path per line; empty lines and those that begin with `#` are left out.
fn read_paths(file: &Path, prefix: &str) -> Result<Vec<String>, SessionError> {
    let text = std::fs::read_to_string(file).map_err(|source| SessionError::File {
        what: "reading the paths",
        path: file.to_owned(),
        source,
    })?;
    parse_paths(&text, prefix)
        .map_err(|reason| SessionError::Content(format!("{}: {reason}", file.display())))
}

fn parse_paths(text: &str, prefix: &str) -> Result<Vec<String>, String> {
    let mut paths = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let number = index + 1;
        if !line.starts_with('/') {
            return Err(format!("line {number}: `{line}` does not begin with /"));
        }
        if let Some(odd) = line.chars().find(|c| !c.is_ascii_graphic()) {
            return Err(format!("line {number}: {odd:?} has to be written as %XX"));
        }
        paths.push(format!("{prefix}{line}"));
    }
    match paths.is_empty() {
        true => Err("no path in it; write one a line, each beginning with /".to_owned()),
        false => Ok(paths),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_keep_their_order_when_a_list_is_read() {
        let text = "# a list\n/a?b=c\n\n  /b  \r\n";
        let paths = parse_paths(text, "/x").expect("two paths");
        assert_eq!(paths, ["/x/a?b=c", "/x/b"]);
    }

    #[test]
    fn line_is_named_when_a_path_is_wrong() {
        let cases = [
            ("/a\nb", "line 2"),
            ("/a b", "%XX"),
            ("# nothing\n", "no path"),
            ("", "no path"),
        ];
        for (text, part) in cases {
            let error = parse_paths(text, "").expect_err(text);
            assert!(error.contains(part), "{error}");
        }
    }
}
