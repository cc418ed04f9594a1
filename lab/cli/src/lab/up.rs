//! `headway-lab up`: words to a specification, and undoing it all at Ctrl-C.

use std::io::Write;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

use ::headway_lab::disk::{DiskSpec, Filesystem, Model, Upper};
use ::headway_lab::{Lab, LabError, LabSpec, LinkSpec};
use anyhow::Context;
use headway_load::cli_types::{Bandwidth, Cpus};
use headway_load::fileset::{Amount, Shape};

use super::{Failure, failure, fill, print_line};
use crate::signals;

const EXAMPLES: &str = "\
Examples:
  headway-lab up                                    ide-5400 disk of 4 GiB, 512 MiB, 1 Gbit/s
  headway-lab up quick --memory 130MiB --fileset 400MB
                                                    with a file set on its disk
  headway-lab up narrow --disk none --memory none --link 100Mbit
  headway-lab up old --cpu-share 0.25               a CPU quota of a quarter of a CPU
  headway-lab up mine --disk my-disk.toml           model, size, seed and faults from a file
  headway-lab up nfs --filesystem remote            files on a server, a round trip for each open
  headway-lab up image --overlay tmpfs              files in an image, as in a container

A part that is `none` is not emulated. The server's address and the directory of the disk are \
printed.
`headway-lab exec` runs commands in the lab, `headway-lab down` removes it.

Exit codes: 0 success, 1 failure (everything is undone), 2 usage error.";

/// Create a lab, which exists until `headway-lab down`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Name of the lab: 1 to 32 of a-z, 0-9 and -
    #[arg(value_name = "NAME", default_value = super::USUAL_NAME)]
    name: String,
    /// Disk to emulate: ide-5400, ssd-sata, nvme, network, network-2ms, a TOML file, or none
    #[arg(long, value_name = "MODEL", default_value = "ide-5400")]
    disk: String,
    /// Size of the disk; only written parts take memory [default: 4GiB]
    #[arg(long, value_name = "SIZE")]
    disk_size: Option<Amount>,
    /// File system of the disk: ext4, xfs, or remote [default: ext4]
    ///
    /// Remote files are on a server, as with NFS: the disk's model is the time of each round trip.
    #[arg(long, value_name = "KIND", hide_short_help = true)]
    filesystem: Option<Filesystem>,
    /// Mount the file system for writing and with relatime, not read-only
    #[arg(long, hide_short_help = true)]
    writable: bool,
    /// Mount an overlay over the disk, its upper layer on the disk or in memory: disk or tmpfs
    ///
    /// The files of the lower layer belong to another user than the server, as in a container.
    #[arg(long, value_name = "UPPER", hide_short_help = true)]
    overlay: Option<Upper>,
    /// Seed of the random part of the disk's delays [default: 0]
    #[arg(long, value_name = "N", hide_short_help = true)]
    disk_seed: Option<u64>,
    /// New file for the contents of the disk, instead of memory
    ///
    /// The delays of the disk with that file are added.
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    disk_backing: Option<PathBuf>,
    /// Memory limit of the server, including its page cache, or none
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    memory: OptionalPart<Amount>,
    /// Rate of the link in each direction, or none for the loopback interface
    #[arg(long, value_name = "RATE", default_value = "1Gbit")]
    link: OptionalPart<Bandwidth>,
    /// Rate from the server to each of the client's sixteen addresses, within the link
    #[arg(long, value_name = "RATE", hide_short_help = true)]
    client_link: Option<Bandwidth>,
    /// CPU quota of the server, to emulate a slower CPU: 0.25 is a quarter of one CPU
    #[arg(long, value_name = "SHARE", allow_hyphen_values = true)]
    cpu_share: Option<f64>,
    /// CPUs of the server and its helpers: 0, 0,2 or 2-5, or none for any [default: the
    /// first]
    #[arg(long, value_name = "LIST")]
    server_cpus: Option<OptionalPart<Cpus>>,
    /// CPUs of the client and of the disk's process [default: the last]
    #[arg(long, value_name = "LIST")]
    client_cpus: Option<OptionalPart<Cpus>>,
    #[command(flatten)]
    files: fill::Files,
    /// Omit the parts that this machine cannot make, and list them
    #[arg(long)]
    what_works: bool,
}

/// A part, or the word `none`.
#[derive(Clone, Debug)]
struct OptionalPart<T>(Option<T>);

impl<T: FromStr> FromStr for OptionalPart<T> {
    type Err = T::Err;

    fn from_str(word: &str) -> Result<OptionalPart<T>, T::Err> {
        match word {
            "none" => Ok(OptionalPart(None)),
            word => word.parse().map(|value| OptionalPart(Some(value))),
        }
    }
}

impl Arguments {
    pub fn run(&self) -> Result<(), Failure> {
        let mut spec = self.spec()?;
        spec.check().map_err(failure)?;
        if self.what_works {
            remove_impossible_parts(&mut spec);
        }
        let shape = self.files.shape()?;
        if shape.is_some() && spec.disk.is_none() {
            return Err(Failure::Usage("files need a disk".into()));
        }
        if shape.is_some() {
            ::headway_lab::require_headway()?;
        }
        let interrupted = signals::caught(signals::STOP_OR_HANGUP)?;
        let lab = Lab::up_cancellable(&spec, &interrupted).map_err(|error| match error {
            LabError::Missing(_) => with_remedy(&spec, &error),
            error => failure(error),
        })?;
        if let Err(failure) = self.fill(&lab, shape.as_ref(), &interrupted) {
            // A lab with half a file set would look like one that can be used. Why it is half
            // counts more than what is left.
            let Err(left) = lab.down() else {
                return Err(failure);
            };
            let _ = writeln!(std::io::stderr(), "headway-lab: {left}");
            return Err(match interrupted.load(Ordering::Relaxed) {
                true => anyhow::anyhow!("interrupted").into(),
                false => failure,
            });
        }
        self.show(&lab)
    }

