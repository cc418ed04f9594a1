//! The files that `load` and `analyze` make of a run directory for other programs.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use headway_latency::Run;
use headway_latency::export::{Format, export};

use crate::Failure;

#[derive(Debug, Args)]
pub struct ExportOptions {
    /// Write a log of HdrHistogram (V2) with a histogram per second, in nanoseconds
    #[arg(
        long,
        value_name = "FILE",
        help_heading = "Output",
        hide_short_help = true
    )]
    hdr_log: Option<PathBuf>,
    /// Write figures per second: FILE.csv or FILE.jsonl
    #[arg(
        long,
        value_name = "FILE",
        help_heading = "Output",
        hide_short_help = true
    )]
    series: Option<PathBuf>,
}

impl ExportOptions {
    /// Finds what would be an error after a measurement: `output` is the directory of its run.
    pub fn check(&self, output: Option<&Path>) -> Result<(), Failure> {
        self.files()?;
        if output.is_none() && self.is_given() {
            let text = "--hdr-log and --series are made from the run directory; add --output DIR";
            return Err(Failure::Usage(text.to_owned()));
        }
        Ok(())
    }

    /// Whether there is a file to write.
    pub fn is_given(&self) -> bool {
        self.hdr_log.is_some() || self.series.is_some()
    }

    /// Writes the files of a run.
    pub fn write(&self, run: &Run) -> Result<(), Failure> {
        for (path, format) in self.files()? {
            let write = || {
                let mut file = BufWriter::new(File::create(path)?);
                export(run, format, &mut file)?;
                file.flush()?;
                anyhow::Ok(())
            };
            write().with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(())
    }

    fn files(&self) -> Result<Vec<(&Path, Format)>, Failure> {
        let log = self
            .hdr_log
            .iter()
            .map(|path| (path.as_path(), Format::HdrLog));
        let mut files: Vec<_> = log.collect();
        if let Some(path) = &self.series {
            let extension = path.extension().and_then(|extension| extension.to_str());
            let format = match extension {
                Some("csv") => Format::Csv,
                Some("jsonl" | "ndjson") => Format::JsonLines,
                _ => {
                    let path = path.display();
                    let text = format!("--series {path}: the name ends in .csv or .jsonl");
                    return Err(Failure::Usage(text));
                }
            };
            files.push((path, format));
        }
        Ok(files)
    }
}
