//! Caches of a CPU as the kernel names them.
//!
//! Source: Documentation/ABI/testing/sysfs-devices-system-cpu, `cache/index*`.

use std::fs;
use std::path::Path;

/// A cache that holds data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// 1 is nearest.
    pub level: u32,
    /// The size of the cache.
    pub bytes: u64,
}

/// The caches in a CPU's `cache` folder that hold data, nearest first.
pub fn caches(folder: &Path) -> Vec<Cache> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<Cache> = entries.filter_map(|entry| cache(&entry.path())).collect();
    found.sort_by_key(|cache| cache.level);
    found
}

fn cache(index: &Path) -> Option<Cache> {
    let text = |name: &str| fs::read_to_string(index.join(name)).ok();
    if text("type")?.trim() == "Instruction" {
        return None;
    }
    let size = text("size")?;
    let size = size.trim();
    let (digits, unit) = match size.strip_suffix(['K', 'M']) {
        Some(digits) if size.ends_with('K') => (digits, 1 << 10),
        Some(digits) => (digits, 1 << 20),
        None => (size, 1),
    };
    Some(Cache {
        level: text("level")?.trim().parse().ok()?,
        bytes: digits.parse::<u64>().ok()? * unit,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instruction_caches_are_left_out_when_caches_are_read() {
        let root = tempfile::tempdir().expect("a directory");
        for (index, level, kind, size) in [
            (0, "1", "Data", "48K"),
            (1, "1", "Instruction", "32K"),
            (3, "3", "Unified", "32M"),
            (2, "2", "Unified", "1024K"),
        ] {
            let folder = root.path().join(format!("index{index}"));
            fs::create_dir(&folder).expect("made");
            for (name, text) in [("level", level), ("type", kind), ("size", size)] {
                fs::write(folder.join(name), format!("{text}\n")).expect("written");
            }
        }
        let found: Vec<(u32, u64)> = caches(root.path())
            .iter()
            .map(|one| (one.level, one.bytes))
            .collect();
        assert_eq!(found, [(1, 48 << 10), (2, 1 << 20), (3, 32 << 20)]);
        assert!(caches(Path::new("/nowhere")).is_empty());
    }
}
