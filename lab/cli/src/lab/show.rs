//! `headway-lab status`: the labs there are, or what every part of one does.

use std::io::{self, Write};

use ::headway_lab::{Direction, Lab, LabError, Status};
use headway_latency::format::{bytes, count, percent};

use super::{Failure, failure};

const EXAMPLES: &str = "\
Examples:
  headway-lab status                 every lab
  headway-lab status quick --json    one lab, for scripts

The counts of the disk start at its last `fast` or `model` command, the others at `up`.";

/// Print the state of a lab: disk, memory, quota, link, processes.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// The lab [default: all]
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Print JSON: one object with NAME, an array of all labs without
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub fn run(&self) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        if let Some(name) = &self.name {
            let status = status(name).map_err(failure)?;
            return match self.json {
                true => Ok(writeln!(out, "{}", serde_json::to_string_pretty(&status)?)?),
                false => Ok(show(&mut out, &status)?),
            };
        }
        let labs: Vec<_> = ::headway_lab::list()
            .into_iter()
            .map(|name| (status(&name), name))
            .collect();
        if self.json {
            let all: Vec<_> = labs
                .into_iter()
                .map(|(status, name)| json(status, name))
                .collect();
            return Ok(writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?);
        }
        if labs.is_empty() {
            writeln!(out, "no lab is up")?;
        }
        for (status, name) in labs {
            match status {
                Ok(status) => show(&mut out, &status)?,
                Err(error) => writeln!(out, "{name}\n  {error}")?,
            }
        }
        Ok(())
    }
}

fn status(name: &str) -> Result<Status, LabError> {
    Lab::open(name)?.status()
}

/// One of many: a lab that does not answer must not hide the others.
fn json(status: Result<Status, LabError>, name: String) -> serde_json::Value {
    let failed = |error: String| serde_json::json!({"spec": {"name": name}, "error": error});
    match status.map(serde_json::to_value) {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => failed(error.to_string()),
        Err(error) => failed(error.to_string()),
    }
}

fn show(out: &mut impl Write, status: &Status) -> io::Result<()> {
    let spec = &status.spec;
    writeln!(out, "{}", spec.name)?;
    show_disk(out, status)?;
    if let Some(memory) = &status.memory {
        let limit = memory
            .limit_bytes
            .map_or("without a limit".to_owned(), |limit| {
                format!("of {}", bytes(limit as f64))
            });
        writeln!(
            out,
            "  memory      {} {limit}, {} of it files; {} evicted pages were needed again",
            bytes(memory.used_bytes as f64),
            bytes(memory.cache_bytes as f64),
            count(memory.refaults)
        )?;
    }
    if let Some(quota) = &status.quota {
        writeln!(
            out,
            "  quota       {} of a CPU, emulated: {} us of every {} us; was throttled {} times, {:.1} ms in all",
            quota.share,
            quota.quota_us,
            quota.period_us,
            count(quota.throttled_periods),
            quota.throttled_us as f64 / 1000.0
        )?;
    }
    if let Some(link) = &status.link {
        writeln!(
            out,
            "  link        {} bit/s each way; server {}, client {}",
            count(link.bits_per_second),
            link.server_ip,
            link.client_ip
        )?;
        if let Some(bits) = link.client_bits_per_second {
            writeln!(
                out,
                "              {} bit/s to each of its {} addresses",
                count(bits),
                link.client_ips.len()
            )?;
        }
        show_direction(out, "to client", &link.to_client)?;
        show_direction(out, "to server", &link.to_server)?;
    }
    let cpus = |cpus: &[usize]| match cpus {
        [] => "any".to_owned(),
        cpus => cpus
            .iter()
            .map(usize::to_string)
            .collect::<Vec<_>>()
            .join(","),
    };
    writeln!(
        out,
        "  CPUs  server {}, client {}",
        cpus(&spec.server_cpus),
        cpus(&spec.client_cpus)
    )?;
    for process in &status.processes {
        writeln!(out, "  process     {} {}", process.pid, process.command)?;
    }
    Ok(())
}

fn show_disk(out: &mut impl Write, status: &Status) -> io::Result<()> {
    let (Some(disk), Some(spec)) = (&status.disk, &status.spec.disk) else {
        return Ok(());
    };
    let totals = &disk.totals;
    writeln!(
        out,
        "  disk        {} {} at {}{}",
        spec.model,
        spec.filesystem.name(),
        disk.mount_point.display(),
        match disk.fast {
            true => ", fast now: no delays and no faults of its plan",
            false => "",
        }
    )?;
    writeln!(
        out,
        "              {} reads of {}, {} writes of {}, {} failed",
        count(totals.reads),
        bytes(totals.read_bytes as f64),
        count(totals.writes),
        bytes(totals.written_bytes as f64),
        count(totals.failed)
    )?;
    writeln!(
        out,
        "              busy {}, queue {:.2} on average and {} at most, service {:.2} ms, response {:.2} ms",
        percent(disk.busy_share),
        disk.depth_mean,
        totals.depth_max,
        disk.service_us / 1000.0,
        disk.response_us / 1000.0
    )
}

fn show_direction(out: &mut impl Write, name: &str, direction: &Direction) -> io::Result<()> {
    writeln!(
        out,
        "              {name}: {} in {} packets, {} dropped, {} waiting",
        bytes(direction.bytes as f64),
        count(direction.packets),
        count(direction.drops),
        bytes(direction.waiting_bytes as f64)
    )
}
