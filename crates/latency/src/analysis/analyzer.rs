//! Rows in, an [`Analysis`] out.
//!
//! Memory does not grow with the number of requests: histograms have a fixed number of buckets,
//! there are at most 600 steps, and cells are pairs of size and bucket.

use super::groups::{self, Untimed};
use super::timeline::{Steps, TimelineStep};
use super::{
    Analysis, Counts, Distribution, FORMAT_NAME, FORMAT_VERSION, Goodput, JointIntervals, Late,
    OutcomeCount, StatusCount, StepGroup,
};
use crate::cells::Cells;
use crate::coarse::Coarse;
use crate::histogram::Histogram;
use crate::row::{Outcome, Row};
use crate::run::{Format, Mode, RunDescription, Window};
use crate::{blocks, inversion, series};
use std::collections::BTreeMap;

/// A start later than this is a late start: what the generator promises to stay below on an idle
/// core.
const LATE_NS: u64 = 1_000_000;

/// From this share of requests without a latency on there are no percentiles: those requests are
/// the slow ones, and what is left would flatter the server.
pub const UNTIMED_SHARE_MAX: f64 = 0.001;

/// Analyses the rows of a run one by one, in bounded memory.
///
/// ```
/// use headway_latency::{Analyzer, Outcome, Row, RunDescription};
///
/// let mut analyzer = Analyzer::new(&RunDescription::default());
/// for request in 0..100_u64 {
///     analyzer.push(&Row {
///         intended_ns: request * 1_000_000,
///         start_ns: request * 1_000_000,
///         first_byte_ns: request * 1_000_000 + 300_000,
///         end_ns: request * 1_000_000 + 400_000,
///         size_bytes: 512,
///         bytes: 512,
///         status: 200,
///         error: Outcome::Ok,
///         connection: 0,
///         ordinal: request as u32,
///         class: Row::NO_CLASS,
///         target: 0,
///         warmup: false,
///         handshake_ns: 0,
///     });
/// }
/// let analysis = analyzer.finish();
/// assert_eq!(analysis.counts.complete, 100);
/// assert_eq!(analysis.response.expect("responses").mean_us, 400.0);
/// ```
#[derive(Clone, Debug)]
pub struct Analyzer {
    mode: Mode,
    /// The window that rates refer to; without one it is the span of the requests.
    measured: Option<Window>,
    /// What ends in here may turn out to be in the window.
    expected: Option<Window>,
    deadlines_ns: Vec<(u64, u64)>,
    counts: Counts,
    rows_dropped: u64,
    outcomes: [u64; Outcome::ALL.len()],
    statuses: BTreeMap<u16, u64>,
    span: Span,
    /// In the span.
    answered: Answered,
    /// In the expected window.
    within: Answered,
    response: Histogram,
    service: Histogram,
    complete: Histogram,
    first_byte: Histogram,
    handshake: Histogram,
    lag: Histogram,
    late_starts: u64,
    abandoned_oldest_ns: u64,
    classes: [Histogram; 4],
    /// The steps of the scenario, if there is one.
    by_step: Vec<StepAnswers>,
    cells: Cells,
    steps: Steps,
}

/// The time from the first intended start to the last event, for a run without a described window.
///
/// Waiting for the last requests until they time out or are abandoned is not part of the
/// measurement, unless nothing else happened.
#[derive(Clone, Copy, Debug)]
struct Span {
    first_ns: u64,
    last_ns: u64,
    /// The last end that was the client's timeout.
    waited_ns: u64,
    /// Whether a request ended otherwise.
    anything: bool,
}

/// Complete responses and body bytes of the measured part of the time. A file from elsewhere may name any
/// number of bytes, so they saturate.
#[derive(Clone, Copy, Debug, Default)]
struct Answered {
    responses: u64,
    bytes: u64,
    /// Bytes of requests that timed out or were abandoned; they count only if that time does.
    waited_bytes: u64,
}

impl Answered {
    fn take(&mut self, row: &Row) {
        self.responses += u64::from(row.error == Outcome::Ok);
        self.bytes = self.bytes.saturating_add(row.bytes);
    }

