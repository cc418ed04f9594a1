//! The page in a real browser: the figures are drawn, nothing leaves its place, no label covers
//! another, from the narrowest phone to a wide desktop, in light and dark.

use crate::support::{self, browser};
use headway_latency::run::Verdict;
use headway_report::Report;
use std::path::PathBuf;
use support::{Behaviour, Example};

const WIDTHS: [u32; 5] = [320, 360, 768, 1280, 1600];

fn examine(test: &str, page: &str, figures: &[&str]) {
    let Some(program) = browser::program() else {
        return headway_test_support::skip(test, "no chromium on this machine");
    };
    let found = browser::measure(&program, page, &WIDTHS, false);
    let widths: std::collections::BTreeSet<u64> = found.iter().map(|one| one.width).collect();
    assert_eq!(widths, WIDTHS.map(u64::from).into(), "{found:?}");
    for one in found {
        assert!(
            one.problems.is_empty(),
            "at {} pixels:\n{}",
            one.width,
            one.problems.join("\n")
        );
        assert!(
            one.drawings >= figures.len() as u64,
            "at {}: {} drawings",
            one.width,
            one.drawings
        );
        for figure in figures {
            let id = format!("figure-{figure}");
            assert!(one.figures.contains(&id), "{id} at {}", one.width);
        }
    }
}

/// Needs: the program chromium
#[test]
fn page_of_three_profiles_fits_the_window() {
    let scratch = tempfile::tempdir().expect("a directory");
    let behaviours = [
        ("steady", Behaviour::Steady),
        ("blocking", Behaviour::Blocking),
        ("stalling", Behaviour::Stalling),
    ];
    let paths: Vec<PathBuf> = behaviours
        .map(|(label, behaviour)| {
            let path = scratch.path().join(label);
            let example = Example::new(label, behaviour, 700.0).seconds(12.0);
            example.write_profile(&path, &[0.2, 0.6, 0.9, 0.95], 1);
            path
        })
        .into();
    let page = Report::read(&paths).expect("profiles just written").html();
    let figures = [
        "profile",
        "cdf",
        "tail",
        "cdf-by-load",
        "apart",
        "deciles",
        "inversion",
        "overload",
        "size",
        "timeline",
        "ready-events",
        "comparison",
    ];
    examine("page_of_three_profiles_fits_the_window", &page, &figures);
}

/// Needs: the program chromium
#[test]
fn page_with_long_names_and_many_runs_fits_the_window() {
    let scratch = tempfile::tempdir().expect("a directory");
    let paths: Vec<PathBuf> = (0..7)
        .map(|index| {
            let label = match index % 3 {
                0 => format!("AServerWhoseNameHasNoBlankAndGoesOnForLongerThanAnyColumn{index}"),
                1 => format!("a server whose name is written as a whole sentence, number {index}"),
                _ => format!("語言語言語言語言語言語言語言語言語言{index}"),
            };
            let reason = format!(
                "https://example.org/{}",
                "a-path-without-a-blank/".repeat(12)
            );
            let example =
                Example::new(&label, Behaviour::Stalling, 400.0 + 90.0 * f64::from(index));
            let path = scratch.path().join(index.to_string());
            let example = example.seconds(11.0).verdict(Verdict::Suspect, &reason);
            example.write_load(&path, 300.0);
            path
        })
        .collect();
    let page = Report::read(&paths).expect("runs just written").html();
    let figures = [
        "cdf",
        "tail",
        "apart",
        "deciles",
        "size",
        "timeline",
        "comparison",
    ];
    examine(
        "page_with_long_names_and_many_runs_fits_the_window",
        &page,
        &figures,
    );
}
