//! Policies: which records are kept, and how a program reacts to a call at once.
//!
//! Mechanism and policy are separate, as in the paper. [`Debox`](crate::Debox) leaves one record
//! after each call, and the program (or the preloaded library on its behalf) decides here what to
//! do with it. A decision costs a few comparisons, so every call can be checked. An anomaly in one
//! call of a thousand is found, which sampling would miss.
//!
//! A reaction runs in the thread that made the call, right after it. That is what in-band means,
//! and what an observer from outside cannot do.
//!
//! Source: Ruan's dissertation (2005), sections 2.2 and 2.3.1 (footnote 1: a core of a fork).

use crate::labels::Label;
use crate::record::Record;

mod text;

pub use text::{Action, PolicyError, ReactionRule};

/// Which records to keep. Conditions add up: a record is kept if it meets all that are set.
///
/// ```
/// use headway_debox::policy::Filter;
///
/// let filter: Filter = "slept,slower=1ms,call=read+openat".parse()?;
/// assert!(filter.slept && filter.slower_than_ns == Some(1_000_000));
/// assert_eq!(filter.calls.len(), 2);
/// # Ok::<(), headway_debox::policy::PolicyError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Keep one in this many of the records that meet the other conditions; 0 and 1 keep all of
    /// them.
    pub one_in: u32,
    /// Keep calls that took longer.
    pub slower_than_ns: Option<u64>,
    /// Keep calls that slept.
    pub slept: bool,
    /// Keep calls that slept on one of these; empty for any.
    pub labels: Vec<Label>,
    /// Keep these calls by number; empty for any.
    pub calls: Vec<u32>,
    /// Keep calls made from these return addresses; empty for any.
    pub sites: Vec<u64>,
}

/// The state of a filter: how many records have met its conditions.
///
/// ```
/// use headway_debox::policy::FilterState;
/// use headway_debox::{Debox, Limits};
///
/// let mut state = FilterState::new("call=getpid,every=2".parse()?);
/// let debox = Debox::enable(Limits::default());
/// let mut kept = 0;
/// for _ in 0..4 {
///     debox.call(libc::SYS_getpid as u32, std::process::id);
///     kept += u64::from(state.keeps(&debox.last().expect("records are on"), 0));
/// }
/// assert_eq!((kept, state.met()), (2, 4));
/// # Ok::<(), headway_debox::policy::PolicyError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct FilterState {
    filter: Filter,
    met: u64,
}

impl FilterState {
    /// Creates the state of a filter that has seen no record.
    pub fn new(filter: Filter) -> FilterState {
        FilterState { filter, met: 0 }
    }

    /// Whether to keep this record of a call made from `site`. The first that meets the conditions
    /// is kept, then every `one_in`th.
    pub fn keeps(&mut self, record: &Record, site: u64) -> bool {
        if !self.filter.meets(record, site) {
            return false;
        }
        let nth = self.met;
        self.met += 1;
        nth.is_multiple_of(u64::from(self.filter.one_in.max(1)))
    }

    /// Records that met the conditions, kept or not.
    pub fn met(&self) -> u64 {
        self.met
    }
}

impl Filter {
    /// Whether a record meets the conditions, [`Filter::one_in`] left out.
    pub fn meets(&self, record: &Record, site: u64) -> bool {
        // The cheap ones first: most calls are fast and do not sleep.
        self.slower_than_ns
            .is_none_or(|limit_ns| record.wall_ns > limit_ns)
            && (!self.slept || record.slept_count() > 0)
            && contains_or_empty(&self.calls, &record.number)
            && contains_or_empty(&self.sites, &site)
            && (self.labels.is_empty() || slept_on_any(record, &self.labels))
    }
}

/// The conditions of a reaction, and how often it may run.
///
/// ```
/// use headway_debox::policy::Trigger;
///
/// let trigger: Trigger = "label=journal,times=3".parse()?;
/// assert_eq!(trigger.times_max, 3);
/// # Ok::<(), headway_debox::policy::PolicyError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trigger {
    /// The conditions; a trigger without any fires at every call.
    pub when: Filter,
    /// How often to react in the life of a process, so that many slow calls do not fill the disk
    /// with core dumps. 0: no limit.
    pub times_max: u32,
}

/// A function of the program: gets the record and the call site, a return address.
pub type Callback = Box<dyn FnMut(&Record, u64)>;

