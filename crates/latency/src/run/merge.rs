//! One run from the runs of several clients that loaded a server at the same time.
//!
//! Every row is kept, so percentiles, cells, inversion and goodput are those of all requests. Times
//! are moved to the clock of the client that began first, by the wall clocks of the machines and their measured
//! offsets. The measured part is from the first begin to the last end.
//!
//! Runs that do not belong together are an error: of other targets, settings or versions, not at
//! the same time, or of one client twice. A client that died is left out, and the verdict on the
//! whole is *invalid*, since the server did not get the load that was described.

use super::description::{
    AgentInfo, ClientInfo, Kind, MergedAgent, RunDescription, Verdict, Window,
};
use super::directory::{OpenError, Run};
use super::writer::{RunWriter, WriteError};
use crate::analysis::Analysis;
use crate::baseline::differing_load;
use crate::format::{count, percent};
use crate::histogram::Histogram;
use crate::row::{Outcome, Row};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::{Path, PathBuf};

/// Rows that are written together.
const BATCH_ROWS: usize = 8_192;

/// Of the time from the first begin to the last end, what all clients must have measured. Rates
/// refer to that time, so they are lower than they were by as much.
const TOGETHER_MIN: f64 = 0.99;

/// Why runs cannot be merged.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// A run cannot be read.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The merged run cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The runs do not belong together, or the output is one of them.
    #[error("{}: {why}; nothing was merged", path.display())]
    Foreign {
        /// The run.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// No client finished.
    #[error("none of the runs is complete, so there is nothing to merge")]
    Incomplete,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Merged {
    /// The description of the merged run.
    pub description: RunDescription,
    /// The figures of all rows.
    pub analysis: Analysis,
}

/// Merges runs into a new run directory.
///
/// ```
/// use headway_latency::run::merge::merge;
/// use headway_latency::{Outcome, Row, RunDescription, RunWriter};
///
/// # let parent = tempfile::tempdir()?;
/// # let row = Row {
/// #     intended_ns: 0, start_ns: 0, first_byte_ns: 900_000, end_ns: 1_000_000,
/// #     size_bytes: 512, bytes: 512, status: 200, error: Outcome::Ok,
/// #     connection: 0, ordinal: 0, class: Row::NO_CLASS, target: 0, warmup: false,
/// #     handshake_ns: 0,
/// # };
/// let runs = [1, 2].map(|seed| parent.path().join(seed.to_string()));
/// for (seed, path) in (1..).zip(&runs) {
///     let mut description = RunDescription::default();
///     description.load.seed = seed;
///     let mut writer = RunWriter::create(path, &description)?;
///     writer.append(&[row])?;
///     writer.finish(&description)?;
/// }
/// let merged = merge(&runs, &parent.path().join("all"), &[])?;
/// assert_eq!(merged.analysis.counts.requests, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// See [`MergeError`].
pub fn merge(paths: &[PathBuf], output: &Path, command: &[String]) -> Result<Merged, MergeError> {
    let runs = paths.iter().map(Run::open).collect::<Result<Vec<_>, _>>()?;
    refuse_output_among(&runs, output)?;
    let mut problems = problems(&runs)?;
    let (mut runs, dead): (Vec<Run>, Vec<Run>) =
        runs.into_iter().partition(|run| run.description().complete);
    if runs.is_empty() {
        return Err(MergeError::Incomplete);
    }
    runs.sort_by_key(|run| run.description().agent.map(|agent| agent.index));
    for run in &dead {
        problems.push((Verdict::Invalid, left_out(run)));
    }
    problems.extend(apart(&runs)?);
    let mut description = describe(&runs, command);
    let mut writer = RunWriter::create(output, &description)?;
    let seen = copy(&runs, &mut writer)?;
    judge(&mut description, &runs, problems, &seen);
    let analysis = writer.finish(&description)?;
    description.summary = Some(super::summary(&analysis));
    description.complete = true;
    Ok(Merged {
        description,
        analysis,
    })
}

/// [`RunWriter::create`] replaces an incomplete run, which must not be one that is merged.
fn refuse_output_among(runs: &[Run], output: &Path) -> Result<(), MergeError> {
    let output = output.canonicalize().ok();
    let same = |run: &&Run| output.is_some() && run.path().canonicalize().ok() == output;
    match runs.iter().find(same) {
        None => Ok(()),
        Some(run) => Err(foreign(run, "is the output too; name another directory")),
    }
}

fn foreign(run: &Run, why: impl Into<String>) -> MergeError {
    MergeError::Foreign {
        path: run.path().into(),
        why: why.into(),
    }
}

/// Checks that the runs belong together. What makes the whole doubtful is returned.
fn problems(runs: &[Run]) -> Result<Vec<(Verdict, String)>, MergeError> {
    let Some((first, others)) = runs.split_first() else {
        return Err(MergeError::Incomplete);
    };
    for run in runs {
        if run.description().kind != Kind::Load {
            return Err(foreign(run, "holds several runs; name single ones"));
        }
        if !run.description().agents.is_empty() {
            return Err(foreign(
                run,
                "is merged already; name the runs of its agents",
            ));
        }
    }
    for run in others {
        let differing = differing(first.description(), run.description());
        if !differing.is_empty() {
            let (differing, first) = (differing.join(", "), first.path().display());
            return Err(foreign(run, format!("differs from {first} in {differing}")));
        }
    }
    refuse_twice(runs)?;
    let mut problems = Vec::new();
    let count = first.description().agent.map_or(0, |agent| agent.count);
    let missing = (0..count).filter(|index| !has_index(runs, *index));
    for index in missing {
        let text = format!("the run of agent {index} of {count} is missing");
        problems.push((Verdict::Invalid, text));
    }
    Ok(problems)
}

fn has_index(runs: &[Run], index: u32) -> bool {
    let mut agents = runs.iter().filter_map(|run| run.description().agent);
    agents.any(|agent| agent.index == index)
}

/// Settings in which runs differ that do not belong together.
fn differing(a: &RunDescription, b: &RunDescription) -> Vec<&'static str> {
    let set = |run: &RunDescription| run.fileset.as_ref().map(|set| set.checksum.clone());
    let length = |run: &RunDescription| {
        let load = &run.load;
        (load.warmup_s, load.duration_s, load.cooldown_s)
    };
    let agents = |run: &RunDescription| run.agent.map(|agent| agent.count);
    let version = |run: &RunDescription| run.environment.headway_version.clone();
    let more = [
        ("the targets", a.targets != b.targets),
        ("the file set", set(a) != set(b)),
        ("the headers", a.load.headers != b.load.headers),
        ("the length", length(a) != length(b)),
        ("the verification", a.load.verify != b.load.verify),
        ("the number of agents", agents(a) != agents(b)),
        ("the version of headway", version(a) != version(b)),
    ];
    // Parts of a number of connections are equal but for one.
    let mut load = b.load.clone();
    let near = |(a, b): (u64, u64)| a.abs_diff(b) <= 1;
    if a.load.connections.zip(load.connections).is_some_and(near) {
        load.connections = a.load.connections;
    }
    let more = more.into_iter().filter(|(_, differ)| *differ);
    let mut differing = differing_load(&a.load, &load);
    differing.extend(more.map(|(name, _)| name));
    differing
}

