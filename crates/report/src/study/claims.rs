//! The claims of a study: what was claimed, what came of it here, and the numbers that decided.

use std::fmt::Write;

use headway_latency::analysis::Interval;
use headway_latency::study::StudyResult;
use headway_latency::study::reasons::Reasons;
use headway_latency::study::result::{ClaimOutcome, ClaimResult, Comparison};

use super::tables::significant;
use crate::html::escaped;
use crate::units::{counted, percent};

/// All outcomes, in the order in which they are counted.
pub(super) const OUTCOMES: [ClaimOutcome; 4] = [
    ClaimOutcome::Confirmed,
    ClaimOutcome::NotConfirmed,
    ClaimOutcome::Inconclusive,
    ClaimOutcome::Untestable,
];

/// Reasons that stand in sight; the others are folded away with the rule.
const REASONS: usize = 2;

/// The class that colours an outcome.
pub(super) fn class(outcome: ClaimOutcome) -> &'static str {
    match outcome {
        ClaimOutcome::Confirmed => "valid",
        ClaimOutcome::NotConfirmed => "invalid",
        ClaimOutcome::Inconclusive => "suspect",
        ClaimOutcome::Untestable => "unknown",
    }
}

/// A sign that differs by shape, not by colour only: tick, cross, wave, dash.
pub(super) fn badge(outcome: ClaimOutcome) -> String {
    let path = match outcome {
        ClaimOutcome::Confirmed => "M12 2.5a9.5 9.5 0 1 0 .01 0zM7.5 12.4l3.2 3.2 6-6.6",
        ClaimOutcome::NotConfirmed => {
            "M8 2.5h8l5.5 5.5v8L16 21.5H8L2.5 16V8zM8.6 8.6l6.8 6.8M15.4 8.6l-6.8 6.8"
        }
        ClaimOutcome::Inconclusive => {
            "M12 1.8 22.2 12 12 22.2 1.8 12zM7.6 13c1.5-3 3-3 4.4-1s2.9 2 4.4-1"
        }
        ClaimOutcome::Untestable => "M3.5 3.5h17v17h-17zM8 12h8",
    };
    let name = outcome.name();
    format!(
        "<svg class=\"badge\" viewBox=\"0 0 24 24\" role=\"img\" aria-label=\"{name}\"><title>{name}</title><desc>outcome</desc><path d=\"{path}\"/></svg>"
    )
}

/// The list of claims; nothing for a study without any.
pub(super) fn html(result: &StudyResult) -> String {
    if result.claims.is_empty() {
        return String::new();
    }
    let items: String = result.claims.iter().map(item).collect();
    format!("<ul class=\"verdicts claims\">{items}</ul>")
}

fn item(claim: &ClaimResult) -> String {
    let mut out = format!(
        "<li class=\"{}\">{}<div><h3>{}</h3><p class=\"soft\">{}</p></div><div><p><span class=\"word\">{}</span>{}</p>",
        class(claim.outcome),
        badge(claim.outcome),
        escaped(&claim.text),
        escaped(&claim.source),
        claim.outcome.name(),
        expectation(claim)
    );
    for comparison in &claim.comparisons {
        let _ = write!(out, "<p>{}</p>", compared(comparison));
    }
    let reasons = claim.why.iter().filter(|why| !why.is_empty());
    let reasons = reasons.collect::<Reasons>().sentences();
    let (first, more) = reasons.split_at(reasons.len().min(REASONS));
    for why in first {
        let _ = write!(out, "<p>{}</p>", escaped(why));
    }
    let explained =
        claim.outcome == ClaimOutcome::NotConfirmed && claim.expected != claim.outcome.name();
    if let Some(explain) = claim.explain.as_ref().filter(|_| explained) {
        let _ = write!(out, "<p>{}</p>", escaped(explain));
    }
    if !claim.caveats.is_empty() {
        let caveats = claim.caveats.iter().collect::<Reasons>().sentences();
        let _ = write!(
            out,
            "<p class=\"soft\">{}</p>",
            escaped(&caveats.join("; "))
        );
    }
    if let Some(rule) = &claim.rule {
        let also = match more.len() {
            0 => String::new(),
            many => format!(", and {}", counted(many as u64, "more reason")),
        };
        let _ = write!(
            out,
            "<details><summary>The rule{also}</summary><p><code>{}</code></p>",
            escaped(rule)
        );
        for why in more {
            let _ = write!(out, "<p>{}</p>", escaped(why));
        }
        out.push_str("</details>");
    }
    out + "</div></li>"
}

/// Said only where not holding is what the author expects.
fn expectation(claim: &ClaimResult) -> &'static str {
    if claim.expected == ClaimOutcome::NotConfirmed.name() {
        " <span class=\"soft\">and is not expected to</span>"
    } else {
        ""
    }
}

/// Both sides with their intervals, as far as they are known.
fn compared(comparison: &Comparison) -> String {
    let (Some(left), Some(right)) = (comparison.left, comparison.right) else {
        return format!("<code>{}</code>", escaped(&comparison.text));
    };
    let mut out = format!(
        "{} {} {}",
        side(left, comparison.left_interval),
        escaped(&comparison.operator.replace("<=", "≤").replace(">=", "≥")),
        side(right, comparison.right_interval)
    );
    if let Some(support) = comparison
        .support
        .filter(|share| *share > 0.0 && *share < 1.0)
    {
        let _ = write!(
            out,
            " <small>true in {} of the draws</small>",
            percent(support)
        );
    }
    out
}

fn side(value: f64, interval: Option<Interval>) -> String {
    let range = interval
        .filter(|range| range.low != range.high)
        .map_or(String::new(), |range| {
            format!(
                " <small>{}…{}</small>",
                significant(range.low),
                significant(range.high)
            )
        });
    format!("<b>{}</b>{range}", significant(value))
}
