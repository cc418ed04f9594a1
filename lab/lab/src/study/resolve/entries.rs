//! What one entry of a study's file means at a scale: a measure, a server, an environment, a
//! workload.
//!
//! An entry of the study comes before one of the same name in `common.toml`; an environment takes
//! what it does not say from the one that it extends. What makes no sense is named with its line.

use std::ops::Range;

use headway_load::cli_types::{Bandwidth, Time};
use headway_load::fileset::{Amount, Profile, Shape};
use toml::Spanned;

use super::{Length, Measure, Named, ScaleDefaults, Sequence, Texts};
use crate::disk::{Filesystem, Order, Upper};
use crate::servers::Kind;
use crate::study::StudyError;
use crate::study::file::{self, File, Helpers};
use crate::study::scaled::{Scale, Scaled};
use crate::study::spec::{
    Environment, Files, Knee, Observer, Probe, ServerChoice, StudyFault, StudyWriters, Workload,
};
use crate::study::workspace::lab_spec;

/// The longest that a point or its warm-up may be.
const LENGTH_MAX_S: f64 = 86_400.0;

/// The mean latency up to which a server keeps up, if its measure does not say it: far above what a
/// disk takes for one file, far below what a queue that grows has after seconds.
const KNEE_MEAN_S: f64 = 0.050;

/// Two files and a scale, in which names are looked up.
pub(super) struct Resolver<'a> {
    pub texts: Texts<'a>,
    pub scale: Scale,
    pub common: &'a File,
    pub file: &'a File,
}

