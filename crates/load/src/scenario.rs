//! Scenarios: what users of a service do, as steps in a TOML file, and the clients that do it.
//!
//! A client draws a *flow* by weight: a `[[step]]`, and after its good response the steps of its
//! `then`, in order. Requests are templates: values come from a CSV file, the environment, counters, or
//! from earlier responses of the flow. There is no embedded language.
//!
//! The parts: `file` reads and checks the TOML, `import` writes it from other formats, `template` has texts with placeholders, `rows`
//! the CSV file, `extract` takes values out of responses, and `client` is a client of the engine.
//!
//! What is refused: a value that would add lines to a header, and a scenario that refers to what it does
//! not define. A step whose value is not in the response has failed, and its flow ends.

mod client;
mod extract;
mod file;
mod import;
mod rows;
mod template;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::engine::{
    Conversation, Document, Draws, Method, Popularity, Protocol, RequestOrder, Work,
};
use crate::fail_if::Condition;
use client::Users;
use extract::Extract;
use headway_base::random::{Draw, Random};
use headway_latency::run::AgentInfo;
use rows::Rows;
use template::Template;

pub use import::{ImportError, Imported, from_har, from_openapi};
pub use rows::CsvEnd;

/// The most steps that the rows of a run can tell apart.
pub const STEPS_MAX: usize = 255;

/// The most bytes of a response in which a value is looked for.
pub const SEARCHED_BYTES_MAX: usize = 1 << 20;

/// The purpose of the draws of flows among those of a seed.
const FLOW_STREAM: u64 = 7;

/// A scenario that has been checked.
#[derive(Debug)]
pub struct Scenario {
    path: PathBuf,
    checksum: String,
    steps: Vec<Step>,
    /// The first step of each flow, and its weight.
    flows: Vec<(u8, u32)>,
    /// How many values a flow may take out of responses.
    values: usize,
    rows: Option<Rows>,
}

/// One request of a scenario.
#[derive(Debug)]
struct Step {
    name: String,
    method: Method,
    path: Template,
    /// Names in the spelling of the file.
    headers: Vec<(String, Template)>,
    body: Option<Template>,
    /// After its response.
    think: Duration,
    /// `None` is any of 200 to 299.
    status: Option<u16>,
    extracts: Vec<Extract>,
    conditions: Vec<Condition>,
    /// The step that follows.
    next: Option<u8>,
}

/// Why a scenario cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// A file cannot be read.
    #[error("reading {}: {why}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// There is a mistake in the file.
    #[error("{}: line {line}, column {column}: {what}", path.display())]
    Mistake {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// From 1, in characters.
        column: usize,
        /// What is wrong, and what to do.
        what: String,
    },
}

impl Scenario {
    /// Reads a scenario and its CSV file.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("shop.toml");
    /// std::fs::write(&path, "[[step]]\nname = 'list'\npath = '/items'\n")?;
    /// let scenario = headway_load::scenario::Scenario::read(&path)?;
    /// assert_eq!(scenario.step_names(), ["list"]);
    ///
    /// std::fs::write(&path, "[[step]]\npath = '/{{item}}'\n")?;
    /// let error = headway_load::scenario::Scenario::read(&path).unwrap_err();
    /// assert!(error.to_string().contains("line 2, column 10: no variable `item`"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ScenarioError`], with line and column.
    pub fn read(path: &Path) -> Result<Scenario, ScenarioError> {
        let text = std::fs::read_to_string(path).map_err(|error| ScenarioError::Read {
            path: path.to_owned(),
            why: error.to_string(),
        })?;
        file::parse(path, &text)
    }

    /// The names of the steps, by the class of their rows.
    pub fn step_names(&self) -> Vec<String> {
        self.steps.iter().map(|step| step.name.clone()).collect()
    }

    /// The conditions of each step, by the class of its rows.
    pub fn conditions(&self) -> impl Iterator<Item = (usize, &Condition)> {
        let each = self.steps.iter().enumerate();
        each.flat_map(|(at, step)| step.conditions.iter().map(move |one| (at, one)))
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The checksum of the file and of its CSV file.
    pub fn checksum(&self) -> &str {
        &self.checksum
    }

    /// How many flows a client with this part of the load can begin; `None`: no limit.
    pub fn flows_max(&self, agent: Option<AgentInfo>) -> Option<u64> {
        let rows = self.rows.as_ref().filter(|rows| rows.end == CsvEnd::Stop)?;
        let AgentInfo { index, count } = agent.unwrap_or(AgentInfo { index: 0, count: 1 });
        let (rows, index, count) = (rows.len() as u64, u64::from(index), u64::from(count));
        Some((rows + count - 1 - index) / count)
    }

    /// What the engine draws from: one document per flow. The paths are those of the clients.
    pub fn work(&self) -> Work {
        let documents = self.flows.iter().map(|(step, _)| Document {
            class: *step,
            ..Document::path("/")
        });
        let weights = self.flows.iter().map(|(_, weight)| *weight).collect();
        Work {
            documents: documents.collect(),
            order: RequestOrder::Drawn(Box::new(Weights(weights))),
        }
    }
}

/// The clients of a run.
pub fn conversation(
    scenario: Arc<Scenario>,
    prefix: &str,
    protocol: Protocol,
    seed: u64,
    agent: Option<AgentInfo>,
) -> Box<dyn Conversation> {
    Box::new(Users::new(scenario, prefix, protocol, seed, agent))
}

/// Draws flows by their weights.
#[derive(Debug)]
struct Weights(Vec<u32>);

impl Popularity for Weights {
    fn draws(&self, seed: u64) -> Box<dyn Draws> {
        let mut sum = 0;
        let ends = self.0.iter().map(|weight| {
            sum += u64::from(*weight);
            sum
        });
        Box::new(WeightedDraws {
            ends: ends.collect(),
            random: Random::for_stream(seed, FLOW_STREAM),
        })
    }
}

struct WeightedDraws {
    /// Sums of the weights up to each flow.
    ends: Vec<u64>,
    random: Random,
}

impl Draws for WeightedDraws {
    fn next(&mut self) -> u32 {
        let all = self.ends.last().copied().unwrap_or(1);
        let drawn = self.random.below(all);
        self.ends.partition_point(|end| *end <= drawn) as u32
    }
}
