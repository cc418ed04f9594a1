//! Shares of the response time: blocking, queueing, transfer.

use super::Quantity;
use crate::study::evidence::RunEvidence;

/// The words of the parts of a response time, in the order of `Parts::shares`.
const PARTS: [&str; 5] = ["own", "loop", "queue", "transfer", "client"];

impl Quantity {
    pub(super) fn is_part(&self) -> bool {
        matches!(self.name.as_str(), "part_share" | "slow_part_share")
    }

    /// Which part of the response time, by its word.
    pub(super) fn part_index(&self) -> Result<usize, String> {
        let word = self.arguments.first().map_or("", String::as_str);
        let found = PARTS.iter().position(|part| *part == word);
        found.ok_or_else(|| format!("{}: no part {word:?}: {}", self.name, PARTS.join(", ")))
    }

    pub(super) fn of_breakdown(&self, evidence: &RunEvidence) -> Result<f64, String> {
        let found = evidence
            .breakdown
            .as_ref()
            .ok_or("the server was not traced while requests were in flight")?;
        let parts = match self.name.as_str() {
            "slow_part_share" => &found.slow,
            _ => &found.all,
        };
        Ok(parts.shares()[self.part_index()?])
    }
}
