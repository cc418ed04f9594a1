//! The parameters of admission control: twenty numbers, each with its reason, and what follows from
//! them.
//!
//! No other file of the control law has a number of its own that could be tuned. The page *The
//! accept controller* of the research documentation derives each one. A test counts them.

// Times.

/// Duration that an iteration should have. An event wait and the cache misses of a change of work
/// cost some microseconds, so a thousand times as much leaves nothing to gain.
pub const ITERATION_TARGET_US: u64 = 4_000;

/// Longest iteration that is planned to make up for expensive event waits: about a quarter of
/// [`DELAY_MAX_US`], so that it stays far from the overload hold.
pub const ITERATION_MAX_US: u64 = 60_000;

/// Longest time that a ready connection should wait for the loop, and a pending one in the accept
/// queue. Half of a full queue, the loop lag and one retransmitted SYN (1 s) together stay within
/// half of the 3 s after which the papers' clients give up. Far above an iteration that is merely
/// busy.
pub const DELAY_MAX_US: u64 = 250_000;

/// Usual duration of a period, after which the listeners' settings are decided again: ten per
/// [`SYN_RETRANSMIT_US`], and several iterations each.
pub const PERIOD_US: u64 = 100_000;

/// Time until a rejected SYN is retransmitted, and until it is again (RFC 6298, section 2; Linux
/// 6.5 and later; before that the second time is three times as long).
pub const SYN_RETRANSMIT_US: u64 = 1_000_000;

/// Cost of a connection or a rejection before the first one, in nanoseconds: accepting it and
/// answering from memory takes some tens of microseconds.
pub const COST_INITIAL_NS: u64 = 50_000;

// Counts.

/// Work per event wait, in durations of the wait: 19 keeps the waits at 5 % of the time.
pub const WORK_PER_WAIT: u64 = 19;

/// Samples in a mean. It follows a change within a second, but no single sample.
pub const MEAN_WINDOW: u64 = 8;

/// Connections that are enough for a rate with a standard deviation of a quarter, and to be worth
/// an event wait.
pub const FEW_CONNECTIONS: u64 = 16;

/// Shortest accept queue, in connections: as many may come at the same instant.
pub const QUEUE_LENGTH_MIN: u32 = 8;

/// Queue headroom for bursts, in standard deviations (√rate) of Poisson arrivals per second.
pub const BURST_STANDARD_DEVIATIONS: f64 = 5.0;

/// Connections in the mean arrival rate without a stateful SYN filter. They measure it to 2 %, less
/// than [`CHANGE_MIN`].
pub const ARRIVAL_WINDOW_CONNECTIONS: f64 = 3_000.0;

// Ratios.

/// New connections may take 1/SHARE_DIVISOR of the time for established ones, and rejections
/// 1/SHARE_DIVISOR of the time for everything else. A rate needs as many iterations.
pub const SHARE_DIVISOR: u64 = 4;

/// A careful step of a quantity is 1/STEP_DIVISOR of it.
pub const STEP_DIVISOR: u32 = 10;

/// A bold step: by this fraction an estimate may change because of one period.
pub const BOLD_STEP: f64 = 0.25;

/// The admit fraction changes only if it differs by this fraction: the kernel compiles a new filter
/// in 100 µs, and admitted clients should stay admitted.
pub const CHANGE_MIN: f64 = 0.03;

/// Largest growth of the admit fraction per period: rejected clients retransmit, and each step
/// shows how many they are.
pub const ADMIT_GROWTH_MAX: f64 = 1.5;

/// Smallest admit fraction. With less, no connection would show that more may come.
pub const ADMIT_FRACTION_MIN: f64 = 1.0 / 32.0;

/// Fraction of the intended limit by which the backlog exceeds it, so that the queue can be a
/// little too long without a rejection.
pub const BACKLOG_HEADROOM: f64 = 0.125;

/// The load has dropped when fewer connections came than expected by this factor. Of a hundred
/// expected ones that is about three standard deviations.
pub const LOAD_DROP_FACTOR: f64 = 1.4;

