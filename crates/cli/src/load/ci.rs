//! What a run tells a CI system, beside its exit code: a JUnit file and a GitHub job summary.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use headway_base::html::escaped;
use headway_latency::analysis::Distribution;
use headway_latency::format::{count, number, percent, time_us};
use headway_latency::run::Verdict;
use headway_load::session::Finished;

use super::baseline::{Compared, row};
use crate::Failure;

/// The file that GitHub shows under the name of a job.
const GITHUB_VARIABLE: &str = "GITHUB_STEP_SUMMARY";

#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct CiOptions {
    /// Write a JUnit file with a test case per condition
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    junit: Option<PathBuf>,
    /// Append the figures to the job summary of GitHub Actions
    #[arg(long, hide_short_help = true)]
    github_summary: bool,
}

/// A condition of the user, and why the run has failed by it, if it has.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) failure: Option<String>,
}

/// Where results go, when that is known to be possible.
pub(super) struct Ci {
    junit: Option<PathBuf>,
    github: Option<PathBuf>,
}

impl CiOptions {
    /// Finds what would be an error after the run.
    pub(super) fn check(&self, has_conditions: bool) -> Result<Ci, Failure> {
        if self.junit.is_some() && !has_conditions {
            let text =
                "--junit has a test case for each condition; add --fail-if or --fail-if-slower";
            return Err(Failure::Usage(text.to_owned()));
        }
        let github = std::env::var_os(GITHUB_VARIABLE).filter(|path| !path.is_empty());
        if self.github_summary && github.is_none() {
            let text = format!("--github-summary needs the file that {GITHUB_VARIABLE} names");
            return Err(Failure::Usage(text));
        }
        let github = github.filter(|_| self.github_summary);
        Ok(Ci {
            junit: self.junit.clone(),
            github: github.map(PathBuf::from),
        })
    }
}

impl Ci {
    /// Writes what was asked for.
    pub(super) fn write(
        &self,
        finished: &Finished,
        cases: &[Case],
        compared: Option<&Compared>,
    ) -> Result<(), Failure> {
        if let Some(path) = &self.junit {
            let text = junit(finished, cases);
            fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
        }
        if let Some(path) = &self.github {
            let text = summary(finished, cases, compared);
            let file = OpenOptions::new().create(true).append(true).open(path);
            file.and_then(|mut file| file.write_all(text.as_bytes()))
                .with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(())
    }
}

/// The JUnit file: one suite, one case per condition.
fn junit(finished: &Finished, cases: &[Case]) -> String {
    let failed = cases.iter().filter(|case| case.failure.is_some()).count();
    let suite = escaped(&finished.description.targets.join(" "));
    let time_s = finished.analysis.duration_s;
    let counts = format!(
        "tests=\"{}\" failures=\"{failed}\" errors=\"0\" skipped=\"0\" time=\"{time_s:.3}\"",
        cases.len()
    );
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites {counts}>\n\
         <testsuite name=\"{suite}\" timestamp=\"{}\" {counts}>\n",
        escaped(&finished.description.started)
    );
    for case in cases {
        let name = escaped(&case.name);
        let _ = write!(
            text,
            "<testcase classname=\"headway.load\" name=\"{name}\" time=\"{time_s:.3}\""
        );
        let _ = match &case.failure {
            None => writeln!(text, "/>"),
            Some(why) => {
                let why = escaped(why);
                writeln!(
                    text,
                    "><failure message=\"{why}\">{why}</failure></testcase>"
                )
            }
        };
    }
    text + "</testsuite>\n</testsuites>\n"
}

/// Markdown for the summary of a job.
fn summary(finished: &Finished, cases: &[Case], compared: Option<&Compared>) -> String {
    let (description, analysis) = (&finished.description, &finished.analysis);
    let mut text = format!(
        "### Load test of {}\n\n",
        code(&description.targets.join(" "))
    );
    if let Some(client) = &description.client {
        let verdict = match client.verdict {
            Verdict::Valid => "valid",
            Verdict::Suspect => "suspect",
            Verdict::Invalid => "invalid",
        };
        let reasons: Vec<String> = client.reasons.iter().map(|reason| cell(reason)).collect();
        let reasons = match reasons.is_empty() {
            true => String::new(),
            false => format!(": {}", reasons.join("; ")),
        };
        let _ = writeln!(text, "Verdict on the client: **{verdict}**{reasons}\n");
    }
    let counts = &analysis.counts;
    let share = counts.errors as f64 / counts.requests.max(1) as f64;
    text += &lines(
        &["figure", "value"],
        &[
            vec!["requests".to_owned(), count(counts.requests)],
            vec![
                "good responses".to_owned(),
                format!("{}/s", number(analysis.achieved_rps)),
            ],
            vec![
                "errors".to_owned(),
                format!("{} ({})", count(counts.errors), percent(share)),
            ],
        ],
    );
    text += &analysis.response.as_ref().map_or(String::new(), latencies);
    let changes = compared.map_or(&[][..], Compared::changes);
    if !changes.is_empty() {
        let rows: Vec<Vec<String>> = changes.iter().map(row).collect();
        let headings = ["figure", "stored", "now", "change", "95 % together", ""];
        text += &format!("\n{}", lines(&headings, &rows));
    }
    if !cases.is_empty() {
        let rows = cases.iter().map(|case| {
            let result = case.failure.as_deref().map_or("passed".to_owned(), |why| {
                format!("**failed**: {}", cell(why))
            });
            vec![code(&case.name), result]
        });
        text += &format!(
            "\n{}",
            lines(&["condition", "result"], &rows.collect::<Vec<_>>())
        );
    }
    text + "\n"
}

