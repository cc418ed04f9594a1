//! From the words of a file to a study at one scale, every name resolved: `entries` says what each
//! entry means, `points` whose capacity a point is a share of.

use std::collections::BTreeMap;

use toml::Spanned;

use super::StudyError;
use super::file::File;
use super::scaled::Scale;
use super::spec::{
    Environment, Knee, Observer, OtherEnvironment, Point, Probe, ServerChoice, Spec, StudyFault,
    Workload,
};
use entries::Resolver;

mod entries;
mod points;

/// A study at a scale.
#[derive(Clone, Debug)]
pub struct Study {
    /// The number of the study.
    pub number: u32,
    /// The name of the study.
    pub name: String,
    /// The title of the study.
    pub title: String,
    /// The paper, table and figure.
    pub source: String,
    /// What the study asks.
    pub question: String,
    /// At which scale.
    pub scale: Scale,
    pub(super) file: File,
    pub(super) servers: BTreeMap<String, Named>,
    pub(super) measures: Vec<Measure>,
}

/// A server by the name that a study gives it.
#[derive(Clone, Debug)]
pub(super) struct Named {
    pub label: String,
    pub choice: ServerChoice,
}

/// A `[[measure]]` at a scale.
#[derive(Clone, Debug)]
pub(super) struct Measure {
    pub name: String,
    pub environment_name: String,
    pub environment: Environment,
    pub workload: Workload,
    /// Names of the servers.
    pub servers: Vec<String>,
    /// Names at any scale.
    pub servers_ever: Vec<String>,
    /// Points as they are written.
    pub points: Vec<String>,
    /// Points of every scale, as they are written.
    pub points_ever: Vec<String>,
    pub observe: Option<Observer>,
    pub order: Sequence,
    pub fault: Option<StudyFault>,
    pub probe: Option<Probe>,
    /// What its knees, and shares of them, mean.
    pub knee: Knee,
    pub repeats: u32,
    pub open: Length,
    pub closed: Length,
    /// Of a capacity that was not asked for itself.
    pub usual: ScaleDefaults,
}

/// In which order a measure is made, in each repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sequence {
    /// Server by server, each started once with warm caches for all its points.
    Servers,
    /// Point by point, and at each all servers in turn, each started again: what they answer at one
    /// point is measured within minutes, so that its ratio is of the servers and not of the hour.
    Points,
}

/// The values of the scale for a measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScaleDefaults {
    pub repeats: u32,
    pub open: Length,
    /// A closed loop has reached its rate only when all its clients that can have to wait do, and
    /// the rate goes up and down with them.
    pub closed: Length,
}

/// How long a load lasts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Length {
    pub seconds: f64,
    /// Length of the warm-up before the measured part.
    pub warmup_s: f64,
}

/// A study's file and the shared one, and where they come from.
#[derive(Clone, Copy)]
pub(super) struct Texts<'a> {
    /// The name of the study's file.
    pub name: &'a str,
    /// The text of the file.
    pub text: &'a str,
    /// The text of `common.toml`.
    pub common: &'a str,
}

impl Texts<'_> {
    /// An error at a place of the study's file.
    pub fn error(&self, span: std::ops::Range<usize>, why: impl Into<String>) -> StudyError {
        StudyError {
            file: self.name.to_owned(),
            line: line_of(self.text, span.start),
            why: why.into(),
        }
    }
}

/// Counted from 1.
fn line_of(text: &str, offset: usize) -> usize {
    let before = text.get(..offset).unwrap_or(text);
    before.matches('\n').count() + 1
}

/// Reads TOML; the message of the parser is one sentence with the line before it.
fn read(name: &str, text: &str) -> Result<File, StudyError> {
    toml::from_str(text).map_err(|error: toml::de::Error| StudyError {
        file: name.to_owned(),
        line: error.span().map_or(1, |span| line_of(text, span.start)),
        why: error.message().to_owned(),
    })
}

/// A study's results are in files of its name, beside those that every run has.
fn check_name(name: &Spanned<String>, texts: Texts<'_>) -> Result<(), StudyError> {
    let word = name.get_ref();
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let why = match word.as_str() {
        "studies" | "running" | "measurements" => "a run has a file of this name already",
        _ if !word.is_empty() && word.bytes().all(plain) => return Ok(()),
        _ => "it is the name of files: lower-case letters, digits and hyphens",
    };
    Err(texts.error(name.span(), format!("the name {word:?}: {why}")))
}

impl Measure {
    /// Whether tables may ask for capacities although no point says so: shares are taken of them.
    pub fn has_capacities(&self) -> bool {
        let written = |point: &String| point == "capacity";
        let share = |point: &String| point.contains('%') && !points::is_of_knee(point);
        !self.points_ever.iter().any(written)
            && self.points_ever.iter().any(share)
            && self.observe.is_none()
            && self.fault.is_none()
            && self.probe.is_none()
    }
}

