//! `headway report`: run directories in, one HTML file out.
//!
//! The file is written whole or not at all, and never replaces a file that is not a report.

use clap::Args;
use std::path::{Path, PathBuf};

use super::Failure;
use super::output::print_data;
use headway_cli_support::replace::{replaceable, write};
use headway_load::cli_types::Time;
use headway_report::Shaded;

const EXAMPLES: &str = "\
Examples:
  headway report run -o report.html                    one run
  headway report nginx.run headway.run                 two side by side, to report.html
  headway report run -o - | ssh host 'cat > run.html'  to standard output
  headway report nginx.run headway.run --over-time stall.svg --shade '4-14=the disk stalls'

A run is a directory of `headway load -o` or `headway profile`; both kinds may be mixed. Profiles are \
compared at the highest relative load that all of them have.

Exit codes: 0 success, 1 failure, 2 usage error.";

/// Draw one or several runs as one self-contained HTML page
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Directories that `headway load -o` or `headway profile` wrote, in the order of the page
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,
    /// File to write (`-`: standard output); only an older report is overwritten
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
    /// Write one SVG figure of latency over time, with a panel per run, instead of the page
    #[arg(long, value_name = "FILE", conflicts_with = "output")]
    over_time: Option<PathBuf>,
    /// With --over-time: shade a span of seconds after the warm-up, and label it
    #[arg(long, value_name = "FROM-TO=TEXT", requires = "over_time", value_parser = parse_shaded)]
    shade: Option<Shaded>,
}

/// `4-14=the disk stalls`
fn parse_shaded(text: &str) -> Result<Shaded, String> {
    let wrong =
        || format!("`{text}` is not a span; write seconds and a text: '4-14=the disk stalls'");
    let (span, label) = text.split_once('=').ok_or_else(wrong)?;
    let (from, to) = span.split_once('-').ok_or_else(wrong)?;
    let (Time(from), Time(to)) = (from.parse()?, to.parse()?);
    match from < to {
        true => Ok(Shaded {
            from_s: from.as_secs_f64(),
            to_s: to.as_secs_f64(),
            label: label.to_owned(),
        }),
        false => Err(wrong()),
    }
}

/// Reads the runs, writes the page or the picture.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let (file, mark) = match &arguments.over_time {
        Some(file) => (file, "<svg"),
        None => (&arguments.output, headway_report::GENERATOR_META),
    };
    let to_output = file == Path::new("-");
    if !to_output {
        replaceable(file, mark)?;
    }
    let report = headway_report::Report::read(&arguments.runs)?;
    let text = match &arguments.over_time {
        Some(_) => report.over_time_svg(arguments.shade.as_ref())?,
        None => report.html(),
    };
    match to_output {
        true => print_data(&text),
        false => Ok(write(file, &text)?),
    }
}
