//! What a disk shall be, what it can be told while it runs, and what it says of itself.
//!
//! All of it is data with a stable written form (TOML, JSON): a study writes it down, the disk
//! process reads it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A disk to be made.
///
/// ```
/// use headway_lab::disk::{DiskSpec, Model};
///
/// let spec = DiskSpec::new(Model::Ide5400, 64 << 20);
/// assert_eq!(spec.model.to_string(), "ide-5400");
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskSpec {
    /// Where the delays come from.
    pub model: Model,
    /// Size of the block device, at least 16 MiB; rounded up to a mebibyte.
    pub size_bytes: u64,
    /// Decides the platter's first angle and every random part of a delay.
    #[serde(default)]
    pub seed: u64,
    /// What goes wrong, and when.
    #[serde(default)]
    pub faults: FaultPlan,
    /// The file system on the device.
    #[serde(default)]
    pub filesystem: Filesystem,
    /// The file that holds the bytes; it is made, and must not be there. `None`: memory of the disk
    /// process, so that the only delay is the model's.
    #[serde(default)]
    pub backing: Option<PathBuf>,
    /// Whether files can be changed while the disk has its delays. It is mounted with `relatime`
    /// then, else read-only without access times.
    #[serde(default)]
    pub writable: bool,
    /// What lies over the file system, which is the lower layer then.
    #[serde(default)]
    pub overlay: Option<Upper>,
}

/// The upper layer of an overlay, as a container has one over its image. The files of the lower one
/// belong to another user than the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Upper {
    /// On the disk, too.
    Disk,
    /// In memory.
    Tmpfs,
}

impl Upper {
    /// The name of the upper layer.
    pub fn name(self) -> &'static str {
        match self {
            Upper::Disk => "disk",
            Upper::Tmpfs => "tmpfs",
        }
    }
}

impl FromStr for Upper {
    type Err = String;

    fn from_str(name: &str) -> Result<Upper, String> {
        [Upper::Disk, Upper::Tmpfs]
            .into_iter()
            .find(|upper| upper.name() == name)
            .ok_or_else(|| format!("no upper layer \"{name}\": disk or tmpfs"))
    }
}

/// A disk that is slower than this stands still.
const FACTOR_MAX: f64 = 1e6;

impl DiskSpec {
    /// A disk of that model and size without faults: ext4, in memory, seed 0.
    pub fn new(model: Model, size_bytes: u64) -> DiskSpec {
        DiskSpec {
            model,
            size_bytes,
            seed: 0,
            faults: FaultPlan::default(),
            filesystem: Filesystem::Ext4,
            backing: None,
            writable: false,
            overlay: None,
        }
    }

    /// Why no such disk can be made, if none can.
    pub(crate) fn check(&self) -> Result<(), String> {
        let least = match self.filesystem {
            Filesystem::Ext4 => 16 << 20,
            Filesystem::Xfs => 300 << 20,
            Filesystem::Remote => 1 << 20,
        };
        if self.size_bytes < least {
            return Err(format!(
                "{} needs {least} bytes, the disk has {}",
                self.filesystem.name(),
                self.size_bytes
            ));
        }
        if self.filesystem.is_remote() && self.backing.is_some() {
            return Err(
                "a remote file system is kept in memory; it has no backing file".to_owned(),
            );
        }
        if self.filesystem.is_remote() && self.overlay.is_some() {
            return Err("an overlay needs a disk with ext4 or xfs below it".to_owned());
        }
        for fault in &self.faults.0 {
            match fault {
                Fault::Slow { factor, .. } => check_factor(*factor)?,
                Fault::Fail { offset_bytes, .. } => check_offset(*offset_bytes, self.size_bytes)?,
                Fault::Stall { .. } => {}
            }
        }
        self.model.mechanics().check()
    }
}

