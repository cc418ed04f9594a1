//! From what the engine measured to the verdict's evidence and the entries of `run.json`.

use super::{Prepared, Ran};
use crate::client::limits::ClientLimits;
use crate::engine::{Measured, Mode, Sources, Target};
use crate::verdict::{Evidence, judge};
use headway_latency::Outcome;
use headway_latency::format::count;
use headway_latency::run::description::{ClientInfo, ServerInfo, TlsInfo};

/// Everything the verdict wants to know.
pub(super) fn evidence(prepared: &Prepared, ran: &Ran) -> Evidence {
    evidence_of(&prepared.plan.mode, prepared.fileset, ran)
}

fn evidence_of(mode: &Mode, fileset: bool, ran: &Ran) -> Evidence {
    let measured = &ran.measured;
    let outcome = |which: Outcome| measured.outcomes[usize::from(which.code())];
    Evidence {
        open_loop: matches!(mode, Mode::Open { .. }),
        elapsed_s: measured.elapsed_ns as f64 / 1e9,
        requests: measured
            .requests
            .saturating_sub(outcome(Outcome::Abandoned)),
        responses: ran.rows.responses,
        good: ran.rows.good,
        not_found: ran.rows.not_found,
        timed_out: ran.rows.timed_out,
        fileset,
        late_starts: measured.late_starts,
        connections_exhausted: measured.limits.connections + measured.limits.waiting,
        lag_p99_us: lag_us(measured, 99.0),
        busy_share: Some(measured.busy_share),
        run_queue_s: ran.waited.run_queue_s,
        steal_share: ran.waited.steal_share,
        no_port: outcome(Outcome::NoPort),
        no_descriptor: outcome(Outcome::NoDescriptor),
        started: ran.rows.started,
        untimed: ran.rows.untimed,
        unqueued: ran.rows.unqueued,
        rows_dropped: ran.dropped,
    }
}

/// The entry of the client, judged.
pub(super) fn client(
    evidence: &Evidence,
    measured: &Measured,
    limits: &ClientLimits,
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
        tls: tls_info(measured),
    }
}

/// `None` if no connection had TLS.
fn tls_info(measured: &Measured) -> Option<TlsInfo> {
    let handshakes = &measured.handshakes;
    Some(TlsInfo {
        protocol: handshakes.protocol.clone()?,
        handshakes: handshakes.done,
        resumed: handshakes.resumed,
    })
}

fn lag_us(measured: &Measured, percentile: f64) -> Option<f64> {
    let some = measured.lag.count() > 0;
    some.then(|| measured.lag.percentile(percentile) as f64 / 1e3)
}

/// Source addresses times ports, over the targets that have ports; `None` when none has, or there
/// is no limit that matters.
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