/// Rows of the table that [`summary`] has begun.
fn latencies(response: &Distribution) -> String {
    let figures = [
        ("p50", Some(response.p50_us)),
        ("p90", Some(response.p90_us)),
        ("p99", Some(response.p99_us)),
        ("p99.9", response.p99_9_us),
        ("max", response.max_us),
    ];
    let known = figures
        .into_iter()
        .filter_map(|(name, us)| Some((name, us?)));
    known
        .map(|(name, us)| format!("| {name} | {} |\n", time_us(us)))
        .collect()
}

fn lines(headings: &[&str], rows: &[Vec<String>]) -> String {
    let rule = vec!["---"; headings.len()].join("|");
    let mut text = format!("| {} |\n|{rule}|\n", headings.join(" | "));
    for row in rows {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
    text
}

/// Text in a table cell, without what Markdown or HTML would take for more.
fn cell(text: &str) -> String {
    let special = ['\\', '`', '*', '_', '[', ']', '|', '~', '#'];
    let mut shown = String::new();
    for c in text.chars() {
        match c {
            '\n' => shown.push(' '),
            c if special.contains(&c) => shown.extend(['\\', c]),
            c => shown.push(c),
        }
    }
    escaped(&shown)
}

/// Text as code.
fn code(text: &str) -> String {
    format!("<code>{}</code>", cell(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use headway_latency::run::ClientInfo;
    use headway_latency::{Analyzer, RunDescription};

    fn finished() -> Finished {
        Finished {
            description: RunDescription {
                targets: vec!["http://a/?x=1&y=<2>".to_owned()],
                started: "2026-01-02T03:04:05Z".to_owned(),
                client: Some(ClientInfo {
                    verdict: Verdict::Suspect,
                    reasons: vec!["a|b".to_owned()],
                    ..ClientInfo::default()
                }),
                ..RunDescription::default()
            },
            analysis: Analyzer::new(&RunDescription::default()).finish(),
            warnings: Vec::new(),
            failed_outputs: Vec::new(),
            interrupted: false,
            failure: None,
        }
    }

    fn cases() -> [Case; 2] {
        let failure = Some("p99 is 60 ms: --fail-if 'p99 > 50ms'".to_owned());
        [
            Case {
                name: "p99 > 50ms".to_owned(),
                failure,
            },
            Case {
                name: "errors > 1%\u{1}".to_owned(),
                failure: None,
            },
        ]
    }

    #[test]
    fn junit_has_a_case_per_condition_and_nothing_that_xml_forbids() {
        let text = junit(&finished(), &cases());
        assert!(
            text.contains("tests=\"2\" failures=\"1\" errors=\"0\""),
            "{text}"
        );
        assert!(
            text.contains("name=\"http://a/?x=1&amp;y=&lt;2&gt;\""),
            "{text}"
        );
        assert!(text.contains("name=\"p99 &gt; 50ms\""), "{text}");
        assert!(
            text.contains("<failure message=\"p99 is 60 ms: --fail-if"),
            "{text}"
        );
        assert!(text.contains("name=\"errors &gt; 1%\u{fffd}\""), "{text}");
        assert_eq!(text.matches("<testcase").count(), 2);
        assert_eq!(text.matches("</testcase>").count(), 1);
    }

    #[test]
    fn job_summary_has_figures_and_conditions_and_escapes_what_is_not_ours() {
        let text = summary(&finished(), &cases(), None);
        assert!(text.starts_with("### Load test of <code>http://a/?x=1&amp;y=&lt;2&gt;</code>\n"));
        assert!(text.contains("**suspect**: a\\|b\n"), "{text}");
        assert!(text.contains("| requests | 0 |"), "{text}");
        assert!(
            text.contains("| <code>p99 &gt; 50ms</code> | **failed**: p99 is 60 ms"),
            "{text}"
        );
        assert!(
            text.contains("| <code>errors &gt; 1%\u{fffd}</code> | passed |"),
            "{text}"
        );
    }
}
