//! `headway report`: run directories in, one HTML file out.
//!
//! The file is written whole or not at all, and never replaces a file that is not a report.

use anyhow::{Context, bail};
use clap::Args;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::Failure;
use super::output::print;
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
        true => print(&text),
        false => Ok(write(file, &text)?),
    }
}

/// An error if the file exists and does not contain the mark of a report near its beginning.
pub fn replaceable(path: &Path, mark: &str) -> anyhow::Result<()> {
    let Ok(metadata) = fs::metadata(path) else {
        return Ok(());
    };
    if metadata.is_dir() {
        bail!("{}: is a directory; name a file with -o", path.display());
    }
    let mut start = Vec::new();
    let file =
        fs::File::open(path).with_context(|| format!("{}: is it a report?", path.display()))?;
    file.take(4096)
        .read_to_end(&mut start)
        .with_context(|| format!("{}: is it a report?", path.display()))?;
    if !start.is_empty() && !String::from_utf8_lossy(&start).contains(mark) {
        bail!(
            "{}: exists and is not a report; name another file with -o, or remove it",
            path.display()
        );
    }
    Ok(())
}

/// Writes a temporary file first, so that no reader gets half a page.
pub fn write(path: &Path, page: &str) -> anyhow::Result<()> {
    let name = path
        .file_name()
        .with_context(|| format!("{}: names no file", path.display()))?;
    let mut partial = name.to_owned();
    partial.push(format!(".{}.part", std::process::id()));
    let partial = path.with_file_name(partial);
    let done = fs::write(&partial, page).and_then(|()| fs::rename(&partial, path));
    done.inspect_err(|_| drop(fs::remove_file(&partial)))
        .with_context(|| format!("write {}", path.display()))
}
