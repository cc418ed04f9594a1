//! What points are shares of, from the measurements that there are.

use headway_latency::Run;

use super::spec::{Point, ServerChoice, Spec};
use super::store::{Record, Store};

/// The capacity, or the knee, that a point is a share of: the median over the repeats that were
/// measured.
pub(super) fn whole(store: &Store, spec: &Spec, server: &ServerChoice) -> Result<f64, String> {
    let mut found = Vec::new();
    let mut why = None;
    let name = match spec.share_of_knee() {
        Some(_) => "knee",
        None => "capacity",
    };
    for record in measured(store, spec, server) {
        match record {
            Ok(rate) if rate > 0.0 => found.push(rate),
            Ok(_) => why = Some("it gave no good response in the closed loop".to_owned()),
            Err(reason) => why = Some(reason),
        }
    }
    found.sort_by(f64::total_cmp);
    let middle = found.len() / 2;
    match found.len() {
        0 => {
            let why = why.unwrap_or_else(|| "it was not measured".to_owned());
            Err(format!("the {name} of {} is not known: {why}", server.kind))
        }
        odd if odd % 2 == 1 => Ok(found[middle]),
        _ => Ok(f64::midpoint(found[middle - 1], found[middle])),
    }
}

/// The closed loops of a server, or the searches for its knee, in the environment and workload of a
/// measurement. Their length and repeats follow from the scale, which is not known here; so the records are searched for those
/// that fit in everything else. Where a measure has shorter ones of its own beside them, or another
/// scale had, the longest count: a mean of both would be the capacity of neither.
fn measured(store: &Store, spec: &Spec, server: &ServerChoice) -> Vec<Result<f64, String>> {
    let (environment, workload) = match spec.elsewhere() {
        Some(elsewhere) => (&elsewhere.environment, &elsewhere.workload),
        None => (&spec.environment, &spec.workload),
    };
    let wanted = match spec.share_of_knee() {
        Some(knee) => Point::Knee(knee),
        None => Point::Capacity,
    };
    let fits = |record: &Record| {
        let other = &record.spec;
        other.server == *server
            && other.environment == *environment
            && other.workload == *workload
            && other.point == wanted
            && other.observe.is_none()
            && other.fault.is_none()
            && other.probe.is_none()
    };
    let of = |record: Record| match record.failed {
        Some(why) => Err(why),
        None if record.rate_rps.is_some() => Ok(record.rate_rps.unwrap_or_default()),
        None => {
            let run = Run::open(store.directory(&record.spec.key()).join("run"));
            let run = run.map_err(|error| error.to_string())?;
            let summary = run.description().summary.clone().unwrap_or_default();
            Ok(summary.rate_rps)
        }
    };
    let found: Vec<Record> = store.records().into_iter().filter(fits).collect();
    let length = |record: &Record| (record.spec.seconds, record.spec.warmup_s);
    let good = found.iter().filter(|record| record.failed.is_none());
    let none = (0.0, 0.0);
    let longest = good
        .map(length)
        .fold(none, |one, other| if other > one { other } else { one });
    // Where none is good, all say why.
    let counts = |record: &Record| longest == none || length(record) == longest;
    found.into_iter().filter(counts).map(of).collect()
}
