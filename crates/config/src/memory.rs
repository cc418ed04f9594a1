//! Checks that the memory of the workers is available, and divides it by default.
//!
//! A worker locks its memory (`worker/memory.rs`). So too much is an error here, which says what to
//! lower, instead of swapping or the OOM killer under load.
//!
//! Sources: proc_meminfo(5), cgroups(7) and the kernel's cgroup-v1 and cgroup-v2 documents,
//! getrlimit(2).

use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

use super::error::Findings;
use super::ranges::span;
use super::settings::Settings;
use super::units::Bytes;

/// Memory of a worker in addition to cached files: entries, connections, hash tables.
const WORKER_BASE_BYTES: u64 = 16 << 20;
/// The least of it, and the share of the limit of a control group for that of all workers, as a divisor.
const WORKER_BASE_BYTES_LOWEST: u64 = 4 << 20;
const WORKER_BASE_SHARE_DIVISOR: u64 = 16;
/// Default of `response-cache-max` on a machine that is shared with others. Each worker has its own, and
/// files above 16 KiB are in the content store, which takes memory as it is needed.
const DEFAULT_RESPONSE_CACHE_BYTES: u64 = 16 << 20;
/// Default of `pin-max` of the open-file service on such a machine.
const DEFAULT_PIN_BYTES: u64 = 64 << 20;
/// Highest default of `content-store-max`.
const CONTENT_STORE_BYTES_HIGHEST: u64 = 128 << 20;
/// Share of the limit of a control group for the workers, in tenths. On a disk that seeks, a page
/// of a small file saves more reads than a page of a large one. The page cache ignores size; the
/// response cache does not (study 15).
const LIMITED_SHARE_TENTHS: u64 = 4;
/// Highest default for all workers together under a limit.
const LIMITED_BYTES_HIGHEST: u64 = 512 << 20;
/// Share of a limit for chunks of larger files, as a divisor, and its highest value.
const CHUNK_CACHE_SHARE: u64 = 50;
const CHUNK_CACHE_BYTES_HIGHEST: u64 = 16 << 20;
/// Highest default of `buffer-memory-max`.
const BUFFER_BYTES_HIGHEST: u64 = 64 << 20;
/// Lowest value for chunks: what one call sends, twice.
pub(crate) const CHUNK_CACHE_BYTES_LOWEST: u64 = 2 << 20;
/// Without a limit the defaults of all workers, and of all helpers, stay below this share of the
/// memory, as a divisor.
const DEFAULT_SHARE_DIVISOR: u64 = 20;
/// Default of `helpers-max`. More helpers keep a disk busier, but each takes memory from the page
/// cache (study 10).
const DEFAULT_HELPERS: u64 = 16;
/// Memory of one helper, including that of the kernel for it.
const HELPER_BYTES: u64 = 1 << 20;

/// The memory available to all workers.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// MemAvailable, or the lowest limit of the control groups around this process.
    pub bytes: u64,
    /// Whether `bytes` is the limit of a control group.
    pub limited: bool,
}

/// Detects the available memory.
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

/// Memory that could be allocated at this moment: the estimate of the kernel, and for each limited
/// control group what is left plus its page cache. `None` if it cannot be determined.
pub fn available_now() -> Option<u64> {
    let machine = mem_available(&std::fs::read_to_string("/proc/meminfo").ok()?)?;
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let mut least = machine;
    for limit in groups.lines().flat_map(limit_files) {
        least = least.min(spare_of(&limit)?);
    }
    Some(least)
}

/// Default memory of the open-file service for small files: that of a worker.
pub fn default_kept_bytes() -> u64 {
    kept_bytes(available())
}

fn kept_bytes(memory: Memory) -> u64 {
    let (share, most) = match memory.limited {
        true => (
            memory.bytes / 10 * LIMITED_SHARE_TENTHS,
            LIMITED_BYTES_HIGHEST,
        ),
        false => (memory.bytes / DEFAULT_SHARE_DIVISOR, DEFAULT_PIN_BYTES),
    };
    share.min(most) >> 20 << 20
}

/// Default of `pin-max`. One worker does not need it, and a shared machine is not to lose memory
/// unasked.
pub(super) fn default_pin_bytes(workers: usize, memory: Memory) -> u64 {
    match memory.limited && workers > 1 {
        true => kept_bytes(memory),
        false => 0,
    }
}

/// The limit on the memory of one process.
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

/// The files with the limits of a control group and its parents. In a container the own path is
/// often not visible, but the top belongs to the container.
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

