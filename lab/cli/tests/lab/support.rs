//! Labs for the tests: each with a name of its own, removed at the end whatever happened.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

pub use headway_test_support::{skip, wait_until};
use serde_json::Value;

use crate::common;

pub fn headway_lab(arguments: &[&str]) -> Command {
    let mut command = common::headway_lab();
    command.args(arguments);
    command
}

/// Whether this machine can make these parts; says so if not.
pub fn can(test: &str, parts: &[&str]) -> bool {
    let output = headway_lab(&["check"]).output().expect("started");
    let text = String::from_utf8(output.stdout).expect("text");
    let missing = text
        .lines()
        .find(|line| line.contains(" no: ") && parts.iter().any(|part| line.starts_with(part)));
    if let Some(line) = missing {
        skip(test, line);
    }
    missing.is_none()
}

/// A name that no other test, and no lab of this machine's user, has.
pub fn name() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("test-{}-{number}", std::process::id())
}

/// A lab that is up.
pub struct Lab {
    pub name: String,
}

impl Lab {
    /// With these parts and no others.
    pub fn up(parts: &[&str]) -> Lab {
        let lab = Lab { name: name() };
        let output = lab.making(parts).output().expect("started");
        assert_eq!(text(&output.stderr), "", "{:?}", output.status);
        assert!(output.status.success());
        lab
    }

    /// The command that makes it.
    pub fn making(&self, parts: &[&str]) -> Command {
        let mut command = headway_lab(&["up", &self.name]);
        for part in ["--disk", "--memory", "--link"] {
            if !parts.contains(&part) {
                command.args([part, "none"]);
            }
        }
        command.args(parts);
        command
    }

    /// A command inside.
    pub fn exec(&self, side: &str, arguments: &[&str]) -> Command {
        let mut command = headway_lab(&["exec", "--side", side, &self.name, "--"]);
        command.args(arguments);
        command
    }

    /// What the command prints; it must succeed.
    pub fn answer(&self, side: &str, arguments: &[&str]) -> String {
        let output = self.exec(side, arguments).output().expect("started");
        assert!(
            output.status.success(),
            "{arguments:?}: {}: {}",
            output.status,
            text(&output.stderr)
        );
        text(&output.stdout).trim().to_owned()
    }

    pub fn status(&self) -> Value {
        let mut command = headway_lab(&["status", &self.name, "--json"]);
        let output = command.output().expect("started");
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Removes it, as a user would.
    pub fn down(&self) -> Output {
        headway_lab(&["down", &self.name])
            .output()
            .expect("started")
    }

    pub fn directory(&self) -> PathBuf {
        Path::new("/run/headway-lab").join(&self.name)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // It is gone already where the test was about that.
        drop(self.down());
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Everything on this machine that carries a lab's name, from the kernel's own lists.
pub fn traces_of(name: &str) -> Vec<String> {
    let full = format!("headway-lab-{name}");
    let directory = format!("/run/headway-lab/{name}");
    let mut found = Vec::new();
    let mut note = |what: &str, thing: String| found.push(format!("{what}: {thing}"));
    for line in read("/proc/self/mountinfo").lines() {
        let root = line.split(' ').nth(4).unwrap_or_default();
        if root.starts_with(&format!("{directory}/")) || root.ends_with(&format!("/{full}")) {
            note("mount", line.to_owned());
        }
        let group = Path::new(root).join(&full);
        if root.starts_with("/sys/fs/cgroup") && group.exists() {
            note("control group", group.display().to_string());
        }
    }
    for entry in entries("/sys/block") {
        if read(entry.join("loop/backing_file")).contains(&format!("{directory}/")) {
            note("loop device", entry.display().to_string());
        }
    }
    for entry in entries("/sys/class/net") {
        if read(entry.join("ifalias")).trim() == full {
            note("network device", entry.display().to_string());
        }
    }
    for path in [
        Path::new("/run/netns").join(&full),
        directory.clone().into(),
    ] {
        if path.exists() {
            note("file", path.display().to_string());
        }
    }
    for line in command_lines() {
        if line.contains("disk-process") && line.contains(&format!("{directory}/")) {
            note("process", line);
        }
    }
    found
}

/// The command lines of every process.
pub fn command_lines() -> Vec<String> {
    let processes = entries("/proc");
    let lines = processes
        .iter()
        .map(|entry| read(entry.join("cmdline")).replace('\0', " "));
    lines.collect()
}

fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn entries(directory: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}
