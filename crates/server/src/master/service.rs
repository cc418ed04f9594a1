//! Notifies the service manager, if there is one that wants it: systemd with `Type=notify` or
//! `notify-reload`, and its watchdog (sd_notify(3), sd_watchdog_enabled(3)).

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// What the service manager wants to know.
pub(super) struct Service {
    /// How often it wants a sign of life, and when it gets the next one.
    watchdog: Option<(Duration, Instant)>,
}

impl Service {
    pub(super) fn new() -> Service {
        let interval = sd_notify::watchdog_enabled().map(|timeout| timeout / 2);
        Service {
            watchdog: interval.map(|interval| (interval, Instant::now())),
        }
    }

    /// The server serves, with the settings that it was to have or, after a reload, with those before.
    pub(super) fn ready() {
        send(&[NotifyState::Ready]);
    }

    pub(super) fn reloading() {
        if let Ok(now) = NotifyState::monotonic_usec_now() {
            send(&[NotifyState::Reloading, now]);
        }
    }

    pub(super) fn stopping() {
        send(&[NotifyState::Stopping]);
    }

    /// When the next sign of life is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.watchdog.map(|(_, due)| due)
    }

    /// Sends a sign of life if one is due.
    pub(super) fn ping(&mut self, now: Instant) {
        if let Some((interval, due)) = &mut self.watchdog
            && *due <= now
        {
            *due = now + *interval;
            send(&[NotifyState::Watchdog]);
        }
    }
}

/// A service manager that cannot be reached does not keep the server from serving.
fn send(state: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(state);
}