/// Memory that one group could allocate: what is left of its limit plus its page cache. All memory
/// without a limit, `None` if the usage cannot be read. Locked pages count as neither.
fn spare_of(limit_file: &Path) -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(limit_file.with_file_name(name));
    let number = |name: &str| read(name).ok()?.trim().parse::<u64>().ok();
    let second = limit_file.ends_with("memory.max");
    // Above `high` the kernel throttles without end, so it is a limit as well.
    let name = limit_file.file_name()?.to_str()?;
    let high = number("memory.high").filter(|_| second);
    let Some(limit) = number(name).into_iter().chain(high).min() else {
        return Some(u64::MAX);
    };
    let (used, prefix) = match second {
        true => ("memory.current", ""),
        // Only these counters include the groups inside.
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

/// Memory for a worker in addition to cached files. Under a limit, several workers would otherwise take the
/// page cache from each other.
pub(super) fn worker_base_bytes(workers: usize, memory: Memory) -> u64 {
    if !memory.limited {
        return WORKER_BASE_BYTES;
    }
    let share = memory.bytes / WORKER_BASE_SHARE_DIVISOR / workers.max(1) as u64;
    (share >> 20 << 20).clamp(WORKER_BASE_BYTES_LOWEST, WORKER_BASE_BYTES)
}

/// Default of `response-cache-max`. With pinned files the workers need no copies of their own,
/// except of the most popular files.
pub(super) fn default_response_cache_bytes(workers: usize, kept: bool, memory: Memory) -> u64 {
    let rest = worker_base_bytes(workers, memory) + default_chunk_cache_bytes(workers, memory);
    let workers = workers.max(1) as u64;
    let (all, most) = match memory.limited {
        true => (
            memory.bytes / 10 * LIMITED_SHARE_TENTHS,
            LIMITED_BYTES_HIGHEST / workers,
        ),
        false => (
            memory.bytes / DEFAULT_SHARE_DIVISOR,
            DEFAULT_RESPONSE_CACHE_BYTES,
        ),
    };
    let most = match kept {
        true => most.min(memory.bytes / DEFAULT_SHARE_DIVISOR / workers),
        false => most,
    };
    let small = (all / workers).saturating_sub(rest);
    (small.min(most) >> 20 << 20).max(1 << 20)
}

/// Default of `content-store-max`: a share of the memory, or of a limit. The store process keeps it within
/// the memory that is available at the moment.
pub(super) fn default_content_store_bytes(memory: Memory) -> u64 {
    let share = memory.bytes / DEFAULT_SHARE_DIVISOR;
    (share >> 20 << 20).min(CONTENT_STORE_BYTES_HIGHEST)
}

/// Default of `helpers-max`: all helpers stay below the same share of the memory. At least two, so
/// that a large file does not hold up every small one.
pub(super) fn default_helpers_max(workers: usize, memory: Memory) -> usize {
    let share = memory.bytes / DEFAULT_SHARE_DIVISOR / workers.max(1) as u64;
    (share / HELPER_BYTES).clamp(2, DEFAULT_HELPERS) as usize
}

/// Default of `chunk-cache-max`. Its contents are in the page cache as well, or in the content store.
pub(super) fn default_chunk_cache_bytes(workers: usize, memory: Memory) -> u64 {
    if !memory.limited {
        return CHUNK_CACHE_BYTES_LOWEST;
    }
    let share = memory.bytes / CHUNK_CACHE_SHARE / workers.max(1) as u64;
    (share >> 20 << 20).clamp(CHUNK_CACHE_BYTES_LOWEST, CHUNK_CACHE_BYTES_HIGHEST)
}

/// Default of `buffer-memory-max`: a share of the memory, as for chunks, with a higher limit.
pub(super) fn default_buffer_bytes(memory: Memory) -> u64 {
    let share = memory.bytes / DEFAULT_SHARE_DIVISOR;
    (share >> 20 << 20).clamp(1 << 20, BUFFER_BYTES_HIGHEST)
}

/// Default of `mapped-max`: four fifths of the memory, as in Flash (2006 paper, section 2.1).
pub(crate) fn default_mapped_bytes(workers: usize, memory: Memory) -> u64 {
    let share = memory.bytes / 5 * 4 / workers.max(1) as u64;
    (share >> 20 << 20).clamp(CHUNK_CACHE_BYTES_LOWEST, 1 << 46)
}

/// Reports that the memory that the workers may need is not available.
pub(super) fn check_memory(
    workers: usize,
    (files_bytes, base_bytes): (u64, u64),
    (available_bytes, process_bytes): (u64, u64),
    from: &Settings,
    to: &mut Findings<'_>,
) {
    let one = files_bytes.saturating_add(base_bytes);
    let all = one.saturating_mul(workers as u64);
    let position = span(&from.response_cache_max).or(span(&from.workers));
    if one > process_bytes {
        let problem = format!(
            "a worker takes up to {} ({} for files and {} for the rest), but a process may \
             have {} (RLIMIT_AS, RLIMIT_DATA); lower response-cache-max or raise the limit",
            Bytes(one),
            Bytes(files_bytes),
            Bytes(base_bytes),
            rounded(process_bytes),
        );
        to.environment_error("response-cache-max", position, problem);
    } else if all > available_bytes {
        let problem = format!(
            "{workers} worker{} up to {} each ({} for files and {} for the rest), but \
             {} of memory are available (MemAvailable of /proc/meminfo, or the control group's limit); lower \
             response-cache-max or workers",
            if workers == 1 { " takes" } else { "s take" },
            Bytes(one),
            Bytes(files_bytes),
            Bytes(base_bytes),
            rounded(available_bytes),
        );
        to.environment_error("response-cache-max", position, problem);
    }
}

/// Messages need no exact bytes.
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
    fn limit_files_include_each_parent_control_group() {
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
    fn available_memory_of_a_group_includes_its_page_cache() {
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
            "the usage is unknown"
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

    /// Mebibytes of a limit, or available on a machine.
    fn memory(mebibytes: u64, limited: bool) -> Memory {
        Memory {
            bytes: mebibytes << 20,
            limited,
        }
    }

    #[test]
    fn response_cache_default_depends_on_available_memory_and_limit() {
        let content = |workers, mebibytes, limited| {
            default_response_cache_bytes(workers, false, memory(mebibytes, limited)) >> 20
        };
        assert_eq!(content(2, 24 << 10, false), 16);
        assert_eq!(content(2, 1 << 10, false), 7);
        assert_eq!(content(0, 1 << 40, false), 16);
        assert_eq!(content(1, 400, true), 136);
        assert_eq!(content(2, 400, true), 64);
        assert_eq!(content(1, 1000, true), 368);
        assert_eq!(content(1, 64 << 10, true), 512);
        assert_eq!(content(4, 64 << 10, true), 128);
        assert_eq!(content(8, 100, true), 1);
    }

    #[test]
    fn worker_reserves_a_share_of_a_limit_and_the_same_without_one() {
        let base = |workers, mebibytes, limited| {
            worker_base_bytes(workers, memory(mebibytes, limited)) >> 20
        };
        assert_eq!([base(1, 64, false), base(64, 1 << 20, false)], [16, 16]);
        assert_eq!([1, 2, 4].map(|workers| base(workers, 64, true)), [4, 4, 4]);
        assert_eq!(
            [1, 2, 4].map(|workers| base(workers, 256, true)),
            [16, 8, 4]
        );
        assert_eq!(
            [
                base(0, 1024, true),
                base(4, 1024, true),
                base(8, 1024, true)
            ],
            [16, 16, 8]
        );
    }

    #[test]
    fn content_store_default_is_a_share_of_the_memory_with_and_without_a_limit() {
        let store =
            |mebibytes, limited| default_content_store_bytes(memory(mebibytes, limited)) >> 20;
        for limited in [false, true] {
            let defaults = [64, 256, 100_000].map(|mebibytes| store(mebibytes, limited));
            assert_eq!(defaults, [3, 12, 128]);
        }
    }

    #[test]
    fn response_cache_default_is_smaller_when_files_are_pinned() {
        let content = |workers, mebibytes| {
            default_response_cache_bytes(workers, true, memory(mebibytes, true)) >> 20
        };
        assert_eq!(content(4, 400), 5);
        assert_eq!(content(2, 400), 10);
        assert_eq!(content(4, 64 << 10), 128, "there is enough");
        assert_eq!(content(8, 100), 1);
        let keep = |workers, mebibytes, limited| {
            default_pin_bytes(workers, memory(mebibytes, limited)) >> 20
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
        let windows =
            |workers, mebibytes| default_chunk_cache_bytes(workers, memory(mebibytes, true));
        assert_eq!(windows(2, 24 << 10), 16 << 20);
        assert_eq!(windows(1, 400), 8 << 20);
        assert_eq!(windows(8, 400), CHUNK_CACHE_BYTES_LOWEST);
        let shared = default_chunk_cache_bytes(1, memory(24 << 10, false));
        assert_eq!(shared, CHUNK_CACHE_BYTES_LOWEST);
        let mapped = |workers, mebibytes| default_mapped_bytes(workers, memory(mebibytes, true));
        assert_eq!(mapped(2, 1000), 400 << 20);
        assert_eq!(mapped(8, 1), CHUNK_CACHE_BYTES_LOWEST);
    }
}
