//! Latencies that an analysis withholds, by the names of quantities.

use crate::analysis::Analysis;

/// Fails for a latency that the analysis withholds, with the reason. Shares of all requests and
/// rates count every request, so they are never withheld.
pub(super) fn check(name: &str, analysis: &Analysis) -> Result<(), String> {
    let is_latency = name.ends_with("_ms") || matches!(name, "decile" | "small_in_slowest");
    match is_latency && analysis.withheld {
        true => Err("withheld: too many requests have no latency".to_owned()),
        false => Ok(()),
    }
}
