//! A case file: its settings and its steps.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

/// A privilege that a case needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Need {
    /// Permissions must be enforced, so the test must not run as root.
    User,
}

/// What a name in the tree is.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum Item {
    /// A file with this content, or a directory if the name ends in a slash.
    Content(String),
    /// Any other kind of file.
    Made(Made),
}

/// A file with attributes besides its content.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Made {
    pub content: String,
    pub size: Option<usize>,
    pub mode: Option<u32>,
    pub modified: Option<i64>,
    pub link: Option<String>,
    pub special: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Settings {
    config: String,
    needs: Option<Need>,
    warm: Vec<String>,
    tree: BTreeMap<String, Item>,
    calls: BTreeMap<String, u64>,
    counters: BTreeMap<String, u64>,
}

/// One step of a conversation; texts are in the notation.
#[derive(Debug)]
pub enum Step {
    Send(String),
    Expect(String),
    Forwarded(String),
    Reply(String),
    Hangup,
    Pause,
    Shut,
    Close,
    Open,
}

/// One conversation.
pub struct Case {
    /// The TOML as written, so that an update keeps its comments.
    header: String,
    pub config: String,
    pub needs: Option<Need>,
    pub warm: Vec<String>,
    pub tree: BTreeMap<String, Item>,
    pub calls: BTreeMap<String, u64>,
    pub counters: BTreeMap<String, u64>,
    pub steps: Vec<Step>,
    /// Whether `Connection: close` may be at any position in the header.
    pub any_lead: bool,
}

impl Case {
    pub fn parse(text: &str) -> Result<Case, String> {
        let mut parts = split(text).into_iter();
        let header = parts.next().map(|(_, text)| text).unwrap_or_default();
        if !header.starts_with("# ") {
            return Err("the first line says what is to be seen, after a #".into());
        }
        let settings: Settings = toml::from_str(&header).map_err(|error| error.to_string())?;
        let steps: Vec<Step> = parts
            .map(|(name, text)| Step::named(&name, text))
            .collect::<Result<_, _>>()?;
        if !matches!(steps.last(), Some(Step::Close | Step::Open)) {
            return Err("the last step is `close` or `open`".into());
        }
        Ok(Case {
            header,
            config: settings.config,
            needs: settings.needs,
            warm: settings.warm,
            tree: settings.tree,
            calls: settings.calls,
            counters: settings.counters,
            steps,
            any_lead: false,
        })
    }
}

/// Splits the file: the part before the first step without a name, then each step's name and text.
fn split(text: &str) -> Vec<(String, String)> {
    let mut parts = vec![(String::new(), String::new())];
    for line in text.split_inclusive('\n') {
        match line.strip_prefix("--- ") {
            Some(name) => parts.push((name.trim_end().to_owned(), String::new())),
            None => parts
                .last_mut()
                .expect("at least one part")
                .1
                .push_str(line),
        }
    }
    parts
}

impl Step {
    fn named(name: &str, text: String) -> Result<Step, String> {
        Ok(match (name, text.is_empty()) {
            ("send", _) => Step::Send(text),
            ("expect", _) => Step::Expect(text),
            ("forwarded", _) => Step::Forwarded(text),
            ("reply", _) => Step::Reply(text),
            ("hangup", true) => Step::Hangup,
            ("pause", true) => Step::Pause,
            ("shut", true) => Step::Shut,
            ("close", true) => Step::Close,
            ("open", true) => Step::Open,
            (_, true) => return Err(format!("there is no step `{name}`")),
            (_, false) => return Err(format!("text after `--- {name}`")),
        })
    }
}

impl fmt::Display for Case {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.header)?;
        for step in &self.steps {
            match step {
                Step::Send(text) => write!(out, "--- send\n{text}")?,
                Step::Expect(text) => write!(out, "--- expect\n{text}")?,
                Step::Forwarded(text) => write!(out, "--- forwarded\n{text}")?,
                Step::Reply(text) => write!(out, "--- reply\n{text}")?,
                Step::Hangup => out.write_str("--- hangup\n")?,
                Step::Pause => out.write_str("--- pause\n")?,
                Step::Shut => out.write_str("--- shut\n")?,
                Step::Close => out.write_str("--- close\n")?,
                Step::Open => out.write_str("--- open\n")?,
            }
        }
        Ok(())
    }
}
