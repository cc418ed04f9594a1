//! From what the engine measured to the verdict's evidence and the entries of `run.json`.

use super::{Prepared, Ran};
use crate::client::limits::Limits;
use crate::engine::{Measured, Mode, Sources, Target};
use crate::verdict::{Evidence, judge};
use crate::words::readable::count;
use latency::Outcome;
use latency::run::description::{ClientInfo, ServerInfo};

/// Everything the verdict wants to know.
pub(super) fn evidence(prepared: &Prepared, ran: &Ran) -> Evidence {
    let measured = &ran.measured;
    let outcome = |which: Outcome| measured.outcomes[usize::from(which.code())];
    Evidence {
        open_loop: matches!(prepared.plan.mode, Mode::Open { .. }),
        elapsed_s: measured.elapsed_ns as f64 / 1e9,
        requests: measured
            .requests
            .saturating_sub(outcome(Outcome::Abandoned)),
        good: outcome(Outcome::Ok),
        replies: ran.rows.replies,
        not_found: ran.rows.not_found,
        fileset: prepared.fileset,
        late_starts: measured.late_starts,
        connections_exhausted: measured.limits.connections + measured.limits.waiting,
        lag_p99_us: lag_us(measured, 99.0),
        busy_share: Some(measured.busy_share),
        run_queue_s: ran.waited.run_queue_s,
        steal_share: ran.waited.steal_share,
        no_port: outcome(Outcome::NoPort),
        no_descriptor: outcome(Outcome::NoDescriptor),
        rows_dropped: ran.dropped,
    }
}

/// The entry of the client, judged.
pub(super) fn client(
    evidence: &Evidence,
    measured: &Measured,
    limits: &Limits,
    targets: &[Target],
) -> ClientInfo {
    let judgement = judge(evidence);
    let peak = u64::from(measured.connections_peak);
    let ports = ports_available(targets, limits.ports);
    ClientInfo {
        verdict: judgement.verdict,
        reasons: judgement.reasons,
        busy_share: evidence.busy_share,
        run_queue_delay_s: evidence.run_queue_s,
        lag_p50_us: lag_us(measured, 50.0),
        lag_p99_us: evidence.lag_p99_us,
        lag_max_us: (measured.lag.count() > 0).then(|| measured.lag.max_ns() as f64 / 1e3),
        late_starts: evidence.late_starts,
        ports_available: ports,
        ports_used: ports.map(|_| peak),
        descriptors_limit: Some(limits.descriptors),
        descriptors_used: Some(peak),
        connections_opened: Some(measured.connections_opened),
    }
}

fn lag_us(measured: &Measured, percentile: f64) -> Option<f64> {
    let some = measured.lag.count() > 0;
    some.then(|| measured.lag.percentile(percentile) as f64 / 1e3)
}

/// Source addresses times ports, over the targets that have ports; `None` when none has, or there is no bound that matters.
fn ports_available(targets: &[Target], ports: u64) -> Option<u64> {
    let mut sum = None;
    for target in targets {
        let sources = match (&target.address, &target.sources) {
            (crate::engine::Address::Unix(_), _) => continue,
            (_, Sources::Any) => 1,
            (_, Sources::List(list)) => list.len() as u64,
            // 127.0.0.0/8 without its first and last address.
            (_, Sources::Loopback) => (1 << 24) - 2,
        };
        *sum.get_or_insert(0) += sources * ports;
    }
    sum
}

/// A `Server` field taken apart: `nginx/1.22.1 (Debian)` has a product and a version (RFC 9110 section 10.2.4).
pub(super) fn server_info(field: &str) -> ServerInfo {
    let product = field.split_whitespace().next().unwrap_or("");
    let (name, version) = match product.split_once('/') {
        Some((name, version)) => (name, Some(version.to_owned())),
        None => (product, None),
    };
    ServerInfo {
        field: field.to_owned(),
        name: (!name.is_empty()).then(|| name.to_owned()),
        version,
    }
}

/// What a reader should know and what is no reason to doubt the figures.
pub(super) fn warnings(measured: &Measured) -> Vec<String> {
    let mut warnings = Vec::new();
    if measured.unsolicited > 0 {
        warnings.push(format!(
            "on {} idle connections the server sent bytes that nobody had asked for",
            count(measured.unsolicited)
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Address;

    #[test]
    fn product_and_version_are_told_apart_when_a_server_names_itself() {
        let info = server_info("nginx/1.22.1 (Debian)");
        assert_eq!(info.field, "nginx/1.22.1 (Debian)");
        assert_eq!(info.name.as_deref(), Some("nginx"));
        assert_eq!(info.version.as_deref(), Some("1.22.1"));
        let bare = server_info("headway");
        assert_eq!(
            (bare.name.as_deref(), bare.version),
            (Some("headway"), None)
        );
        assert_eq!(server_info("").name, None);
    }

    #[test]
    fn ports_are_unknown_when_the_server_is_a_socket_file() {
        let socket = Target::new(Address::Unix("/run/s".into()), "localhost");
        assert_eq!(ports_available(&[socket], 100), None);
        let inet = Address::Inet("192.0.2.1:80".parse().expect("an address"));
        let mut target = Target::new(inet, "a");
        assert_eq!(ports_available(&[target.clone()], 100), Some(100));
        target.sources = Sources::List(vec![[192, 0, 2, 7].into(), [192, 0, 2, 8].into()]);
        assert_eq!(ports_available(&[target], 100), Some(200));
    }
}
