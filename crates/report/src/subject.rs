//! What is reported on: each run that was named, read and analysed, with the name and look it has
//! everywhere.
//!
//! A run whose rows cannot be read stays in the report with the reason, so that a report of four
//! runs never shows three. Only a directory that is not a run is an error.

use std::path::{Component, Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use headway_latency::breakdown::{self, Breakdown, TracedCalls};
use headway_latency::run::{ClientBound, Kind, RunDescription};
use headway_latency::{Analysis, OpenError, Row, Run};

use crate::blocked::{self, Blocked};
use crate::chart::LineStyle;
use crate::truncate;
use crate::units::plain;
use headway_latency::ready::ReadyEvents;

/// One measurement: a load run, or one point of a profile.
pub(crate) struct Measurement {
    /// The `run.json` of the measurement.
    pub description: RunDescription,
    /// The figures; absent if the rows could not be read.
    pub analysis: Option<Analysis>,
    /// Why there are no figures.
    pub trouble: Option<String>,
    /// Share of the server's capacity that was offered; absent for a run that is no point of a
    /// profile.
    pub relative: Option<f64>,
    /// Which repetition, from 1.
    pub repeat: u32,
    /// What the server counted meanwhile.
    pub ready: Option<ReadyEvents>,
    /// The requests beside the blocked calls of the trace, if there is one.
    pub blocked: Option<Blocked>,
    /// The parts of the response time, if there is a trace of that time.
    pub breakdown: Option<Breakdown>,
    run: Run,
}

impl Measurement {
    /// The requests, one batch at a time.
    pub fn rows(&self) -> Result<impl Iterator<Item = Result<Vec<Row>, OpenError>>, OpenError> {
        self.run.rows()
    }

    fn join_trace(&mut self) {
        let epoch = self.description.epoch_unix_ns;
        let Some(calls) = TracedCalls::read(self.run.path(), epoch) else {
            return;
        };
        let Ok(flights) = breakdown::flights(&self.run) else {
            return;
        };
        self.blocked = Some(blocked::join(&flights, &calls));
        self.breakdown = Breakdown::of(&flights, &[], &calls);
    }
}

/// A run that was named on the command line.
pub(crate) struct Subject {
    /// The name on the page, different for each run.
    pub name: String,
    /// The name it came with, which several runs of one server may share.
    pub label: String,
    /// Style of the curves.
    pub style: LineStyle,
    /// The `run.json` of the run.
    pub description: RunDescription,
    /// Directory of the run.
    pub path: PathBuf,
    /// A load run itself, or the finished points of a profile by load and repetition.
    pub measurements: Vec<Measurement>,
    /// Points of a profile that are missing or could not be opened, one sentence each.
    pub missing: Vec<String>,
    /// Index of the measurement that stands for the run where one load is shown.
    pub chosen: Option<usize>,
    /// What the server counted over the whole of it.
    pub ready: Option<ReadyEvents>,
}

impl Subject {
    /// The measurement that stands for the run where one load is shown.
    pub fn chosen(&self) -> Option<&Measurement> {
        self.chosen.map(|index| &self.measurements[index])
    }

    /// The figures of the chosen measurement.
    pub fn analysis(&self) -> Option<&Analysis> {
        self.chosen()?.analysis.as_ref()
    }

    /// Whether the run is a profile.
    pub fn is_profile(&self) -> bool {
        self.description.kind == Kind::Profile
    }

    /// Whether the user named the capacity: then no closed loop looked for it.
    pub fn capacity_is_named(&self) -> bool {
        let profile = self.description.profile.as_ref();
        profile.is_some_and(|profile| profile.points.iter().all(|point| point.relative > 0.0))
    }

    /// The bound of a profile whose capacity was set by the client, not by the server.
    pub fn client_bound(&self) -> Option<&ClientBound> {
        self.description.profile.as_ref()?.client_bound.as_ref()
    }

    /// Relative loads in ascending order, each with its repetitions that have figures.
    pub fn loads(&self) -> Vec<(f64, Vec<&Analysis>)> {
        let mut loads: Vec<(f64, Vec<&Analysis>)> = Vec::new();
        for measurement in &self.measurements {
            let (Some(relative), Some(analysis)) = (measurement.relative, &measurement.analysis)
            else {
                continue;
            };
            match loads
                .iter_mut()
                .find(|(known, _)| same_load(*known, relative))
            {
                Some((_, repeats)) => repeats.push(analysis),
                None => loads.push((relative, vec![analysis])),
            }
        }
        loads.sort_by(|a, b| a.0.total_cmp(&b.0));
        loads
    }

    /// The relative load that [`Subject::chosen`] had.
    pub fn relative(&self) -> Option<f64> {
        self.chosen()?.relative
    }
}

/// Whether two relative loads are the same for a reader.
pub(crate) fn same_load(left: f64, right: f64) -> bool {
    (left - right).abs() < 0.0005
}

/// Opens and analyses the runs, in the order they were named.
///
/// # Errors
/// [`OpenError`] for a path that is no run directory, or one of a newer version.
pub(crate) fn read(paths: &[PathBuf]) -> Result<Vec<Subject>, OpenError> {
    let mut subjects = Vec::new();
    for path in paths {
        subjects.push(opened(path)?);
    }
    let all = subjects
        .iter_mut()
        .flat_map(|subject: &mut Subject| &mut subject.measurements);
    analyse(all.collect());
    name(&mut subjects);
    choose(&mut subjects);
    Ok(subjects)
}

fn opened(path: &Path) -> Result<Subject, OpenError> {
    let run = Run::open(path)?;
    let mut description = run.description().clone();
    truncate::limit_lengths(&mut description);
    let mut missing = Vec::new();
    let ready = run.server().as_ref().and_then(ReadyEvents::from_status);
    let measurements = match description.kind {
        Kind::Load => vec![measurement(run, None, 1)],
        Kind::Profile => points(path, &description, &mut missing),
        Kind::SpecWeb99 => iterations(path, &description, &mut missing),
    };
    truncate::missing(&mut missing);
    Ok(Subject {
        name: String::new(),
        label: label(&description, path),
        style: LineStyle::of_run(0),
        description,
        path: path.into(),
        measurements,
        missing,
        chosen: None,
        ready,
    })
}

fn measurement(run: Run, relative: Option<f64>, repeat: u32) -> Measurement {
    let mut description = run.description().clone();
    truncate::limit_lengths(&mut description);
    Measurement {
        description,
        analysis: None,
        trouble: None,
        relative,
        repeat,
        ready: run.server().as_ref().and_then(ReadyEvents::from_status),
        blocked: None,
        breakdown: None,
        run,
    }
}

/// The measured points, without the runs that searched for the capacity.
fn points(
    path: &Path,
    description: &RunDescription,
    missing: &mut Vec<String>,
) -> Vec<Measurement> {
    let mut found = Vec::new();
    let listed = description
        .profile
        .iter()
        .flat_map(|profile| &profile.points);
    for point in listed.filter(|point| point.relative > 0.0) {
        let what = format!("Load {}, repetition {}", point.relative, point.repeat);
        let inside = Path::new(&point.directory);
        if !inside
            .components()
            .all(|part| matches!(part, Component::Normal(_)))
        {
            missing.push(format!(
                "{what}: its directory {:?} is not below the profile.",
                point.directory
            ));
        } else if !point.done {
            missing.push(format!("{what}: not measured."));
        } else {
            match Run::open(path.join(inside)) {
                Ok(run) => found.push(measurement(run, Some(point.relative), point.repeat)),
                Err(error) => missing.push(format!("{what}: {error}.")),
            }
        }
    }
    found
}

/// The iterations of a SPECweb99-like run.
fn iterations(
    path: &Path,
    description: &RunDescription,
    missing: &mut Vec<String>,
) -> Vec<Measurement> {
    let listed = description
        .specweb99
        .iter()
        .flat_map(|info| &info.iterations);
    let mut found = Vec::new();
    for (repeat, one) in (1..).zip(listed) {
        let inside = Path::new(&one.directory);
        let below = inside
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        match Run::open(path.join(inside)) {
            _ if !below => missing.push(format!(
                "Iteration {repeat}: its directory is not below the run."
            )),
            Ok(run) => found.push(measurement(run, None, repeat)),
            Err(error) => missing.push(format!("Iteration {repeat}: {error}.")),
        }
    }
    found
}

/// Analyses all measurements, in as many threads as there are CPUs.
fn analyse(measurements: Vec<&mut Measurement>) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = threads.min(measurements.len());
    let work: Vec<Mutex<&mut Measurement>> = measurements.into_iter().map(Mutex::new).collect();
    let next = AtomicUsize::new(0);
    let worker = || {
        while let Some(one) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut one = one.lock().expect("no other thread had this index");
            match one.run.analysis() {
                Ok(analysis) => {
                    one.analysis = Some(analysis);
                    one.join_trace();
                }
                Err(error) => one.trouble = Some(error.to_string()),
            }
        }
    };
    std::thread::scope(|scope| {
        (0..threads).for_each(|_| drop(scope.spawn(worker)));
    });
}