/// One client's requests must not count twice.
fn refuse_twice(runs: &[Run]) -> Result<(), MergeError> {
    for (at, run) in runs.iter().enumerate() {
        let description = run.description();
        let same = runs[..at].iter().find(|other| {
            let other_description = other.description();
            let same_index = match (description.agent, other_description.agent) {
                (Some(one), Some(other)) => one.index == other.index,
                _ => false,
            };
            let moment = |of: &RunDescription| (of.epoch_unix_ns, of.environment.host.clone());
            let same_run =
                description.epoch_unix_ns > 0 && moment(description) == moment(other_description);
            same_index || same_run || run.path() == other.path()
        });
        if let Some(other) = same {
            let what = description
                .agent
                .map_or("the same run".to_owned(), |agent| {
                    format!("agent {} too", agent.index)
                });
            let why = format!("is {what}, as {} is", other.path().display());
            return Err(foreign(run, why));
        }
    }
    Ok(())
}

/// What is not in the figures because a client did not finish.
fn left_out(run: &Run) -> String {
    let name = name(run);
    if run.is_being_written() {
        return format!("{name} is still running, and is left out");
    }
    let (mut rows, mut last_ns) = (0, 0);
    for batch in run.rows().into_iter().flatten().map_while(Result::ok) {
        rows += batch.len() as u64;
        last_ns = batch.iter().map(|row| row.end_ns).fold(last_ns, u64::max);
    }
    let (rows, last_s) = (count(rows), last_ns as f64 / 1e9);
    format!("{name} did not finish: its {rows} requests until {last_s:.1} s are left out")
}

