//! The faults: each is begun, lasts for a time which the seed says, and is taken back.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use headway_base::random::{Draw, SplitMix64};
use headway_test_support::disks::Disk;
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};

use crate::journal::{Journal, Kind};
use crate::machine::{find, signal};
use crate::server::{Paths, Server};
use crate::site::Site;
use crate::upstream::{PORTS, Upstreams};
use crate::wanted::DISK_FILES;

/// What faults are injected into.
pub struct Target<'a> {
    pub journal: &'a Journal,
    pub server: &'a Server,
    pub site: &'a Site,
    pub paths: &'a Paths,
    pub upstreams: &'a Upstreams,
    pub disk: Option<&'a (Disk, Vec<u8>)>,
    /// Held while a thing is broken, so that each is broken once at a time.
    pub locks: [Mutex<()>; 9],
}

/// What is broken by a fault of this kind; processes may be stopped and killed at once.
fn lock_of(kind: Kind) -> Option<usize> {
    Some(match kind {
        Kind::Memory => 0,
        Kind::FullBodies => 1,
        Kind::FullLog | Kind::Hangup => 2,
        Kind::StopUpstream
        | Kind::KillUpstream
        | Kind::KillUpstreams
        | Kind::Partition
        | Kind::HalfOpen => 3,
        Kind::Descriptors => 4,
        Kind::Processes => 5,
        Kind::MoveDirectory => 6,
        Kind::Truncate => 7,
        Kind::BreakDisk => 8,
        _ => return None,
    })
}

impl Target<'_> {
    /// Injects faults until the run ends, with pauses of up to this length between them.
    pub fn inject(&self, seed: u64, pause_ms: u64, has_ended: &AtomicBool) {
        let mut random = SplitMix64(seed);
        while !has_ended.load(Ordering::SeqCst) {
            sleep(100 + random.below(pause_ms));
            let kind = Kind::ALL[random.index(Kind::ALL.len())];
            let duration_ms = match random.below(3) {
                0 => 20 + random.below(200),
                _ => 200 + random.below(2_800),
            };
            // One draw for each fault, so that what one does changes nothing for the next.
            let mut own = SplitMix64(random.next_u64());
            let lock = lock_of(kind).map(|lock| self.locks[lock].try_lock());
            if !matches!(lock, Some(Err(_))) && self.is_possible(kind) {
                self.inject_one(kind, duration_ms, &mut own);
            }
        }
    }

    fn is_possible(&self, kind: Kind) -> bool {
        match kind {
            Kind::Memory => !self.paths.memory.as_os_str().is_empty(),
            Kind::Processes => !self.paths.pids.as_os_str().is_empty(),
            Kind::BreakDisk => self.disk.is_some(),
            _ => true,
        }
    }

    fn inject_one(&self, kind: Kind, duration_ms: u64, random: &mut SplitMix64) {
        let name = match kind {
            Kind::StopWorker | Kind::HangWorker | Kind::KillWorker | Kind::Descriptors => {
                "serve-worker"
            }
            Kind::StopHelper | Kind::KillHelper => "serve-helper",
            Kind::StopSpawner | Kind::KillSpawner => "serve-spawner",
            Kind::StopLog | Kind::KillLog => "serve-log",
            Kind::StopStore | Kind::KillStore => "serve-store",
            Kind::StopProgram | Kind::KillProgram => "echo.cgi",
            _ => return self.break_thing(kind, duration_ms, random),
        };
        let mut found = find(name);
        if found.is_empty() {
            return;
        }
        random.shuffle(&mut found);
        let pid = found[0];
        let number = self
            .journal
            .begin(kind, &format!("{pid} for {duration_ms} ms"));
        match kind {
            Kind::KillWorker
            | Kind::KillHelper
            | Kind::KillSpawner
            | Kind::KillLog
            | Kind::KillStore
            | Kind::KillProgram => drop(signal(pid, Signal::KILL)),
            Kind::Descriptors => leave_room(pid, random.below(12), duration_ms),
            // The master replaces it after 5 s.
            Kind::HangWorker => self.stop(pid, 8_500 + duration_ms),
            _ => self.stop(pid, duration_ms),
        }
        self.journal.end(number);
    }

    fn stop(&self, pid: i32, duration_ms: u64) {
        signal(pid, Signal::STOP);
        sleep(duration_ms);
        signal(pid, Signal::CONT);
    }

    fn break_thing(&self, kind: Kind, duration_ms: u64, random: &mut SplitMix64) {
        let number = self.journal.begin(kind, &format!("for {duration_ms} ms"));
        let upstream = random.index(PORTS.len());
        match kind {
            Kind::StopMaster => self.stop(self.server.master.load(Ordering::SeqCst), duration_ms),
            Kind::Hangup => self.hang_up(1 + random.below(20)),
            Kind::Memory => squeeze_memory(&self.paths.memory, random, duration_ms),
            Kind::FullBodies => {
                // Some last longer than a client is waited for.
                let longer = if random.below(4) == 0 { 11_000 } else { 0 };
                fill_up(&self.paths.bodies, duration_ms + longer);
            }
            Kind::FullLog => fill_up(&self.paths.logs, duration_ms),
            Kind::StopUpstream => {
                self.upstreams.set_stopped(upstream, true);
                sleep(duration_ms);
                self.upstreams.set_stopped(upstream, false);
            }
            Kind::KillUpstream => self.kill_upstreams(&[upstream], duration_ms),
            Kind::KillUpstreams => self.kill_upstreams(&[0, 1, 2], duration_ms),
            Kind::Partition => {
                self.upstreams.set_link(false);
                sleep(duration_ms);
                self.upstreams.set_link(true);
            }
            Kind::HalfOpen => {
                self.upstreams.set_link(false);
                self.upstreams.close_connections(upstream);
                sleep(duration_ms.min(500));
                self.upstreams.set_link(true);
            }
            Kind::Processes => squeeze_processes(&self.paths.pids, duration_ms),
            Kind::MoveDirectory => {
                let (there, away) = (self.site.path("root/d"), self.site.path("away"));
                fs::rename(&there, &away).expect("a directory moves");
                sleep(duration_ms);
                fs::rename(&away, &there).expect("a directory moves back");
            }
            Kind::Truncate => self.truncate(random, duration_ms),
            Kind::BreakDisk => self.break_disk(duration_ms),
            _ => unreachable!("{kind:?} has a process"),
        }
        self.journal.end(number);
    }

    fn hang_up(&self, times: u64) {
        let _ = fs::remove_file(self.paths.logs.join("access.log"));
        for _ in 0..times {
            signal(self.server.master.load(Ordering::SeqCst), Signal::USR1);
            sleep(3);
        }
    }

    fn kill_upstreams(&self, which: &[usize], duration_ms: u64) {
        which
            .iter()
            .for_each(|one| self.upstreams.set_dead(*one, true));
        sleep(duration_ms);
        which
            .iter()
            .for_each(|one| self.upstreams.set_dead(*one, false));
    }

    fn truncate(&self, random: &mut SplitMix64, duration_ms: u64) {
        let whole = &self.site.mutable;
        let length = random.index(whole.len());
        let file = File::options()
            .append(true)
            .open(self.site.path("root/f/mutable"));
        let mut file = file.expect("the file");
        file.set_len(length as u64).expect("a shorter file");
        sleep(duration_ms);
        for part in whole[length..].chunks(300_000) {
            file.write_all(part).expect("a longer file");
            sleep(random.below(30));
        }
    }

    fn break_disk(&self, duration_ms: u64) {
        let Some((disk, image)) = self.disk else {
            return;
        };
        disk.break_it();
        for at in 0..DISK_FILES {
            let file = File::open(disk.path().join(at.to_string()));
            if let Ok(file) = file {
                let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
            }
        }
        sleep(duration_ms);
        disk.mend(image);
    }
}

