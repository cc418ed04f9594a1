//! The names of quantities, by what they are figures of.

/// Figures of rows without arguments.
pub(super) const OF_ROWS: [&str; 24] = [
    "mean_ms",
    "median_ms",
    "p5_ms",
    "p10_ms",
    "p25_ms",
    "p75_ms",
    "p90_ms",
    "p95_ms",
    "p99_ms",
    "p99_9_ms",
    "max_ms",
    "service_mean_ms",
    "service_median_ms",
    "service_p95_ms",
    "service_p99_ms",
    "rate_rps",
    "throughput_mbit",
    "error_share",
    "good_mean_ms",
    "good_median_ms",
    "good_p95_ms",
    "good_p99_ms",
    "accepted_timed_out",
    "small_in_slowest",
];

/// Figures that need all rows in order.
pub(super) const OF_ORDER: [&str; 7] = [
    "inversion",
    "inversion_random",
    "inversion_of_random",
    "service_inversion",
    "service_inversion_of_random",
    "jain",
    "service_jain",
];

/// Counts of a run, and figures that its analysis has.
pub(super) const OF_RUN: [&str; 5] = [
    "requests",
    "errors",
    "abandoned",
    "offered_rps",
    "timeline_max_p99_ms",
];

/// Figures of rows with numbers: name, and how many numbers.
pub(super) const WITH_NUMBERS: [(&str, usize); 8] = [
    ("within", 1),
    ("conforming", 1),
    ("decile", 2),
    ("service_decile", 2),
    ("series_share", 1),
    ("series_mean_ms", 1),
    ("series_median_ms", 1),
    ("series_p95_ms", 1),
];

/// Shares of wakeups or samples, with the threshold.
pub(super) const SHARES: [&str; 3] = ["ready_above", "runnable_above", "runnable_at_most"];

/// Figures of what was watched beside the requests.
pub(super) const OF_SERVER: [&str; 10] = [
    "ready_mean",
    "ready_median",
    "ready_p95",
    "ready_max",
    "loop_blocked",
    "loop_blocked_per_s",
    "loop_turn_p99_ms",
    "loop_turn_max_ms",
    "loop_lag_p99_ms",
    "loop_lag_max_ms",
];
pub(super) const OF_RUNNABLE: [&str; 9] = [
    "runnable_mean",
    "runnable_median",
    "runnable_p95",
    "runnable_max",
    "runnable_share_mean",
    "runnable_share_median",
    "runnable_share_p95",
    "runnable_share_max",
    "runnable_look_us",
];
pub(super) const OF_DISK: [&str; 6] = [
    "disk_reads_per_s",
    "disk_busy",
    "disk_queue_mean",
    "disk_queue_max",
    "disk_read_mbit",
    "disk_service_ms",
];
pub(super) const OF_USAGE: [&str; 3] = ["cpu_share", "cpu_us_per_request", "rss_mb"];
pub(super) const OF_BACKGROUND: [&str; 8] = [
    "background_requests",
    "background_errors",
    "background_abandoned",
    "background_rate_rps",
    "background_mean_ms",
    "background_median_ms",
    "background_p95_ms",
    "background_p99_ms",
];

/// The figures that every result carries, whatever its study asks for.
pub const HEADLINE_QUANTITIES: [&str; 11] = [
    "mean_ms",
    "median_ms",
    "p5_ms",
    "p90_ms",
    "p95_ms",
    "p99_ms",
    "rate_rps",
    "throughput_mbit",
    "inversion",
    "errors",
    "cpu_share",
];
