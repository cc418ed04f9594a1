//! What an observer had to leave out. All zero means: everything was seen.

use std::fmt;

use serde::Serialize;

/// Counts of what is missing in totals and records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lost {
    /// Events of threads beyond [`Limits::threads_max`](crate::Limits::threads_max): a call or a
    /// sleep each.
    pub threads: u64,
    /// Calls at sites beyond [`Limits::sites_max`](crate::Limits::sites_max).
    pub calls: u64,
    /// Sleeps at places beyond that limit. The time is in the call's total all the same.
    pub sleeps: u64,
    /// Sleeps whose kernel stack was not stored; they are counted and timed.
    pub stacks: u64,
    /// Records that met the policy, and news of processes, that were not read fast enough.
    pub records: u64,
    /// Sleepers that were not counted among the waiters.
    pub waiters: u64,
    /// Children beyond [`Limits::processes_max`](crate::Limits::processes_max), which are not
    /// traced.
    pub processes: u64,
    /// Programs beyond [`Limits::programs_max`](crate::Limits::programs_max): their calls are counted
    /// without a name.
    pub names: u64,
    /// Calls that were under way when tracing began; their sleeps from then on are counted.
    pub begun_before: u64,
    /// Context switches that the kernel did not report: the sleeps that they ended are counted
    /// without a length. Also events that it skipped because the same program was already running
    /// on that CPU.
    pub events: u64,
}

impl Lost {
    /// Whether everything was seen.
    pub fn is_none(&self) -> bool {
        *self == Lost::default()
    }

    fn parts(&self) -> [(u64, &'static str); 10] {
        [
            (self.threads, "calls and sleeps of threads beyond the limit"),
            (self.calls, "calls at sites beyond the limit"),
            (self.sleeps, "sleeps at places beyond the limit"),
            (self.stacks, "kernel stacks"),
            (self.records, "records"),
            (self.waiters, "waiters"),
            (self.processes, "children"),
            (self.names, "names of programs"),
            (self.begun_before, "calls begun before the trace"),
            (self.events, "events"),
        ]
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "not seen: ";
        for (count, what) in self.parts().iter().filter(|(count, _)| *count > 0) {
            write!(f, "{between}{count} {what}")?;
            between = ", ";
        }
        if self.is_none() {
            f.write_str("nothing was lost")?;
        }
        Ok(())
    }
}
