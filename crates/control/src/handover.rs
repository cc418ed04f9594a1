//! What a master leaves to the program that replaces it by execve(2): a sealed memfd with JSON. The
//! descriptors that it names stay open under their numbers.
//!
//! The two programs may have different versions. So the workers before get no message of the new
//! version: the packets for them are in here, as the old version has encoded them. Numbers and
//! snapshots of the old version are JSON values, which the new one may find useless.

use headway_config::Endpoint;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

use super::wire;
use super::{Control, ControlError, Drain, ToHelper, ToWorker, encode};

/// A program can take over if it knows this format. New fields with a default need no new number.
pub const FORMAT: u32 = 1;

/// What a master leaves to its successor. All numbers are descriptors or processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Handover {
    /// [`FORMAT`].
    pub format: u32,
    /// The version of the program before.
    pub version: String,
    /// Where the program is looked for in an upgrade.
    pub path: std::path::PathBuf,
    /// The program before, for a way back and for helpers of its workers.
    pub program: RawFd,
    /// Addresses with their sockets.
    pub listeners: Vec<HandedListener>,
    /// Whether all workers accept from one socket.
    pub is_shared: bool,
    /// Whether the service manager has given sockets.
    pub is_activated: bool,
    /// The listener of the status page.
    pub status: Option<HandedListener>,
    /// Workers that serve, or drain.
    pub workers: Vec<HandedWorker>,
    /// Other children. Their sockets stay open as long as the workers need them.
    pub processes: Vec<HandedProcess>,
    /// The secret of session tickets, in a sealed memfd.
    pub tickets: Option<RawFd>,
    /// How long the workers before may drain.
    pub drain_timeout_ms: u64,
    /// The numbers of the master before.
    pub master: serde_json::Value,
    /// The numbers of workers that have ended.
    pub departed: serde_json::Value,
}

/// An address and its sockets.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HandedListener {
    /// As it is configured.
    pub wanted: Endpoint,
    /// With the port that the kernel chose where it was 0.
    pub bound: Endpoint,
    /// Whether the service manager has given it.
    pub is_given: bool,
    /// Device and inode of the file of a Unix socket.
    pub file: Option<(u64, u64)>,
    /// At least one.
    pub sockets: Vec<RawFd>,
}

/// A worker of the version before.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HandedWorker {
    /// The process.
    pub pid: u32,
    /// Its number.
    pub number: u32,
    /// Its control socket.
    pub control: RawFd,
    /// Its program, for helpers.
    pub program: RawFd,
    /// Whether it serves.
    pub is_ready: bool,
    /// When it is killed, in milliseconds from now, if it drains.
    pub ends_in_ms: Option<u64>,
    /// At most this many helpers at a time.
    pub helpers_max: usize,
    /// What it understands.
    pub packets: Packets,
    /// A ruleset of Landlock for its helpers, so that they need not look up directories.
    #[serde(default)]
    pub ruleset: Option<RawFd>,
    /// Its last numbers.
    pub last: serde_json::Value,
}

/// Messages to a worker, as its version encodes them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Packets {
    drain: Vec<u8>,
    stop: Vec<u8>,
    poll_listeners: Vec<u8>,
    snapshot: Vec<u8>,
    /// What a new helper reads first, if it is confined. It looks up directories itself.
    helper: Option<Vec<u8>>,
    /// What one reads first that gets a ruleset.
    #[serde(default)]
    helper_with_ruleset: Option<Vec<u8>>,
}

/// One of [`Packets`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet {
    /// Finish what is in flight, and exit.
    Drain,
    /// The same, and close idle connections at once.
    Stop,
    /// Poll the shared listeners.
    PollListeners,
    /// Send a snapshot.
    Snapshot,
}