fn name(run: &Run) -> String {
    match run.description().agent {
        Some(agent) => format!("agent {} ({})", agent.index, run.path().display()),
        None => run.path().display().to_string(),
    }
}

/// The measured part of a run on the wall clock; `None` if it is not described.
fn window(run: &RunDescription) -> Option<Window> {
    let measured = run.load.measured?;
    Some(Window {
        start_ns: run.common_epoch_ns().saturating_add(measured.start_ns),
        end_ns: run.common_epoch_ns().saturating_add(measured.end_ns),
    })
}

/// From the first begin to the last end, and from the last begin to the first end.
fn windows(runs: &[Run]) -> Option<(Window, Window)> {
    let windows: Option<Vec<Window>> = runs.iter().map(|run| window(run.description())).collect();
    let windows = windows?;
    let starts = || windows.iter().map(|window| window.start_ns);
    let ends = || windows.iter().map(|window| window.end_ns);
    let any = Window {
        start_ns: starts().min()?,
        end_ns: ends().max()?,
    };
    let all = Window {
        start_ns: starts().max()?,
        end_ns: ends().min()?,
    };
    Some((any, all))
}

/// Whether the clients measured at the same time, with requests of their own.
fn apart(runs: &[Run]) -> Result<Vec<(Verdict, String)>, MergeError> {
    let mut problems = Vec::new();
    if let (Some((any, all)), [first, ..]) = (windows(runs), runs) {
        if all.end_ns <= all.start_ns {
            return Err(foreign(
                first,
                "was not measured at the same time as all others",
            ));
        }
        let together = (all.end_ns - all.start_ns) as f64 / (any.end_ns - any.start_ns) as f64;
        if together < TOGETHER_MIN {
            let text = format!(
                "the agents measured together for only {} of the time; let them --meet, or start them at \
                 once and synchronise their clocks",
                percent(together)
            );
            problems.push((Verdict::Suspect, text));
        }
    }
    let seed = |run: &Run| run.description().load.seed;
    let twin =
        (1..runs.len()).find(|at| runs[..*at].iter().any(|run| seed(run) == seed(&runs[*at])));
    if let Some(at) = twin {
        let text = format!(
            "{} has the seed of another run, so both sent the same requests at the same moments; \
             use --agent or another --seed",
            name(&runs[at])
        );
        problems.push((Verdict::Suspect, text));
    }
    Ok(problems)
}

/// Everything but the verdict.
fn describe(runs: &[Run], command: &[String]) -> RunDescription {
    let of = || runs.iter().map(Run::description);
    let first = of()
        .min_by_key(|run| run.common_epoch_ns())
        .cloned()
        .unwrap_or_default();
    let mut load = first.load.clone();
    load.rate_rps = of().map(|run| run.load.rate_rps).sum();
    load.connections = of().map(|run| run.load.connections).sum();
    load.requests = of().map(|run| run.load.requests).sum();
    for (at, step) in load.schedule.iter_mut().enumerate() {
        let steps = || of().filter_map(|run| run.load.schedule.get(at));
        step.from_rps = steps().map(|step| step.from_rps).sum();
        step.to_rps = steps().map(|step| step.to_rps).sum();
    }
    let since = |ns: u64| ns.saturating_sub(first.common_epoch_ns());
    load.measured = windows(runs).map(|(any, _)| Window {
        start_ns: since(any.start_ns),
        end_ns: since(any.end_ns),
    });
    let mut hosts: Vec<&str> = of().map(|run| run.environment.host.as_str()).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let mut environment = first.environment.clone();
    environment.host = hosts.join(", ");
    let has_one_label = of().all(|run| run.label == first.label);
    RunDescription {
        command: command.to_vec(),
        label: first.label.clone().filter(|_| has_one_label),
        environment,
        load,
        client: None,
        agent: None,
        clock: None,
        epoch_unix_ns: first.common_epoch_ns(),
        rows_dropped: of().map(|run| run.rows_dropped).sum(),
        summary: None,
        ..first
    }
}

