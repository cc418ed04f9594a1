//! The page of studies: the papers' tables beside ours, the figures in their form, and what became
//! of each claim.
//!
//! A page holds one study, or several with an overview on top. Everything on it comes from the
//! results as `headway-lab study` kept them; nothing is measured, judged or left out here. Where a
//! result has no value it has a reason, and the page shows the reason. It needs no script and no
//! network, as every report.
//!
//! Sources: the tables and figures that each study names.

mod overview;
mod claims;
mod tables;
mod dots;
mod figures;
mod counts;
mod timeline;
mod blocked;
mod facts;
mod styles;

use std::fmt::Write;

use headway_latency::study::StudyResult;

use crate::GENERATOR_META;
use crate::html::escaped;
use crate::page::{POLICY, STYLE};
use crate::units::counted;
pub use dots::table_svg;
use styles::ServerStyles;

const OWN_STYLE: &str = include_str!("study/study.css");

/// The whole document about one study, or about several in the order they are given.
///
/// ```
/// use headway_latency::study::StudyResult;
///
/// let study = StudyResult { title: "Service inversion".into(), ..StudyResult::default() };
/// assert!(headway_report::study_page(&[study]).contains("<h1>Service inversion</h1>"));
/// ```
pub fn page(results: &[StudyResult]) -> String {
    let styles = ServerStyles::of(results);
    let mut out = String::with_capacity(1 << 19);
    head(&mut out, results);
    if results.len() > 1 {
        out.push_str(&overview::section(results));
    }
    for result in results {
        study(&mut out, result, results.len() > 1, &styles);
    }
    let _ = writeln!(
        out,
        "<footer>Made by headway-lab study {} from {}. Times run from the intended start of a request to its last byte. Small \
         figures beside others are 95 % intervals.</footer></main></body></html>",
        env!("CARGO_PKG_VERSION"),
        counted(results.len() as u64, "result")
    );
    out
}

fn head(out: &mut String, results: &[StudyResult]) {
    let title = match results {
        [one] => one.title.clone(),
        many => format!(
            "{} of the papers, run again",
            counted(many.len() as u64, "experiment")
        ),
    };
    let title = escaped(&title);
    let _ = write!(
        out,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         {GENERATOR_META}<title>{title} – Headway study</title><style>{STYLE}{OWN_STYLE}</style></head>\
         <body><main><header><p class=\"eyebrow\">Headway study</p><h1>{title}</h1><p class=\"about\">{}</p>",
        escaped(&about(results))
    );
    if results.len() > 1 {
        out.push_str("<nav aria-label=\"Contents\">");
        for result in results {
            let _ = write!(
                out,
                "<a href=\"#study-{0}\">{0} {1}</a>",
                result.number,
                escaped(&result.name)
            );
        }
        out.push_str("</nav>");
    }
    out.push_str("</header>");
}

/// Scale, day, machine and kernel, as far as all results agree.
fn about(results: &[StudyResult]) -> String {
    let same = |value: fn(&StudyResult) -> String| {
        let first = value(results.first()?);
        let all = results.iter().all(|result| value(result) == first);
        (all && !first.is_empty()).then_some(first)
    };
    let facts = [
        same(|r| r.scale.clone()).map(|scale| format!("scale {scale}")),
        same(|r| r.made.get(..10).unwrap_or_default().into()),
        same(|r| r.machine.host.clone()).map(|host| format!("measured on {host}")),
        same(|r| r.machine.cpu_model.clone()),
        same(|r| r.machine.kernel.clone()),
    ];
    facts.into_iter().flatten().collect::<Vec<_>>().join(" · ")
}

/// One study: question, claims, tables, figures, and how it was made.
fn study(out: &mut String, result: &StudyResult, of_many: bool, styles: &ServerStyles) {
    let number = result.number;
    let _ = write!(out, "<section id=\"study-{number}\" class=\"study\">");
    if of_many {
        let title = escaped(&result.title);
        let _ = write!(out, "<h2><span class=\"soft\">{number}</span> {title}</h2>");
    }
    let _ = write!(
        out,
        "<p class=\"question\">{}</p><p class=\"source\">{}</p>",
        escaped(&result.question),
        escaped(&result.source)
    );
    if !result.complete {
        out.push_str(
            "<p class=\"alarm suspect\" role=\"alert\">This study is not finished; what was measured so far is shown.</p>",
        );
    }
    out.push_str(&facts::warning(result));
    out.push_str(&claims::html(result));
    for (index, table) in result.tables.iter().enumerate() {
        out.push_str(&tables::html(result, index, table, styles));
    }
    for (index, figure) in result.figures.iter().enumerate() {
        out.push_str(&figures::html(result, index, figure, styles));
    }
    out.push_str(&facts::remarks(result));
    out.push_str(&facts::html(result));
    out.push_str("</section>");
}
