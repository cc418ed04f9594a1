//! How much memory the workers may take, and whether what they are told to take is there.
//!
//! A worker takes its memory before it serves and locks it (`worker/memory.rs`), so too much of it
//! is not found out under load but here: as an error that says what to lower, instead of a machine
//! that swaps or a worker that the kernel ends.
//!
//! Sources: proc_meminfo(5), cgroups(7) and the kernel's cgroup-v1 and cgroup-v2 documents,
//! getrlimit(2).

use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

use super::check::span;
use super::error::Findings;
use super::settings::Settings;
use super::units::Bytes;

/// What a worker takes beside the contents of small files: names, connections, the tables that find
/// them.
pub(crate) const REST_BYTES: u64 = 16 << 20;
/// The default for the contents on a machine that is shared with others, unless memory is short.
const DEFAULT_CONTENT_BYTES: u64 = 64 << 20;
/// A control group's limit is memory for this server: so many parts of it out of ten are for the
/// workers. On a disk that seeks, a page of a small file saves many times the reads that a page of
/// a large one does, and only a worker's own memory tells them apart: the page cache lets go of
/// what was used longest ago, whatever its size (study 15).
const LIMITED_TENTHS: u64 = 4;
/// More than so much of a limit all workers together do not take unasked.
const LIMITED_BYTES_MOST: u64 = 512 << 20;
/// Windows' part of a limit, and what they take of it at most.
const WINDOW_SHARE: u64 = 50;
const WINDOW_BYTES_MOST: u64 = 16 << 20;
/// Windows take no less: what may leave in one call, and as much again.
pub(super) const WINDOW_BYTES_LEAST: u64 = 2 << 20;
/// Elsewhere the defaults of all workers together, and those of all helpers anywhere, stay below
/// this part of the memory.
const DEFAULT_SHARE: u64 = 20;
/// Helpers a worker where nobody has said how many, unless memory is short. More keep a disk
/// busier, but each takes memory from the page cache (study 10).
const DEFAULT_HELPERS: u64 = 16;
/// What a helper takes of its own, with what the kernel keeps for it.
const HELPER_BYTES: u64 = 1 << 20;

/// The memory there is for all workers.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// What the kernel calls available, or the least limit of the control groups around this
    /// process.
    pub bytes: u64,
    /// It is a limit.
    pub limited: bool,
}

/// Asks the kernel.
pub(super) fn available() -> Memory {
    let machine = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| mem_available(&text));
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = groups.lines().flat_map(limit_files);
    let limits = limits.filter_map(|file| std::fs::read_to_string(file).ok()?.trim().parse().ok());
    let machine = machine.unwrap_or(u64::MAX);
    let limit = limits.min().unwrap_or(u64::MAX);
    Memory {
        bytes: limit.min(machine),
        limited: limit < machine,
    }
}

/// What could be had for something else at this moment: the kernel's own guess, and in each control
/// group with a limit what is left of it and what the page cache would give up. `None` where that
/// cannot be found out.
pub fn available_now() -> Option<u64> {
    let machine = mem_available(&std::fs::read_to_string("/proc/meminfo").ok()?)?;
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let mut least = machine;
    for limit in groups.lines().flat_map(limit_files) {
        least = least.min(spare_of(&limit)?);
    }
    Some(least)
}

/// The open-file service's share for small files, where nobody has said any: as a worker's for
/// contents.
pub fn default_kept_bytes() -> u64 {
    kept_bytes(available())
}

fn kept_bytes(memory: Memory) -> u64 {
    let (share, most) = match memory.limited {
        true => (memory.bytes / 10 * LIMITED_TENTHS, LIMITED_BYTES_MOST),
        false => (memory.bytes / DEFAULT_SHARE, DEFAULT_CONTENT_BYTES),
    };
    share.min(most) >> 20 << 20
}

/// Small files in the page cache for all workers, where nobody has said how much of them: one
/// worker has no need of it, and on a machine that is shared with others nothing is kept from them
/// unasked.
pub(super) fn default_keep_bytes(workers: usize, memory: Memory) -> u64 {
    match memory.limited && workers > 1 {
        true => kept_bytes(memory),
        false => 0,
    }
}

/// The memory one process may have.
pub(super) fn process_bytes() -> u64 {
    [Resource::As, Resource::Data]
        .into_iter()
        .filter_map(|resource| getrlimit(resource).current)
        .min()
        .unwrap_or(u64::MAX)
}

fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// Where the limits of a control group and of those around it stand. In a container the group's own
/// path is often not visible, but the top is the container's.
fn limit_files(line: &str) -> Vec<PathBuf> {
    let mut parts = line.splitn(3, ':');
    let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
    else {
        return Vec::new();
    };
    let (top, file) = match controllers {
        "" => ("/sys/fs/cgroup", "memory.max"),
        list if list.split(',').any(|one| one == "memory") => {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        }
        _ => return Vec::new(),
    };
    let own = Path::new(path.strip_prefix('/').unwrap_or(path));
    own.ancestors()
        .map(|group| Path::new(top).join(group).join(file))
        .collect()
}

