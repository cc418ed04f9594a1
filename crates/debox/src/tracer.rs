//! The tracer of a worker: surrounds each system call, and reads the ring if it has moved.

use std::cell::{Cell, RefCell};
use std::fmt;

use headway_os::perf::Ring;

use crate::aggregator::Aggregator;
use crate::call::{CallKind, KINDS_MAX};
use crate::privilege;
use crate::report::{Report, TraceLevel, Wait};

/// The in-band record of one thread: which of its system calls slept, how long, and where.
///
/// One per thread, made on that thread; it is neither `Send` nor `Sync`. Calls must not nest: what
/// happens in the outer call before the inner one would be attributed to no call. After a fork the
/// child must not use it. A thread stopped by a signal or a debugger counts as asleep.
///
/// ```
/// use std::io::{Read, Write};
/// use headway_debox::{Symbols, Tracer};
///
/// headway_debox::call_kinds! {
///     enum Call {
///         Wait = "poll",
///         Read = "read",
///     }
///     wait = Wait
/// }
///
/// let (mut reader, mut writer) = std::io::pipe()?;
/// let late = std::thread::spawn(move || {
///     std::thread::sleep(std::time::Duration::from_millis(5));
///     writer.write_all(b"late")
/// });
///
/// let tracer = Tracer::enable();
/// let mut bytes = [0; 4];
/// tracer.call(Call::Read, || reader.read_exact(&mut bytes))?;
///
/// let mut report = tracer.report();
/// assert_eq!(report.calls["read"], 1);
/// if let Ok(symbols) = Symbols::load() {
///     report.resolve(&symbols);
/// }
/// println!("{}", report.level);
/// for site in &report.sleeps {
///     // read slept 1 times, 5073291 ns, in anon_pipe_read
///     let place = site.symbol.as_deref().unwrap_or("an unknown place");
///     println!("{} slept {} times, {} ns, in {place}", site.call, site.count, site.total_ns);
/// }
/// # late.join().unwrap()?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// ```compile_fail
/// fn needs_send<T: Send>() {}
/// headway_debox::call_kinds! { enum Call { Wait = "poll", } wait = Wait }
/// needs_send::<headway_debox::Tracer<Call>>();
/// ```
pub struct Tracer<C> {
    ring: Option<Ring>,
    level: TraceLevel,
    counts: [Cell<u64>; KINDS_MAX],
    aggregator: RefCell<Aggregator<C>>,
}

impl<C: CallKind> Tracer<C> {
    /// Starts tracing the calling thread with as much detail as the kernel allows.
    ///
    /// Never fails: [`Tracer::level`] returns how much is visible and what would show more.
    ///
    /// From now on every sleep of the thread costs more, including those in the event wait: 3.6 µs
    /// with stacks and 1.4 µs without, on a virtual machine (`examples/overhead.rs`). A busy worker
    /// hardly sleeps; one that is woken for each request pays it for each request.
    pub fn enable() -> Tracer<C> {
        let (ring, level) = privilege::best_ring();
        Tracer::with(ring, level)
    }

    /// A tracer that only counts calls.
    pub fn disabled() -> Tracer<C> {
        let why = "tracing is switched off".to_owned();
        Tracer::with(None, TraceLevel::Off { why })
    }

    pub(crate) fn with(ring: Option<Ring>, level: TraceLevel) -> Tracer<C> {
        const { assert!(C::ALL.len() <= KINDS_MAX, "too many kinds of calls") };
        Tracer {
            ring,
            level,
            counts: [const { Cell::new(0) }; KINDS_MAX],
            aggregator: RefCell::new(Aggregator::new()),
        }
    }

    /// Returns how much this tracer sees.
    pub fn level(&self) -> &TraceLevel {
        &self.level
    }

    /// Makes a system call and keeps the record of it.
    ///
    /// `f` should be that one call and nothing else, since all that happens in it is attributed to
    /// `call`. When nothing slept, the cost is a counter and two loads. What `f` returns is
    /// returned as it is; `errno` survives unless there was something to record.
    #[inline(always)]
    pub fn call<R>(&self, call: C, f: impl FnOnce() -> R) -> R {
        let count = &self.counts[call.index()];
        count.set(count.get() + 1);
        // Before: what moved the ring since the last call (a page fault, a preemption) is not this
        // call's.
        self.attribute_new(None);
        let result = f();
        self.attribute_new(Some(call));
        result
    }

