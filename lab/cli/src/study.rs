//! `headway-lab study`: the papers' experiments, run again beside today's servers.
//!
//! Glue: the library plans, measures and decides; here words become studies, progress goes to
//! standard error and results to standard output.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::SystemTime;

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand, ValueEnum};
use headway_cli_support::replace::{replaceable, write};
use headway_lab::study::{self, Listener, Options, Plan, RunError, Scale, Store, Study};
use headway_latency::StudyResult;
use headway_latency::format::printable;
use headway_load::client::dated;
use serde_json::json;

use super::output::{print, print_data};
use super::{Failure, signals};

const EXAMPLES: &str = "\
Examples:
  headway-lab study list                     the studies, and what they repeat
  headway-lab study run inversion -o out     study 7 with small sizes: minutes
  headway-lab study run 3 7 8 --scale full -o out
                                             the sizes of the papers: hours
  headway-lab study run all -o out --only headway,nginx
  headway-lab study run my.toml -o out       a study of your own (see the guide)
  headway-lab study show out                 print the tables and claims again
  headway-lab study report out               write out/NAME.html per study, and out/studies.html
  headway-lab study report out --table 44.2 --svg environments.svg
                                             the second table of study 44, drawn, as one picture
  headway-lab study summary out bench/runs/today
                                             write what is worth keeping, without raw rows

Exit codes: 0 success (whatever the claims say), 1 failure or interrupted, 2 usage error.";

/// Repeat the papers' experiments beside today's servers, and decide their claims
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    List(ListStudies),
    Run(Box<RunStudies>),
    Check(Check),
    Show(Show),
    Report(StudyReport),
    Summary(Summary),
}

