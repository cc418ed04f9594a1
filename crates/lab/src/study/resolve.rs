//! From the words of a file to a study at one scale, every name resolved.

use std::collections::BTreeMap;

use load::fileset::Amount;
use load::words::{Bandwidth, Time};
use toml::Spanned;

use super::StudyError;
use super::file::{self, File, Helpers};
use super::scaled::{Scale, Scaled};
use super::spec::{
    Elsewhere, Environment, Fault, Observer, Of, Point, Probe, ServerChoice, Spec, Workload,
};
use crate::servers::Kind;

/// A study at a scale.
#[derive(Clone, Debug)]
pub struct Study {
    /// Its number.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// Its title.
    pub title: String,
    /// The paper, table and figure.
    pub source: String,
    /// What it asks.
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
    /// Names.
    pub servers: Vec<String>,
    /// Names at any scale.
    pub servers_ever: Vec<String>,
    /// As written.
    pub points: Vec<String>,
    /// As written, of every scale.
    pub points_ever: Vec<String>,
    pub observe: Option<Observer>,
    pub fault: Option<Fault>,
    pub probe: Option<Probe>,
    pub repeats: u32,
    pub seconds: f64,
    pub warmup_s: f64,
    /// Of a capacity that was not asked for itself.
    pub usual: Usual,
}

/// What the scale says of a measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usual {
    pub repeats: u32,
    pub seconds: f64,
    pub warmup_s: f64,
}

/// A study's file and the shared one, and where they come from.
#[derive(Clone, Copy)]
pub(super) struct Texts<'a> {
    /// The name of the study's file.
    pub name: &'a str,
    /// Its text.
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