/// What follows from the parameters.
pub mod derived {
    use super::*;

    // Batch sizing.

    /// Samples in the long-term cost of a connection, which is the same with and without a CPU
    /// quota, and the most in the arrival rate.
    pub const LONG_MEAN_WINDOW: f64 = (MEAN_WINDOW * MEAN_WINDOW) as f64;
    /// The cost of an event goes up by 1/EVENT_COST_DIVISOR and down by three of these steps, so it
    /// settles where a quarter of all iterations stay below. Slow compared with [`MEAN_WINDOW`].
    pub const EVENT_COST_DIVISOR: u64 = 4 * MEAN_WINDOW;

    // Overload hold.

    /// Loop lag below which the overload hold ends.
    pub const LOOP_LAG_RELEASE_US: u64 = DELAY_MAX_US / 2;
    /// After this time without any accepted connection one is accepted, whatever the loop lag.
    pub const STARVATION_TIMEOUT_US: u64 = 2 * DELAY_MAX_US;

    // Periods.

    /// Shortest period, when more connections are pending than may be.
    pub const PERIOD_MIN_US: u64 = PERIOD_US / 2;
    /// Longest period, when so few connections leave the queue that their number is random, or when
    /// iterations are so long that a period has only a few.
    pub const PERIOD_MAX_US: u64 = SHARE_DIVISOR * PERIOD_US;
    /// Iterations that suffice to measure a rate.
    pub const ITERATIONS_MIN: u32 = SHARE_DIVISOR as u32;
    /// Shortest interval between samples of the listeners, which are system calls.
    pub const SAMPLE_INTERVAL_US: u64 = PERIOD_US / 20;

    // Length of the accept queue.

    /// Largest burst headroom, in seconds of departures.
    pub const BURST_HEADROOM_MAX_S: f64 = 2.0 * DELAY_MAX_US as f64 / 1e6;
    /// Longest assumed time in which a full queue is served: no longer than a retransmission.
    pub const QUEUE_DRAIN_MAX_US: u64 = SYN_RETRANSMIT_US;
    /// [`BACKLOG_HEADROOM`] with a stateful SYN filter, which admits no late clients. An admitted
    /// client better waits in the queue than until it retransmits, so a full queue lasts half as
    /// long as that.
    pub const STATEFUL_BACKLOG_HEADROOM: f64 =
        SYN_RETRANSMIT_US as f64 / (2 * DELAY_MAX_US) as f64 - 1.0;
    /// Fraction of the limit above which the queue counts as full.
    pub const FULL_FRACTION: f64 = 1.0 - 1.5 / STEP_DIVISOR as f64;
    /// Fraction of the limit above which some clients find no room.
    pub const OVERFLOW_FRACTION: f64 = 1.0 - 0.5 / STEP_DIVISOR as f64;
    /// Fractions of the backlog between which the kernel has rejected some connections. Above, the
    /// queue was longer before and it has rejected all of them, so that the arrival rate cannot be
    /// derived from the queue.
    pub const REJECTING_FRACTIONS: std::ops::Range<f64> =
        OVERFLOW_FRACTION..1.0 + 1.0 / STEP_DIVISOR as f64;
    /// Smallest fraction to which the limit is reduced when first requests are too old.
    pub const DELAY_SCALE_MIN: f64 = BOLD_STEP;
    /// Growth of the reduced limit per period.
    pub const DELAY_SCALE_GROWTH: f64 = 1.0 + BOLD_STEP;
    /// Time for which all SYNs must have been admitted and served before the defaults are restored.
    pub const RESTORE_AFTER_US: u64 = SYN_RETRANSMIT_US;

    // Admit fraction.