/// A disk whose delays are known. [`Model::mechanics`] gives the numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Model {
    /// One spindle of 5400 revolutions a minute, as in the papers' servers.
    #[serde(rename = "ide-5400")]
    Ide5400,
    /// A flash disk behind a SATA link with a queue of 32.
    SsdSata,
    /// A flash disk on PCIe.
    Nvme,
    /// A volume at the other end of a network: latency of a millisecond, much parallelism.
    Network,
    /// Anything that one of the two mechanics can express.
    Custom(Mechanics),
}

impl Model {
    /// The models that have a name of their own.
    pub const NAMED: [Model; 4] = [Model::Ide5400, Model::SsdSata, Model::Nvme, Model::Network];

    /// The numbers behind the name. They are typical of their class, not of one product.
    pub fn mechanics(&self) -> Mechanics {
        match self {
            Model::Ide5400 => Mechanics::Spindle(Spindle::default()),
            Model::SsdSata => Mechanics::Parallel(Parallel {
                latency_us: 90.0,
                variation: 0.3,
                parallelism: 32,
                bytes_per_second: 540_000_000,
                overhead_us: 3.0,
            }),
            Model::Nvme => Mechanics::Parallel(Parallel {
                latency_us: 75.0,
                variation: 0.2,
                parallelism: 128,
                bytes_per_second: 3_200_000_000,
                overhead_us: 0.5,
            }),
            Model::Network => Mechanics::Parallel(Parallel {
                latency_us: 1000.0,
                variation: 0.4,
                parallelism: 64,
                bytes_per_second: 250_000_000,
                overhead_us: 10.0,
            }),
            Model::Custom(mechanics) => mechanics.clone(),
        }
    }
}

impl fmt::Display for Model {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Model::Ide5400 => "ide-5400",
            Model::SsdSata => "ssd-sata",
            Model::Nvme => "nvme",
            Model::Network => "network",
            Model::Custom(_) => "custom",
        })
    }
}

impl FromStr for Model {
    type Err = String;

    /// Parses the name of a model. `network-2ms` is a network volume of that latency; a custom one
    /// has numbers and comes from a file.
    fn from_str(name: &str) -> Result<Model, String> {
        let found = Model::NAMED
            .into_iter()
            .find(|model| model.to_string() == name);
        found.or_else(|| network_of(name)).ok_or_else(|| {
            format!("no disk model \"{name}\": ide-5400, ssd-sata, nvme, network or network-2ms; a custom one is written in a file")
        })
    }
}

/// A network volume whose name has its latency: `network-2ms`, `network-500us`.
fn network_of(name: &str) -> Option<Model> {
    let latency = name.strip_prefix("network-")?;
    let (number, us) = match latency.strip_suffix("us") {
        Some(number) => (number, 1.0),
        None => (latency.strip_suffix("ms")?, 1000.0),
    };
    let latency_us = number.parse::<f64>().ok()? * us;
    let Mechanics::Parallel(network) = Model::Network.mechanics() else {
        return None;
    };
    let model = Mechanics::Parallel(Parallel {
        latency_us,
        ..network
    });
    model.check().ok()?;
    Some(Model::Custom(model))
}

/// How a disk comes to its delays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mechanics {
    /// One arm over one platter: one request after the other.
    Spindle(Spindle),
    /// Many requests at once behind one link.
    Parallel(Parallel),
}

impl Mechanics {
    /// Names the first number that no disk can have.
    fn check(&self) -> Result<(), String> {
        let wrong = match self {
            Mechanics::Spindle(spindle) => spindle.wrong(),
            Mechanics::Parallel(parallel) => parallel.wrong(),
        };
        wrong.map_or(Ok(()), |what| Err(format!("disk model: {what}")))
    }
}

impl Spindle {
    fn wrong(&self) -> Option<&'static str> {
        let seeks = [self.seek_track_ms, self.seek_average_ms, self.seek_full_ms];
        // Written so that what is no number is refused, too.
        if !(self.revolutions > 0.0 && self.revolutions.is_finite()) {
            return Some("revolutions must be above 0");
        }
        if !(seeks[0] >= 0.0 && seeks[2].is_finite() && seeks.is_sorted()) {
            return Some("seek_track_ms, seek_average_ms and seek_full_ms must ascend from 0");
        }
        if self.bytes_per_second == 0 || self.interface_bytes_per_second == 0 {
            return Some("rates must be above 0");
        }
        if self.capacity_bytes == 0 {
            return Some("capacity_bytes must be above 0");
        }
        (!is_time(self.overhead_us)).then_some("overhead_us must be 0 or more")
    }
}