impl Resolver<'_> {
    pub fn measure(&self, spanned: &Spanned<file::MeasureTable>) -> Result<Measure, StudyError> {
        let (span, written) = (spanned.span(), spanned.get_ref());
        let lack = |what: &str| {
            self.texts.error(
                span.clone(),
                format!("the measure {:?} has no {what}", written.name),
            )
        };
        let servers = written.servers.as_ref().ok_or_else(|| lack("servers"))?;
        let points = written.points.as_ref().ok_or_else(|| lack("points"))?;
        let usual = self.scale_defaults(&span)?;
        let observe = self.observer(written, &span)?;
        let order = self.sequence(written, &span)?;
        let repeats = written.repeats.as_ref();
        let number = |value: &Option<Scaled<f64>>, usual: f64| {
            value.as_ref().map_or(usual, |value| *value.at(self.scale))
        };
        let length = |usual: Length| Length {
            seconds: number(&written.seconds, usual.seconds),
            warmup_s: number(&written.warmup, usual.warmup_s),
        };
        let measure = Measure {
            name: written.name.clone(),
            environment_name: written.environment.clone(),
            environment: self.environment(&written.environment, &span)?,
            workload: self.workload(&written.workload, &span)?,
            servers: servers.at(self.scale).clone(),
            servers_ever: at_any_scale(servers),
            points: points.at(self.scale).clone(),
            points_ever: at_any_scale(points),
            observe,
            order,
            fault: self.fault(written, &span)?,
            probe: self.probe(written, &span)?,
            knee: self.knee(written, &span)?,
            repeats: repeats.map_or(usual.repeats, |repeats| *repeats.at(self.scale)),
            open: length(usual.open),
            closed: length(usual.closed),
            usual,
        };
        match lengths_error(&measure).or_else(|| fault_error(&measure)) {
            Some(why) => Err(self.texts.error(span, why)),
            None => Ok(measure),
        }
    }

    fn observer(
        &self,
        written: &file::MeasureTable,
        span: &Range<usize>,
    ) -> Result<Option<Observer>, StudyError> {
        match written.observe.as_deref() {
            None => Ok(None),
            Some("trace") => Ok(Some(Observer::Trace)),
            Some("runnable") => Ok(Some(Observer::Runnable)),
            Some(other) => {
                let why = format!("no observer {other:?}: trace or runnable");
                Err(self.texts.error(span.clone(), why))
            }
        }
    }

    fn sequence(
        &self,
        written: &file::MeasureTable,
        span: &Range<usize>,
    ) -> Result<Sequence, StudyError> {
        match written.order.as_deref() {
            None | Some("servers") => Ok(Sequence::Servers),
            Some("points") => Ok(Sequence::Points),
            Some(other) => {
                let why = format!("no order {other:?}: servers or points");
                Err(self.texts.error(span.clone(), why))
            }
        }
    }

    /// The scale's own values: the study's before the common ones.
    fn scale_defaults(&self, span: &Range<usize>) -> Result<ScaleDefaults, StudyError> {
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
        let open = Length {
            seconds: own
                .seconds
                .or(common.seconds)
                .ok_or_else(|| lack("seconds"))?,
            warmup_s: own.warmup.or(common.warmup).unwrap_or(0.0),
        };
        Ok(ScaleDefaults {
            repeats: own
                .repeats
                .or(common.repeats)
                .ok_or_else(|| lack("repeats"))?,
            open,
            closed: Length {
                seconds: own
                    .closed_seconds
                    .or(common.closed_seconds)
                    .unwrap_or(open.seconds),
                warmup_s: own
                    .closed_warmup
                    .or(common.closed_warmup)
                    .unwrap_or(open.warmup_s),
            },
        })
    }

    /// A server by its name: an entry, or a kind with its defaults.
    pub fn server(&self, name: &str, span: Range<usize>) -> Result<Named, StudyError> {
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
        if kind.is_ours() && written.accept_limit.is_some() {
            let why = format!(
                "[server.{name}]: accept-limit is for servers of others; a preset has arguments = \
                 [\"--accept-batch\", \"25\"]"
            );
            return Err(self.texts.error(span, why));
        }
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
                connections: number(&written.connections),
                accept_limit: written.accept_limit,
            },
        })
    }

    /// The place of an entry in the study's file; one of the common file has none there.
    fn own_span<T>(&self, entry: &Spanned<T>, own: bool) -> Range<usize> {
        if own { entry.span() } else { 0..0 }
    }

    fn environment(&self, name: &str, span: &Range<usize>) -> Result<Environment, StudyError> {
        let written = self.inherited(name, span, 0)?;
        let wrong = |why: String| {
            self.texts
                .error(span.clone(), format!("[environment.{name}]: {why}"))
        };
        let files = self.files(&written, &wrong)?;
        let set_bytes = match (self.size(written.set.as_ref(), &wrong)?, files) {
            (Some(bytes), None) => bytes,
            (None, Some(files)) => set_bytes_of(files).map_err(wrong)?,
            (Some(_), Some(_)) => {
                let why = "it has a set and files; write one of them";
                return Err(wrong(why.to_owned()));
            }
            (None, None) => {
                return Err(wrong("it has no set; write set = \"400MB\"".to_owned()));
            }
        };
        let disk = written
            .disk
            .as_ref()
            .map(|disk| disk.at(self.scale).clone());
        if let Some(model) = &disk {
            model.parse::<crate::disk::Model>().map_err(wrong)?;
        }
        let link_bits = self.bits_per_s(written.link.as_ref(), &wrong)?;
        let client_link_bits = self.bits_per_s(written.client_link.as_ref(), &wrong)?;
        if client_link_bits.is_some() && link_bits.is_none() {
            return Err(wrong("a client-link needs a link".to_owned()));
        }
        let listen_queue = written
            .listen_queue
            .as_ref()
            .map(|length| *length.at(self.scale));
        if listen_queue == Some(0) {
            return Err(wrong("a listen-queue is one at least".to_owned()));
        }
        let writers = self.writers(&written, &wrong)?;
        let filesystem = written.filesystem.unwrap_or_else(|| "ext4".to_owned());
        filesystem.parse::<Filesystem>().map_err(wrong)?;
        if let Some(upper) = &written.overlay {
            upper.parse::<Upper>().map_err(wrong)?;
        }
        let profile = written.profile.unwrap_or_else(|| "specweb99".to_owned());
        profile.parse::<Profile>().map_err(wrong)?;
        let environment = Environment {
            lab: written.lab.unwrap_or(true),
            set_bytes,
            files,
            profile,
            disk,
            filesystem,
            overlay: written.overlay,
            writers,
            memory_bytes: self.size(written.memory.as_ref(), &wrong)?,
            link_bits,
            client_link_bits,
            cpu: written.cpu.as_ref().map(|cpu| *cpu.at(self.scale)),
            fill_requests: written.fill.as_ref().map_or(0, |fill| *fill.at(self.scale)),
            listen_queue,
        };
        if !environment.lab && has_lab_parts(&environment) {
            let why = "without a lab there is no disk, memory, link or cpu; its own or an extended entry says one";
            return Err(wrong(why.to_owned()));
        }
        let spec = lab_spec(&environment).map_err(|error| wrong(error.to_string()))?;
        spec.check().map_err(|error| wrong(error.to_string()))?;
        Ok(environment)
    }

    fn files(
        &self,
        written: &file::EnvironmentTable,
        wrong: &dyn Fn(String) -> StudyError,
    ) -> Result<Option<Files>, StudyError> {
        let Some(files) = written.files.as_ref().map(|files| files.at(self.scale)) else {
            return Ok(None);
        };
        let file_bytes = files.file_size.as_ref().map(|size| size.parse::<Amount>());
        let file_bytes = file_bytes.transpose().map_err(wrong)?.map(|size| size.0);
        if files.count == 0 || file_bytes == Some(0) {
            let why = "files are one at least, of a byte at least";
            return Err(wrong(why.to_owned()));
        }
        Ok(Some(Files {
            count: files.count,
            file_bytes,
        }))
    }

    fn writers(
        &self,
        written: &file::EnvironmentTable,
        wrong: &dyn Fn(String) -> StudyError,
    ) -> Result<Option<StudyWriters>, StudyError> {
        let Some(writers) = written
            .writers
            .as_ref()
            .map(|writers| writers.at(self.scale))
        else {
            return Ok(None);
        };
        let dirty = writers.dirty.as_ref().map(|size| size.parse::<Amount>());
        let dirty = dirty.transpose().map_err(wrong)?;
        let writers = StudyWriters {
            publish_per_s: writers.publish,
            append_per_s: writers.append,
            dirty_bytes_per_s: dirty.map_or(0, |size| size.0),
        };
        let rates = [writers.publish_per_s, writers.append_per_s];
        let why = match () {
            () if !rates.iter().all(|rate| (0.0..=100_000.0).contains(rate)) => {
                "writers: publish and append are rates per second"
            }
            () if writers == StudyWriters::default() => "writers: publish, append or dirty",
            () if written.disk.is_none() => "writers need a disk",
            () => return Ok(Some(writers)),
        };
        Err(wrong(why.to_owned()))
    }

    /// An environment with what it takes from others.
    fn inherited(
        &self,
        name: &str,
        span: &Range<usize>,
        depth: u32,
    ) -> Result<file::EnvironmentTable, StudyError> {
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
        // Which files there are is one matter, said in one of two ways.
        let (set, files) = match (&own.set, &own.files) {
            (None, None) => (base.set, base.files),
            _ => (own.set, own.files),
        };
        Ok(file::EnvironmentTable {
            extends: None,
            lab: own.lab.or(base.lab),
            set,
            files,
            profile: own.profile.or(base.profile),
            disk: own.disk.or(base.disk),
            filesystem: own.filesystem.or(base.filesystem),
            overlay: own.overlay.or(base.overlay),
            writers: own.writers.or(base.writers),
            memory: own.memory.or(base.memory),
            link: own.link.or(base.link),
            client_link: own.client_link.or(base.client_link),
            cpu: own.cpu.or(base.cpu),
            fill: own.fill.or(base.fill),
            listen_queue: own.listen_queue.or(base.listen_queue),
        })
    }

    fn size(
        &self,
        value: Option<&Scaled<String>>,
        wrong: &dyn Fn(String) -> StudyError,
    ) -> Result<Option<u64>, StudyError> {
        let text = value.map(|value| value.at(self.scale));
        let amount = text.map(|text| text.parse::<Amount>().map(|amount| amount.0));
        amount.transpose().map_err(wrong)
    }

    fn bits_per_s(
        &self,
        value: Option<&Scaled<String>>,
        wrong: &dyn Fn(String) -> StudyError,
    ) -> Result<Option<u64>, StudyError> {
        let text = value.map(|value| value.at(self.scale));
        let bandwidth = text.map(|text| text.parse::<Bandwidth>().map(|found| found.bits_per_s));
        bandwidth.transpose().map_err(wrong)
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

    fn workload(&self, name: &str, span: &Range<usize>) -> Result<Workload, StudyError> {
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
        let bandwidth_bits_per_s = self.bits_per_s(written.bandwidth.as_ref(), &wrong)?;
        let https = match written.scheme.as_deref() {
            None | Some("http") => false,
            Some("https") => true,
            Some(other) => {
                return Err(wrong(format!("scheme {other:?}: write http or https")));
            }
        };
        let streams = written.streams_at(self.scale).map_err(wrong)?;
        let connections = number(&written.connections, 1024);
        if connections == 0 {
            return Err(wrong("connections are one at least".to_owned()));
        }
        Ok(Workload {
            connections,
            idle: Some(number(&written.idle, 0)).filter(|idle| *idle > 0),
            requests_per_connection: number(&written.requests_per_connection, 5),
            timeout_s: self.time(written.timeout.as_ref(), &wrong)?,
            first_pause_s: self.time(written.first_pause.as_ref(), &wrong)?,
            bandwidth_bits_per_s,
            https,
            streams,
        })
    }

    fn fault(
        &self,
        measure: &file::MeasureTable,
        span: &Range<usize>,
    ) -> Result<Option<StudyFault>, StudyError> {
        let Some(written) = &measure.fault else {
            return Ok(None);
        };
        let wrong = |why: String| self.texts.error(span.clone(), format!("fault: {why}"));
        let factor = match (written.kind.as_str(), written.factor) {
            ("stall", None) => None,
            ("slow", Some(factor)) => {
                let order = Order::Slow { factor, for_ms: 1 };
                order.check().map_err(wrong)?;
                Some(factor)
            }
            ("slow", None) => return Err(wrong("a slow disk has a factor above 0".to_owned())),
            (other, _) => {
                return Err(wrong(format!(
                    "no fault {other:?}: stall, or slow with a factor"
                )));
            }
        };
        Ok(Some(StudyFault {
            factor,
            at_s: self.time(Some(&written.at), &wrong)?.unwrap_or(0.0),
            for_s: self.time(Some(&written.length), &wrong)?.unwrap_or(0.0),
        }))
    }

    fn knee(&self, measure: &file::MeasureTable, span: &Range<usize>) -> Result<Knee, StudyError> {
        let wrong = |why: String| self.texts.error(span.clone(), format!("knee-mean: {why}"));
        let mean_s = self.time(measure.knee_mean.as_ref(), &wrong)?;
        match mean_s.unwrap_or(KNEE_MEAN_S) {
            mean_s if mean_s > 0.0 => Ok(Knee {
                mean_ms: mean_s * 1e3,
            }),
            _ => Err(wrong("it is above 0".to_owned())),
        }
    }

    fn probe(
        &self,
        measure: &file::MeasureTable,
        span: &Range<usize>,
    ) -> Result<Option<Probe>, StudyError> {
        let Some(written) = &measure.probe else {
            return Ok(None);
        };
        let size = written.file_size.parse::<Amount>();
        let size = size.map_err(|why| self.texts.error(span.clone(), format!("probe: {why}")))?;
        let possible = written.count > 0 && size.0 > 0 && written.rate.is_finite();
        if !possible || written.rate <= 0.0 {
            let why = "probe: count, file-size and rate are above 0";
            return Err(self.texts.error(span.clone(), why));
        }
        Ok(Some(Probe {
            count: written.count,
            file_bytes: size.0,
            rate_rps: written.rate,
        }))
    }
}