/// What was seen in the rows of all clients.
struct Seen {
    lag: Histogram,
    /// Requests and errors, by client.
    counts: Vec<(u64, u64)>,
}

/// The rows of one client on their way.
struct Source {
    batches: Box<dyn Iterator<Item = Result<Vec<Row>, OpenError>>>,
    rows: std::vec::IntoIter<Row>,
    /// Added to its times.
    offset_ns: u64,
}

impl Source {
    fn next(&mut self) -> Result<Option<Row>, OpenError> {
        loop {
            if let Some(row) = self.rows.next() {
                return Ok(Some(moved(row, self.offset_ns)));
            }
            match self.batches.next() {
                None => return Ok(None),
                Some(batch) => self.rows = batch?.into_iter(),
            }
        }
    }
}

/// A row on a clock that began earlier. A first byte at 0 is none.
fn moved(row: Row, offset_ns: u64) -> Row {
    let later = |ns: u64| ns.saturating_add(offset_ns);
    Row {
        intended_ns: later(row.intended_ns),
        start_ns: later(row.start_ns),
        first_byte_ns: match row.first_byte_ns {
            0 => 0,
            ns => later(ns),
        },
        end_ns: later(row.end_ns),
        ..row
    }
}

/// Copies all rows, in the order in which requests ended.
fn copy(runs: &[Run], writer: &mut RunWriter) -> Result<Seen, MergeError> {
    let epochs = runs.iter().map(|run| run.description().common_epoch_ns());
    let epoch_ns = epochs.min().unwrap_or(0);
    let mut sources = Vec::new();
    for run in runs {
        sources.push(Source {
            batches: Box::new(run.rows()?),
            rows: Vec::new().into_iter(),
            offset_ns: run.description().common_epoch_ns() - epoch_ns,
        });
    }
    let mut seen = Seen {
        lag: Histogram::new(),
        counts: vec![(0, 0); runs.len()],
    };
    // The first row of each source that has one, by its end.
    let mut heads: Vec<Option<Row>> = Vec::new();
    for source in &mut sources {
        heads.push(source.next()?);
    }
    let ends = heads.iter().enumerate();
    let ends = ends.filter_map(|(at, row)| Some(Reverse((row.as_ref()?.end_ns, at))));
    let mut order: BinaryHeap<Reverse<(u64, usize)>> = ends.collect();
    let mut batch = Vec::with_capacity(BATCH_ROWS);
    while let Some(Reverse((_, at))) = order.pop() {
        let next = sources[at].next()?;
        if let Some(row) = &next {
            order.push(Reverse((row.end_ns, at)));
        }
        if let Some(row) = std::mem::replace(&mut heads[at], next) {
            seen.take(&row, at);
            let connection = connection_of_all(row.connection, at, runs.len())
                .ok_or_else(|| foreign(&runs[at], "has too many connections to number them"))?;
            batch.push(Row { connection, ..row });
        }
        if batch.len() == BATCH_ROWS {
            writer.append(&batch)?;
            batch.clear();
        }
    }
    writer.append(&batch)?;
    Ok(seen)
}

/// The number of a connection among those of all runs. Some requests had none.
fn connection_of_all(own: u32, run: usize, runs: usize) -> Option<u32> {
    if own == Row::NO_CONNECTION {
        return Some(own);
    }
    let number = u64::from(own) * runs as u64 + run as u64;
    let number = u32::try_from(number).ok()?;
    (number != Row::NO_CONNECTION).then_some(number)
}