    /// Time constant with which the queue approaches half of its limit: long compared with the time
    /// after which a rejected SYN is retransmitted.
    pub const SETTLING_TIME_S: f64 = 4.0 * STATEFUL_SETTLING_TIME_S;
    /// Time constant with a stateful SYN filter, which admits no late clients.
    pub const STATEFUL_SETTLING_TIME_S: f64 = SYN_RETRANSMIT_US as f64 / 1e6;
    /// Time constant with which an overflow is brought back.
    pub const OVERFLOW_SETTLING_TIME_S: f64 = STATEFUL_SETTLING_TIME_S;
    /// A queue that is too long is brought back by admitting at least half of the departures.
    /// Otherwise the rejected clients come back together one second later, and the queue is empty
    /// until then and too long afterwards.
    pub const CORRECTION_MAX_FRACTION: f64 = 0.5;
    /// Periods in the mean departure rate, and in the arrival rate with a stateful SYN filter.
    pub const RATE_WINDOW_PERIODS: f64 = 2.0 * MEAN_WINDOW as f64;
    /// Periods in the mean when it is not known whether the old rate still holds.
    pub const STALE_WINDOW_PERIODS: f64 = MEAN_WINDOW as f64 / 2.0;
    /// Expected connections that show a drop of the load: their standard deviation is one step.
    pub const LOAD_DROP_SAMPLE_MIN: f64 = (STEP_DIVISOR * STEP_DIVISOR) as f64;
    /// Largest drop that is believed at once: the clients may only have paused.
    pub const LOAD_DROP_FRACTION_MIN: f64 = BOLD_STEP;
    /// Growth of the admit fraction when the queue has been empty for long, or after a period with
    /// rejected connections.
    pub const PROBE_FACTOR: f64 = 1.0 + 1.0 / STEP_DIVISOR as f64;
    /// Periods in a row with an empty queue after which more is admitted: one retransmission.
    pub const EMPTY_PERIODS_MIN: u32 = (SYN_RETRANSMIT_US / PERIOD_US) as u32;
    /// Range of the factor by which the arrival rate is raised after a period that ended with a
    /// full queue.
    pub const REJECTED_FACTOR_MIN: f64 = 1.0 + 0.5 / STEP_DIVISOR as f64;
    /// Largest factor by which the arrival rate is raised then; see [`REJECTED_FACTOR_MIN`].
    pub const REJECTED_FACTOR_MAX: f64 = 1.0 + BOLD_STEP;
    /// The queue may be full for this long because of a preemption, and of the SYNs retransmitted
    /// after it.
    pub const FULL_DURATION_MIN_S: f64 = 1.5 * SYN_RETRANSMIT_US as f64 / 1e6;
    /// Smallest change of a fraction that has been in force for [`SETTLED_AFTER_US`].
    pub const SETTLED_CHANGE_MIN: f64 = CHANGE_MIN / 3.0;
    /// A fraction that has been in force for this long has settled; see [`SETTLED_CHANGE_MIN`].
    pub const SETTLED_AFTER_US: u64 = SYN_RETRANSMIT_US / 2;
    /// Fractions of the limit between which the queue is about half full.
    pub const HALF_FULL_FRACTIONS: std::ops::Range<f64> = BOLD_STEP..1.0 - BOLD_STEP;
    /// Smallest change of the admit fraction then: the queue has room for too many or too few.
    pub const HALF_FULL_CHANGE_MIN: f64 = CHANGE_MIN * 5.0 / 3.0;

    // Load shedding.

    /// Time without an iteration that served all pending connections after which load shedding
    /// begins: longer than a burst, and when the first SYNs that found no room are retransmitted.
    pub const REJECT_AFTER_US: u64 = SYN_RETRANSMIT_US;
    /// Largest time debt of rejections. A preemption makes one very expensive; no more of it is
    /// made up for, which takes a second.
    pub const DEBT_MAX_US: i64 = DELAY_MAX_US as i64;

    // Disconnected clients.

    /// Under overload, a client that has closed its side and waited longer than this counts as
    /// disconnected: no connection should wait that long in the queue.
    pub const ABANDONED_AFTER_US: u64 = QUEUE_DRAIN_MAX_US;
    /// First requests are usually sampled. All are checked for this long after one had waited for
    /// half of [`ABANDONED_AFTER_US`].
    pub const CHECK_ALL_US: u64 = SYN_RETRANSMIT_US;
}
