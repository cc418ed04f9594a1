//! How many tasks of some processes are runnable at an instant, as the kernel itself sees it
//! (`bpf/runnable.bpf.c`).

use std::collections::BTreeSet;
use std::io::Read;

use aya::Ebpf;
use aya::maps::HashMap;
use aya::programs::Iter;

use crate::error::AttachError;
use crate::load;
use crate::maps::load_error;
use crate::target;

/// Processes that can count.
const PROCESSES_MAX: u32 = 16384;

/// The size of a sample: three numbers of four bytes.
const SAMPLE_BYTES: usize = 12;

/// One sample of all tasks of the watched processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunQueueSample {
    /// Living tasks of the watched processes.
    pub tasks: u32,
    /// How many of these are on a CPU or wait for one.
    pub runnable: u32,
    /// Of these, in a wait that no signal ends: for the disk, or for a lock of the kernel's.
    pub blocked: u32,
}

/// Samples tasks.
///
/// A sample goes through all tasks of the system in the kernel. That took 0.13 to 0.26 ms with some
/// hundred tasks on two busy CPUs. Needs Linux 5.14 and the privilege to load BPF programs.
#[derive(Debug)]
pub struct RunQueue {
    ebpf: Ebpf,
    members: BTreeSet<u32>,
}

impl RunQueue {
    /// Gets ready; no process counts yet.
    ///
    /// # Errors
    ///
    /// As [`Attach::start`](crate::Attach::start).
    pub fn start() -> Result<RunQueue, AttachError> {
        target::check(std::process::id())?;
        let ebpf = load::load_run_queue(PROCESSES_MAX)?;
        Ok(RunQueue {
            ebpf,
            members: BTreeSet::new(),
        })
    }

    /// Replaces the watched processes; all of their threads count. Processes beyond 16,384 do not.
    ///
    /// # Errors
    ///
    /// The kernel does not accept their process ids.
    pub fn watch(&mut self, pids: &[u32]) -> Result<(), AttachError> {
        let map = self.ebpf.map_mut("members").ok_or_else(missing)?;
        let mut map: HashMap<_, u32, u32> = HashMap::try_from(map).map_err(load_error)?;
        let pids = pids.iter().copied().take(PROCESSES_MAX as usize);
        let members: BTreeSet<u32> = pids.collect();
        for gone in self.members.difference(&members) {
            map.remove(gone).map_err(load_error)?;
        }
        for new in members.difference(&self.members) {
            map.insert(new, 1, 0).map_err(load_error)?;
        }
        self.members = members;
        Ok(())
    }

    /// Takes a sample.
    ///
    /// # Errors
    ///
    /// The kernel cannot walk its tasks.
    pub fn sample(&mut self) -> Result<RunQueueSample, AttachError> {
        let program = self.ebpf.program_mut("sample").ok_or_else(missing)?;
        let program: &mut Iter = program.try_into().map_err(load_error)?;
        // A walk begins with a descriptor of its own and cannot be repeated.
        let link = program.attach().map_err(load_error)?;
        let link = program.take_link(link).map_err(load_error)?;
        let mut walk = link.into_file().map_err(load_error)?;
        let mut bytes = [0; SAMPLE_BYTES];
        walk.read_exact(&mut bytes).map_err(load_error)?;
        let number = |at: usize| {
            let word = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
            u32::from_ne_bytes(word)
        };
        Ok(RunQueueSample {
            tasks: number(0),
            runnable: number(4),
            blocked: number(8),
        })
    }
}

fn missing() -> AttachError {
    let why = "a part of the look at tasks was not compiled in".to_owned();
    AttachError::Load { why }
}
