//! What a tracer hands out: counts, waits and sleeps, in a form to send, add up and show.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Label, Symbols};

mod hexadecimal;

/// How many distinct kernel stacks a tracer or a merged report keeps apart. A server that never
/// sleeps has none, and one that does has a handful. The limit protects against unbounded growth.
pub const SITES_MAX: usize = 64;

/// How much a tracer sees, best first.
///
/// ```
/// use headway_debox::{Debox, Limits, TraceLevel};
///
/// match Debox::enable(Limits::default()).level() {
///     TraceLevel::Stacks => println!("every sleep gets a label"),
///     limited => println!("{limited}"),
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "sees", rename_all = "kebab-case")]
pub enum TraceLevel {
    /// Every sleep, its length and its kernel stack.
    Stacks,
    /// Every sleep and its length, not where in the kernel.
    SwitchesOnly {
        /// What is missing and how to get it.
        why: String,
    },
    /// Only the number of calls. Zero sleeps then means "not visible", not "none".
    Off {
        /// What is missing and how to get it.
        why: String,
    },
}

impl TraceLevel {
    fn height(&self) -> u8 {
        match self {
            TraceLevel::Stacks => 2,
            TraceLevel::SwitchesOnly { .. } => 1,
            TraceLevel::Off { .. } => 0,
        }
    }
}

impl fmt::Display for TraceLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraceLevel::Stacks => write!(f, "sleeps are counted, timed and located in the kernel"),
            TraceLevel::SwitchesOnly { why } => {
                write!(f, "sleeps are counted and timed, but not located: {why}")
            }
            TraceLevel::Off { why } => write!(f, "sleeps are not seen: {why}"),
        }
    }
}

/// How often a thread left the CPU, and for how long in total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// Number of waits.
    pub count: u64,
    /// Nanoseconds in all.
    pub total_ns: u64,
}

impl Wait {
    #[inline]
    pub(crate) fn add(&mut self, length_ns: u64) {
        self.merge(Wait {
            count: 1,
            total_ns: length_ns,
        });
    }

    fn merge(&mut self, other: Wait) {
        self.count = self.count.saturating_add(other.count);
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
    }
}

/// A call and the kernel stack at its sleeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Site {
    /// [`CallKind::name`](crate::CallKind::name) of the call, or `elsewhere`.
    pub call: String,
    /// Kernel addresses, innermost first, at most 24. Empty where the stack is not known: without
    /// the privilege, when its record was lost, or beyond [`SITES_MAX`] sites. Serialized as
    /// hexadecimal text.
    #[serde(with = "hexadecimal")]
    pub stack: Vec<u64>,
    /// The kernel function it waited in, after [`Report::resolve`].
    pub symbol: Option<String>,
    /// The resource it waited for, once [`Report::resolve`] has been there; `Unknown` before.
    #[serde(default)]
    pub label: Label,
    /// Number of sleeps.
    pub count: u64,
    /// Nanoseconds slept in all.
    pub total_ns: u64,
    /// The longest of them, in nanoseconds.
    pub max_ns: u64,
}

/// Everything a tracer saw since it was enabled, or several of them together.
///
/// "It never blocked" is the conjunction of three things: `level` is not `Off`, `blocked_count()`
/// is 0 and `lost_records` is 0.
///
/// ```
/// use headway_debox::{TraceLevel, Tracer};
///
/// headway_debox::call_kinds! {
///     enum Call {
///         Wait = "poll",
///         Close = "close",
///     }
///     wait = Wait
/// }
///
/// let tracer = Tracer::enable();
/// tracer.call(Call::Close, || drop(std::io::pipe()));
/// let mut both = tracer.report();
/// both.merge(&tracer.report());
/// assert_eq!(both.calls["close"], 2);
/// let seen = !matches!(both.level, TraceLevel::Off { .. }) && both.lost_records == 0;
/// println!("never blocked: {}", seen && both.blocked_count() == 0);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// How much was seen; after a merge, of the one that saw least.
    pub level: TraceLevel,
    /// Calls made, by name; a call never made is absent.
    pub calls: BTreeMap<String, u64>,
    /// Sleeps in the event wait, the only legitimate ones.
    pub waits: Wait,
    /// Sleeps anywhere else, longest in total first.
    pub sleeps: Vec<Site>,
    /// How often the thread lost the CPU while it could have run on: load, not blocking.
    pub preemptions: Wait,
    /// Records the kernel dropped because the ring was full. Sleeps may be missing if not 0.
    pub lost_records: u64,
    /// Sleeps counted under their call with an empty stack, because [`SITES_MAX`] stacks were
    /// known.
    pub sites_dropped: u64,
}

impl Report {
    /// Sleeps outside the event wait.
    pub fn blocked_count(&self) -> u64 {
        let counts = self.sleeps.iter().map(|site| site.count);
        counts.fold(0, u64::saturating_add)
    }

    /// Nanoseconds slept outside the event wait. A lower bound if records were lost.
    pub fn blocked_ns(&self) -> u64 {
        let times = self.sleeps.iter().map(|site| site.total_ns);
        times.fold(0, u64::saturating_add)
    }

    /// Adds what another tracer saw; sums stop at the largest number. Stacks are comparable only between threads of one running
    /// kernel.
    pub fn merge(&mut self, other: &Report) {
        if other.level.height() < self.level.height() {
            self.level = other.level.clone();
        }
        for (name, count) in &other.calls {
            let sum = self.calls.entry(name.clone()).or_default();
            *sum = sum.saturating_add(*count);
        }
        self.waits.merge(other.waits);
        self.preemptions.merge(other.preemptions);
        self.lost_records = self.lost_records.saturating_add(other.lost_records);
        self.sites_dropped = self.sites_dropped.saturating_add(other.sites_dropped);
        for site in &other.sleeps {
            self.merge_site(site);
        }
        self.sort();
    }

