//! A measurement, described completely: equal descriptions are the same measurement.
//!
//! Names and labels of the study are not in it, so that two studies may call the same thing
//! differently. The key is a checksum of the JSON form; a change of this form or of what a
//! measurement does raises [`VERSION`].

use headway_load::checksum;
use serde::{Deserialize, Serialize};

use crate::servers::Kind;

/// Raised when equal descriptions no longer mean equal measurements.
pub const VERSION: u32 = 7;

/// A server and its sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerChoice {
    /// The server's kind.
    pub kind: Kind,
    /// Event loops.
    pub workers: Option<usize>,
    /// Apache's processes.
    pub processes: Option<usize>,
    /// Helpers of each loop; absent: adaptive.
    pub helpers: Option<usize>,
    /// Whether the server writes an access log.
    pub access_log: bool,
    /// More words for `headway serve`.
    pub arguments: Vec<String>,
    /// The most connections that a loop keeps open; absent: as all. Absent in descriptions that have
    /// none, whose keys are so as they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<usize>,
    /// The most connections that a server of others accepts per wakeup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accept_limit: Option<usize>,
}

impl ServerChoice {
    /// A server of the usual size.
    pub fn new(kind: Kind) -> ServerChoice {
        ServerChoice {
            kind,
            workers: None,
            processes: None,
            helpers: None,
            access_log: false,
            arguments: Vec::new(),
            connections: None,
            accept_limit: None,
        }
    }
}

/// Where a server runs, and on which files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Whether there is a lab at all.
    pub lab: bool,
    /// Size of the file set.
    pub set_bytes: u64,
    /// Equal files in place of a profile's; absent in descriptions that have none, whose keys are
    /// so as they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<Files>,
    /// `specweb99` or `specweb96`.
    pub profile: String,
    /// The disk's model.
    pub disk: Option<String>,
    /// `ext4`, `xfs` or `remote`.
    pub filesystem: String,
    /// The limit of the server's memory.
    pub memory_bytes: Option<u64>,
    /// The link.
    pub link_bits: Option<u64>,
    /// The link of each address of the client; absent in descriptions that have none, whose keys are
    /// so as they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_link_bits: Option<u64>,
    /// Share of one core.
    pub cpu: Option<f64>,
    /// Unrecorded requests that fill the caches: this many by a reader, and half as many also by
    /// the server.
    pub fill_requests: u64,
    /// The upper layer of an overlay over the disk, `disk` or `tmpfs`; absent in descriptions that
    /// have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlay: Option<String>,
    /// What is written beside the server; absent in descriptions that have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writers: Option<StudyWriters>,
    /// The accept queue of every server, if it is not the usual one; absent in descriptions that
    /// have none, whose keys are so as they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen_queue: Option<u32>,
}

/// What is written to the disk beside the server, per second; 0: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StudyWriters {
    /// Files of the set published.
    pub publish_per_s: f64,
    /// Lines appended to a log and synced.
    pub append_per_s: f64,
    /// Bytes written and not synced.
    pub dirty_bytes_per_s: u64,
}

/// A set of equal files, or of many small ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Files {
    /// Number of files.
    pub count: u64,
    /// The size of each; absent: from 512 bytes to 16 KiB.
    pub file_bytes: Option<u64>,
}

impl Environment {
    /// Describes the environment in one line.
    pub fn describe(&self) -> String {
        let size = |bytes: u64| headway_latency::format::bytes(bytes as f64);
        let mut parts = vec![match self.files {
            Some(files) => {
                let of_one = files.file_bytes.map_or("0.5 to 16 KiB".to_owned(), size);
                let many = if files.count == 1 { "file" } else { "files" };
                format!("{} {many} of {of_one}", files.count)
            }
            None => format!("{} {} set", size(self.set_bytes), self.profile),
        }];
        parts.push(match &self.disk {
            Some(model) => format!("{model} with {}", self.filesystem),
            None => "no modelled disk".to_owned(),
        });
        if let Some(upper) = &self.overlay {
            parts.push(format!("an overlay with its upper layer on {upper}"));
        }
        if let Some(writers) = self.writers {
            parts.push(writers.describe());
        }
        if let Some(bytes) = self.memory_bytes {
            parts.push(format!("{} memory", size(bytes)));
        }
        if let Some(share) = self.cpu {
            parts.push(format!("{share} of a core (emulated by a quota)"));
        }
        let rate = |bits: u64| match bits {
            1_000_000_000.. => format!("{} Gbit/s", bits as f64 / 1e9),
            _ => format!("{} Mbit/s", bits as f64 / 1e6),
        };
        parts.push(self.link_bits.map_or("loopback".to_owned(), rate));
        if let Some(bits) = self.client_link_bits {
            parts.push(format!("{} to each client address", rate(bits)));
        }
        if let Some(length) = self.listen_queue {
            parts.push(format!("accept queues of {length}"));
        }
        parts.join(", ")
    }
}