    fn take_waited(&mut self, row: &Row) {
        self.waited_bytes = self.waited_bytes.saturating_add(row.bytes);
    }

    fn merge(&mut self, other: &Answered) {
        self.responses += other.responses;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.waited_bytes = self.waited_bytes.saturating_add(other.waited_bytes);
    }
}

/// The requests of one step of a scenario.
#[derive(Clone, Debug)]
struct StepAnswers {
    name: String,
    requests: u64,
    errors: u64,
    untimed: u64,
    response: Histogram,
}

fn step_answers(description: &RunDescription) -> Vec<StepAnswers> {
    let scenario = description.load.scenario.iter();
    let names = scenario.flat_map(|scenario| scenario.steps.clone());
    let step = |name| StepAnswers {
        name,
        requests: 0,
        errors: 0,
        untimed: 0,
        response: Histogram::new(),
    };
    names.map(step).collect()
}

impl StepAnswers {
    fn take(&mut self, row: &Row) {
        self.requests += 1;
        self.errors += u64::from(row.error != Outcome::Ok);
        match row.error.has_latency() {
            true => self.response.record_ns(row.response_ns()),
            false => self.untimed += 1,
        }
    }

    fn merge(&mut self, other: &StepAnswers) {
        self.requests += other.requests;
        self.errors += other.errors;
        self.untimed += other.untimed;
        self.response.merge(&other.response);
    }

    fn group(&self, withheld: bool) -> StepGroup {
        let untimed = Untimed {
            requests: self.untimed,
            all: self.requests,
        };
        let response = (!withheld).then(|| groups::distribution(&self.response, None, untimed));
        StepGroup {
            name: self.name.clone(),
            requests: self.requests,
            errors: self.errors,
            response: response.flatten().map(|found| Distribution {
                cdf: Vec::new(),
                ..found
            }),
        }
    }
}

impl Span {
    fn take(&mut self, row: &Row) {
        self.first_ns = self.first_ns.min(row.intended_ns);
        self.last_ns = self.last_ns.max(row.intended_ns);
        if was_waited_for(row) {
            self.waited_ns = self.waited_ns.max(row.end_ns);
        } else {
            self.last_ns = self.last_ns.max(row.end_ns);
            self.anything = true;
        }
    }

    fn merge(&mut self, other: &Span) {
        self.first_ns = self.first_ns.min(other.first_ns);
        self.last_ns = self.last_ns.max(other.last_ns);
        self.waited_ns = self.waited_ns.max(other.waited_ns);
        self.anything |= other.anything;
    }

    fn window(&self) -> Window {
        let waited_ns = if self.anything { 0 } else { self.waited_ns };
        let end_ns = self.last_ns.max(waited_ns);
        Window {
            start_ns: self.first_ns.min(end_ns),
            end_ns,
        }
    }
}

fn has_length(window: &Window) -> bool {
    window.end_ns > window.start_ns
}

/// Whether the client gave up waiting: the end of the row is not an event of the server.
fn was_waited_for(row: &Row) -> bool {
    matches!(
        row.error,
        Outcome::TimedOut | Outcome::ConnectTimedOut | Outcome::Abandoned
    )
}

impl Analyzer {
    /// An analyzer for the run that is so described.
    pub fn new(description: &RunDescription) -> Analyzer {
        let measured = description.load.measured.filter(has_length);
        Analyzer {
            mode: description.load.mode,
            measured,
            expected: measured,
            deadlines_ns: Vec::new(),
            counts: Counts::default(),
            rows_dropped: description.rows_dropped,
            outcomes: [0; Outcome::ALL.len()],
            statuses: BTreeMap::new(),
            span: Span {
                first_ns: u64::MAX,
                last_ns: 0,
                waited_ns: 0,
                anything: false,
            },
            answered: Answered::default(),
            within: Answered::default(),
            response: Histogram::new(),
            service: Histogram::new(),
            complete: Histogram::new(),
            first_byte: Histogram::new(),
            handshake: Histogram::new(),
            lag: Histogram::new(),
            late_starts: 0,
            abandoned_oldest_ns: 0,
            classes: Default::default(),
            by_step: step_answers(description),
            cells: Cells::new(),
            steps: Steps::new(description),
        }
    }