    /// How often the thread slept in `call` so far. A few loads, and no more than one without a sleep.
    pub fn sleeps_in(&self, call: C) -> u64 {
        self.aggregator.borrow().sleeps_in(call)
    }

    /// Whether sleeps are seen.
    pub fn sees_sleeps(&self) -> bool {
        self.ring.is_some()
    }

    /// Everything seen since the tracer was made. Meant for once a second: it copies the counts and
    /// makes one system call, which does not wait.
    pub fn report(&self) -> Report {
        self.attribute_new(None);
        let calls = C::ALL.iter().map(|call| (call, self.count(*call)));
        let mut report = Report {
            level: self.level.clone(),
            calls: calls
                .filter(|(_, count)| *count > 0)
                .map(|(call, count)| (call.name().to_owned(), count))
                .collect(),
            waits: Wait::default(),
            sleeps: Vec::new(),
            preemptions: Wait::default(),
            lost_records: 0,
            sites_dropped: 0,
        };
        let lost = self.ring.as_ref().and_then(Ring::lost);
        self.aggregator.borrow().fill(&mut report, lost);
        report
    }

    fn count(&self, call: C) -> u64 {
        self.counts[call.index()].get()
    }

    #[inline(always)]
    fn attribute_new(&self, call: Option<C>) {
        if let Some(ring) = &self.ring
            && ring.head() != ring.tail()
        {
            self.attribute(ring, call);
        }
    }

    /// Reads what is new in the ring and puts it down to `call`, or to what happened between calls.
    #[cold]
    #[inline(never)]
    fn attribute(&self, ring: &Ring, call: Option<C>) {
        let mut aggregator = self.aggregator.borrow_mut();
        ring.drain(|record| aggregator.record(call, record));
        aggregator.end_drain(call);
    }
}

impl<C> fmt::Debug for Tracer<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracer")
            .field("level", &self.level)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use headway_os::perf::{Detail, Ring};

    use super::{TraceLevel, Tracer};
    use crate::aggregator::tests::Call;
    use headway_test_support::skip;

    /// Sleeps several times, since a sleep this short may be over before the thread leaves the CPU.
    fn sleep_briefly() {
        (0..5).for_each(|_| std::thread::sleep(Duration::from_micros(20)));
    }

    #[test]
    fn lost_records_are_reported_when_one_call_overflows_the_ring() {
        let test = "lost_records_are_reported_when_one_call_overflows_the_ring";
        let ring = match Ring::open(Detail::Stacks, 1) {
            Ok(ring) => ring,
            Err(error) => return skip(test, &format!("perf_event_open: {error}")),
        };
        let kernel_counts = ring.lost().is_some();
        let tracer = Tracer::with(Some(ring), TraceLevel::Stacks);
        // Each sleep takes more than 80 bytes of a ring of one page.
        let dozes = rustix::param::page_size() as u64 / 80;
        tracer.call(Call::Sendfile, || (0..dozes).for_each(|_| sleep_briefly()));
        // Before Linux 6.0 the loss shows only with the next record, which comes with the next
        // sleep.
        assert!(!kernel_counts || tracer.report().lost_records > 0);
        tracer.call(Call::Send, sleep_briefly);
        let report = tracer.report();
        assert!(report.lost_records > 0, "{report:#?}");
        let seen = report.blocked_count();
        assert!(seen > 1 && seen < 5 * dozes, "{report:#?}");
        // After the overflow the ring works again.
        assert!(report.sleeps.iter().any(|site| site.call == "sendto"));
    }

    #[test]
    fn sleeps_have_times_and_no_stacks_when_only_switches_are_seen() {
        let test = "sleeps_have_times_and_no_stacks_when_only_switches_are_seen";
        let ring = match Ring::open(Detail::SwitchesOnly, 16) {
            Ok(ring) => ring,
            Err(error) => return skip(test, &format!("perf_event_open: {error}")),
        };
        let why = "asked for".to_owned();
        let tracer = Tracer::with(Some(ring), TraceLevel::SwitchesOnly { why });
        tracer.call(Call::Send, sleep_briefly);
        let report = tracer.report();
        let site =
            (report.sleeps.iter().find(|site| site.call == "sendto")).expect("the sleeps are seen");
        assert!((1..=5).contains(&site.count), "{site:?}");
        assert!(site.total_ns > 0);
        assert!(site.stack.is_empty());
    }
}