impl Measure {
    /// Whether tables may ask for capacities although no point says so: shares are taken of them.
    pub fn has_capacities(&self) -> bool {
        let written = |point: &String| point == "capacity";
        let share = |point: &String| point.contains('%');
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

    /// Names of its servers, ascending.
    pub fn servers(&self) -> impl Iterator<Item = &str> {
        self.servers.keys().map(String::as_str)
    }

    pub(super) fn measure(&self, name: &str) -> Option<&Measure> {
        self.measures.iter().find(|measure| measure.name == name)
    }

    /// Names of servers, groups resolved among these.
    pub(super) fn expand(&self, words: &[String], among: &[String]) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        for word in words {
            let meant = |name: &&String| match word.as_str() {
                "all" | "*" => true,
                "peers" => !self.is_ours(name),
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
        Some(Spec {
            server: self.choice(server)?.clone(),
            environment: measure.environment.clone(),
            workload: measure.workload.clone(),
            point: self.point(measure, point)?,
            observe: measure.observe,
            fault: measure.fault,
            probe: measure.probe,
            seconds: measure.seconds,
            warmup_s: measure.warmup_s,
            repeat,
        })
    }

    /// The capacity of a server as shares are taken of it: unobserved, of the usual length, where the point takes it.
    pub(super) fn capacity(
        measure: &Measure,
        elsewhere: Option<&Elsewhere>,
        server: &ServerChoice,
        repeat: u32,
    ) -> Spec {
        let own = Elsewhere {
            environment: measure.environment.clone(),
            workload: measure.workload.clone(),
        };
        let place = elsewhere.cloned().unwrap_or(own);
        Spec {
            server: server.clone(),
            environment: place.environment,
            workload: place.workload,
            point: Point::Capacity,
            observe: None,
            fault: None,
            probe: None,
            seconds: measure.usual.seconds,
            warmup_s: measure.usual.warmup_s,
            repeat,
        }
    }

    /// A point from its words; `None` if they are none.
    pub(super) fn point(&self, measure: &Measure, words: &str) -> Option<Point> {
        if words == "capacity" {
            return Some(Point::Capacity);
        }
        if let Some(rate) = words.strip_suffix("/s") {
            let rate: f64 = rate.trim().parse().ok()?;
            return (rate > 0.0 && rate.is_finite()).then_some(Point::Rate(rate));
        }
        let (words, other) = match words.split_once(" in ") {
            Some((words, name)) => (words, Some(self.measure(name.trim())?)),
            None => (words, None),
        };
        let (percent, of) = match words.split_once(" of ") {
            Some((percent, name)) => (percent, self.whose(other.unwrap_or(measure), name.trim())?),
            None => (words, Of::Own),
        };
        let percent: f64 = percent.trim().strip_suffix('%')?.trim().parse().ok()?;
        let share = percent / 100.0;
        let elsewhere = other.map(|other| {
            Box::new(Elsewhere {
                environment: other.environment.clone(),
                workload: other.workload.clone(),
            })
        });
        (share > 0.0 && share <= 100.0).then_some(Point::Share {
            share,
            of,
            elsewhere,
        })
    }

    /// Whose capacity a word means among the servers of a measure.
    fn whose(&self, measure: &Measure, word: &str) -> Option<Of> {
        let choices = |ours_too: bool| {
            let names = measure.servers.iter();
            let meant = names.filter(|name| ours_too || !self.is_ours(name));
            let choices = meant.filter_map(|name| self.choice(name).cloned());
            choices.collect::<Vec<_>>()
        };
        Some(match word {
            "best-peer" => Of::Highest(choices(false)),
            "best" => Of::Highest(choices(true)),
            "slowest" => Of::Lowest(choices(true)),
            name => Of::Server(Box::new(self.choice(name)?.clone())),
        })
    }
}

struct Resolver<'a> {
    texts: Texts<'a>,
    scale: Scale,
    common: &'a File,
    file: &'a File,
}

impl Resolver<'_> {
    fn measure(&self, spanned: &Spanned<file::Measure>) -> Result<Measure, StudyError> {
        let (span, written) = (spanned.span(), spanned.get_ref());
        let lack = |what: &str| {
            self.texts.error(
                span.clone(),
                format!("the measure {:?} has no {what}", written.name),
            )
        };
        let servers = written.servers.as_ref().ok_or_else(|| lack("servers"))?;
        let points = written.points.as_ref().ok_or_else(|| lack("points"))?;
        let usual = self.usual(&span)?;
        let observe = match written.observe.as_deref() {
            None => None,
            Some("trace") => Some(Observer::Trace),
            Some("runnable") => Some(Observer::Runnable),
            Some(other) => {
                let why = format!("no observer {other:?}: trace or runnable");
                return Err(self.texts.error(span, why));
            }
        };
        let repeats = written.repeats.as_ref();
        let number = |value: &Option<Scaled<f64>>, usual: f64| {
            value.as_ref().map_or(usual, |value| *value.at(self.scale))
        };
        let measure = Measure {
            name: written.name.clone(),
            environment_name: written.environment.clone(),
            environment: self.environment(&written.environment, &span)?,
            workload: self.workload(&written.workload, &span)?,
            servers: servers.at(self.scale).clone(),
            servers_ever: ever(servers),
            points: points.at(self.scale).clone(),
            points_ever: ever(points),
            observe,
            fault: self.fault(written, &span)?,
            probe: self.probe(written, &span)?,
            repeats: repeats.map_or(usual.repeats, |repeats| *repeats.at(self.scale)),
            seconds: number(&written.seconds, usual.seconds),
            warmup_s: number(&written.warmup, usual.warmup_s),
            usual,
        };
        match measure.repeats > 0 && measure.seconds > 0.0 && measure.warmup_s >= 0.0 {
            true => Ok(measure),
            false => Err(self
                .texts
                .error(span, "repeats and seconds are above 0, warmup is 0 or more")),
        }
    }

    /// The scale's own values: the study's before the common ones.
    fn usual(&self, span: &std::ops::Range<usize>) -> Result<Usual, StudyError> {
        let of = |file: &File| {
            let mut entries = file.scale.iter();
            let found = entries.find(|(name, _)| name.get_ref() == self.scale.name());
            found.map(|(_, table)| *table).unwrap_or_default()
        };
        let (own, common) = (of(self.file), of(self.common));
        let lack = |what: &str| {
            self.texts.error(
                span.clone(),
                format!("[scale.{}] has no {what}", self.scale),
            )
        };
        Ok(Usual {
            repeats: own
                .repeats
                .or(common.repeats)
                .ok_or_else(|| lack("repeats"))?,
            seconds: own
                .seconds
                .or(common.seconds)
                .ok_or_else(|| lack("seconds"))?,
            warmup_s: own.warmup.or(common.warmup).unwrap_or(0.0),
        })
    }