    /// Writes files onto the disk, then sets the delays of the model.
    fn fill(
        &self,
        lab: &Lab,
        shape: Option<&Shape>,
        interrupted: &AtomicBool,
    ) -> Result<(), Failure> {
        if lab.disk().is_none() {
            return Ok(());
        }
        lab.load(|directory| match shape {
            Some(shape) => {
                let set = directory.join("set");
                fill::fileset(&set, shape, interrupted, &mut |line| print_line(line))?;
                match interrupted.load(Ordering::Relaxed) {
                    true => Err(failure(LabError::Interrupted(self.name.clone()))),
                    false => Ok(()),
                }
            }
            None => Ok(()),
        })
    }

    fn spec(&self) -> Result<LabSpec, Failure> {
        let (first, last) = ::headway_lab::usual_split();
        let cpus = |given: &Option<OptionalPart<Cpus>>, usual: Vec<usize>| match given {
            None => usual,
            Some(OptionalPart(None)) => Vec::new(),
            Some(OptionalPart(Some(Cpus(cpus)))) => cpus.clone(),
        };
        if self.client_link.is_some() && self.link.0.is_none() {
            return Err(Failure::Usage("--client-link needs a --link".into()));
        }
        Ok(LabSpec {
            disk: self.disk()?,
            memory_bytes: self.memory.0.map(|bytes| bytes.0),
            cpu_share: self.cpu_share,
            server_cpus: cpus(&self.server_cpus, first),
            client_cpus: cpus(&self.client_cpus, last),
            link: self.link.0.map(|link| LinkSpec {
                bits_per_second: link.bits_per_s,
                client_bits_per_second: self.client_link.map(|link| link.bits_per_s),
            }),
            ..LabSpec::new(&self.name)
        })
    }

    /// Returns the disk of the file or model, changed by the other options.
    fn disk(&self) -> Result<Option<DiskSpec>, Failure> {
        if self.disk == "none" {
            let more = self.disk_size.is_some()
                || self.filesystem.is_some()
                || self.writable
                || self.overlay.is_some()
                || self.disk_seed.is_some()
                || self.disk_backing.is_some();
            return match more {
                true => Err(Failure::Usage(
                    "--disk none has no size, file system, overlay, seed or backing, and is not writable".into(),
                )),
                false => Ok(None),
            };
        }
        let mut disk = if self.disk.ends_with(".toml") {
            let text = std::fs::read_to_string(&self.disk)
                .with_context(|| format!("reading the disk's description {}", self.disk))?;
            toml::from_str(&text)
                .map_err(|error| Failure::Usage(format!("{}: {error}", self.disk)))?
        } else {
            DiskSpec::new(
                Model::from_str(&self.disk).map_err(Failure::Usage)?,
                4 << 30,
            )
        };
        if let Some(size) = self.disk_size {
            disk.size_bytes = size.0;
        }
        if let Some(filesystem) = self.filesystem {
            disk.filesystem = filesystem;
        }
        disk.writable |= self.writable;
        disk.overlay = self.overlay.or(disk.overlay);
        if let Some(seed) = self.disk_seed {
            disk.seed = seed;
        }
        if let Some(backing) = &self.disk_backing {
            disk.backing = Some(std::path::absolute(backing).context("the backing file")?);
        }
        if let Some(backing) = disk.backing.as_deref().filter(|name| name.exists()) {
            return Err(Failure::Usage(format!(
                "{} exists and is not overwritten; name a new file for the disk's bytes",
                backing.display()
            )));
        }
        Ok(Some(disk))
    }

    fn show(&self, lab: &Lab) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        writeln!(out, "lab {} is up", self.name)?;
        if let Some(disk) = lab.disk() {
            writeln!(out, "  disk    {}", disk.mount_point().display())?;
        }
        writeln!(out, "  server  {}", lab.server_ip())?;
        Ok(())
    }
}

/// Removes from the specification what this machine cannot make.
fn remove_impossible_parts(spec: &mut LabSpec) {
    for missing in ::headway_lab::missing(spec) {
        // It was asked for, so it is also printed where standard error is no terminal.
        let _ = writeln!(
            std::io::stderr(),
            "headway-lab: without {}: {}",
            missing.part,
            missing.reason
        );
        match missing.part {
            "disk" => spec.disk = None,
            "memory limit" => spec.memory_bytes = None,
            "CPU quota" => spec.cpu_share = None,
            "link" => spec.link = None,
            _ => {
                let allowed = ::headway_lab::allowed_cpus();
                spec.server_cpus.retain(|cpu| allowed.contains(cpu));
                spec.client_cpus.retain(|cpu| allowed.contains(cpu));
            }
        }
    }
}

/// Says what is missing, and what works without it.
fn with_remedy(spec: &LabSpec, error: &LabError) -> Failure {
    let parts = [
        ("disk", spec.disk.is_some()),
        ("memory limit", spec.memory_bytes.is_some()),
        ("CPU quota", spec.cpu_share.is_some()),
        ("link", spec.link.is_some()),
        ("CPUs", true),
    ];
    let missing = ::headway_lab::missing(spec);
    let works: Vec<&str> = parts
        .into_iter()
        .filter(|(part, wanted)| *wanted && missing.iter().all(|one| one.part != *part))
        .map(|(part, _)| part)
        .collect();
    let works = match works.is_empty() {
        true => "nothing else was asked for".to_owned(),
        false => format!(
            "{} would work: --what-works leaves out the rest",
            works.join(", ")
        ),
    };
    Failure::Runtime(anyhow::anyhow!("{error}\n{works}"))
}
