//! Compiling the C programs, running them with and without the library, reading what they leave.

#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use headway_debox::collect::{Collection, Process};

/// The library, which cargo builds beside the test.
pub fn library() -> PathBuf {
    let test = std::env::current_exe().expect("the test has a path");
    let path = test
        .parent()
        .expect("a directory")
        .join("libdebox_preload.so");
    assert!(path.exists(), "{} is not there", path.display());
    path
}

/// A scratch directory with a place for programs and one for their traces.
pub struct Bench {
    pub directory: tempfile::TempDir,
}

impl Bench {
    pub fn new() -> Bench {
        let directory = tempfile::tempdir().expect("a directory");
        let bench = Bench { directory };
        std::fs::create_dir(bench.traces()).expect("a directory");
        bench
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn traces(&self) -> PathBuf {
        self.path().join("traces")
    }

    /// Compiles a program of tests/programs.
    pub fn compile(&self, name: &str, options: &[&str]) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/programs")
            .join(name)
            .with_extension("c");
        let program = self.path().join(name);
        let output = Command::new("cc")
            .args(["-Wall", "-Wextra", "-O1", "-g", "-pthread", "-o"])
            .arg(&program)
            .arg(&source)
            .args(options)
            .output()
            .expect("cc runs; scripts/setup installs it");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        program
    }

    /// A command that will be traced.
    pub fn traced(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env("LD_PRELOAD", library())
            .env("HEADWAY_TRACE_DIR", self.traces());
        command
    }

    /// What was left, which must be whole.
    pub fn collection(&self) -> Collection {
        let collection = Collection::open(&self.traces()).expect("the directory is there");
        assert_eq!(collection.damaged, []);
        collection
    }

    /// The processes that ran a program.
    pub fn processes(&self, program: &Path) -> Vec<Process> {
        let name = program.to_str().expect("a name");
        let mut processes = self.collection().processes;
        processes.retain(|process| process.exe == name);
        processes
    }
}

/// Calls of that name that a process made from its program itself, and how many failed.
pub fn calls(process: &Process, name: &str) -> (u64, u64) {
    let own = process.sites.iter().filter(|site| {
        site.name == name
            && (process.locate(site.address)).is_some_and(|(module, _)| module.path == process.exe)
    });
    own.fold((0, 0), |(count, errors), site| {
        (count + site.count, errors + site.errors)
    })
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn assert_alike(what: &str, plain: &Output, traced: &Output) {
    assert_eq!(
        plain.status,
        traced.status,
        "{what}: {}",
        text(&traced.stderr)
    );
    assert_eq!(text(&plain.stdout), text(&traced.stdout), "{what}");
    assert_eq!(text(&plain.stderr), text(&traced.stderr), "{what}");
}