/// Why the repeats or the lengths of a measure are not possible.
fn lengths_error(measure: &Measure) -> Option<&'static str> {
    let is_possible = |length: Length| {
        (0.0..=LENGTH_MAX_S).contains(&length.warmup_s)
            && length.seconds > 0.0
            && length.seconds <= LENGTH_MAX_S
    };
    let usual = &measure.usual;
    let lengths = [measure.open, measure.closed, usual.open, usual.closed];
    (measure.repeats == 0 || !lengths.into_iter().all(is_possible)).then_some(
        "repeats and seconds are above 0, warmup is 0 or more; none is longer than a day",
    )
}

/// Why the fault of a measure cannot happen in its environment or its time.
fn fault_error(measure: &Measure) -> Option<&'static str> {
    let fault = measure.fault?;
    let end_s = fault.at_s + fault.for_s;
    let points = measure.points_ever.iter();
    let lengths = points.map(|point| match point.as_str() {
        "capacity" => measure.closed.seconds,
        _ => measure.open.seconds,
    });
    let shortest_s = lengths.fold(f64::INFINITY, f64::min);
    match &measure.environment {
        environment if environment.disk.is_none() => Some("fault: its environment has no disk"),
        _ if fault.for_s <= 0.0 => Some("fault: it takes no time"),
        _ if end_s > shortest_s => Some("fault: the measurement ends before it does"),
        _ => None,
    }
}

fn set_bytes_of(files: Files) -> Result<u64, String> {
    match files.file_bytes {
        Some(bytes) => Ok(files.count.saturating_mul(bytes)),
        None => Shape::many_files(files.count)
            .map(|shape| shape.page_bytes())
            .map_err(|error| error.to_string()),
    }
}

/// Whether an environment has a part which only a lab can make.
fn has_lab_parts(environment: &Environment) -> bool {
    environment.disk.is_some()
        || environment.memory_bytes.is_some()
        || environment.link_bits.is_some()
        || environment.cpu.is_some()
}

/// Everything a list says at any scale, each once.
fn at_any_scale(list: &Scaled<Vec<String>>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for word in Scale::ALL.iter().flat_map(|scale| list.at(*scale)) {
        if !all.contains(word) {
            all.push(word.clone());
        }
    }
    all
}
