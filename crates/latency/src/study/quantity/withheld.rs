//! What an analysis withholds, by the names of quantities.

use crate::analysis::{Analysis, Distribution};

/// Fails for a latency that the analysis withholds, with the reason, and for what follows from
/// latencies. Shares of all requests and rates count every request, so they are never withheld.
pub(super) fn check(name: &str, analysis: &Analysis) -> Result<(), String> {
    let of_latencies = [
        "decile",
        "service_decile",
        "small_in_slowest",
        "inversion",
        "inversion_random",
        "conforming",
    ];
    let needs_latencies = name.ends_with("_ms") || of_latencies.contains(&name);
    if needs_latencies && analysis.withheld {
        return Err("withheld: too many requests have no latency".to_owned());
    }
    let is_known = |figure: fn(&Distribution) -> Option<f64>| {
        let response = analysis.response.as_ref();
        response.is_none_or(|response| figure(response).is_some())
    };
    let reached = match name {
        "p99_9_ms" => !is_known(|response| response.p99_9_us),
        "max_ms" => !is_known(|response| response.max_us),
        _ => false,
    };
    match reached {
        true => Err("withheld: a request without a latency may be slower".to_owned()),
        false => Ok(()),
    }
}