/// Leaves a process room for few more descriptors for a while.
fn leave_room(pid: i32, room: u64, duration_ms: u64) {
    let Ok(open) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return;
    };
    let numbers = open.flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u64>().ok());
    let highest = numbers.max().unwrap_or(0);
    let process = Pid::from_raw(pid);
    let current = Some(highest + 1 + room);
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    let limit = |current| Rlimit { current, maximum };
    let Ok(before) = prlimit(process, Resource::Nofile, limit(current)) else {
        return;
    };
    sleep(duration_ms);
    let _ = prlimit(process, Resource::Nofile, limit(before.current));
}

/// Fills a file system for a while.
fn fill_up(directory: &Path, duration_ms: u64) {
    let path = directory.join("fill");
    let mut file = File::create(&path).expect("a file");
    for size in [1 << 20, 64 << 10, 4 << 10, 1] {
        let part = vec![0; size];
        while file.write_all(&part).is_ok() {}
    }
    sleep(duration_ms);
    drop(file);
    fs::remove_file(&path).expect("the file goes");
}

/// Lowers the memory limit to little more than what cannot be given back.
fn squeeze_memory(group: &Path, random: &mut SplitMix64, duration_ms: u64) {
    let (limit, none) = match group.join("memory.max").exists() {
        true => ("memory.max", "max"),
        false => ("memory.limit_in_bytes", "-1"),
    };
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let value = |name: &str| {
        let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
        let found = lines.find(|(key, _)| *key == name);
        found.and_then(|(_, value)| value.parse::<u64>().ok())
    };
    let anonymous = value("total_rss").or(value("anon")).unwrap_or(64 << 20);
    let locked = value("total_unevictable")
        .or(value("unevictable"))
        .unwrap_or(0);
    let mut bytes = anonymous.max(locked) * (80 + random.below(60)) / 100;
    // The older interface refuses a limit which cannot be kept.
    for _ in 0..60 {
        if fs::write(group.join(limit), bytes.to_string()).is_ok() {
            break;
        }
        bytes += 1 << 20;
    }
    sleep(duration_ms);
    let _ = fs::write(group.join(limit), none);
}

/// Lets no further process be made for a while.
fn squeeze_processes(group: &Path, duration_ms: u64) {
    let current = fs::read_to_string(group.join("pids.current")).unwrap_or_default();
    let _ = fs::write(group.join("pids.max"), current.trim());
    sleep(duration_ms);
    let _ = fs::write(group.join("pids.max"), "max");
}

fn sleep(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}