impl Study {
    /// Reads a study and resolves its names.
    pub(super) fn read(texts: Texts<'_>, scale: Scale) -> Result<Study, StudyError> {
        let common = read("common.toml", texts.common)?;
        let file = read(texts.name, texts.text)?;
        let resolver = Resolver {
            texts,
            scale,
            common: &common,
            file: &file,
        };
        let Some(name) = file.name.clone() else {
            return Err(texts.error(0..0, "the study has no name; write name = \"…\""));
        };
        check_name(&name, texts)?;
        let number = file
            .number
            .ok_or_else(|| texts.error(0..0, "the study has no number; write number = 7"))?;
        let measures = file.measure.iter();
        let measures = measures
            .map(|measure| resolver.measure(measure))
            .collect::<Result<Vec<_>, _>>()?;
        let mut servers = BTreeMap::new();
        for name in measures.iter().flat_map(|measure| &measure.servers_ever) {
            servers.insert(name.clone(), resolver.server(name, 0..0)?);
        }
        let study = Study {
            number,
            name: name.into_inner(),
            title: file.title.clone(),
            source: file.source.clone(),
            question: file.question.clone(),
            scale,
            servers,
            measures,
            file: file.clone(),
        };
        super::check::check(&study, texts)?;
        Ok(study)
    }

    /// Measures every point `times` times, whatever the study and the scale say.
    pub fn repeat(&mut self, times: u32) {
        for measure in &mut self.measures {
            measure.repeats = times;
            measure.usual.repeats = times;
        }
    }

    /// Names of its servers, ascending.
    pub fn servers(&self) -> impl Iterator<Item = &str> {
        self.servers.keys().map(String::as_str)
    }

    /// Whether the capacities of a measure's servers are in its results although no point says so:
    /// a caller asks for them.
    pub(super) fn shows_capacities(&self, measure: &Measure) -> bool {
        measure.has_capacities() && super::check::needs_capacity(self, &measure.name)
    }

    pub(super) fn measure(&self, name: &str) -> Option<&Measure> {
        self.measures.iter().find(|measure| measure.name == name)
    }

    /// Names of servers, groups resolved among these.
    pub(super) fn expand(&self, patterns: &[String], among: &[String]) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        for pattern in patterns {
            let meant = |name: &&String| match pattern.as_str() {
                "all" | "*" => true,
                "peers" => self.is_peer(name),
                "presets" => self.is_ours(name),
                other => other == name.as_str(),
            };
            for name in among.iter().filter(meant) {
                if !found.contains(name) {
                    found.push(name.clone());
                }
            }
        }
        found
    }

    /// Whether a server of the study is one of our presets.
    pub(super) fn is_ours(&self, name: &str) -> bool {
        let found = self.servers.get(name);
        found.is_some_and(|server| server.choice.kind.is_ours())
    }

    /// Whether a server of the study is of others, and has nothing of ours in it.
    pub(super) fn is_peer(&self, name: &str) -> bool {
        let found = self.servers.get(name);
        found.is_some_and(|server| server.choice.kind.is_peer())
    }

    pub(super) fn choice(&self, name: &str) -> Option<&ServerChoice> {
        self.servers.get(name).map(|server| &server.choice)
    }

    /// The measurement of a server at a point, once.
    pub(super) fn spec(
        &self,
        measure: &Measure,
        server: &str,
        point: &str,
        repeat: u32,
    ) -> Option<Spec> {
        let point = self.point(measure, point)?;
        let Length { seconds, warmup_s } = match point {
            Point::Capacity => measure.closed,
            Point::Knee(_) => measure.usual.open,
            _ => measure.open,
        };
        Some(Spec {
            server: self.choice(server)?.clone(),
            environment: measure.environment.clone(),
            workload: measure.workload.clone(),
            point,
            observe: measure.observe,
            fault: measure.fault,
            probe: measure.probe,
            seconds,
            warmup_s,
            repeat,
        })
    }

    /// The capacity of a server as shares are taken of it: unobserved, of the usual length, where
    /// the point takes it.
    pub(super) fn capacity(
        measure: &Measure,
        elsewhere: Option<&OtherEnvironment>,
        server: &ServerChoice,
        repeat: u32,
    ) -> Spec {
        let own = OtherEnvironment {
            environment: measure.environment.clone(),
            workload: measure.workload.clone(),
        };
        let loaded = elsewhere.cloned().unwrap_or(own);
        Spec {
            server: server.clone(),
            environment: loaded.environment,
            workload: loaded.workload,
            point: Point::Capacity,
            observe: None,
            fault: None,
            probe: None,
            seconds: measure.usual.closed.seconds,
            warmup_s: measure.usual.closed.warmup_s,
            repeat,
        }
    }

    /// The search for the knee of the server of a capacity, in the same place.
    pub(super) fn knee(measure: &Measure, capacity: &Spec, knee: Knee) -> Spec {
        let Length { seconds, warmup_s } = measure.usual.open;
        Spec {
            point: Point::Knee(knee),
            seconds,
            warmup_s,
            ..capacity.clone()
        }
    }
}

#[cfg(test)]
mod tests;