impl Parallel {
    fn wrong(&self) -> Option<&'static str> {
        if !is_time(self.latency_us) || !is_time(self.overhead_us) {
            return Some("latency_us and overhead_us must be 0 or more");
        }
        if !(0.0..=1.0).contains(&self.variation) {
            return Some("variation must be from 0 to 1");
        }
        if !(1..=4096).contains(&self.parallelism) {
            return Some("parallelism must be from 1 to 4096");
        }
        (self.bytes_per_second == 0).then_some("bytes_per_second must be above 0")
    }
}

fn is_time(value: f64) -> bool {
    value.is_finite() && value >= 0.0
}

/// A disk with one arm. Rates and track length are the same everywhere: zones are not modelled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Spindle {
    /// Revolutions a minute.
    pub revolutions: f64,
    /// From a track to the next, settling included.
    pub seek_track_ms: f64,
    /// Over a third of the stroke, which is what data sheets call the average seek.
    pub seek_average_ms: f64,
    /// From the first track to the last.
    pub seek_full_ms: f64,
    /// Under the head, and the track's length with it.
    pub bytes_per_second: u64,
    /// The whole drive. The lab's device is its beginning, so a small one has short seeks, as a
    /// small file set on a large drive has.
    pub capacity_bytes: u64,
    /// What the drive reads ahead of the last request while no other request waits for the arm.
    pub read_ahead_bytes: u64,
    /// Of the interface, for what the drive has read ahead.
    pub interface_bytes_per_second: u64,
    /// Of the drive's controller, each request.
    pub overhead_us: f64,
    /// Which request is next.
    pub queue: Queue,
}

impl Default for Spindle {
    /// A desktop drive of the year 2000: 5400 revolutions a minute, 40 GB, 30 MB/s.
    fn default() -> Spindle {
        Spindle {
            revolutions: 5400.0,
            seek_track_ms: 1.0,
            seek_average_ms: 9.0,
            seek_full_ms: 18.0,
            bytes_per_second: 30_000_000,
            capacity_bytes: 40_000_000_000,
            read_ahead_bytes: 512 << 10,
            interface_bytes_per_second: 100_000_000,
            overhead_us: 300.0,
            queue: Queue::Elevator,
        }
    }
}

/// Which of the waiting requests a spindle serves next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Queue {
    /// The next one upwards, then from the bottom again (C-LOOK), as FreeBSD's
    /// `bioq_disksort` does it and the kernels of the papers did; of sixteen one goes first that
    /// has waited for half a second, if any has, as in Linux's `mq-deadline`. The kernel's own
    /// elevator stays out of it: a loop device has none.
    #[default]
    Elevator,
    /// The request that came first.
    Fifo,
}

/// A disk, or a network, that works on many requests at once.
///
/// Each takes one of `parallelism` layout: there it has its turn on the link, and its latency after
/// that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parallel {
    /// Mean time to the first byte without queueing.
    pub latency_us: f64,
    /// Standard deviation of the latency as a share of its mean, 0 to 1: `1 - variation` of it is
    /// fixed, the rest exponential.
    #[serde(default)]
    pub variation: f64,
    /// Requests worked on at once; the others wait in the order they came.
    pub parallelism: u32,
    /// Of the link that all share.
    pub bytes_per_second: u64,
    /// Of the link, each request.
    #[serde(default)]
    pub overhead_us: f64,
}

/// The file system on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Filesystem {
    /// The file system ext4, made by `mkfs.ext4`.
    #[default]
    Ext4,
    /// `mkfs.xfs`; needs a device of 300 MiB.
    Xfs,
    /// No device: every lookup, open and read is a round trip to a server, as with NFS.
    Remote,
}

