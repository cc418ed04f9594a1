//! The calls of a `trace.json`, on the clock of a run.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

/// The version of the file's form that is read here.
const SCHEMA: u64 = 1;

/// Labels of waiting for work, which is no blocking.
const IDLE: [&str; 2] = ["event-wait", "socket-accept"];

/// The label of a thread that waits for events: an event loop.
const LOOP: &str = "event-wait";

/// Labels of the file system and of memory. A thread that sleeps on one of them does so for a
/// request; other sleeps of a thread that is no loop may be a wait for work.
const FILES: [&str; 17] = [
    "page-io",
    "page-writeback",
    "dirty-throttle",
    "buffer-io",
    "buffer-lock",
    "direct-io",
    "disk-queue",
    "inode-lock",
    "dentry-lookup",
    "journal",
    "fuse",
    "network-fs",
    "file-lock",
    "memory-reclaim",
    "mmap-lock",
    "freeze",
    "file-offset",
];

/// A call that slept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedCall {
    /// The thread that made it.
    pub thread: u32,
    /// Name of the call.
    pub call: String,
    /// The label of its longest sleep.
    pub label: String,
    /// The call site: function, file and line, or module and offset.
    pub site: String,
    /// Nanoseconds after the run's epoch; before it if negative.
    pub start_ns: i128,
    /// Length of the call.
    pub wall_ns: u64,
    /// Time asleep in it.
    pub asleep_ns: u64,
    /// Whether it waited for work.
    pub idle: bool,
}

impl TracedCall {
    /// Whether it slept on the file system or on memory.
    pub fn waits_for_files(&self) -> bool {
        FILES.contains(&self.label.as_str())
    }
}

/// All calls of a trace that slept and were kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TracedCalls {
    calls: Vec<TracedCall>,
}

impl TracedCalls {
    /// Reads `trace.json` of a run directory; `None` if there is none that can be read.
    pub fn read(directory: &Path, epoch_unix_ns: u64) -> Option<TracedCalls> {
        let text = std::fs::read(directory.join("trace.json")).ok()?;
        TracedCalls::from_json(&serde_json::from_slice(&text).ok()?, epoch_unix_ns)
    }

    /// The calls of a trace, on the clock that was 0 at this wall-clock time; `None` if it is no
    /// trace.
    pub fn from_json(trace: &Value, epoch_unix_ns: u64) -> Option<TracedCalls> {
        if trace.get("schema")?.as_u64()? != SCHEMA {
            return None;
        }
        let started = i128::from(trace.get("started_ns")?.as_u64()?);
        let started_unix = i128::from(trace.get("started_unix_ns")?.as_u64()?);
        let shift = started_unix - i128::from(epoch_unix_ns) - started;
        let locations = trace.get("locations")?.as_array()?;
        let kept = trace.get("kept")?.as_array()?;
        Some(TracedCalls {
            calls: kept
                .iter()
                .filter_map(|kept| call(kept, locations, shift))
                .collect(),
        })
    }

    /// The calls, in the order of the trace.
    pub fn calls(&self) -> &[TracedCall] {
        &self.calls
    }

    /// The threads that waited for events.
    pub fn loops(&self) -> BTreeSet<u32> {
        let waits = self.calls.iter().filter(|call| call.label == LOOP);
        waits.map(|call| call.thread).collect()
    }
}

fn call(kept: &Value, locations: &[Value], shift: i128) -> Option<TracedCall> {
    let sleeps = kept.get("sleeps")?.as_array()?;
    let asleep = |sleep: &Value| sleep["total_ns"].as_u64().unwrap_or(0);
    let longest = sleeps.iter().max_by_key(|sleep| asleep(sleep))?;
    let label = longest.get("label")?.as_str()?;
    let wall_ns = kept.get("wall_ns")?.as_u64()?;
    let total = sleeps.iter().map(asleep).fold(0_u64, u64::saturating_add);
    Some(TracedCall {
        thread: u32::try_from(kept.get("thread")?.as_u64()?).ok()?,
        call: kept.get("call")?.as_str()?.to_owned(),
        label: label.to_owned(),
        site: kept["location"]
            .as_u64()
            .and_then(|index| locations.get(index as usize))
            .map(site)
            .unwrap_or_default(),
        start_ns: i128::from(kept.get("start_ns")?.as_u64()?) + shift,
        wall_ns,
        asleep_ns: total.min(wall_ns),
        idle: IDLE.contains(&label),
    })
}

fn site(location: &Value) -> String {
    let module = location["module"].as_str().unwrap_or_default();
    let module = module.rsplit('/').next().unwrap_or_default();
    match (
        location["function"].as_str(),
        location["file"].as_str(),
        location["line"].as_u64(),
    ) {
        (Some(function), Some(file), Some(line)) => {
            let file = file.rsplit('/').next().unwrap_or(file);
            format!("{function} ({file}:{line})")
        }
        (Some(function), ..) => format!("{function} ({module})"),
        _ => format!("{module}+{:#x}", location["offset"].as_u64().unwrap_or(0)),
    }
}