    /// For a run whose window is known only at its end: it will be this window or none. See
    /// [`Self::measured_in`].
    #[must_use]
    pub fn expecting(mut self, window: Window) -> Analyzer {
        self.expected = Some(window);
        self
    }

    /// The run was interrupted: what ends later is not in the window. Called before any such row is
    /// pushed.
    pub fn end_by(&mut self, end_ns: u64) {
        if let Some(expected) = &mut self.expected {
            expected.end_ns = expected.end_ns.min(end_ns);
        }
    }

    /// The window is known now; `None` is the span of the requests.
    pub fn measured_in(&mut self, window: Option<Window>) {
        self.measured = window.filter(has_length);
    }

    /// The number of rows that were lost on the way: requests whose latency is not known.
    pub fn dropped(&mut self, rows: u64) {
        self.rows_dropped = rows;
    }

    /// Also counts the complete responses within `deadline_ms` of their intended start, exactly.
    #[must_use]
    pub fn with_deadline_ms(mut self, deadline_ms: f64) -> Analyzer {
        self.deadlines_ns.push(((deadline_ms * 1e6) as u64, 0));
        self
    }

    /// Adds one row.
    pub fn push(&mut self, row: &Row) {
        self.count_answered(row);
        if row.warmup {
            self.counts.warmup += 1;
            return;
        }
        self.steps.push(row);
        self.span.take(row);
        self.lag.record_ns(row.lag_ns());
        self.late_starts += u64::from(row.lag_ns() > LATE_NS);
        if row.error == Outcome::Abandoned {
            self.counts.abandoned += 1;
            self.abandoned_oldest_ns = self.abandoned_oldest_ns.max(row.response_ns());
            return;
        }
        self.count_ended(row);
    }

    /// Throughput is what arrived during the measured time. A response to a request of the warm-up
    /// counts, in place of one that is still missing at the end. Without a window, throughput is
    /// what the requests of the span got.
    fn count_answered(&mut self, row: &Row) {
        let contains = |window: Window| (window.start_ns..=window.end_ns).contains(&row.end_ns);
        if self.expected.is_some_and(contains) {
            self.within.take(row);
        }
        if !row.warmup && was_waited_for(row) {
            self.answered.take_waited(row);
        } else if !row.warmup {
            self.answered.take(row);
        }
    }

    /// A request of the measured part that has an end.
    fn count_ended(&mut self, row: &Row) {
        let (response_ns, complete) = (row.response_ns(), row.error == Outcome::Ok);
        self.counts.requests += 1;
        self.outcomes[usize::from(row.error.code())] += 1;
        *self.statuses.entry(row.status).or_default() += 1;
        self.counts.errors += u64::from(!complete);
        if let Some(step) = self.by_step.get_mut(usize::from(row.class)) {
            step.take(row);
        }
        if !row.error.has_latency() {
            return;
        }
        self.response.record_ns(response_ns);
        // A request without a connection was never started.
        if row.had_connection() {
            self.service.record_ns(row.service_ns());
        }
        if row.first_byte_ns > 0 {
            self.first_byte
                .record_ns(row.first_byte_ns.saturating_sub(row.start_ns));
        }
        if row.handshake_ns > 0 {
            self.handshake.record_ns(row.handshake_ns);
        }
        self.cells.record(row.size_bytes, response_ns, complete);
        if !complete {
            return;
        }
        self.counts.complete += 1;
        self.complete.record_ns(response_ns);
        let classes = self.by_step.is_empty().then_some(&mut self.classes);
        if let Some(class) = classes.and_then(|all| all.get_mut(usize::from(row.class))) {
            class.record_ns(response_ns);
        }
        for (deadline_ns, met) in &mut self.deadlines_ns {
            *met += u64::from(response_ns <= *deadline_ns);
        }
    }