impl Filesystem {
    /// Name of the file system, for mount(8) if it has a device.
    pub fn name(self) -> &'static str {
        match self {
            Filesystem::Ext4 => "ext4",
            Filesystem::Xfs => "xfs",
            Filesystem::Remote => "remote",
        }
    }

    /// Whether files are on a server, and not on a block device.
    pub fn is_remote(self) -> bool {
        self == Filesystem::Remote
    }
}

impl FromStr for Filesystem {
    type Err = String;

    fn from_str(name: &str) -> Result<Filesystem, String> {
        [Filesystem::Ext4, Filesystem::Xfs, Filesystem::Remote]
            .into_iter()
            .find(|filesystem| filesystem.name() == name)
            .ok_or_else(|| format!("no file system \"{name}\": ext4, xfs or remote"))
    }
}

/// What goes wrong, and when.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FaultPlan(pub Vec<Fault>);

/// One thing that goes wrong. Times count from the order [`Order::Model`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Fault {
    /// Every service time is multiplied.
    Slow {
        /// When the fault begins.
        at_ms: u64,
        /// How long the fault lasts.
        for_ms: u64,
        /// The factor of the service times.
        factor: f64,
    },
    /// Nothing is answered; all that waited is answered afterwards.
    Stall {
        /// When the fault begins.
        at_ms: u64,
        /// How long the fault lasts.
        for_ms: u64,
    },
    /// Reads and writes that touch the range end with EIO, after their usual time.
    Fail {
        /// From then on, for good.
        #[serde(default)]
        at_ms: u64,
        /// First byte of the device.
        offset_bytes: u64,
        /// Length of the range.
        length_bytes: u64,
    },
}

/// What a running disk can be told. Each takes effect at once, on requests that wait already, too;
/// a request that the disk works on keeps its service time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// No delay and no fault: for loading files. Statistics are reset.
    Fast,
    /// The model's delays; the fault plan begins, and so do the statistics.
    Model,
    /// For a while every service time is multiplied.
    Slow {
        /// The factor of the service times.
        factor: f64,
        /// How long service is slow.
        for_ms: u64,
    },
    /// For a while nothing is answered.
    Stall {
        /// How long nothing is answered.
        for_ms: u64,
    },
    /// The server of a remote file system comes back with other inode numbers: what is open is
    /// stale (ESTALE).
    Restart,
    /// A range of the device cannot be read or written any more, until the next `Fast` or `Model`.
    /// Every request of a remote file system is one for byte 0.
    Fail {
        /// First byte of the device.
        offset_bytes: u64,
        /// Length of the range.
        length_bytes: u64,
    },
}

impl Order {
    /// Checks that the order can be obeyed.
    ///
    /// # Errors
    /// The reason, as a sentence.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Order::Slow { factor, .. } => check_factor(*factor),
            Order::Fail {
                length_bytes: 0, ..
            } => Err("a range that cannot be read has a byte at least".to_owned()),
            _ => Ok(()),
        }
    }

    /// Why a device of this size cannot obey it, if it cannot.
    pub(crate) fn check_on(&self, size_bytes: u64) -> Result<(), String> {
        self.check()?;
        match self {
            Order::Fail { offset_bytes, .. } => check_offset(*offset_bytes, size_bytes),
            _ => Ok(()),
        }
    }
}

fn check_offset(offset_bytes: u64, size_bytes: u64) -> Result<(), String> {
    match offset_bytes < size_bytes {
        true => Ok(()),
        false => Err(format!(
            "nothing can fail at byte {offset_bytes}: the device ends at {size_bytes}"
        )),
    }
}

fn check_factor(factor: f64) -> Result<(), String> {
    match factor > 0.0 && factor <= FACTOR_MAX {
        true => Ok(()),
        false => Err(format!(
            "a slow disk's factor is above 0 and at most {FACTOR_MAX}, not {factor}"
        )),
    }
}