/// What is left of one group's limit, and what its page cache would give up: all there is without a
/// limit, `None` where there is one and what is used cannot be read. Locked pages are in neither,
/// once the kernel has met them.
fn spare_of(limit_file: &Path) -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(limit_file.with_file_name(name));
    let number = |name: &str| read(name).ok()?.trim().parse::<u64>().ok();
    let second = limit_file.ends_with("memory.max");
    // What is above `high` is throttled without end, so it is a limit as well.
    let name = limit_file.file_name()?.to_str()?;
    let high = number("memory.high").filter(|_| second);
    let Some(limit) = number(name).into_iter().chain(high).min() else {
        return Some(u64::MAX);
    };
    let (used, prefix) = match second {
        true => ("memory.current", ""),
        // Only what begins with this counts the groups inside.
        false => ("memory.usage_in_bytes", "total_"),
    };
    let stat = read("memory.stat").ok()?;
    let pages_of_files: u64 = ["active_file", "inactive_file"]
        .iter()
        .filter_map(|kind| stat_line(&stat, &format!("{prefix}{kind}")))
        .sum();
    Some(limit.saturating_sub(number(used)?.saturating_sub(pages_of_files)))
}

fn stat_line(stat: &str, key: &str) -> Option<u64> {
    stat.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        (name == key).then(|| value.parse().ok())?
    })
}

/// The small files' share where nobody has said any. What is `kept` for all workers they need not
/// each have a copy of: only what is asked for most.
pub(super) fn default_content_bytes(workers: usize, kept: bool, memory: Memory) -> u64 {
    let workers = workers.max(1) as u64;
    let (all, most) = match memory.limited {
        true => (
            memory.bytes / 10 * LIMITED_TENTHS,
            LIMITED_BYTES_MOST / workers,
        ),
        false => (memory.bytes / DEFAULT_SHARE, DEFAULT_CONTENT_BYTES),
    };
    let rest = REST_BYTES + default_window_bytes(workers as usize, memory);
    let most = match kept {
        true => most.min(memory.bytes / DEFAULT_SHARE / workers),
        false => most,
    };
    let small = (all / workers).saturating_sub(rest);
    (small.min(most) >> 20 << 20).max(1 << 20)
}

/// The most helpers of a worker where nobody has said how many: those of all workers together stay
/// below the same part of the memory, but two a worker there must be, so that a large file does not
/// hold up every small one.
pub(super) fn default_helpers_max(workers: usize, memory: Memory) -> usize {
    let share = memory.bytes / DEFAULT_SHARE / workers.max(1) as u64;
    (share / HELPER_BYTES).clamp(2, DEFAULT_HELPERS) as usize
}

/// The share of larger files' windows where nobody has said any: what stands in them stands in the
/// page cache, too.
pub(super) fn default_window_bytes(workers: usize, memory: Memory) -> u64 {
    let share = memory.bytes / WINDOW_SHARE / workers.max(1) as u64;
    (share >> 20 << 20).clamp(WINDOW_BYTES_LEAST, WINDOW_BYTES_MOST)
}

/// The bytes of files a worker maps, or believes to be in memory, where nobody has said how many:
/// four fifths of the memory, as Flash had it (2006 paper, section 2.1).
pub(super) fn default_mapped_bytes(workers: usize, memory: Memory) -> u64 {
    let share = memory.bytes / 5 * 4 / workers.max(1) as u64;
    (share >> 20 << 20).clamp(WINDOW_BYTES_LEAST, 1 << 46)
}

/// The memory that is going to be taken must be there.
pub(super) fn agrees(
    workers: usize,
    files_bytes: u64,
    (available_bytes, process_bytes): (u64, u64),
    from: &Settings,
    to: &mut Findings<'_>,
) {
    let one = files_bytes.saturating_add(REST_BYTES);
    let all = one.saturating_mul(workers as u64);
    let place = span(&from.response_cache_max).or(span(&from.workers));
    if one > process_bytes {
        let problem = format!(
            "a worker takes {} when it starts ({} for files and {} for the rest), but a process may \
             have {} (RLIMIT_AS, RLIMIT_DATA); lower response-cache-max or raise the limit",
            Bytes(one),
            Bytes(files_bytes),
            Bytes(REST_BYTES),
            rounded(process_bytes),
        );
        to.lacking("response-cache-max", place, problem);
    } else if all > available_bytes {
        let problem = format!(
            "{workers} worker{} {} each when serving starts ({} for files and {} for the rest), but \
             {} of memory are available (MemAvailable of /proc/meminfo, or the control group's limit); lower \
             response-cache-max or workers",
            if workers == 1 { " takes" } else { "s take" },
            Bytes(one),
            Bytes(files_bytes),
            Bytes(REST_BYTES),
            rounded(available_bytes),
        );
        to.lacking("response-cache-max", place, problem);
    }
}

