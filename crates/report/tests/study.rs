//! The page of studies: everything a result holds is on it, what is missing has its reason, and
//! nothing leaves its place.

use crate::support::{browser, study};
use headway_latency::study::StudyResult;
use headway_latency::study::result::{ClaimOutcome, Table};
use headway_report::{study_page, study_table_svg};
use study::full;

fn two_studies() -> Vec<StudyResult> {
    let mut second = full(8);
    second.complete = false;
    vec![full(7), second]
}

#[test]
fn overview_counts_claims_when_there_are_several_studies() {
    let html = study_page(&two_studies());
    let overview = html
        .split("id=\"overview\"")
        .nth(1)
        .and_then(|rest| rest.split("</section>").next());
    let overview = overview.expect("an overview");
    assert!(
        overview.contains("<b>2</b> confirmed") && overview.contains("<b>2</b> cannot be tested"),
        "{overview}"
    );
    assert_eq!(overview.matches("class=\"badge\"").count(), 4 + 8);
    assert!(overview.contains("href=\"#study-8\"") && overview.contains("not finished"));
    assert!(!study_page(&[full(7)]).contains("id=\"overview\""));
}

#[test]
fn our_row_is_below_that_of_the_paper() {
    let html = study_page(&[full(7)]);
    let table = html
        .split("<table class=\"beside\">")
        .nth(1)
        .expect("a table");
    let at = |text: &str| table.find(text).unwrap_or_else(|| panic!("{text}"));
    let apache = at("Apache <small>paper</small>");
    let ours = at(">Apache (prefork)<");
    let flash = at("Flash <small>paper</small>");
    assert!(apache < ours && ours < flash && flash < at(">Headway<"));
    assert!(table.contains("<td>0.58</td>"));
}

#[test]
fn table_of_dots_is_drawn_on_the_page_and_as_a_picture_of_its_own() {
    let result = full(7);
    assert!(study_page(std::slice::from_ref(&result)).contains("Places, each with a panel, drawn"));
    let svg = study_table_svg(&result, &result.tables[2]).expect("a picture");
    assert!(
        svg.starts_with("<svg xmlns=") && svg.contains("a &lt;place&gt;"),
        "{svg}"
    );
    // Three rows with four values, of which one is missing, and a row without any.
    assert_eq!(svg.matches("class=\"point ").count(), 11, "{svg}");
    assert_eq!(svg.matches(">–<").count(), 5, "{svg}");
    assert!(!svg.contains("var(") && !svg.contains("NaN"));
    let empty = Table {
        ours: Vec::new(),
        ..result.tables[2].clone()
    };
    assert!(study_table_svg(&result, &empty).is_none());
}

#[test]
fn empty_cell_has_a_footnote() {
    let html = study_page(&[full(7)]);
    assert!(
        html.contains("<li>not at this scale</li>")
            && html.contains("<li>the module is not there yet</li>")
    );
    assert!(html.contains("<li>suspect: the client may have been the bottleneck"));
    assert!(html.contains("inversion(disk, flash, 20%); The client&#39;s loop was 93 % busy."));
    assert!(html.contains("nothing of this figure was measured"));
    assert!(html.contains("not measured: h2o is not installed"));
    assert!(html.contains("the server did not answer within 10 s"));
}

#[test]
fn explanation_is_shown_when_a_claim_is_not_confirmed() {
    let html = study_page(&[full(7)]);
    assert_eq!(
        html.matches("Linux holds no lock during a disk read.")
            .count(),
        1
    );
    for outcome in [
        ClaimOutcome::Confirmed,
        ClaimOutcome::NotConfirmed,
        ClaimOutcome::Inconclusive,
        ClaimOutcome::Untestable,
    ] {
        let word = format!("<span class=\"word\">{}</span>", outcome.name());
        assert_eq!(html.matches(&word).count(), 1, "{word}");
    }
    assert!(html.contains("Haboob needs the Java of 2001") && html.contains("a single repeat"));
}

#[test]
fn suspect_and_invalid_runs_are_announced() {
    let html = study_page(&[full(7)]);
    assert!(
        html.contains("Of 40 runs: 2 suspect, 1 not made."),
        "{}",
        html.len()
    );
    assert!(html.contains("headway-lab study run 7 --scale quick -o &#39;my results&#39;"));
}

#[test]
fn hostile_study_result_is_escaped_and_loads_nothing() {
    let evil = "</title></svg><script>alert(1)</script><img src=x onerror=y>\"'&\u{202e}";
    let text = serde_json::to_string(&full(7)).expect("JSON");
    let word = serde_json::to_string(evil).expect("JSON");
    let word = word.trim_matches('"');
    let mut hostile = text;
    for name in [
        "invented",
        "Flash",
        "Apache",
        "not at this scale",
        "sendfile",
        "page-io",
        "holds both",
        "bench",
        "disk-bound",
    ] {
        hostile = hostile.replace(name, word);
    }
    let result = StudyResult::from_json(&hostile).expect("a result");
    let html = study_page(&[result.clone(), result]);
    for refused in [
        "<script",
        "<img",
        "<link",
        "url(",
        "src=x onerror=y>",
        "\u{202e}",
    ] {
        assert!(!html.contains(refused), "{refused}");
    }
}

#[test]
fn page_is_complete_when_a_result_is_empty() {
    let html = study_page(&[StudyResult::default()]);
    assert!(html.ends_with("</main></body></html>\n") && html.contains("<table"));
    assert!(study_page(&[]).contains("0 experiments"));
}

#[test]
fn page_of_all_studies_is_small_when_every_figure_is_there() {
    let all: Vec<StudyResult> = (1..=15).map(full).collect();
    let html = study_page(&all);
    assert!(html.len() < 6_000_000, "{} bytes", html.len());
    assert!(!html.contains("NaN"));
}

#[test]
fn study_page_fits_the_window() {
    const WIDTHS: [u32; 5] = [320, 390, 768, 1280, 1600];
    let Some(program) = browser::program() else {
        return headway_test_support::skip(
            "study_page_fits_the_window",
            "no chromium on this machine",
        );
    };
    for found in browser::measure(&program, &study_page(&two_studies()), &WIDTHS, false) {
        assert!(
            found.problems.is_empty(),
            "at {} pixels:\n{}",
            found.width,
            found.problems.join("\n")
        );
        assert!(
            found.drawings >= 18,
            "at {}: {} drawings",
            found.width,
            found.drawings
        );
        assert!(
            found.figures.iter().any(|id| id == "figure-7-table-1"),
            "{:?}",
            found.figures
        );
    }
}
