//! `headway report`: run directories in, one HTML file out.
//!
//! The file appears whole or not at all, and never in place of a file that is no report.

use anyhow::{Context, bail};
use clap::Args;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::Failure;
use super::output::print;

const EXAMPLES: &str = "\
Examples:
  headway report run -o report.html                       one run
  headway report nginx.run apache.run headway.run         three, side by side, to report.html
  headway report run -o - | ssh host 'cat > run.html'     to standard output

A run may be a measurement of `headway load` or a whole `headway profile`; both may be mixed. The first run's
name, colour and place come first. Profiles are compared at the highest relative load that all of them have.

Exit codes: 0 done, 1 failed, 2 wrong use.";

/// Writes one self-contained HTML page about one run, or several side by side.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Run directories, as `headway load` and `headway profile` write them
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,
    /// The file to write; `-` for standard output. A report that is there is replaced, another file
    /// is not
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
}

/// Reads the runs, writes the page.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let to_output = arguments.output == Path::new("-");
    if !to_output {
        replaceable(&arguments.output)?;
    }
    let page = headway_report::Report::read(&arguments.runs)?.html();
    if to_output {
        print(&page)?;
    } else {
        write(&arguments.output, &page)?;
    }
    Ok(())
}

/// Refuses a name that stands for something else than a report of ours.
pub fn replaceable(path: &Path) -> anyhow::Result<()> {
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
    if !start.is_empty() && !String::from_utf8_lossy(&start).contains(headway_report::MARK) {
        bail!(
            "{}: is no report of headway and is left as it is; name another file with -o, or remove it",
            path.display()
        );
    }
    Ok(())
}

/// Writes beside the final name first, so a reader never meets half a page.
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
