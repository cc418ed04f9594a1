//! `headway-lab disk`: tells the disk of a lab to fail, for a while or until told otherwise.

use ::headway_lab::LabError;
use ::headway_lab::disk::Order;
use clap::Subcommand;
use headway_load::cli_types::Time;
use headway_load::fileset::Amount;

use super::{Failure, USUAL_NAME, open};

const EXAMPLES: &str = "\
Examples:
  headway-lab disk stall 10s             answer nothing for ten seconds, then everything
  headway-lab disk slow 5 30s            take five times as long for half a minute
  headway-lab disk fail 100MB 1MB        fail reads and writes of that range
  headway-lab disk restart               remote files: open ones are stale (ESTALE)
  headway-lab disk fast                  no delays and no faults
  headway-lab disk model                 the delays of the model, and its fault plan again

Each command takes effect at once, also on waiting requests.";

/// Make the disk of a lab stall, slow down, fail, or work normally again.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct Arguments {
    /// The lab
    #[arg(long, short, value_name = "NAME", default_value = USUAL_NAME, global = true)]
    name: String,
    #[command(subcommand)]
    order: DiskCommand,
}

#[derive(Debug, Subcommand)]
enum DiskCommand {
    /// Answer no request for a time
    Stall {
        /// How long
        time: Time,
    },
    /// Multiply all delays for a time
    Slow {
        /// By this factor
        factor: f64,
        /// How long
        time: Time,
    },
    /// Give the files of a remote file system other inode numbers, so open ones are stale
    Restart,
    /// Fail reads and writes in a range of the device, or all of a remote file system: 0 1
    Fail {
        /// First byte of the range
        offset: Amount,
        /// Length of the range
        length: Amount,
    },
    /// Remove all delays and faults
    Fast,
    /// Restore the delays and faults of the model
    Model,
}

impl Arguments {
    pub fn run(&self) -> Result<(), Failure> {
        let for_ms = |time: &Time| u64::try_from(time.0.as_millis()).unwrap_or(u64::MAX);
        let order = match &self.order {
            DiskCommand::Stall { time } => Order::Stall {
                for_ms: for_ms(time),
            },
            DiskCommand::Slow { factor, time } => Order::Slow {
                factor: *factor,
                for_ms: for_ms(time),
            },
            DiskCommand::Fail { offset, length } => Order::Fail {
                offset_bytes: offset.0,
                length_bytes: length.0,
            },
            DiskCommand::Restart => Order::Restart,
            DiskCommand::Fast => Order::Fast,
            DiskCommand::Model => Order::Model,
        };
        order.check().map_err(Failure::Usage)?;
        let lab = open(&self.name)?;
        let disk = lab.disk().ok_or(LabError::NoPart {
            name: self.name.clone(),
            part: "disk",
        })?;
        Ok(disk.order(order).map_err(LabError::from)?)
    }
}