    /// Adds the rows of another analyzer with the same deadlines, for runs of several machines at
    /// the same time.
    pub fn merge(&mut self, other: &Analyzer) {
        self.counts.add(&other.counts);
        self.rows_dropped = self.rows_dropped.saturating_add(other.rows_dropped);
        add_all(&mut self.outcomes, &other.outcomes);
        for (status, count) in &other.statuses {
            *self.statuses.entry(*status).or_default() += count;
        }
        self.span.merge(&other.span);
        self.answered.merge(&other.answered);
        self.within.merge(&other.within);
        self.response.merge(&other.response);
        self.service.merge(&other.service);
        self.complete.merge(&other.complete);
        self.first_byte.merge(&other.first_byte);
        self.handshake.merge(&other.handshake);
        self.lag.merge(&other.lag);
        self.late_starts += other.late_starts;
        self.abandoned_oldest_ns = self.abandoned_oldest_ns.max(other.abandoned_oldest_ns);
        for (class, more) in self.classes.iter_mut().zip(&other.classes) {
            class.merge(more);
        }
        for (step, more) in self.by_step.iter_mut().zip(&other.by_step) {
            step.merge(more);
        }
        for ((_, met), (_, more)) in self.deadlines_ns.iter_mut().zip(&other.deadlines_ns) {
            *met += more;
        }
        self.cells.merge(&other.cells);
        self.steps.merge(&other.steps);
    }

    /// The joint histogram of size and latency so far.
    pub fn cells(&self) -> &Cells {
        &self.cells
    }

    /// The figures of everything that was taken. More rows may follow.
    pub fn finish(&mut self) -> Analysis {
        self.cells.compact();
        let duration_s = self.duration_s();
        let rate = |count: u64| {
            if duration_s > 0.0 {
                count as f64 / duration_s
            } else {
                0.0
            }
        };
        let offered = rate(self.counts.requests + self.counts.abandoned);
        let steps = |pick: fn(&TimelineStep) -> &Coarse| {
            self.steps.steps().iter().map(pick).collect::<Vec<_>>()
        };
        let untimed = self.untimed();
        let withheld = self.withholds_percentiles(untimed);
        let timed = |histogram: &Histogram, steps: Option<&[&Coarse]>| {
            (!withheld).then(|| groups::distribution(histogram, steps, untimed))?
        };
        Analysis {
            format: Format {
                name: FORMAT_NAME.into(),
                version: FORMAT_VERSION,
            },
            counts: self.counts.clone(),
            duration_s,
            offered_rps: (self.mode == Mode::Open).then_some(offered),
            achieved_rps: rate(self.answered().responses),
            throughput_bytes_per_s: rate(self.answered().bytes),
            errors: self.errors(),
            statuses: self
                .statuses
                .iter()
                .map(|(&status, &requests)| StatusCount { status, requests })
                .collect(),
            withheld,
            response: timed(&self.response, Some(&steps(|step| &step.response))),
            joint_intervals: if withheld {
                None
            } else {
                self.joint(duration_s)
            },
            service: timed(&self.service, Some(&steps(|step| &step.service))),
            complete: timed(&self.complete, Some(&steps(|step| &step.complete_response))),
            first_byte: timed(&self.first_byte, None),
            handshake: timed(&self.handshake, None),
            late: self.late(),
            goodput: self.goodput(&rate),
            series: groups::by_series(&self.cells, withheld),
            deciles: match withheld {
                true => Default::default(),
                false => series::deciles(&self.cells),
            },
            inversion: match withheld {
                true => None,
                false => inversion::inversion(&self.cells),
            },
            by_size: match withheld {
                true => Vec::new(),
                false => groups::by_size(&self.cells),
            },
            by_class: match withheld {
                true => Vec::new(),
                false => groups::by_class(&self.classes),
            },
            by_step: self.by_step.iter().map(|one| one.group(withheld)).collect(),
            timeline: self.steps.finish(withheld),
        }
    }