    /// A server by its name: an entry, or a kind with its defaults.
    fn server(&self, name: &str, span: std::ops::Range<usize>) -> Result<Named, StudyError> {
        let entry = self
            .file
            .server
            .get(name)
            .or_else(|| self.common.server.get(name));
        let Some(entry) = entry else {
            return match name.parse::<Kind>() {
                Ok(kind) => Ok(Named {
                    label: kind.title().to_owned(),
                    choice: ServerChoice::new(kind),
                }),
                Err(error) => Err(self.texts.error(span, error.to_string())),
            };
        };
        let span = self.own_span(entry, self.file.server.contains_key(name));
        let written = entry.get_ref();
        let kind: Kind = written
            .kind
            .parse()
            .map_err(|error: crate::servers::UnknownKind| {
                self.texts
                    .error(span.clone(), format!("[server.{name}]: {error}"))
            })?;
        let number =
            |value: &Option<Scaled<usize>>| value.as_ref().map(|value| *value.at(self.scale));
        let helpers = match written
            .helpers
            .as_ref()
            .map(|helpers| helpers.at(self.scale))
        {
            None => None,
            Some(Helpers::Number(number)) => Some(*number),
            Some(Helpers::Word(word)) if word == "adaptive" => None,
            Some(Helpers::Word(word)) => {
                let why =
                    format!("[server.{name}]: helpers are a number or \"adaptive\", not {word:?}");
                return Err(self.texts.error(span, why));
            }
        };
        Ok(Named {
            label: written
                .label
                .clone()
                .unwrap_or_else(|| kind.title().to_owned()),
            choice: ServerChoice {
                kind,
                workers: number(&written.workers),
                processes: number(&written.processes),
                helpers,
                access_log: written.access_log,
                arguments: written.arguments.clone(),
            },
        })
    }

    /// The place of an entry in the study's file; one of the common file has none there.
    fn own_span<T>(&self, entry: &Spanned<T>, own: bool) -> std::ops::Range<usize> {
        if own { entry.span() } else { 0..0 }
    }

    fn environment(
        &self,
        name: &str,
        span: &std::ops::Range<usize>,
    ) -> Result<Environment, StudyError> {
        let written = self.inherited(name, span, 0)?;
        let wrong = |why: String| {
            self.texts
                .error(span.clone(), format!("[environment.{name}]: {why}"))
        };
        let size = |value: &Option<Scaled<String>>| -> Result<Option<u64>, StudyError> {
            let text = value.as_ref().map(|value| value.at(self.scale));
            let amount = text.map(|text| text.parse::<Amount>().map(|amount| amount.0));
            amount.transpose().map_err(wrong)
        };
        let Some(set_bytes) = size(&written.set)? else {
            return Err(wrong("it has no set; write set = \"400MB\"".to_owned()));
        };
        let disk = written
            .disk
            .as_ref()
            .map(|disk| disk.at(self.scale).clone());
        if let Some(model) = &disk {
            model.parse::<crate::disk::Model>().map_err(wrong)?;
        }
        let link = written.link.as_ref().map(|link| link.at(self.scale));
        let link = link
            .map(|link| link.parse::<Bandwidth>())
            .transpose()
            .map_err(wrong)?;
        let filesystem = written.filesystem.unwrap_or_else(|| "ext4".to_owned());
        if !matches!(filesystem.as_str(), "ext4" | "xfs") {
            return Err(wrong(format!("no file system {filesystem:?}: ext4 or xfs")));
        }
        Ok(Environment {
            lab: written.lab.unwrap_or(true),
            set_bytes,
            profile: written.profile.unwrap_or_else(|| "specweb99".to_owned()),
            disk,
            filesystem,
            memory_bytes: size(&written.memory)?,
            link_bits: link.map(|link| link.bits_per_s),
            cpu: written.cpu.as_ref().map(|cpu| *cpu.at(self.scale)),
            fill_requests: written.fill.as_ref().map_or(0, |fill| *fill.at(self.scale)),
        })
    }