impl Seen {
    fn take(&mut self, row: &Row, at: usize) {
        if row.warmup {
            return;
        }
        self.lag.record_ns(row.lag_ns());
        if row.error != Outcome::Abandoned {
            self.counts[at].0 += 1;
            self.counts[at].1 += u64::from(row.error != Outcome::Ok);
        }
    }
}

/// Writes the verdict on each client and on all.
fn judge(
    description: &mut RunDescription,
    runs: &[Run],
    problems: Vec<(Verdict, String)>,
    seen: &Seen,
) {
    let start = |run: &Run| window(run.description()).map_or(0, |window| window.start_ns);
    let first_ns = runs.iter().map(start).min().unwrap_or(0);
    let agents = runs
        .iter()
        .zip(&seen.counts)
        .map(|(run, (requests, errors))| {
            let own = run.description();
            let client = own.client.clone().unwrap_or_default();
            MergedAgent {
                directory: run.path().display().to_string(),
                index: own.agent.map(|AgentInfo { index, .. }| index),
                host: own.environment.host.clone(),
                requests: *requests,
                errors: *errors,
                start_delay_ms: (start(run) - first_ns) as f64 / 1e6,
                clock: own.clock,
                verdict: client.verdict,
                reasons: client.reasons,
            }
        });
    description.agents = agents.collect();
    description.client = Some(client(runs, problems, &seen.lag));
}

/// What all clients are together. Of shares it is the worst, of counts the sum.
fn client(runs: &[Run], problems: Vec<(Verdict, String)>, lag: &Histogram) -> ClientInfo {
    let of = || {
        let clients = runs
            .iter()
            .map(|run| (run, run.description().client.as_ref()));
        clients.filter_map(|(run, client)| Some((run, client?)))
    };
    let mut all = problems;
    for (run, client) in of() {
        let reasons = client.reasons.iter();
        let reasons = reasons.map(|reason| format!("{}: {reason}", name(run)));
        all.extend(reasons.map(|reason| (client.verdict, reason)));
    }
    // The worst first; the order is otherwise kept.
    all.sort_by_key(|(verdict, _)| Reverse(*verdict));
    let verdicts = of().map(|(_, client)| client.verdict);
    let verdicts = verdicts.chain(all.iter().map(|(verdict, _)| *verdict));
    let largest = |figure: fn(&ClientInfo) -> Option<f64>| {
        let figures = of().filter_map(|(_, client)| figure(client));
        figures.reduce(f64::max)
    };
    let sum = |figure: fn(&ClientInfo) -> Option<u64>| -> Option<u64> {
        of().map(|(_, client)| figure(client)).sum()
    };
    let lag_us = |percent| (lag.count() > 0).then(|| lag.percentile(percent) as f64 / 1e3);
    let mut tls = of().find_map(|(_, client)| client.tls.clone());
    if let Some(tls) = &mut tls {
        let each = || of().filter_map(|(_, client)| client.tls.as_ref());
        tls.handshakes = each().map(|tls| tls.handshakes).sum();
        tls.resumed = each().map(|tls| tls.resumed).sum();
    }
    ClientInfo {
        verdict: verdicts.max().unwrap_or_default(),
        reasons: all.into_iter().map(|(_, reason)| reason).collect(),
        busy_share: largest(|client| client.busy_share),
        run_queue_delay_s: largest(|client| client.run_queue_delay_s),
        lag_p50_us: lag_us(50.0),
        lag_p99_us: lag_us(99.0),
        lag_max_us: lag_us(100.0),
        late_starts: of().map(|(_, client)| client.late_starts).sum(),
        ports_available: sum(|client| client.ports_available),
        ports_used: sum(|client| client.ports_used),
        descriptors_limit: sum(|client| client.descriptors_limit),
        descriptors_used: sum(|client| client.descriptors_used),
        connections_opened: sum(|client| client.connections_opened),
        tls,
    }
}
