//! `headway-lab write`: programs beside the server which write to the disk of a lab.

use std::io::Write as _;
use std::path::PathBuf;

use ::headway_lab::writers::{self, Writers};
use headway_load::cli_types::Time;
use headway_load::fileset::Amount;

use super::{Failure, Name, failure, open};
use crate::signals;

const EXAMPLES: &str = "\
Examples:
  headway-lab write --publish 20 --append 20      files of the set, and lines of a log
  headway-lab write quick --dirty 5MB             5 MB of dirty pages per second

The lab needs `up --writable`. A published file keeps its bytes: a temporary file is written, synced
and renamed. What takes longer than its interval delays the next one.

Ends after --duration or with Ctrl-C, and prints what was written.";

/// Write to the disk of a lab, in the memory of its server and on the CPUs of its client.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    name: Name,
    /// Files to publish per second
    #[arg(long, value_name = "N", default_value_t = 0.0, value_parser = rate)]
    publish: f64,
    /// Directory of the file set on the disk whose files are published
    #[arg(long, value_name = "DIR", default_value = "set")]
    set: PathBuf,
    /// Lines to append to a log and to sync per second
    #[arg(long, value_name = "N", default_value_t = 0.0, value_parser = rate)]
    append: f64,
    /// Bytes to write per second without syncing
    #[arg(long, value_name = "SIZE")]
    dirty: Option<Amount>,
    /// How long [default: until a signal]
    #[arg(long, short, value_name = "TIME")]
    duration: Option<Time>,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (0.0..=100_000.0).contains(&rate) => Ok(rate),
        _ => Err(format!("`{text}` is not a rate per second, 0 to 100000")),
    }
}

impl Arguments {
    pub fn run(&self) -> Result<(), Failure> {
        let writers = Writers {
            set: self.set.clone(),
            publish_per_s: self.publish,
            append_per_s: self.append,
            dirty_bytes_per_s: self.dirty.map_or(0, |amount| amount.0),
        };
        let nothing = Writers {
            set: self.set.clone(),
            ..Writers::default()
        };
        if writers == nothing {
            let why = "give --publish, --append or --dirty";
            return Err(Failure::Usage(why.to_owned()));
        }
        let lab = open(&self.name.name)?;
        let interrupted = signals::caught_once(signals::STOP_OR_HANGUP)?;
        let duration = self.duration.map(|time| time.0);
        let written = writers::write(&lab, &writers, duration, &interrupted).map_err(failure)?;
        let mut out = std::io::stdout().lock();
        for one in written {
            writeln!(
                out,
                "{:<8} {} times, mean {:.2} ms, longest {:.2} ms",
                one.what, one.count, one.mean_ms, one.max_ms
            )?;
        }
        Ok(())
    }
}