/// What to do about a record that meets the conditions.
pub enum Reaction {
    /// Hand the record and the call site to a function of the program.
    Callback(Callback),
    /// Write the record and the thread's user stack to standard error.
    Stack,
    /// Dump a core of a forked copy; the program continues. `kernel.core_pattern` sets where the
    /// core goes.
    Core,
    /// Run a shell command, with the call in its environment (`HEADWAY_CALL`, `HEADWAY_WALL_NS`,
    /// `HEADWAY_LABEL`, `HEADWAY_PID`), and wait for it.
    Hook(String),
    /// End the program with `SIGABRT`, in the state that made the call slow.
    Abort,
}

/// A trigger and its reaction, with the count of what happened.
///
/// ```
/// use std::cell::Cell;
/// use std::rc::Rc;
/// use std::time::Duration;
///
/// use headway_debox::policy::{Reaction, Rule};
/// use headway_debox::{Debox, Limits};
///
/// let slowest_ns = Rc::new(Cell::new(0));
/// let seen = Rc::clone(&slowest_ns);
/// let reaction = Reaction::Callback(Box::new(move |record, _site| {
///     seen.set(seen.get().max(record.wall_ns));
/// }));
/// let mut rule = Rule::new("slower=1ms".parse()?, reaction);
///
/// let debox = Debox::enable(Limits::default());
/// debox.call(libc::SYS_nanosleep as u32, || std::thread::sleep(Duration::from_millis(2)));
/// rule.apply(&debox.last().expect("records are on"), 0)?;
/// assert_eq!(rule.fired(), 1);
/// assert!(slowest_ns.get() >= 2_000_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Rule {
    when: FilterState,
    times_max: u32,
    reaction: Reaction,
    fired: u32,
}

impl Rule {
    /// Creates a rule that has not reacted yet.
    pub fn new(trigger: Trigger, reaction: Reaction) -> Rule {
        Rule {
            when: FilterState::new(trigger.when),
            times_max: trigger.times_max,
            reaction,
            fired: 0,
        }
    }

    /// Returns how often the rule has reacted.
    pub fn fired(&self) -> u32 {
        self.fired
    }

    /// Reacts if the record meets the conditions.
    ///
    /// # Errors
    ///
    /// The reaction failed: no process could be created, or standard error is closed. The program
    /// continues, and the reaction is counted.
    pub fn apply(&mut self, record: &Record, site: u64) -> std::io::Result<()> {
        let spent = self.times_max != 0 && self.fired >= self.times_max;
        if spent || !self.when.keeps(record, site) {
            return Ok(());
        }
        self.fired += 1;
        match &mut self.reaction {
            Reaction::Callback(callback) => {
                callback(record, site);
                Ok(())
            }
            Reaction::Stack => write_stack(record),
            Reaction::Core => headway_os::process::core_of_a_fork(),
            Reaction::Hook(command) => run_hook(command, record),
            Reaction::Abort => std::process::abort(),
        }
    }
}

impl std::fmt::Debug for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rule")
            .field("when", &self.when)
            .field("fired", &self.fired)
            .finish_non_exhaustive()
    }
}

fn contains_or_empty<T: PartialEq>(list: &[T], item: &T) -> bool {
    list.is_empty() || list.contains(item)
}

fn slept_on_any(record: &Record, labels: &[Label]) -> bool {
    record
        .sleeps()
        .iter()
        .any(|sleep| labels.contains(&sleep.label))
}

/// One line for the call, one for each sleep, then the stack.
fn write_stack(record: &Record) -> std::io::Result<()> {
    use std::fmt::Write as _;
    use std::io::Write as _;

    let mut text = format!(
        "debox: {} took {:.1} us in process {}\n",
        crate::calls::display_name(record.number),
        record.wall_ns as f64 / 1e3,
        std::process::id()
    );
    for sleep in record.sleeps() {
        let blocked_us = sleep.blocked_ns as f64 / 1e3;
        let _ = writeln!(
            text,
            "debox:   slept {} × on {}, {blocked_us:.1} us",
            sleep.count, sleep.label
        );
    }
    let _ = writeln!(text, "{}", std::backtrace::Backtrace::force_capture());
    // In one write, so that threads do not mix their lines.
    std::io::stderr().write_all(text.as_bytes())
}