/// Another child of the version before.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HandedProcess {
    /// The process.
    pub pid: u32,
    /// The master's end of its socket. When it is closed, the process ends.
    pub socket: Option<RawFd>,
    /// Whether it reports there how many spans it has sent and dropped.
    #[serde(default)]
    pub counts_spans: bool,
}

impl Packets {
    /// Those of this version. If helpers are confined, there is an order to one that looks up directories, and
    /// perhaps one that goes with a ruleset.
    ///
    /// # Errors
    /// If a message cannot be encoded.
    pub fn new(
        drain: Drain,
        helper: Option<&ToHelper>,
        helper_with_ruleset: Option<&ToHelper>,
    ) -> Result<Packets, ControlError> {
        let stop = Drain::within(drain.timeout_ms);
        Ok(Packets {
            drain: encode(&ToWorker::Drain(drain))?,
            stop: encode(&ToWorker::Drain(stop))?,
            poll_listeners: encode(&ToWorker::PollListeners)?,
            snapshot: encode(&ToWorker::Snapshot { id: 0 })?,
            helper: helper.map(encode).transpose()?,
            helper_with_ruleset: helper_with_ruleset.map(encode).transpose()?,
        })
    }

    /// Whether helpers are confined.
    pub fn confines_helpers(&self) -> bool {
        self.helper.is_some()
    }

    /// Sends a new helper what it reads first, by the worker's end of its socket.
    ///
    /// # Errors
    /// Those of sendmsg(2).
    pub fn begin_helper(
        &self,
        socket: &Control,
        ruleset: Option<BorrowedFd<'_>>,
    ) -> Result<(), ControlError> {
        match (&self.helper, self.helper_with_ruleset.as_ref().zip(ruleset)) {
            (_, Some((bytes, ruleset))) => wire::send(socket.as_fd(), bytes, &[ruleset], false),
            (Some(bytes), None) => wire::send(socket.as_fd(), bytes, &[], false),
            (None, None) => return Ok(()),
        }
        .map(drop)
    }

    /// Sends one; `false` if the other end's buffer is full.
    ///
    /// # Errors
    /// Those of sendmsg(2).
    pub fn try_send(&self, packet: Packet, control: &Control) -> Result<bool, ControlError> {
        let bytes = match packet {
            Packet::Drain => &self.drain,
            Packet::Stop => &self.stop,
            Packet::PollListeners => &self.poll_listeners,
            Packet::Snapshot => &self.snapshot,
        };
        wire::send(control.as_fd(), bytes, &[], false)
    }
}

impl Handover {
    /// A sealed memfd with this, which is close-on-exec.
    ///
    /// # Errors
    /// Those of memfd_create(2) and write(2).
    pub fn to_memory(&self) -> Result<OwnedFd, ControlError> {
        wire::into_memfd(&encode(self)?)
    }

    /// Reads a memfd.
    ///
    /// # Errors
    /// If this version does not know the format.
    pub fn from_memory(memory: BorrowedFd<'_>) -> Result<Handover, ControlError> {
        let malformed = |text: String| ControlError::Malformed(text);
        let bytes = wire::from_memfd(memory)?;
        let value: serde_json::Value =
            serde_json::from_slice(&bytes).map_err(|error| malformed(error.to_string()))?;
        match value["format"].as_u64() {
            Some(format) if format == u64::from(FORMAT) => {}
            format => {
                let version = value["version"].as_str().unwrap_or("unknown");
                let format = format.map_or("none".into(), |format| format.to_string());
                return Err(malformed(format!(
                    "state of version {version} has format {format}, and this program knows {FORMAT}"
                )));
            }
        }
        serde_json::from_value(value).map_err(|error| malformed(error.to_string()))
    }

