//! Proactive reclaim: a kernel that is configured to free pages that have not been used lately.
//!
//! A limit evicts what was used longest ago when something new comes in. DAMON's reclaiming evicts
//! by the clock, whatever room there is; then caches hold less than the limit allows, those of
//! servers that use files by system calls more so than those that map them, and a comparison
//! measures that. Nothing is changed here: a machine's owner has reasons for it.
//!
//! Sources: Linux `Documentation/admin-guide/mm/damon/usage.rst` and `reclaim.rst`.

use std::fs;
use std::path::Path;

/// What frees pages by the clock on this machine; `None` if nothing is known to.
pub fn reclaimer() -> Option<String> {
    below(Path::new("/sys"))
}

fn below(sys: &Path) -> Option<String> {
    let module = sys.join("module/damon_reclaim/parameters/enabled");
    if word(&module).is_some_and(|enabled| enabled == "Y") {
        return Some("DAMON_RECLAIM pages out what has not been used lately".into());
    }
    let daemons = sys.join("kernel/mm/damon/admin/kdamonds");
    let pages_out = |daemon: &Path| {
        let schemes = folders(&daemon.join("contexts"))
            .into_iter()
            .flat_map(|context| folders(&context.join("schemes")));
        let mut actions = schemes.filter_map(|scheme| word(&scheme.join("action")));
        word(&daemon.join("state")).is_some_and(|state| state == "on")
            && actions.any(|action| action == "pageout")
    };
    let daemon = folders(&daemons).into_iter().find(|one| pages_out(one))?;
    Some(format!(
        "DAMON pages out what has not been used lately ({}); to stop it, write `off` to its `state`",
        daemon.display()
    ))
}

fn word(file: &Path) -> Option<String> {
    Some(fs::read_to_string(file).ok()?.trim().to_owned())
}

/// Numbered ones, as sysfs has them beside a file that says how many.
fn folders(directory: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sys(state: &str, action: &str) -> tempfile::TempDir {
        let sys = tempfile::tempdir().expect("a directory");
        let daemon = sys.path().join("kernel/mm/damon/admin/kdamonds/0");
        let scheme = daemon.join("contexts/0/schemes/0");
        fs::create_dir_all(&scheme).expect("made");
        fs::write(daemon.join("state"), format!("{state}\n")).expect("written");
        fs::write(scheme.join("action"), format!("{action}\n")).expect("written");
        sys
    }

    #[test]
    fn damon_is_named_when_it_is_on_and_pages_out() {
        let value = below(sys("on", "pageout").path()).expect("it pages out");
        assert!(value.contains("kdamonds/0"), "{value}");
        assert_eq!(below(sys("off", "pageout").path()), None);
        assert_eq!(below(sys("on", "stat").path()), None);
        assert_eq!(below(Path::new("/nowhere")), None);
    }
}