/// A `Server` field taken apart: `nginx/1.22.1 (Debian)` has a product and a version (RFC 9110
/// section 10.2.4).
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
            "the server sent bytes without a request on {} idle connections",
            count(measured.unsolicited)
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::watch::Waited;
    use crate::engine::{Address, Epoch, Handshakes};
    use crate::session::rows::{RowSink, Rows};
    use headway_latency::{Analyzer, Histogram, RunDescription};

    /// A run in which no two numbers are the same.
    fn ran() -> Ran {
        let mut outcomes = [0; Outcome::ALL.len()];
        outcomes[usize::from(Outcome::Abandoned.code())] = 1;
        outcomes[usize::from(Outcome::NoPort.code())] = 2;
        outcomes[usize::from(Outcome::NoDescriptor.code())] = 3;
        let mut lag = Histogram::new();
        (1..=100).for_each(|us| lag.record_ns(us * 1000));
        let mut rows = Rows::new(
            RowSink::Figures(Box::new(Analyzer::new(&RunDescription::default()))),
            None,
            None,
        );
        (rows.responses, rows.good, rows.not_found, rows.timed_out) = (70, 60, 4, 5);
        (rows.started, rows.untimed, rows.unqueued) = (80, 10, 9);
        Ran {
            measured: Measured {
                epoch: Epoch {
                    instant: std::time::Instant::now(),
                    wall: std::time::SystemTime::now(),
                },
                elapsed_ns: 9_000_000_000,
                requests: 101,
                outcomes,
                late_starts: 5,
                lag,
                busy_share: 0.25,
                cpu_ns: 0,
                bytes: 0,
                connections_opened: 0,
                connections_peak: 0,
                retried: 0,
                unsolicited: 0,
                handshakes: Handshakes {
                    done: 3,
                    resumed: 2,
                    protocol: Some("TLSv1.3".to_owned()),
                },
                limits: crate::engine::LimitsMet {
                    connections: 6,
                    waiting: 7,
                    ..Default::default()
                },
                failure: None,
                server: None,
                stopped: false,
            },
            waited: Waited {
                run_queue_s: Some(0.5),
                steal_share: Some(0.125),
            },
            stopped_ns: None,
            dropped: 8,
            rows,
            lost: crate::session::Lost::default(),
        }
    }

    #[test]
    fn evidence_has_every_measure_of_a_run() {
        let found = evidence_of(&Mode::Closed { connections: 1 }, true, &ran());
        assert!(!found.open_loop && found.fileset);
        assert_eq!(
            (found.requests, found.responses, found.good, found.not_found),
            (100, 70, 60, 4)
        );
        assert_eq!(found.timed_out, 5);
        assert_eq!(
            (found.no_port, found.no_descriptor, found.late_starts),
            (2, 3, 5)
        );
        assert_eq!((found.connections_exhausted, found.rows_dropped), (13, 8));
        assert_eq!((found.started, found.untimed, found.unqueued), (80, 10, 9));
        assert_eq!((found.elapsed_s, found.busy_share), (9.0, Some(0.25)));
        assert_eq!(
            (found.run_queue_s, found.steal_share),
            (Some(0.5), Some(0.125))
        );
        let lag = found.lag_p99_us.expect("a hundred arrivals");
        assert!((98.9..=99.1).contains(&lag), "{lag}");
    }

    #[test]
    fn client_info_has_every_measure_of_the_client() {
        let mut ran = ran();
        (
            ran.measured.connections_peak,
            ran.measured.connections_opened,
        ) = (21, 22);
        let evidence = evidence_of(&Mode::Closed { connections: 1 }, true, &ran);
        let limits = ClientLimits {
            descriptors: 23,
            ports: 24,
        };
        let inet = Address::Inet("192.0.2.1:80".parse().expect("an address"));
        let found = client(&evidence, &ran.measured, &limits, &[Target::new(inet, "a")]);
        assert_eq!(
            found.verdict,
            headway_latency::run::description::Verdict::Invalid
        );
        assert!(
            found.reasons[0].contains("8 requests are missing")
                && found.reasons[1].contains("9 requests found all connections busy"),
            "{:?}",
            found.reasons
        );
        assert_eq!(
            (found.busy_share, found.run_queue_delay_s),
            (Some(0.25), Some(0.5))
        );
        let near =
            |value: Option<f64>, expected: f64| (value.expect("a lag") - expected).abs() < 0.2;
        assert!(
            near(found.lag_p50_us, 50.0)
                && near(found.lag_p99_us, 99.0)
                && near(found.lag_max_us, 100.0)
        );
        assert_eq!(found.late_starts, 5);
        assert_eq!(
            (found.ports_available, found.ports_used),
            (Some(24), Some(21))
        );
        assert_eq!(
            (found.descriptors_limit, found.descriptors_used),
            (Some(23), Some(21))
        );
        assert_eq!(found.connections_opened, Some(22));
        let tls = found.tls.expect("handshakes");
        assert_eq!((tls.handshakes, tls.resumed), (3, 2));
        assert_eq!(tls.protocol, "TLSv1.3");

        let unmeasured = Measured {
            lag: Histogram::new(),
            ..ran.measured
        };
        let socket = Target::new(Address::Unix("/run/s".into()), "localhost");
        let found = client(&evidence, &unmeasured, &limits, &[socket]);
        assert_eq!((found.lag_p50_us, found.lag_max_us), (None, None));
        assert_eq!((found.ports_available, found.ports_used), (None, None));
    }

    #[test]
    fn warning_counts_the_connections_when_bytes_came_without_a_request() {
        let mut measured = ran().measured;
        assert_eq!(warnings(&measured), Vec::<String>::new());
        measured.unsolicited = 1_234;
        let found = warnings(&measured);
        assert!(
            found.len() == 1 && found[0].contains("on 1,234 idle connections"),
            "{found:?}"
        );
    }

    #[test]
    fn server_header_is_split_into_product_and_version() {
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
        let socket = Target::new(Address::Unix("/run/s".into()), "localhost");
        let other = Target::new(target.address.clone(), "b");
        assert_eq!(
            ports_available(&[target.clone(), socket, other], 100),
            Some(300)
        );
        target.sources = Sources::Loopback;
        assert_eq!(ports_available(&[target], 2), Some(2 * 16_777_214));
    }
}