fn run_hook(command: &str, record: &Record) -> std::io::Result<()> {
    let label = record
        .sleeps()
        .first()
        .map_or("", |sleep| sleep.label.name());
    std::process::Command::new("/bin/sh")
        .args(["-c", command])
        // The hook is none of the traced program's.
        .env_remove("HEADWAY_TRACE_DIR")
        .env(
            "HEADWAY_CALL",
            crate::calls::display_name(record.number).as_ref(),
        )
        .env("HEADWAY_WALL_NS", record.wall_ns.to_string())
        .env("HEADWAY_LABEL", label)
        .env("HEADWAY_PID", std::process::id().to_string())
        .stdin(std::process::Stdio::null())
        .status()
        .map(drop)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::{Filter, FilterState, Reaction, Rule, Trigger};
    use crate::labels::Label;
    use crate::off_cpu::OffCpuInterval;
    use crate::record::{Limits, Record};

    fn record(number: u32, wall_ns: u64, sleeps: u32) -> Record {
        let mut record = Record::new(Limits::default());
        record.begin(number);
        record.wall_ns = wall_ns;
        for _ in 0..sleeps {
            let interval = OffCpuInterval {
                length_ns: 10,
                preempted: false,
                stack: &[],
            };
            record.add(interval, None);
        }
        record
    }

    #[test]
    fn record_is_kept_only_when_it_meets_every_condition() {
        let filter = Filter {
            slower_than_ns: Some(100),
            slept: true,
            calls: vec![1],
            sites: vec![0x400],
            ..Filter::default()
        };
        assert!(filter.meets(&record(1, 101, 1), 0x400));
        assert!(!filter.meets(&record(1, 100, 1), 0x400), "not slower");
        assert!(!filter.meets(&record(1, 101, 0), 0x400), "did not sleep");
        assert!(!filter.meets(&record(2, 101, 1), 0x400), "another call");
        assert!(!filter.meets(&record(1, 101, 1), 0x401), "another site");
    }

    #[test]
    fn record_is_kept_by_label_when_the_filter_has_one() {
        let filter = |label| Filter {
            labels: vec![label],
            ..Filter::default()
        };
        // A stack that is not known has the label `unknown`.
        assert!(filter(Label::Unknown).meets(&record(1, 1, 1), 0));
        assert!(!filter(Label::Pipe).meets(&record(1, 1, 1), 0));
        assert!(!filter(Label::Unknown).meets(&record(1, 1, 0), 0));
    }

    #[test]
    fn first_and_every_nth_are_kept_with_one_in_n() {
        let mut filter_state = FilterState::new(Filter {
            one_in: 3,
            calls: vec![1],
            ..Filter::default()
        });
        let kept: Vec<bool> = [1, 1, 2, 1, 1, 1]
            .map(|number| filter_state.keeps(&record(number, 1, 0), 0))
            .to_vec();
        assert_eq!(kept, [true, false, false, false, true, false]);
        assert_eq!(filter_state.met(), 5);
    }

    #[test]
    fn callback_is_called_at_most_the_limit_when_every_call_is_slow() {
        let seen = Rc::new(Cell::new(0));
        let counter = Rc::clone(&seen);
        let callback = move |record: &Record, site| {
            assert_eq!((record.number, site), (7, 9));
            counter.set(counter.get() + 1);
        };
        let trigger = Trigger {
            when: Filter {
                slower_than_ns: Some(50),
                ..Filter::default()
            },
            times_max: 2,
        };
        let mut rule = Rule::new(trigger, Reaction::Callback(Box::new(callback)));
        for wall_ns in [10, 60, 60, 60] {
            rule.apply(&record(7, wall_ns, 0), 9)
                .expect("a callback cannot fail");
        }
        assert_eq!((seen.get(), rule.fired()), (2, 2));
    }

    #[test]
    fn reaction_runs_at_every_nth_record_when_the_rule_has_one_in_n() {
        let seen = Rc::new(Cell::new(0));
        let counter = Rc::clone(&seen);
        let callback = move |_: &Record, _| counter.set(counter.get() + 1);
        let trigger: Trigger = "every=3,call=read".parse().expect("a trigger");
        let mut rule = Rule::new(trigger, Reaction::Callback(Box::new(callback)));
        for number in [libc::SYS_read, libc::SYS_write].repeat(7) {
            rule.apply(&record(number as u32, 1, 0), 0)
                .expect("a callback cannot fail");
        }
        assert_eq!((seen.get(), rule.fired()), (3, 3));
    }

    #[test]
    fn hook_environment_describes_the_call_when_the_hook_runs() {
        let output_file = tempfile::NamedTempFile::new().expect("a temporary file");
        let command = format!(
            "echo $HEADWAY_CALL $HEADWAY_WALL_NS $HEADWAY_PID > {}",
            output_file.path().display()
        );
        let mut rule = Rule::new(Trigger::default(), Reaction::Hook(command));
        rule.apply(&record(libc::SYS_read as u32, 5, 0), 0)
            .expect("a shell");
        let text = std::fs::read_to_string(output_file.path()).expect("the hook wrote it");
        assert_eq!(text, format!("read 5 {}\n", std::process::id()));
    }
}
