//! Failed handshakes: counts them by reason, and logs them. Many failures must not fill the log. So each reason
//! has a few messages at first, and then one more per interval (a token bucket).

use headway_config::{ErrorLevel, UNIX_CLIENT};
use headway_connection::Connection;
use headway_metrics::Counters;
use headway_tls::{Failure, Reason};

use crate::worker::context::LoopContext;

/// The most messages in a burst, for each reason.
const BURST: u64 = 5;
/// The interval after which one more message is allowed.
const INTERVAL_MS: u64 = 10_000;

/// The messages that each reason may still log.
#[derive(Default)]
pub(super) struct Failures([Limit; Reason::ALL.len()]);

#[derive(Clone, Copy, Default)]
struct Limit {
    /// Messages that were logged and not yet allowed again.
    spent: u64,
    /// When a message was last allowed again.
    since_ms: u64,
    /// Failures since the last message.
    silent: u64,
}

impl Limit {
    /// If this failure may be logged: the number of failures since the last message.
    fn spend(&mut self, now_ms: u64) -> Option<u64> {
        let replaced = now_ms.saturating_sub(self.since_ms) / INTERVAL_MS;
        self.spent = self.spent.saturating_sub(replaced);
        self.since_ms = match self.spent {
            0 => now_ms,
            _ => self.since_ms + replaced * INTERVAL_MS,
        };
        if self.spent == BURST {
            self.silent += 1;
            return None;
        }
        self.spent += 1;
        Some(std::mem::take(&mut self.silent))
    }
}

impl LoopContext {
    /// Counts and logs a handshake that has failed.
    pub(in crate::worker) fn fail_handshake(&mut self, connection: &Connection, failure: &Failure) {
        self.counters.tls_handshakes_failed += 1;
        *counter(&mut self.counters, failure.reason) += 1;
        let Some(tls) = &mut self.tls else { return };
        let at = Reason::ALL
            .iter()
            .position(|reason| *reason == failure.reason);
        let limit = at.and_then(|at| tls.failures.0.get_mut(at));
        let Some(silent) = limit.and_then(|limit| limit.spend(self.now_ms)) else {
            return;
        };
        let name = connection
            .tls
            .as_ref()
            .and_then(|tls| tls.server_name.as_ref());
        let name = name.map_or(String::new(), |name| {
            format!(" for {}", name.escape_ascii())
        });
        let others = match silent {
            0 => String::new(),
            count => format!("; {count} more with this reason before"),
        };
        let client = match connection.client.ip() {
            UNIX_CLIENT => "unix:".to_owned(),
            _ => connection.client.to_string(),
        };
        self.notice(
            ErrorLevel::Info,
            format!("TLS handshake with {client}{name} failed: {failure}{others}"),
        );
    }
}

fn counter(counters: &mut Counters, reason: Reason) -> &mut u64 {
    match reason {
        Reason::NotTls => &mut counters.tls_failed_not_tls,
        Reason::BadMessage => &mut counters.tls_failed_bad_message,
        Reason::Version => &mut counters.tls_failed_version,
        Reason::CipherSuite => &mut counters.tls_failed_cipher_suite,
        Reason::Protocol => &mut counters.tls_failed_alpn,
        Reason::ClientCertificateMissing => &mut counters.tls_failed_client_certificate_missing,
        Reason::ClientCertificateExpired => &mut counters.tls_failed_client_certificate_expired,
        Reason::ClientCertificateRefused => &mut counters.tls_failed_client_certificate_refused,
        Reason::UnknownName => &mut counters.tls_failed_unknown_name,
        Reason::CertificateRejected => &mut counters.tls_failed_certificate_rejected,
        Reason::ClientAlert => &mut counters.tls_failed_client_alert,
        Reason::ClientClosed => &mut counters.tls_failed_client_closed,
        Reason::Timeout => &mut counters.tls_failed_timeout,
        Reason::ProcessGone => &mut counters.tls_failed_process_gone,
        Reason::Other => &mut counters.tls_failed_other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_a_reason_are_limited_and_count_those_left_out() {
        let (mut limit, begun_ms) = (Limit::default(), 1_000_000);
        for _ in 0..BURST {
            assert_eq!(limit.spend(begun_ms), Some(0));
        }
        for _ in 0..7 {
            assert_eq!(limit.spend(begun_ms + INTERVAL_MS - 1), None);
        }
        assert_eq!(limit.spend(begun_ms + INTERVAL_MS), Some(7));
        assert_eq!(limit.spend(begun_ms + INTERVAL_MS), None);
        // After a long time without failures a full burst is allowed again.
        let later_ms = begun_ms + 100 * INTERVAL_MS;
        assert_eq!(limit.spend(later_ms), Some(1));
        for _ in 1..BURST {
            assert_eq!(limit.spend(later_ms), Some(0));
        }
        assert_eq!(limit.spend(later_ms), None);
    }
}
