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
    /// up to the wakeup. Also events that it skipped because the same program was already running
    /// on that CPU.
    pub events: u64,
    /// Times that something happened on a connection beyond
    /// [`RequestLimits::connections_max`](crate::RequestLimits::connections_max): it was established or accepted, or
    /// bytes came.
    pub connections: u64,
}

impl Lost {
    /// Whether everything was seen.
    pub fn is_none(&self) -> bool {
        *self == Lost::default()
    }

    /// What each number counts: one of it, and several.
    fn parts(&self) -> [(u64, [&'static str; 2]); 11] {
        let beyond = [
            "call or sleep of a thread beyond the limit",
            "calls and sleeps of threads beyond the limit",
        ];
        [
            (self.threads, beyond),
            (
                self.calls,
                [
                    "call at a site beyond the limit",
                    "calls at sites beyond the limit",
                ],
            ),
            (
                self.sleeps,
                [
                    "sleep at a place beyond the limit",
                    "sleeps at places beyond the limit",
                ],
            ),
            (self.stacks, ["kernel stack", "kernel stacks"]),
            (self.records, ["record", "records"]),
            (self.waiters, ["waiter", "waiters"]),
            (self.processes, ["child", "children"]),
            (self.names, ["name of a program", "names of programs"]),
            (
                self.begun_before,
                [
                    "call begun before the trace",
                    "calls begun before the trace",
                ],
            ),
            (
                self.events,
                ["context switch or wakeup", "context switches or wakeups"],
            ),
            (
                self.connections,
                [
                    "event of a connection beyond the limit",
                    "events of connections beyond the limit",
                ],
            ),
        ]
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "not seen: ";
        for (count, [one, several]) in self.parts().iter().filter(|(count, _)| *count > 0) {
            let what = if *count == 1 { one } else { several };
            write!(f, "{between}{count} {what}")?;
            between = ", ";
        }
        if self.is_none() {
            f.write_str("nothing was lost")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Lost;

    #[test]
    fn one_of_a_kind_is_named_in_the_singular() {
        let lost = Lost {
            begun_before: 1,
            events: 2,
            ..Lost::default()
        };
        let text = "not seen: 1 call begun before the trace, 2 context switches or wakeups";
        assert_eq!(lost.to_string(), text);
        assert_eq!(Lost::default().to_string(), "nothing was lost");
    }
}