impl StudyWriters {
    fn describe(&self) -> String {
        let dirty = headway_latency::format::bytes(self.dirty_bytes_per_s as f64);
        let all = [
            (
                self.publish_per_s,
                format!("{} published files", self.publish_per_s),
            ),
            (
                self.append_per_s,
                format!("{} synced log lines", self.append_per_s),
            ),
            (
                self.dirty_bytes_per_s as f64,
                format!("{dirty} of dirty pages"),
            ),
        ];
        let made = all.into_iter().filter(|(rate, _)| *rate > 0.0);
        let made: Vec<String> = made.map(|(_, text)| text).collect();
        format!("{} per second", made.join(" and "))
    }
}

/// The way in which clients send requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// Connections of the closed loop.
    pub connections: u64,
    /// Connections beside them that are open and hardly ever ask; absent in descriptions that have
    /// none, whose keys are so as they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<u64>,
    /// Before a connection is closed.
    pub requests_per_connection: u64,
    /// After which a request is an error; absent: the generator's own.
    pub timeout_s: Option<f64>,
    /// How long a client is silent once it is connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_pause_s: Option<f64>,
    /// What a connection receives at most.
    pub bandwidth_bits_per_s: Option<u64>,
    /// Through TLS; absent in descriptions without it, whose keys are so as they were.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub https: bool,
    /// Over HTTP/2, with this number of requests at once on a connection; absent for HTTP/1.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<u64>,
}

/// The load that is offered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Point {
    /// A closed loop.
    Capacity,
    /// The highest rate of an open loop that is answered in time, found by a search.
    Knee(Knee),
    /// A share of a capacity, or of a knee.
    Share {
        /// 0.8 is 80 %.
        share: f64,
        /// The server, or servers, with that capacity.
        of: CapacityOf,
        /// The share is of the knee; absent: of the capacity.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        knee: Option<Knee>,
        /// Where that capacity is measured; absent: in the measurement's own environment.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        elsewhere: Option<Box<OtherEnvironment>>,
    },
    /// Requests per second.
    Rate(f64),
}

/// Up to where the latency of an open loop counts as that of a server which keeps up.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Knee {
    /// The mean latency is at most this.
    pub mean_ms: f64,
}

/// Another environment than a measurement's own, and what is offered there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OtherEnvironment {
    /// The environment.
    pub environment: Environment,
    /// The workload.
    pub workload: Workload,
}

/// The server, or servers, whose capacity a share is taken of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CapacityOf {
    /// The server's own.
    Own,
    /// Another server's.
    Server(Box<ServerChoice>),
    /// The highest of these.
    Highest(Vec<ServerChoice>),
    /// The lowest of these.
    Lowest(Vec<ServerChoice>),
}

/// The observer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Observer {
    /// `headway trace -p`, on the processes that serve clients.
    Trace,
    /// The run-queue sampler.
    Runnable,
}

/// What the disk does meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StudyFault {
    /// How much slower; absent: it does not answer at all.
    pub factor: Option<f64>,
    /// After the beginning of the measured part.
    pub at_s: f64,
    /// Length of the fault.
    pub for_s: f64,
}

/// A second client that asks for files which stay in memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// Number of files.
    pub count: u64,
    /// The size of each file.
    pub file_bytes: u64,
    /// Requests per second.
    pub rate_rps: f64,
}

