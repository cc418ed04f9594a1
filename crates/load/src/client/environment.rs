//! The machine and the program: the first part of `run.json`, for readers who repeat the run.
//!
//! Read from `/proc` and `/sys` without asking the network. What a system does not tell stays
//! empty; a missing file is no reason not to measure. Sources: proc(5),
//! Documentation/admin-guide/pm/cpufreq.rst.

use headway_base::civil::{Civil, iso_ms};
use headway_latency::run::description::Environment;
use std::fs::read_to_string;
use std::time::{SystemTime, UNIX_EPOCH};

use super::watch::allowed_cpus;

/// Gathers what is known of this machine now; the affinity is that of the calling thread.
pub(crate) fn collect() -> Environment {
    let cpuinfo = text("/proc/cpuinfo");
    Environment {
        host: text("/proc/sys/kernel/hostname"),
        kernel: format!(
            "{} {}",
            text("/proc/sys/kernel/ostype"),
            text("/proc/sys/kernel/osrelease")
        ),
        cpus: read_to_string("/sys/devices/system/cpu/online")
            .map_or(0, |list| list_length(list.trim())),
        cpu_model: field(&cpuinfo, "model name")
            .or_else(|| field(&cpuinfo, "Model"))
            .unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        memory_bytes: memory_bytes(&text("/proc/meminfo")),
        client_affinity: as_list(&allowed_cpus()),
        governor: read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
            .ok()
            .map(|name| name.trim().to_owned()),
        headway_version: env!("CARGO_PKG_VERSION").to_owned(),
        extra: extra(),
    }
}

/// Kernel settings without which a surprising figure stays a riddle.
fn extra() -> std::collections::BTreeMap<String, String> {
    const SETTINGS: &[(&str, &str)] = &[
        (
            "ip_local_port_range",
            "/proc/sys/net/ipv4/ip_local_port_range",
        ),
        ("tcp_tw_reuse", "/proc/sys/net/ipv4/tcp_tw_reuse"),
        ("somaxconn", "/proc/sys/net/core/somaxconn"),
        (
            "clocksource",
            "/sys/devices/system/clocksource/clocksource0/current_clocksource",
        ),
    ];
    let known = SETTINGS.iter().filter_map(|(name, path)| {
        let value = read_to_string(path).ok()?;
        let parts: Vec<&str> = value.split_whitespace().collect();
        Some(((*name).to_owned(), parts.join(" ")))
    });
    let mut all: std::collections::BTreeMap<_, _> = known.collect();
    let release = text("/etc/os-release");
    if let Some(name) = release
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="))
    {
        all.insert("system".to_owned(), name.trim_matches('"').to_owned());
    }
    let build = if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    };
    all.insert("build".to_owned(), build.to_owned());
    all
}

/// A moment as RFC 3339 in UTC, to the millisecond: `2026-03-01T12:00:00.250Z`.
pub fn rfc3339(moment: SystemTime) -> String {
    let since = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
    iso_ms(since.as_millis() as u64).to_string()
}

/// A moment as it stands in the name of a directory, UTC: `2026-03-01-120000`.
pub fn dated(moment: SystemTime) -> String {
    let since = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = Civil::from_unix(since.as_secs());
    let (year, month, day) = (time.year, time.month, time.day);
    let of_day = time.to_string().replace(':', "");
    format!("{year:04}-{month:02}-{day:02}-{of_day}")
}

fn text(path: &str) -> String {
    read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// The value of the first line with this name.
fn field(cpuinfo: &str, name: &str) -> Option<String> {
    let found = cpuinfo.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    });
    found.filter(|value| !value.is_empty())
}

fn memory_bytes(meminfo: &str) -> u64 {
    let kib = field(meminfo, "MemTotal")
        .and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// How many numbers `0-3,6` names.
fn list_length(list: &str) -> u32 {
    let parts = list.split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        (first <= last).then(|| last - first + 1)
    });
    parts.sum()
}

/// Numbers in ascending order as the kernel writes them: `0-3,6`.
pub(crate) fn as_list(numbers: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => parts.push((number, number)),
        }
    }
    let ranges = parts.iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    ranges.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn date_is_correct_at_year_ends_and_leap_days() {
        let cases = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (951_868_800, "2000-03-01T00:00:00.000Z"),
            (4_102_444_799, "2099-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ];
        for (unix_s, expected) in cases {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(unix_s)), expected);
        }
        let moment = UNIX_EPOCH + Duration::from_millis(951_782_400_250);
        assert_eq!(rfc3339(moment), "2000-02-29T00:00:00.250Z");
        assert_eq!(dated(moment), "2000-02-29-000000");
    }

    #[test]
    fn cpu_list_is_counted_as_it_is_written() {
        assert_eq!(as_list(&[0, 1, 2, 3, 6]), "0-3,6");
        assert_eq!(list_length("0-3,6"), 5);
        assert_eq!(as_list(&[]), "");
        assert_eq!(list_length(""), 0);
    }

    #[test]
    fn proc_fields_are_parsed() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: other\n";
        assert_eq!(
            field(cpuinfo, "model name").as_deref(),
            Some("Some CPU @ 2 GHz")
        );
        assert_eq!(
            memory_bytes("MemTotal:       1024 kB\nMemFree: 1 kB\n"),
            1 << 20
        );
        assert_eq!(memory_bytes(""), 0);
    }

    #[test]
    fn environment_describes_this_machine() {
        let here = collect();
        assert!(here.kernel.starts_with("Linux "), "{}", here.kernel);
        assert!(here.cpus > 0 && here.memory_bytes > 0);
        assert!(!here.client_affinity.is_empty() && !here.cpu_model.is_empty());
    }
}