    /// An environment with what it takes from others.
    fn inherited(
        &self,
        name: &str,
        span: &std::ops::Range<usize>,
        depth: u32,
    ) -> Result<file::Environment, StudyError> {
        let environments = [&self.file.environment, &self.common.environment];
        let found = environments.iter().find_map(|all| all.get(name));
        let Some(found) = found.filter(|_| depth < 8) else {
            let why = match depth {
                8 => format!("the environment {name:?} extends itself"),
                _ => format!("there is no environment {name:?}; write [environment.{name}]"),
            };
            return Err(self.texts.error(span.clone(), why));
        };
        let own = found.get_ref().clone();
        let Some(base) = &own.extends else {
            return Ok(own);
        };
        let base = self.inherited(base, span, depth + 1)?;
        Ok(file::Environment {
            extends: None,
            lab: own.lab.or(base.lab),
            set: own.set.or(base.set),
            profile: own.profile.or(base.profile),
            disk: own.disk.or(base.disk),
            filesystem: own.filesystem.or(base.filesystem),
            memory: own.memory.or(base.memory),
            link: own.link.or(base.link),
            cpu: own.cpu.or(base.cpu),
            fill: own.fill.or(base.fill),
        })
    }

    fn time(
        &self,
        value: Option<&Scaled<String>>,
        wrong: &dyn Fn(String) -> StudyError,
    ) -> Result<Option<f64>, StudyError> {
        let text = value.map(|value| value.at(self.scale));
        let time = text.map(|text| text.parse::<Time>().map(|time| time.0.as_secs_f64()));
        time.transpose().map_err(wrong)
    }

    fn workload(&self, name: &str, span: &std::ops::Range<usize>) -> Result<Workload, StudyError> {
        let workloads = [&self.file.workload, &self.common.workload];
        let Some(found) = workloads.iter().find_map(|all| all.get(name)) else {
            let why = format!("there is no workload {name:?}; write [workload.{name}]");
            return Err(self.texts.error(span.clone(), why));
        };
        let written = found.get_ref();
        let wrong = |why: String| {
            self.texts
                .error(span.clone(), format!("[workload.{name}]: {why}"))
        };
        let number = |value: &Option<Scaled<u64>>, usual: u64| {
            value.as_ref().map_or(usual, |value| *value.at(self.scale))
        };
        let bandwidth = written.bandwidth.as_ref().map(|word| word.at(self.scale));
        let bandwidth = bandwidth
            .map(|word| word.parse::<Bandwidth>())
            .transpose()
            .map_err(wrong)?;
        Ok(Workload {
            connections: number(&written.connections, 1024),
            requests_per_connection: number(&written.requests_per_connection, 5),
            timeout_s: self.time(written.timeout.as_ref(), &wrong)?,
            bandwidth_bits_per_s: bandwidth.map(|found| found.bits_per_s),
        })
    }

    fn fault(
        &self,
        measure: &file::Measure,
        span: &std::ops::Range<usize>,
    ) -> Result<Option<Fault>, StudyError> {
        let Some(written) = &measure.fault else {
            return Ok(None);
        };
        let wrong = |why: String| self.texts.error(span.clone(), format!("fault: {why}"));
        let factor = match (written.kind.as_str(), written.factor) {
            ("stall", None) => None,
            ("slow", Some(factor)) if factor > 0.0 => Some(factor),
            ("slow", _) => return Err(wrong("a slow disk has a factor above 0".to_owned())),
            (other, _) => {
                return Err(wrong(format!(
                    "no fault {other:?}: stall, or slow with a factor"
                )));
            }
        };
        Ok(Some(Fault {
            factor,
            at_s: self.time(Some(&written.at), &wrong)?.unwrap_or(0.0),
            for_s: self.time(Some(&written.length), &wrong)?.unwrap_or(0.0),
        }))
    }

    fn probe(
        &self,
        measure: &file::Measure,
        span: &std::ops::Range<usize>,
    ) -> Result<Option<Probe>, StudyError> {
        let Some(written) = &measure.probe else {
            return Ok(None);
        };
        let size = written.file_size.parse::<Amount>();
        let size = size.map_err(|why| self.texts.error(span.clone(), format!("probe: {why}")))?;
        Ok(Some(Probe {
            count: written.count,
            file_bytes: size.0,
            rate_rps: written.rate,
        }))
    }
}

/// Everything a list says at any scale, each once.
fn ever(list: &Scaled<Vec<String>>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for word in Scale::ALL.iter().flat_map(|scale| list.at(*scale)) {
        if !all.contains(word) {
            all.push(word.clone());
        }
    }
    all
}

#[cfg(test)]
mod tests;