    /// The intervals of a comparison, from the steps within the run.
    fn joint(&self, duration_s: f64) -> Option<JointIntervals> {
        let steps = self.steps.steps().iter();
        let steps: Vec<_> = steps.map(|step| (&step.response, step.complete)).collect();
        let step_s = self.steps.step_s();
        // A run of a number of seconds has a whole number of steps, whatever was rounded.
        let whole_steps = (duration_s / step_s + 1e-6) as usize;
        blocks::intervals(&self.response, &steps, whole_steps, step_s)
    }

    /// Whether percentiles would mislead, because of requests without a latency. One that
    /// was due and found no room in the client's queue is enough: it came in a stall, as all of the
    /// same moment did.
    fn withholds_percentiles(&self, untimed: Untimed) -> bool {
        self.outcomes[usize::from(Outcome::NoConnection.code())] > 0
            || (untimed.requests > 0 && untimed.share() >= UNTIMED_SHARE_MAX)
    }

    /// The requests without a latency, and those of which the row is lost.
    fn untimed(&self) -> Untimed {
        let untimed = Outcome::ALL
            .into_iter()
            .zip(self.outcomes)
            .filter(|(outcome, _)| !outcome.has_latency())
            .map(|(_, requests)| requests);
        let lost = self.counts.abandoned.saturating_add(self.rows_dropped);
        Untimed {
            requests: untimed.sum::<u64>().saturating_add(lost),
            all: self.counts.requests.saturating_add(lost),
        }
    }

    fn duration_s(&self) -> f64 {
        let window = self.measured.unwrap_or_else(|| self.span.window());
        (window.end_ns - window.start_ns) as f64 / 1e9
    }

    /// What came in the time that [`Self::duration_s`] is the length of.
    fn answered(&self) -> Answered {
        match (self.measured, self.span.anything) {
            (Some(_), _) => self.within,
            (None, true) => self.answered,
            (None, false) => Answered {
                bytes: self.answered.bytes + self.answered.waited_bytes,
                ..self.answered
            },
        }
    }

    fn errors(&self) -> Vec<OutcomeCount> {
        let failed = Outcome::ALL.into_iter().zip(self.outcomes);
        let mut errors: Vec<_> = failed
            .filter(|(outcome, requests)| *outcome != Outcome::Ok && *requests > 0)
            .map(|(outcome, requests)| OutcomeCount {
                outcome: outcome.name().into(),
                requests,
            })
            .collect();
        errors.sort_by_key(|error| std::cmp::Reverse(error.requests));
        errors
    }

    fn late(&self) -> Late {
        Late {
            threshold_us: LATE_NS as f64 / 1e3,
            starts: self.late_starts,
            lag_mean_us: self.lag.mean_ns() / 1e3,
            lag_p50_us: self.lag.percentile(50.0) as f64 / 1e3,
            lag_p99_us: self.lag.percentile(99.0) as f64 / 1e3,
            lag_p99_9_us: self.lag.percentile(99.9) as f64 / 1e3,
            lag_max_us: self.lag.max_ns() as f64 / 1e3,
            abandoned_oldest_us: self.abandoned_oldest_ns as f64 / 1e3,
        }
    }

    fn goodput(&self, rate: &dyn Fn(u64) -> f64) -> Vec<Goodput> {
        let entry = |&(deadline_ns, met): &(u64, u64)| Goodput {
            deadline_ms: deadline_ns as f64 / 1e6,
            requests: met,
            rate_rps: rate(met),
            share: met as f64 / self.counts.requests.max(1) as f64,
        };
        self.deadlines_ns.iter().map(entry).collect()
    }
}

impl Counts {
    fn add(&mut self, other: &Counts) {
        self.requests += other.requests;
        self.complete += other.complete;
        self.errors += other.errors;
        self.warmup += other.warmup;
        self.abandoned += other.abandoned;
    }
}

fn add_all(counts: &mut [u64], more: &[u64]) {
    counts
        .iter_mut()
        .zip(more)
        .for_each(|(count, more)| *count += more);
}