    /// All descriptors.
    pub fn descriptors(&self) -> Vec<RawFd> {
        let listeners = self.listeners.iter().chain(&self.status);
        let mut all: Vec<RawFd> = listeners
            .flat_map(|listener| &listener.sockets)
            .copied()
            .collect();
        all.push(self.program);
        all.extend(self.tickets);
        for worker in &self.workers {
            all.extend([worker.control, worker.program]);
            all.extend(worker.ruleset);
        }
        all.extend(self.processes.iter().filter_map(|process| process.socket));
        all.sort_unstable();
        all.dedup();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handover() -> Handover {
        let worker = HandedWorker {
            pid: 4711,
            number: 1,
            control: 20,
            program: 9,
            is_ready: true,
            ends_in_ms: Some(300),
            helpers_max: 4,
            packets: Packets::new(Drain::within(7), None, None).unwrap(),
            ruleset: None,
            last: serde_json::Value::Null,
        };
        let listener = |number| HandedListener {
            wanted: "127.0.0.1:0".parse().unwrap(),
            bound: "127.0.0.1:80".parse().unwrap(),
            is_given: false,
            file: None,
            sockets: vec![number, number + 1],
        };
        let process = |socket| HandedProcess {
            pid: 1,
            socket,
            counts_spans: false,
        };
        Handover {
            format: FORMAT,
            version: "1.2.3".into(),
            path: "/usr/bin/headway".into(),
            program: 9,
            listeners: vec![listener(10), listener(12)],
            is_shared: false,
            is_activated: false,
            status: Some(listener(14)),
            workers: vec![
                worker.clone(),
                HandedWorker {
                    control: 21,
                    ruleset: Some(22),
                    ..worker
                },
            ],
            processes: vec![process(Some(30)), process(None)],
            tickets: Some(40),
            drain_timeout_ms: 10,
            master: serde_json::Value::Null,
            departed: serde_json::Value::Null,
        }
    }

    #[test]
    fn each_descriptor_is_named_once() {
        let memory = handover().to_memory().unwrap();
        let read = Handover::from_memory(memory.as_fd()).unwrap();
        let expected = [9, 10, 11, 12, 13, 14, 15, 20, 21, 22, 30, 40];
        assert_eq!(read.descriptors(), expected);
    }

    #[test]
    fn state_without_rulesets_and_span_processes_can_be_read() {
        let mut state = serde_json::to_value(handover()).unwrap();
        for (list, field) in [("workers", "ruleset"), ("processes", "counts_spans")] {
            for one in state[list].as_array_mut().unwrap() {
                assert!(one.as_object_mut().unwrap().remove(field).is_some());
            }
        }
        for worker in state["workers"].as_array_mut().unwrap() {
            let packets = worker["packets"].as_object_mut().unwrap();
            assert!(packets.remove("helper_with_ruleset").is_some());
        }
        let memory = wire::into_memfd(&encode(&state).unwrap()).unwrap();
        let read = Handover::from_memory(memory.as_fd()).unwrap();
        assert_eq!(read.workers[1].ruleset, None);
    }

    #[test]
    fn state_of_another_format_is_an_error_that_names_both() {
        let mut other = handover();
        other.format = FORMAT + 1;
        let memory = other.to_memory().unwrap();
        let error = Handover::from_memory(memory.as_fd()).unwrap_err();
        let expected = format!(
            "state of version 1.2.3 has format {}, and this program knows {FORMAT}",
            FORMAT + 1
        );
        assert!(error.to_string().ends_with(&expected), "{error}");
    }

    #[test]
    fn worker_gets_the_packets_as_its_version_has_encoded_them() {
        let (master, worker) = Control::pair().unwrap();
        let packets = handover().workers.remove(0).packets;
        for (packet, expected) in [
            (Packet::Drain, ToWorker::Drain(Drain::within(7))),
            (Packet::PollListeners, ToWorker::PollListeners),
            (Packet::Snapshot, ToWorker::Snapshot { id: 0 }),
        ] {
            assert!(packets.try_send(packet, &master).unwrap());
            let (message, _) = worker.receive::<ToWorker>().unwrap().unwrap();
            assert_eq!(message, expected);
        }
    }
}