/// A measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// The server.
    pub server: ServerChoice,
    /// The environment of the measurement.
    pub environment: Environment,
    /// The workload.
    pub workload: Workload,
    /// The point.
    pub point: Point,
    /// The observer.
    pub observe: Option<Observer>,
    /// The fault of the disk during the measured part.
    pub fault: Option<StudyFault>,
    /// The second client.
    pub probe: Option<Probe>,
    /// Length of the measured part.
    pub seconds: f64,
    /// Recorded before it and left out.
    pub warmup_s: f64,
    /// Number of the repeat, from 1.
    pub repeat: u32,
}

impl Spec {
    /// The name of its directory: 16 hexadecimal digits.
    pub fn key(&self) -> String {
        let text = serde_json::to_string(&(VERSION, self)).unwrap_or_default();
        format!("{:016x}", checksum::of(text.as_bytes()))
    }

    /// The seed of its requests: the same for all servers at one point of one repeat, and another
    /// one at every other point. If points shared their requests, whatever the first of them
    /// brought into memory would be all that the others ask for.
    pub fn seed(&self) -> u64 {
        seed(&(&self.point, self.repeat))
    }

    /// The seed of the requests that fill the caches before it: none that are measured.
    pub fn fill_seed(&self) -> u64 {
        seed(&("fill", self.repeat))
    }

    /// The servers whose capacities have to be known first.
    pub fn needs(&self) -> Vec<ServerChoice> {
        match &self.point {
            Point::Capacity | Point::Rate(_) => Vec::new(),
            Point::Knee(_) => vec![self.server.clone()],
            Point::Share { of, .. } => match of {
                CapacityOf::Own => vec![self.server.clone()],
                CapacityOf::Server(server) => vec![(**server).clone()],
                CapacityOf::Highest(servers) | CapacityOf::Lowest(servers) => servers.clone(),
            },
        }
    }

    /// Where those capacities are measured.
    pub fn elsewhere(&self) -> Option<&OtherEnvironment> {
        match &self.point {
            Point::Share { elsewhere, .. } => elsewhere.as_deref(),
            Point::Capacity | Point::Knee(_) | Point::Rate(_) => None,
        }
    }

    /// The knee that it is a share of.
    pub fn share_of_knee(&self) -> Option<Knee> {
        match self.point {
            Point::Share { knee, .. } => knee,
            Point::Capacity | Point::Knee(_) | Point::Rate(_) => None,
        }
    }

    /// The same at a plain rate: one probe of a search.
    pub fn at_rate(&self, rate_rps: f64) -> Spec {
        Spec {
            point: Point::Rate(rate_rps),
            ..self.clone()
        }
    }

    /// How long it takes, without starting the server. Under overload the cool-down comes on top.
    pub fn length_s(&self) -> f64 {
        let once_s = self.seconds + self.warmup_s;
        match self.point {
            Point::Knee(_) => once_s * f64::from(headway_load::knee::PROBES_USUAL),
            _ => once_s,
        }
    }

    /// For how long an open loop goes on afterwards at most: as long as its clients wait, if they
    /// have a timeout. Without it the last requests would find an idle server. With a probe, each of
    /// the two clients ends when its own measured requests have ended.
    pub fn cooldown_s(&self) -> f64 {
        match self.point {
            Point::Capacity => 0.0,
            Point::Knee(_) | Point::Rate(_) | Point::Share { .. } => {
                self.workload.timeout_s.unwrap_or(0.0)
            }
        }
    }

    /// The point as text.
    pub fn point_text(&self) -> String {
        let percent = |share: f64| headway_latency::format::percent(share);
        match &self.point {
            Point::Capacity => "capacity".to_owned(),
            Point::Knee(_) => "knee".to_owned(),
            Point::Rate(rate) => format!("{rate}/s"),
            Point::Share {
                share, of, knee, ..
            } => match (of, knee) {
                (CapacityOf::Own, None) => percent(*share),
                (CapacityOf::Own, Some(_)) => format!("{} of its knee", percent(*share)),
                (CapacityOf::Server(server), None) => {
                    format!("{} of {}", percent(*share), server.kind)
                }
                (CapacityOf::Server(server), Some(_)) => {
                    format!("{} of the knee of {}", percent(*share), server.kind)
                }
                (CapacityOf::Highest(_), None) => format!("{} of the best", percent(*share)),
                (CapacityOf::Lowest(_), None) => format!("{} of the slowest", percent(*share)),
                (CapacityOf::Highest(_), Some(_)) => {
                    format!("{} of the best knee", percent(*share))
                }
                (CapacityOf::Lowest(_), Some(_)) => {
                    format!("{} of the worst knee", percent(*share))
                }
            },
        }
    }
}

