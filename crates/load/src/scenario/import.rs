//! Scenarios from what others have written: HTTP archives and OpenAPI descriptions.
//!
//! What comes out is the text of a scenario file, to be read and changed by a person. Secrets of a
//! recording are not copied: they become variables of the environment.

mod har;
mod openapi;

use std::collections::BTreeMap;

use serde::Serialize;

pub use har::from_har;
pub use openapi::from_openapi;

/// The text of a scenario file, and what a person should know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// TOML.
    pub text: String,
    /// What was left out, one sentence each.
    pub notes: Vec<String>,
}

/// Why there is nothing to import.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ImportError(String);

/// A scenario as it is written.
#[derive(Debug, Default, Serialize)]
struct FileOut {
    step: Vec<StepOut>,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
struct StepOut {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<String>,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    think: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    then: Vec<StepOut>,
}

impl FileOut {
    /// Gives each step a name of its own, and writes the file.
    fn text(mut self, head: &str) -> Result<String, ImportError> {
        let mut seen: BTreeMap<String, u32> = BTreeMap::new();
        let mut name = |step: &mut StepOut| {
            let times = seen.entry(step.name.clone()).or_default();
            *times += 1;
            if *times > 1 {
                step.name = format!("{} ({times})", step.name);
            }
        };
        for step in &mut self.step {
            name(step);
            step.then.iter_mut().for_each(&mut name);
        }
        let text = toml::to_string_pretty(&self).map_err(|error| ImportError(error.to_string()))?;
        Ok(format!("{head}\n{text}"))
    }
}

/// Text that a template writes as it is.
fn literal(text: &str) -> String {
    text.replace("{{", "{{{{")
}

/// A path and query as they go on the wire.
fn sendable(path: &str) -> String {
    let mut out = String::new();
    for c in path.chars() {
        match c.is_ascii_graphic() {
            true => out.push(c),
            false => {
                let mut bytes = [0; 4];
                for byte in c.encode_utf8(&mut bytes).bytes() {
                    out.push_str(&format!("%{byte:02X}"));
                }
            }
        }
    }
    out
}
