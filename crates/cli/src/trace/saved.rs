//! `headway trace report`: a kept trace again.

use anyhow::{Context, bail};
use headway_debox::Symbols;
use headway_debox::collect::Collection;
use headway_trace::{CallSites, Trace, TraceBuilder, TraceMethod};
use std::path::Path;

use super::{Failure, Saved};

/// Reads the trace and writes its summary to standard output.
pub fn run(arguments: &Saved) -> Result<(), Failure> {
    arguments.outputs.check()?;
    let trace = read_trace(&arguments.directory)?;
    arguments.outputs.write(&trace, false)
}

fn read_trace(path: &Path) -> anyhow::Result<Trace> {
    let whole = match path.is_dir() {
        true => path.join(headway_trace::FILE_NAME),
        false => path.to_owned(),
    };
    if whole.is_file() {
        return Ok(Trace::read(&whole)?);
    }
    let collection = Collection::open(path).with_context(|| path.display().to_string())?;
    if collection.processes.is_empty() && collection.damaged.is_empty() {
        bail!(
            "{}: holds no trace, neither {} nor files of traced processes (*.debox)",
            path.display(),
            headway_trace::FILE_NAME
        );
    }
    let symbols = Symbols::load().ok();
    let mut locations = CallSites::default();
    let mut builder = TraceBuilder::new(TraceMethod::Preload, symbols.as_ref(), &mut locations);
    builder.collection(&collection);
    Ok(builder.finish())
}
