//! Real programs, traced as they are: what they waited for is known beforehand.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::support::{sees_stacks, skip, sleeps, traced};

fn slept_on(trace: &serde_json::Value, call: &str, label: &str) -> bool {
    sleeps(trace)
        .iter()
        .any(|(one, other, _)| one == call && other == label)
}

fn installed(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok()
}

/// A file that is on the disk and not in memory.
fn cold_file(folder: &Path) -> std::path::PathBuf {
    let path = folder.join("cold");
    let file = std::fs::File::create(&path).expect("a file");
    file.write_all_at(&vec![7; 32 << 20], 0).expect("written");
    file.sync_all().expect("on the disk");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("evicted");
    path
}

/// Needs: tracing with stacks (perf_event_paranoid, CAP_PERFMON; kptr_restrict)
#[test]
fn cat_waits_for_pages_when_its_file_is_cold() {
    let test = "cat_waits_for_pages_when_its_file_is_cold";
    if !sees_stacks(test) {
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder on a disk");
    let path = cold_file(folder.path());
    let (trace, ran) = traced(
        &[],
        &["sh", "-c", &format!("cat {} > /dev/null", path.display())],
    );
    assert_eq!(ran.code, Some(0), "{}", ran.error);
    if !sleeps(&trace)
        .iter()
        .any(|(_, label, _)| label == "page-io")
    {
        // A file system in memory has nothing to wait for.
        let memory = Command::new("stat")
            .args(["-f", "-c", "%T"])
            .arg(&path)
            .output()
            .expect("stat runs");
        let kind = String::from_utf8_lossy(&memory.stdout).into_owned();
        assert!(kind.contains("tmpfs"), "on {kind}: {:?}", sleeps(&trace));
        skip(test, "a build directory on a disk");
    }
}

/// Needs: tracing with stacks (perf_event_paranoid, CAP_PERFMON; kptr_restrict)
#[test]
fn flock_waits_for_the_lock_when_another_holds_it() {
    let test = "flock_waits_for_the_lock_when_another_holds_it";
    if !sees_stacks(test) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let lock = folder.path().join("lock");
    let held = folder.path().join("held");
    let script = format!(
        "flock {0} sh -c 'touch {1}; sleep 0.3'",
        lock.display(),
        held.display()
    );
    let mut holder = Command::new("sh")
        .args(["-c", &script])
        .spawn()
        .expect("a shell");
    while !held.exists() {
        std::thread::yield_now();
    }
    let (trace, ran) = traced(
        &[],
        &["flock", lock.to_str().expect("a path in UTF-8"), "true"],
    );
    holder.wait().expect("it ends");
    assert_eq!(ran.code, Some(0), "{}", ran.error);
    assert!(
        slept_on(&trace, "flock", "file-lock"),
        "{:?}",
        sleeps(&trace)
    );
    let kept = trace["kept"].as_array().expect("kept calls");
    assert!(kept.iter().any(|kept| kept["call"] == "flock"), "{kept:?}");
}

/// Needs: tracing with stacks (perf_event_paranoid, CAP_PERFMON; kptr_restrict)
#[test]
fn every_program_is_there_when_a_shell_makes_a_pipeline() {
    let (trace, ran) = traced(&[], &["sh", "-c", "yes | head -n 200000 | wc -l"]);
    assert_eq!((ran.code, ran.out.trim()), (Some(0), "200000"));
    let programs = trace["programs"].as_array().expect("programs");
    let names: Vec<&str> = programs
        .iter()
        .filter_map(|program| program["exe"].as_str())
        .collect();
    for name in ["yes", "head", "wc"] {
        assert!(
            names.iter().any(|path| path.ends_with(name)),
            "{name}: {names:?}"
        );
    }
    if sees_stacks("every_program_is_there_when_a_shell_makes_a_pipeline") {
        assert!(
            sleeps(&trace).iter().any(|(_, label, _)| label == "pipe"),
            "{:?}",
            sleeps(&trace)
        );
    }
}

/// Needs: python3; tracing with stacks (perf_event_paranoid, CAP_PERFMON; kptr_restrict)
#[test]
fn python_is_traced_when_it_is_installed() {
    let test = "python_is_traced_when_it_is_installed";
    if !installed("python3") {
        return skip(test, "the program python3");
    }
    let script = "import time, threading\nt = threading.Thread(target=time.sleep, args=(0.05,))\nt.start(); t.join()\nprint(42)";
    let (trace, ran) = traced(&[], &["python3", "-c", script]);
    assert_eq!((ran.code, ran.out.trim()), (Some(0), "42"));
    let calls: u64 = trace["sites"]
        .as_array()
        .expect("sites")
        .iter()
        .filter_map(|site| site["count"].as_u64())
        .sum();
    assert!(calls > 50, "{calls}");
    if sees_stacks(test) {
        let timer = sleeps(&trace)
            .iter()
            .any(|(_, label, _)| label == "timer" || label == "futex");
        assert!(timer, "{:?}", sleeps(&trace));
    }
}

/// Needs: sqlite3
#[test]
fn sqlite_is_traced_when_it_is_installed() {
    let test = "sqlite_is_traced_when_it_is_installed";
    if !installed("sqlite3") {
        return skip(test, "the program sqlite3");
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder on a disk");
    let base = folder.path().join("base.db");
    let statement = "create table t(x); insert into t values (1); select count(*) from t;";
    let (trace, ran) = traced(
        &[],
        &[
            "sqlite3",
            base.to_str().expect("a path in UTF-8"),
            statement,
        ],
    );
    assert_eq!((ran.code, ran.out.trim()), (Some(0), "1"), "{}", ran.error);
    let sites = trace["sites"].as_array().expect("sites");
    let synced = sites
        .iter()
        .any(|site| matches!(site["call"].as_str(), Some("fsync" | "fdatasync")));
    assert!(synced, "{sites:?}");
}