/// List the studies that come with headway.
#[derive(Debug, Args)]
struct ListStudies {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const RUN_EXAMPLES: &str = "\
Examples:
  headway-lab study run inversion -o out
  headway-lab study run 1 7 8 --scale full -o out
  headway-lab study run all -o out --only headway,nginx --plan
  headway-lab study run 12 --scale full --repeats 1 -o out
                                             the papers' sizes, in a third of the time

Measurements that several studies share are made once. The same command resumes an interrupted \
run and repeats what failed.
A run cannot be resumed with another build of headway, because one table would mix both. With \
--other-build it can, and the results say so.
What this machine cannot make (a slow disk needs root, a peer has to be installed: \
scripts/setup bench) is listed with its reason, and the other measurements are made.

Exit codes: 0 success, 1 failure or interrupted, 2 usage error.";

/// Measure what is missing, print the results beside the papers', decide the claims, write one page
/// per study
#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES)]
struct RunStudies {
    /// Names or numbers of studies, `all`, or paths of TOML files
    #[arg(value_name = "STUDY", required = true)]
    studies: Vec<String>,
    /// quick: minutes, small sets; full: the papers' sizes
    #[arg(long, value_enum, default_value = "quick")]
    scale: ScaleName,
    /// Output directory; an existing run is resumed [default: named after the time]
    #[arg(long, short, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Measure these servers only, by their names in the study
    #[arg(long, value_name = "SERVER", value_delimiter = ',')]
    only: Vec<String>,
    /// Measurements of each point [default: what the study and the scale say]
    ///
    /// A later command with more repeats adds the missing ones.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=REPEATS_MAX))]
    repeats: Option<u32>,
    /// Print what would be measured, and for how long, then exit
    #[arg(long)]
    plan: bool,
    /// Resume a run that another build of headway started; the results say so
    #[arg(long)]
    other_build: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

/// More repeats would take weeks.
const REPEATS_MAX: i64 = 1000;

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ScaleName {
    /// Small sets and memory, one repeat
    Quick,
    /// The papers' sizes, three repeats
    Full,
}

/// Validate studies, without measuring anything.
#[derive(Debug, Args)]
struct Check {
    /// TOML files or directories of them [default: the studies that come with headway]
    #[arg(value_name = "PATH")]
    studies: Vec<String>,
}

/// Print the results of a run again.
#[derive(Debug, Args)]
struct Show {
    /// The directory that `study run -o` wrote
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Only this study, by name or number
    #[arg(value_name = "STUDY")]
    study: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Write a self-contained HTML page per study, and one with all studies and an overview.
#[derive(Debug, Args)]
struct StudyReport {
    /// The directory that `study run -o` wrote
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Draw this table only: the study's number, a point, the number of the table
    #[arg(long, value_name = "STUDY.TABLE", requires = "svg", value_parser = parse_table)]
    table: Option<(u32, usize)>,
    /// With --table: the SVG file to write (`-`: standard output)
    #[arg(long, value_name = "FILE", requires = "table")]
    svg: Option<PathBuf>,
}

/// `44.2`
fn parse_table(text: &str) -> Result<(u32, usize), String> {
    let parsed = text
        .split_once('.')
        .and_then(|(study, table)| Some((study.parse().ok()?, table.parse().ok()?)));
    match parsed {
        Some((study, table)) if table > 0 => Ok((study, table)),
        _ => Err(
            "write the study's number and the table's: 44.2 is the second table of study 44".into(),
        ),
    }
}

/// Copy results, tables and pages to a small directory, without the raw rows.
#[derive(Debug, Args)]
struct Summary {
    /// The directory that `study run -o` wrote
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// A new or empty directory
    #[arg(value_name = "TARGET")]
    target: PathBuf,
}

/// Runs the subcommand.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.action {
        Action::List(list) => list.run(),
        Action::Run(run) => run.run(),
        Action::Check(check) => check.run(),
        Action::Show(show) => show.run(),
        Action::Report(report) => report.run(),
        Action::Summary(summary) => summary.run(),
    }
}

/// A study that cannot be read is a usage error.
fn load(selectors: &[String], scale: Scale) -> Result<Vec<Study>, Failure> {
    let mut studies: Vec<Study> = Vec::new();
    let mut files: Vec<(String, String)> = Vec::new();
    for selector in selectors {
        let loaded = study::load(selector).map_err(|error| Failure::Usage(error.to_string()))?;
        for text in loaded {
            let found = text
                .at(scale)
                .map_err(|error| Failure::Usage(error.to_string()))?;
            // The same one may be asked for twice, by name and by number; another one of its name
            // would be lost.
            match files.iter().find(|(name, _)| *name == found.name) {
                None => {
                    files.push((found.name.clone(), text.file.clone()));
                    studies.push(found);
                }
                Some((_, file)) if *file == text.file => {}
                Some((name, file)) => {
                    let why = format!("{file} and {} are both named {name:?}", text.file);
                    return Err(Failure::Usage(why));
                }
            }
        }
    }
    Ok(studies)
}

impl ListStudies {
    fn run(&self) -> Result<(), Failure> {
        let studies = load(&["all".to_owned()], Scale::Quick)?;
        if self.json {
            let list: Vec<_> = studies
                .iter()
                .map(|study| {
                    json!({ "number": study.number, "name": study.name, "title": study.title,
                        "source": study.source, "question": study.question })
                })
                .collect();
            return print_data(&(serde_json::to_string_pretty(&list)? + "\n"));
        }
        let width = studies
            .iter()
            .map(|study| study.name.len())
            .max()
            .unwrap_or(0);
        let line = |study: &Study| {
            let Study {
                number,
                name,
                title,
                source,
                ..
            } = study;
            format!(
                "{number:>3}  {name:width$}  {title}\n     {:width$}  {source}\n",
                ""
            )
        };
        print(&studies.iter().map(line).collect::<String>())
    }
}

impl Check {
    fn run(&self) -> Result<(), Failure> {
        let all = ["all".to_owned()];
        let selectors = if self.studies.is_empty() {
            all.as_slice()
        } else {
            &self.studies
        };
        let mut count = 0;
        for scale in Scale::ALL {
            let studies = load(selectors, scale)?;
            let plan = Plan::new(&studies, &[]);
            count = studies.len();
            print(&format!("{scale}: {}\n", plan_text(&plan)))?;
        }
        print(&format!("{count} studies are in order\n"))
    }
}

fn plan_text(plan: &Plan) -> String {
    format!(
        "{} measurements ({} more are shared), {:.0} minutes of load in {} environments",
        plan.len(),
        plan.shared(),
        plan.load_s() / 60.0,
        plan.environments().len(),
    )
}

impl RunStudies {
    fn run(&self) -> Result<(), Failure> {
        let scale = match self.scale {
            ScaleName::Quick => Scale::Quick,
            ScaleName::Full => Scale::Full,
        };
        let mut studies = load(&self.studies, scale)?;
        if let Some(repeats) = self.repeats {
            studies.iter_mut().for_each(|study| study.repeat(repeats));
        }
        self.check_servers(&studies)?;
        let plan = Plan::new(&studies, &self.only);
        if self.plan {
            let mut text = plan_text(&plan) + "\n";
            text.extend(
                plan.environments()
                    .iter()
                    .map(|description| format!("  {description}\n")),
            );
            return print(&text);
        }
        headway_lab::require_headway()?;
        let directory = self.output.clone();
        let directory = directory
            .unwrap_or_else(|| format!("headway-study-{}", dated(SystemTime::now())).into());
        let store = Store::create(&directory)?;
        if !self.other_build {
            store.refuse_other_build(&plan)?;
        }
        // The server and the lab are removed, then the study ends.
        let interrupted = signals::caught(signals::STOP_OR_HANGUP)?;
        let mut lines = StudyProgress { quiet: self.quiet };
        lines.line(&plan_text(&plan));
        let options = Options {
            interrupted: &interrupted,
        };
        let ended = study::run(&plan, &store, &options, &mut lines);
        // By its name alone: the path of this machine does not help to repeat the run.
        let arguments = std::env::args_os().skip(1);
        let arguments = arguments.map(|argument| argument.to_string_lossy().into_owned());
        let command: Vec<String> = std::iter::once("headway-lab".to_owned())
            .chain(arguments)
            .collect();
        let results = study::results(&studies, &store, &command);
        for result in &results {
            store.write_result(result)?;
        }
        let pages = write_pages(&directory, &results)?;
        match ended {
            Ok(()) => {}
            Err(RunError::Interrupted) => {
                let directory = directory.display();
                return Err(anyhow!(
                    "interrupted; repeat the command with -o {directory} to resume it"
                )
                .into());
            }
            Err(error) => return Err(error.into()),
        }
        show(&results, self.json)?;
        for page in &pages {
            lines.line(&page.display().to_string());
        }
        Ok(())
    }