/// The label of a run; else the server as it named itself; else the directory's name.
fn label(description: &RunDescription, path: &Path) -> String {
    let server = description.server.as_ref();
    let named = server.map(|server| match (&server.name, &server.version) {
        (Some(name), Some(version)) => format!("{name} {version}"),
        (Some(name), None) => name.clone(),
        _ => server.field.clone(),
    });
    let given = [description.label.clone(), named];
    let given = given
        .into_iter()
        .flatten()
        .find(|name| !name.trim().is_empty());
    given.unwrap_or_else(|| directory(path))
}

fn directory(path: &Path) -> String {
    let full = path.canonicalize().unwrap_or_else(|_| path.into());
    full.file_name()
        .unwrap_or(full.as_os_str())
        .to_string_lossy()
        .into_owned()
}

/// Makes names unique by what differs: the offered rate, else the directory, else a number.
fn name(subjects: &mut [Subject]) {
    let labels: Vec<String> = subjects
        .iter()
        .map(|subject| subject.label.clone())
        .collect();
    let mut taken: Vec<String> = Vec::new();
    for (index, subject) in subjects.iter_mut().enumerate() {
        let twin = labels
            .iter()
            .filter(|label| **label == subject.label)
            .count()
            > 1;
        let rate = subject
            .description
            .load
            .rate_rps
            .filter(|_| !subject.is_profile());
        let directory = directory(&subject.path);
        let base = match rate {
            _ if !twin => subject.label.clone(),
            Some(rate) => format!("{} at {}/s", subject.label, plain(rate)),
            None if directory == subject.label => subject.label.clone(),
            None => format!("{} ({directory})", subject.label),
        };
        let mut name = base.clone();
        let mut number = 2;
        while taken.contains(&name) {
            name = format!("{base} #{number}");
            number += 1;
        }
        taken.push(name.clone());
        subject.name = name;
        subject.style = LineStyle::of_run(index);
    }
}

