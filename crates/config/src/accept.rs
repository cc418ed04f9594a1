//! Settings that say how connections are accepted, rejected and distributed between workers.

use super::error::Findings;
use super::ranges::{span, value};
use super::research::Defaults;
use super::settings::Settings;
use super::strategy::named_values;
use super::units::AcceptBatch;

named_values! {
    /// The treatment of connections when more arrive, for longer than a burst, than can be served.
    EarlyReject, "kind of rejection" {
        /// Excess connections wait in the accept queue.
        #[default]
        Off = "off",
        /// Excess connections get 503 and are closed.
        Status = "503",
        /// Excess connections are reset.
        Reset = "reset",
    }
}

named_values! {
    /// Which sockets workers accept from.
    ListenerMode, "listener mode" {
        /// One socket per worker; the kernel distributes connections by a hash (`SO_REUSEPORT`).
        #[default]
        Reuseport = "reuseport",
        /// One socket for all; the kernel wakes one worker per connection (`EPOLLEXCLUSIVE`), and
        /// the workers balance their load.
        Shared = "shared",
    }
}

/// Highest backlog that is accepted.
const BACKLOG_MAX: i64 = 1 << 20;

/// The checked settings for accepting connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AcceptSettings {
    pub batch: AcceptBatch,
    pub early_reject: EarlyReject,
    pub listeners: ListenerMode,
}

/// Returns the effective settings and reports contradictions.
pub(super) fn accept_settings(
    from: &Settings,
    defaults: &Defaults,
    to: &mut Findings<'_>,
) -> AcceptSettings {
    let settings = AcceptSettings {
        batch: value(&from.accept_batch).unwrap_or(defaults.accept_batch),
        early_reject: value(&from.early_reject).unwrap_or_default(),
        listeners: value(&from.listeners).unwrap_or_default(),
    };
    // Only the admission controller knows which connections cannot be served.
    if settings.early_reject != EarlyReject::Off && settings.batch != AcceptBatch::Auto {
        let way_out = defaults
            .fixed_batch
            .unwrap_or("set accept-batch = \"auto\" instead");
        let problem = format!(
            "it needs accept-batch = \"auto\", which measures the load, but accept-batch is {}; {way_out}",
            settings.batch
        );
        to.usage_error("early-reject", span(&from.early_reject), problem);
    }
    settings
}

/// Returns the backlog.
pub(super) fn backlog(from: &Settings, default: u32, somaxconn: u32, to: &mut Findings<'_>) -> u32 {
    let Some(item) = &from.backlog else {
        return default;
    };
    let length = *item.get_ref();
    if !(1..=BACKLOG_MAX).contains(&length) {
        // listen(2) treats a negative length as a very large one.
        let problem = format!(
            "{length} is not within 1 to {BACKLOG_MAX}; the kernel allows at most {somaxconn} here (sysctl \
             net.core.somaxconn)"
        );
        to.usage_error("backlog", Some(item.span()), problem);
    }
    u32::try_from(length).unwrap_or(default)
}