    /// Names the sites that have no symbol yet.
    pub fn resolve(&mut self, symbols: &Symbols) {
        for site in &mut self.sleeps {
            if site.symbol.is_none() {
                site.symbol = symbols.waiting_site(&site.stack);
                site.label = symbols.label(&site.stack);
            }
        }
    }

    /// Sorts by total time, the longest first, then by call and stack, so that the same state
    /// always gives the same report.
    pub(crate) fn sort(&mut self) {
        self.sleeps.sort_by(|a, b| {
            (b.total_ns.cmp(&a.total_ns))
                .then_with(|| a.call.cmp(&b.call))
                .then_with(|| a.stack.cmp(&b.stack))
        });
    }

    fn merge_site(&mut self, other: &Site) {
        if let Some(site) = self.site_mut(&other.call, &other.stack) {
            return site.merge(other);
        }
        let located = self.sleeps.iter().filter(|site| !site.stack.is_empty());
        if other.stack.is_empty() || located.count() < SITES_MAX {
            return self.sleeps.push(other.clone());
        }
        // At the limit the sleep keeps its call, count and time, and loses its stack.
        self.sites_dropped = self.sites_dropped.saturating_add(other.count);
        self.merge_site(&Site {
            stack: Vec::new(),
            symbol: None,
            label: Label::Unknown,
            ..other.clone()
        });
    }

    fn site_mut(&mut self, call: &str, stack: &[u64]) -> Option<&mut Site> {
        self.sleeps
            .iter_mut()
            .find(|site| site.call == call && site.stack == stack)
    }
}

impl Site {
    fn merge(&mut self, other: &Site) {
        self.count = self.count.saturating_add(other.count);
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        if self.symbol.is_none() {
            self.symbol.clone_from(&other.symbol);
            self.label = other.label;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(call: &str, stack: &[u64], count: u64, total_ns: u64, max_ns: u64) -> Site {
        Site {
            call: call.to_owned(),
            stack: stack.to_vec(),
            symbol: None,
            label: Label::Unknown,
            count,
            total_ns,
            max_ns,
        }
    }

    fn report(sleeps: Vec<Site>) -> Report {
        Report {
            level: TraceLevel::Stacks,
            calls: BTreeMap::from([("accept4".to_owned(), 3)]),
            waits: Wait {
                count: 2,
                total_ns: 20,
            },
            sleeps,
            preemptions: Wait {
                count: 1,
                total_ns: 5,
            },
            lost_records: 1,
            sites_dropped: 0,
        }
    }

    #[test]
    fn everything_adds_up_when_reports_are_merged() {
        let mut sum = report(vec![site("sendto", &[1], 1, 10, 10)]);
        let mut other = report(vec![
            site("sendto", &[1], 2, 30, 25),
            site("close", &[1], 1, 90, 90),
        ]);
        other.calls.insert("close".to_owned(), 1);
        other.sleeps[0].symbol = Some("tcp_sendmsg".to_owned());
        sum.merge(&other);

        let mut sendto = site("sendto", &[1], 3, 40, 25);
        sendto.symbol = Some("tcp_sendmsg".to_owned());
        assert_eq!(sum.sleeps, [site("close", &[1], 1, 90, 90), sendto]);
        assert_eq!((sum.blocked_count(), sum.blocked_ns()), (4, 130));
        assert_eq!(sum.calls["accept4"], 6);
        assert_eq!(sum.calls["close"], 1);
        assert_eq!((sum.waits.count, sum.waits.total_ns), (4, 40));
        assert_eq!((sum.preemptions.count, sum.preemptions.total_ns), (2, 10));
        assert_eq!(sum.lost_records, 2);
    }

    #[test]
    fn level_is_the_lowest_when_reports_are_merged() {
        let mut sum = report(Vec::new());
        let mut blind = report(Vec::new());
        blind.level = TraceLevel::Off {
            why: "no privilege".to_owned(),
        };
        sum.merge(&blind);
        assert_eq!(sum.level, blind.level);
        sum.merge(&report(Vec::new()));
        assert_eq!(sum.level, blind.level, "a merge never makes it better");
    }

    #[test]
    fn count_and_time_stay_exact_when_a_merge_exceeds_the_sites() {
        let sites = |from: u64| (from..from + 40).map(|at| site("sendto", &[at], 1, 2, 2));
        let mut sum = report(sites(0).collect());
        sum.merge(&report(sites(1000).collect()));
        assert_eq!(sum.sleeps.len(), SITES_MAX + 1);
        assert_eq!(sum.sites_dropped, 16);
        assert_eq!((sum.blocked_count(), sum.blocked_ns()), (80, 160));
    }

    #[test]
    fn addresses_are_exact_when_written_as_json_and_read_back() {
        let written = site("sendto", &[0xffff_ffff_8100_0101], 1, 2, 2);
        let text = serde_json::to_string(&written).expect("a site can be written");
        assert!(text.contains(r#""stack":["0xffffffff81000101"]"#), "{text}");
        let read: Site = serde_json::from_str(&text).expect("what was written can be read");
        assert_eq!(read, written);

        let error = serde_json::from_str::<Site>(&text.replace("0x", "")).expect_err("no prefix");
        assert!(error.to_string().contains("not an address"), "{error}");
    }

    #[test]
    fn report_names_what_is_missing_when_the_trace_level_is_not_the_highest() {
        let why = "set the sysctl".to_owned();
        let text = TraceLevel::SwitchesOnly { why }.to_string();
        assert!(text.contains("not located: set the sysctl"), "{text}");
    }
}