/// Nine digits at most, so that it can be typed.
fn seed(of: &impl Serialize) -> u64 {
    let text = serde_json::to_string(of).unwrap_or_default();
    checksum::of(text.as_bytes()) % 1_000_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> Spec {
        Spec {
            server: ServerChoice::new(Kind::Nginx),
            environment: Environment {
                lab: true,
                set_bytes: 400_000_000,
                files: None,
                profile: "specweb99".into(),
                disk: Some("ide-5400".into()),
                filesystem: "ext4".into(),
                memory_bytes: Some(130_000_000),
                link_bits: Some(1_000_000_000),
                client_link_bits: None,
                cpu: None,
                fill_requests: 3000,
                overlay: None,
                writers: None,
                listen_queue: None,
            },
            workload: Workload {
                connections: 256,
                idle: None,
                requests_per_connection: 5,
                timeout_s: None,
                first_pause_s: None,
                bandwidth_bits_per_s: None,
                https: false,
                streams: None,
            },
            point: Point::Capacity,
            observe: None,
            fault: None,
            probe: None,
            seconds: 5.0,
            warmup_s: 1.0,
            repeat: 1,
        }
    }

    #[test]
    fn requests_are_new_at_every_point_and_equal_for_every_server_when_seeds_are_drawn() {
        let of = |change: fn(&mut Spec)| {
            let mut changed = spec();
            change(&mut changed);
            changed.seed()
        };
        assert_eq!(of(|spec| spec.server.kind = Kind::H2o), spec().seed());
        assert_ne!(of(|spec| spec.point = Point::Rate(10.0)), spec().seed());
        assert_ne!(of(|spec| spec.repeat = 2), spec().seed());
        assert_ne!(spec().fill_seed(), spec().seed());
    }

    #[test]
    fn key_is_the_same_when_and_only_when_the_description_is() {
        let key = spec().key();
        assert_eq!(key.len(), 16);
        assert_eq!(key, spec().key());
        let changes: [fn(&mut Spec); 11] = [
            |spec| spec.server.kind = Kind::H2o,
            |spec| spec.environment.memory_bytes = None,
            |spec| spec.workload.connections = 1024,
            |spec| spec.workload.idle = Some(1000),
            |spec| spec.workload.https = true,
            |spec| spec.workload.streams = Some(1),
            |spec| spec.point = Point::Rate(10.0),
            |spec| spec.observe = Some(Observer::Trace),
            |spec| spec.seconds = 20.0,
            |spec| spec.repeat = 2,
            |spec| spec.environment.listen_queue = Some(128),
        ];
        for change in changes {
            let mut other = spec();
            change(&mut other);
            assert_ne!(other.key(), key);
        }
    }

    #[test]
    fn environment_is_printed_on_one_line() {
        let files = Environment {
            files: Some(Files {
                count: 1,
                file_bytes: Some(2_000),
            }),
            ..spec().environment
        };
        assert!(
            files.describe().starts_with("1 file of 2.00 kB, ide-5400"),
            "{}",
            files.describe()
        );
        let summary = spec().environment.describe();
        let usual = "400 MB specweb99 set, ide-5400 with ext4, 130 MB memory, 1 Gbit/s";
        assert_eq!(summary, usual);
        let busy = Environment {
            overlay: Some("tmpfs".to_owned()),
            writers: Some(StudyWriters {
                publish_per_s: 20.0,
                append_per_s: 0.0,
                dirty_bytes_per_s: 5_000_000,
            }),
            ..spec().environment
        };
        let parts = "ext4, an overlay with its upper layer on tmpfs, 20 published files and 5.00 MB of dirty pages per second, 130";
        assert!(busy.describe().contains(parts), "{}", busy.describe());
        let short = Environment {
            listen_queue: Some(128),
            ..spec().environment
        };
        assert_eq!(short.describe(), format!("{usual}, accept queues of 128"));
        let divided = Environment {
            client_link_bits: Some(100_000_000),
            ..spec().environment
        };
        let expected = format!("{usual}, 100 Mbit/s to each client address");
        assert_eq!(divided.describe(), expected);
    }
}
