//! Figures per second for other programs: `load` sends them while a run goes on, `analyze` makes them of a
//! run directory.

use std::fs::File;
use std::io::{BufWriter, Write};

use anyhow::Context;
use clap::Args;
use headway_latency::Run;
use headway_latency::export::export;
use headway_load::cli_types::SeriesOutput;

use crate::Failure;

#[derive(Debug, Args)]
pub struct ExportOptions {
    /// Write figures per second: csv=FILE, json=FILE, hdr=FILE, prometheus=URL or otlp=URL; may be repeated
    ///
    /// A second is written a second after its end, while the load goes on. json has an object per line,
    /// hdr is a log of HdrHistogram (V2) in nanoseconds. prometheus is a receiver of Prometheus remote write, and otlp
    /// an OpenTelemetry collector (OTLP over HTTP).
    #[arg(
        long,
        value_name = "KIND=TARGET",
        help_heading = "Output",
        hide_short_help = true
    )]
    pub out: Vec<SeriesOutput>,
}

impl ExportOptions {
    /// Whether there is a file to write.
    pub fn is_given(&self) -> bool {
        !self.out.is_empty()
    }

    /// Writes the files of a run that has ended.
    pub fn write(&self, run: &Run) -> Result<(), Failure> {
        for output in &self.out {
            let SeriesOutput::File(format, path) = output else {
                let text = "--out prometheus=URL and otlp=URL are for a run that goes on; use them with headway load";
                return Err(Failure::Usage(text.to_owned()));
            };
            let write = || {
                let mut file = BufWriter::new(File::create(path)?);
                export(run, *format, &mut file)?;
                file.flush()?;
                anyhow::Ok(())
            };
            write().with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(())
    }
}
