//! A server in a control group that has less memory than the machine, as in a container.

use crate::common::{headway, headway_lab};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use headway_lab::groups::{self, ControlGroup, Version};
use headway_test_support::server::{self, Server, in_group};
use headway_test_support::skip;
use rustix::process::{Pid, Signal, kill_process};

const LIMIT_BYTES: u64 = 400 << 20;

/// A group with that limit, and one inside that has none of its own. Both are removed on
/// drop, with the processes in them.
struct Limited {
    outer: ControlGroup,
    inner: ControlGroup,
}

impl Limited {
    fn new() -> Result<Limited, String> {
        let hierarchy = groups::find("memory").ok_or("no control groups that limit memory")?;
        let name = format!("headway-test-{}", std::process::id());
        let outer = hierarchy.make(&name, "memory");
        let outer = outer.map_err(|error| error.to_string())?;
        let inner = ControlGroup {
            version: outer.version,
            path: outer.file("inner"),
        };
        // From here on they are removed, whatever fails.
        let limited = Limited { outer, inner };
        fs::create_dir(&limited.inner.path).map_err(|error| error.to_string())?;
        let limit = limited.file("memory.limit_in_bytes", "memory.max");
        let set = limited.outer.set(limit, &LIMIT_BYTES.to_string());
        set.map_err(|error| error.to_string())?;
        Ok(limited)
    }

    /// A file's name, in the words of the version that is here.
    fn file(&self, version_1: &'static str, version_2: &'static str) -> &'static str {
        match self.outer.version {
            Version::V1 => version_1,
            Version::V2 => version_2,
        }
    }

    /// What both groups' processes have taken.
    fn used_bytes(&self) -> u64 {
        let file = self.file("memory.usage_in_bytes", "memory.current");
        self.outer.number(file).unwrap()
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let begun = Instant::now();
        for group in [&self.inner, &self.outer] {
            // A process that has just ended is counted for a moment longer.
            while group.remove().is_err() && begun.elapsed() < Duration::from_secs(10) {
                for process in group.processes() {
                    let process = i32::try_from(process).ok().and_then(Pid::from_raw);
                    let _ = process.map(|process| kill_process(process, Signal::KILL));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// Returns the effective settings in a group with the defaults.
fn checked(group: &ControlGroup, root: &Path, workers: &str) -> String {
    let mut command = in_group(headway_lab(), &group.file("cgroup.procs"));
    command
        .args(["serve", "--check", "--workers", workers])
        .arg(root);
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout).unwrap()
}

/// Needs: root, and a control group hierarchy with the memory controller
#[test]
fn default_sizes_follow_the_limit_when_a_control_group_has_one() {
    const NAME: &str = "default_sizes_follow_the_limit_when_a_control_group_has_one";
    let limited = match Limited::new() {
        Ok(limited) => limited,
        Err(why) => return skip(NAME, &why),
    };
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    fs::write(root.path().join("a"), "hello").unwrap();
    for group in [&limited.outer, &limited.inner] {
        // Two fifths of the limit without what a worker takes beside, a fiftieth, four fifths; and
        // for several workers a twentieth for all, and two fifths in the page cache.
        let one = [
            "response-cache-max = \"136MiB\"",
            "pin-max = \"0\"",
            "chunk-cache-max = \"8MiB\"",
            "mapped-max = \"320MiB\"",
        ];
        let two = [
            "response-cache-max = \"10MiB\"",
            "pin-max = \"160MiB\"",
            "chunk-cache-max = \"4MiB\"",
            "mapped-max = \"160MiB\"",
        ];
        for (workers, lines) in [("1", one), ("2", two)] {
            let settings = checked(group, root.path(), workers);
            for line in lines {
                assert!(
                    settings.lines().any(|found| found == line),
                    "{line}: {settings}"
                );
            }
        }
    }
    let processes = limited.inner.file("cgroup.procs");
    let program = in_group(Command::new(headway()), &processes);
    let server = Server::start(program, root.path(), &["--workers", "1"]);
    let (status, _, body) = server::get(&server.address, "/a");
    assert_eq!((status, body.as_str()), (200, "hello"));
    // A worker takes memory as it needs it.
    let used = limited.used_bytes();
    assert!((1 << 20..64 << 20).contains(&used), "{used}");
    server.stop();
}