    fn check_servers(&self, studies: &[Study]) -> Result<(), Failure> {
        let named = |only: &String| {
            studies
                .iter()
                .any(|study| study.servers().any(|name| name == only))
        };
        match self.only.iter().find(|only| !named(only)) {
            None => Ok(()),
            Some(other) => {
                let mut names: Vec<&str> = studies.iter().flat_map(Study::servers).collect();
                names.sort_unstable();
                names.dedup();
                Err(Failure::Usage(format!(
                    "--only {other}: no such server in these studies; they have {}",
                    names.join(", ")
                )))
            }
        }
    }
}

fn show(results: &[StudyResult], json: bool) -> Result<(), Failure> {
    if json {
        return print_data(&(serde_json::to_string_pretty(results)? + "\n"));
    }
    let texts: Vec<String> = results.iter().map(study::text::render).collect();
    print(&texts.join("\n"))
}

impl Show {
    fn run(&self) -> Result<(), Failure> {
        let mut results = Store::open(&self.directory)?.results()?;
        if let Some(selector) = &self.study {
            results
                .retain(|result| result.name == *selector || selector.parse() == Ok(result.number));
            if results.is_empty() {
                let directory = self.directory.display();
                return Err(Failure::Usage(format!(
                    "{directory}: there is no result of a study {selector:?}"
                )));
            }
        }
        show(&results, self.json)
    }
}

impl StudyReport {
    fn run(&self) -> Result<(), Failure> {
        let results = Store::open(&self.directory)?.results()?;
        if let (Some(table), Some(file)) = (self.table, &self.svg) {
            return write_table(&results, table, file);
        }
        for file in write_pages(&self.directory, &results)? {
            print(&format!("{}\n", file.display()))?;
        }
        Ok(())
    }
}

/// One table as a picture.
fn write_table(
    results: &[StudyResult],
    (study, table): (u32, usize),
    file: &std::path::Path,
) -> Result<(), Failure> {
    let result = results
        .iter()
        .find(|result| result.number == study)
        .ok_or_else(|| anyhow!("there is no result of study {study}"))?;
    let drawn = result.tables.get(table - 1).ok_or_else(|| {
        let count = result.tables.len();
        anyhow!(
            "study {study} has {count} table{}",
            if count == 1 { "" } else { "s" }
        )
    })?;
    let svg = ::headway_report::study_table_svg(result, drawn)
        .ok_or_else(|| anyhow!("nothing of table {table} was measured"))?;
    if file == std::path::Path::new("-") {
        return print_data(&svg);
    }
    replaceable(file, "<svg")?;
    Ok(write(file, &svg)?)
}

/// Writes a page per study, and with several studies `studies.html`, which has all of them below
/// an overview.
fn write_pages(
    directory: &std::path::Path,
    results: &[StudyResult],
) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for result in results {
        let file = directory.join(format!("{}.html", result.name));
        write_page(&file, std::slice::from_ref(result))?;
        files.push(file);
    }
    if results.len() > 1 {
        let mut all = results.to_vec();
        all.sort_by_key(|result| result.number);
        let file = directory.join("studies.html");
        write_page(&file, &all)?;
        files.push(file);
    }
    Ok(files)
}

fn write_page(file: &std::path::Path, results: &[StudyResult]) -> Result<(), Failure> {
    let page = ::headway_report::study_page(results);
    std::fs::write(file, page).with_context(|| format!("writing {}", file.display()))?;
    Ok(())
}

impl Summary {
    fn run(&self) -> Result<(), Failure> {
        let store = Store::open(&self.directory)?;
        let count = study::summarise(&store, &self.target)?;
        write_pages(&self.target, &store.results()?)?;
        print(&format!("{}: {count} studies\n", self.target.display()))
    }
}

/// Prints the progress of a study on standard error.
struct StudyProgress {
    quiet: bool,
}

impl Listener for StudyProgress {
    fn line(&mut self, line: &str) {
        if !self.quiet {
            // A closed standard error does not stop the study.
            let _ = writeln!(io::stderr(), "{}", printable(line));
        }
    }
}