/// What is told to a person need not be exact to the byte.
fn rounded(bytes: u64) -> Bytes {
    Bytes(bytes >> 20 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_from_meminfo() {
        let text = "MemTotal:       24689764 kB\nMemAvailable:   23000000 kB\n";
        assert_eq!(mem_available(text), Some(23_000_000 * 1024));
        assert_eq!(mem_available("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn limits_are_looked_for_in_each_group_around_the_process() {
        let found = |line: &str| -> Vec<String> {
            let files = limit_files(line);
            files
                .iter()
                .map(|file| file.display().to_string())
                .collect()
        };
        assert_eq!(
            found("0::/a/b"),
            [
                "/sys/fs/cgroup/a/b/memory.max",
                "/sys/fs/cgroup/a/memory.max",
                "/sys/fs/cgroup/memory.max"
            ]
        );
        assert_eq!(
            found("4:memory:/"),
            ["/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        );
        assert!(found("7:cpu,cpuacct:/a").is_empty() && found("nonsense").is_empty());
    }

    #[test]
    fn a_group_could_give_what_is_left_and_what_its_cache_holds() {
        let group = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| std::fs::write(group.path().join(name), text).unwrap();
        put("memory.max", "1000\n");
        put("memory.current", "900\n");
        put(
            "memory.stat",
            "anon 100\nactive_file 300\ninactive_file 200\nunevictable 400\ntotal_active_file 1\n",
        );
        assert_eq!(spare_of(&group.path().join("memory.max")), Some(600));
        put("memory.high", "950\n");
        assert_eq!(spare_of(&group.path().join("memory.max")), Some(550));
        put("memory.current", "?\n");
        assert_eq!(
            spare_of(&group.path().join("memory.max")),
            None,
            "nobody can tell"
        );
        put("memory.high", "max\n");
        put("memory.max", "max\n");
        assert_eq!(spare_of(&group.path().join("memory.max")), Some(u64::MAX));
        put("memory.limit_in_bytes", "1000\n");
        put("memory.usage_in_bytes", "950\n");
        let first = group.path().join("memory.limit_in_bytes");
        assert_eq!(spare_of(&first), Some(51));
        put("memory.limit_in_bytes", "9223372036854771712\n");
        assert!(spare_of(&first) > Some(1 << 60));
    }

    /// Mebibytes that are this server's alone, or what a machine has available.
    fn memory(mebibytes: u64, limited: bool) -> Memory {
        Memory {
            bytes: mebibytes << 20,
            limited,
        }
    }

    #[test]
    fn small_files_get_less_when_memory_is_short_and_more_when_it_is_the_servers_own() {
        let content = |workers, mebibytes, limited| {
            default_content_bytes(workers, false, memory(mebibytes, limited)) >> 20
        };
        assert_eq!(content(2, 24 << 10, false), 64);
        assert_eq!(content(2, 1 << 10, false), 1);
        assert_eq!(content(0, 1 << 40, false), 64);
        assert_eq!(content(1, 400, true), 136);
        assert_eq!(content(2, 400, true), 60);
        assert_eq!(content(1, 1000, true), 368);
        assert_eq!(content(1, 64 << 10, true), 512);
        assert_eq!(content(4, 64 << 10, true), 128);
        assert_eq!(content(8, 100, true), 1);
    }

    #[test]
    fn workers_have_less_of_their_own_when_small_files_are_kept_for_all() {
        let content = |workers, mebibytes| {
            default_content_bytes(workers, true, memory(mebibytes, true)) >> 20
        };
        assert_eq!(content(4, 400), 5);
        assert_eq!(content(2, 400), 10);
        assert_eq!(content(4, 64 << 10), 128, "there is enough");
        assert_eq!(content(8, 100), 1);
        let keep = |workers, mebibytes, limited| {
            default_keep_bytes(workers, memory(mebibytes, limited)) >> 20
        };
        assert_eq!(keep(4, 400, true), 160);
        assert_eq!(keep(1, 400, true), 0, "one worker has all of it");
        assert_eq!(keep(4, 24 << 10, false), 0, "others live here, too");
        assert_eq!(keep(4, 64 << 10, true), 512);
    }

    #[test]
    fn other_defaults_are_smaller_when_memory_is_short() {
        let helpers = |workers, mebibytes| default_helpers_max(workers, memory(mebibytes, true));
        assert_eq!(helpers(2, 24 << 10), 16);
        assert_eq!(helpers(1, 400), 16);
        assert_eq!(helpers(4, 400), 5);
        assert_eq!(helpers(64, 400), 2);
        assert_eq!(helpers(0, 1 << 40), 16);
        let windows = |workers, mebibytes| default_window_bytes(workers, memory(mebibytes, true));
        assert_eq!(windows(2, 24 << 10), 16 << 20);
        assert_eq!(windows(1, 400), 8 << 20);
        assert_eq!(windows(8, 400), WINDOW_BYTES_LEAST);
        let mapped = |workers, mebibytes| default_mapped_bytes(workers, memory(mebibytes, true));
        assert_eq!(mapped(2, 1000), 400 << 20);
        assert_eq!(mapped(8, 1), WINDOW_BYTES_LEAST);
    }
}
