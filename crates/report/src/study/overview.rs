//! The overview of several studies: a row a study, with what became of its claims.

use std::fmt::Write;

use headway_latency::study::StudyResult;
use headway_latency::study::result::ClaimOutcome;

use super::claims::{OUTCOMES, badge, class};
use crate::html::escaped;

/// The section on top of a page of several studies.
pub(super) fn section(results: &[StudyResult]) -> String {
    let mut out = String::from(
        "<section id=\"overview\"><h2>Outcomes of the claims</h2><p>The rule in its study decides each claim, from 95 % \
         intervals; none is decided by hand. A claim that is not confirmed stays here, with the reason if it is known.</p>",
    );
    out.push_str(&totals(results));
    out.push_str(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Studies and their claims, table\"><table \
         class=\"overview\"><thead><tr><th scope=\"col\">study</th>",
    );
    for outcome in OUTCOMES {
        let _ = write!(out, "<th scope=\"col\">{}</th>", outcome.name());
    }
    out.push_str(
        "<th scope=\"col\" class=\"words\">claims, in their order</th></tr></thead><tbody>",
    );
    for result in results {
        row(&mut out, result);
    }
    out + "</tbody></table></div></section>"
}

fn count(result: &StudyResult, wanted: ClaimOutcome) -> usize {
    let claims = result.claims.iter();
    claims.filter(|claim| claim.outcome == wanted).count()
}

/// The four numbers over all studies.
fn totals(results: &[StudyResult]) -> String {
    let one = |outcome: &ClaimOutcome| {
        let total: usize = results.iter().map(|result| count(result, *outcome)).sum();
        format!(
            "<li class=\"{}\">{}<b>{total}</b> {}</li>",
            class(*outcome),
            badge(*outcome),
            outcome.name()
        )
    };
    let items: String = OUTCOMES.iter().map(one).collect();
    format!("<ul class=\"totals\">{items}</ul>")
}

fn row(out: &mut String, result: &StudyResult) {
    let _ = write!(
        out,
        "<tr><th scope=\"row\"><a href=\"#study-{0}\">{0} {1}</a>",
        result.number,
        escaped(&result.title)
    );
    if !result.complete {
        out.push_str(" <small>not finished</small>");
    }
    out.push_str("</th>");
    for outcome in OUTCOMES {
        match count(result, outcome) {
            0 => out.push_str("<td class=\"soft\">–</td>"),
            some => {
                let _ = write!(out, "<td>{some}</td>");
            }
        }
    }
    out.push_str("<td class=\"words\"><span class=\"badges\">");
    for claim in &result.claims {
        let _ = write!(
            out,
            "<span class=\"{}\" title=\"{}: {}\">{}</span>",
            class(claim.outcome),
            escaped(claim.outcome.name()),
            escaped(&claim.text),
            badge(claim.outcome)
        );
    }
    out.push_str("</span></td></tr>");
}
