//! What clients received in a window of a measurement.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use headway_latency::row::Outcome as End;

use super::run::RunError;
use crate::metrics::Served;

/// What clients received of requests that ended in a window, the requests that failed in it, and
/// the client's verdict.
pub(super) fn served(
    run: &Path,
    begin: SystemTime,
    end: SystemTime,
) -> Result<(Served, u64, String), RunError> {
    let unread = |error: headway_latency::OpenError| {
        RunError::Failed(format!("reading what the client has measured: {error}"))
    };
    let run = headway_latency::Run::open(run).map_err(unread)?;
    let description = run.description();
    let epoch_ns = description.epoch_unix_ns;
    let on_rows = |moment: SystemTime| {
        let unix = moment
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_nanos() as u64;
        unix.saturating_sub(epoch_ns)
    };
    let (begin_ns, end_ns) = (on_rows(begin), on_rows(end));
    let mut served = Served {
        seconds: end_ns.saturating_sub(begin_ns) as f64 / 1e9,
        ..Served::default()
    };
    let mut errors = 0;
    for batch in run.rows().map_err(unread)? {
        for row in batch.map_err(unread)? {
            if !(begin_ns..end_ns).contains(&row.end_ns) {
                continue;
            }
            served.bytes += row.bytes as f64;
            match row.error {
                End::Ok => served.requests += 1.0,
                _ => errors += 1,
            }
        }
    }
    if served.requests == 0.0 {
        return Err(RunError::Failed(
            "no request was answered while it was counted".into(),
        ));
    }
    let verdict = description.client.as_ref().map_or_else(
        || "no verdict".to_owned(),
        |client| {
            let word = format!("{:?}", client.verdict).to_lowercase();
            match client.reasons.is_empty() {
                true => word,
                false => format!("{word}: {}", client.reasons.join("; ")),
            }
        },
    );
    Ok((served, errors, verdict))
}