/// Chooses what stands for each run: of a profile, the highest load below saturation that all
/// profiles have, so that like is compared with like, and of its repetitions the one with the
/// median mean.
fn choose(subjects: &mut [Subject]) {
    let usable = |subject: &Subject| -> Vec<f64> {
        let loads = subject.loads().into_iter();
        loads
            .map(|(relative, _)| relative)
            .filter(|relative| *relative <= 1.0)
            .collect()
    };
    let profiles: Vec<Vec<f64>> = subjects
        .iter()
        .filter(|s| s.is_profile())
        .map(usable)
        .collect();
    let profiles: Vec<&Vec<f64>> = profiles.iter().filter(|loads| !loads.is_empty()).collect();
    let everywhere = |load: &&f64| {
        profiles
            .iter()
            .all(|loads| loads.iter().any(|other| same_load(*other, **load)))
    };
    let common = profiles
        .first()
        .and_then(|first| first.iter().rev().find(everywhere).copied());
    for subject in subjects {
        let wanted = match common {
            Some(load)
                if subject
                    .loads()
                    .iter()
                    .any(|(known, _)| same_load(*known, load)) =>
            {
                Some(load)
            }
            _ => subject.loads().last().map(|(load, _)| *load),
        };
        let mut candidates: Vec<(usize, f64)> = subject
            .measurements
            .iter()
            .enumerate()
            .filter(|(_, one)| match (one.relative, wanted) {
                (Some(relative), Some(load)) => same_load(relative, load),
                (relative, _) => relative.is_none(),
            })
            .map(|(index, one)| {
                let response = one
                    .analysis
                    .as_ref()
                    .and_then(|analysis| analysis.response.as_ref());
                (
                    index,
                    response.map_or(f64::MAX, |response| response.mean_us),
                )
            })
            .collect();
        candidates.sort_by(|a, b| a.1.total_cmp(&b.1));
        subject.chosen = candidates
            .get(candidates.len().saturating_sub(1) / 2)
            .map(|(index, _)| *index);
    }
}
