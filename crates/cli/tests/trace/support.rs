//! Running the binary with the preload library, which a build of the binary alone does not make.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

pub use headway_test_support::skip;
use serde_json::Value;

/// The preload library, built into the directory this test was built into.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let profile = Path::new(env!("CARGO_BIN_EXE_headway"))
            .parent()
            .expect("a directory");
        let target = profile.parent().expect("a target directory");
        let release = profile.file_name().is_some_and(|name| name == "release");
        let output = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "-p", "headway-debox-preload"])
            .args(release.then_some("--release"))
            .arg("--target-dir")
            .arg(target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .expect("cargo runs, since it runs this test");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        profile.join("libdebox_preload.so")
    })
}

/// `headway trace` with these arguments, to be run.
pub fn trace(arguments: &[&str]) -> Command {
    library();
    let mut command = Command::new(env!("CARGO_BIN_EXE_headway"));
    command
        .arg("trace")
        .args(arguments)
        .env_remove("LD_PRELOAD");
    command
}

/// The result of a run of the command.
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub error: String,
}

impl Ran {
    pub fn of(output: &Output) -> Ran {
        Ran {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            error: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Runs `headway trace`.
pub fn run(arguments: &[&str]) -> Ran {
    Ran::of(&trace(arguments).output().expect("headway runs"))
}

/// Runs a command and returns its trace with what it printed.
pub fn traced(options: &[&str], command: &[&str]) -> (Value, Ran) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace.json");
    let mut arguments = vec!["--json", "-o", file.to_str().expect("a path in UTF-8")];
    arguments.extend(options);
    arguments.push("--");
    arguments.extend(command);
    let ran = run(&arguments);
    let text = std::fs::read(&file).unwrap_or_else(|error| panic!("{error}: {}", ran.error));
    (
        serde_json::from_slice(&text).expect("the trace is JSON"),
        ran,
    )
}

/// All sleeps of a trace: call, label, count.
pub fn sleeps(trace: &Value) -> Vec<(String, String, u64)> {
    let sites = trace["sites"].as_array().expect("sites");
    let of_site = |site: &Value| {
        let call = site["call"].as_str().expect("a call").to_owned();
        let sleeps = site["sleeps"].as_array().expect("sleeps").clone();
        sleeps.into_iter().map(move |sleep| {
            let label = sleep["label"].as_str().expect("a label").to_owned();
            (
                call.clone(),
                label,
                sleep["count"].as_u64().expect("a count"),
            )
        })
    };
    sites.iter().flat_map(of_site).collect()
}

/// What is said to be missing, in one text.
pub fn missing(trace: &Value) -> String {
    let texts = trace["missing"].as_array().expect("a list").iter();
    texts
        .map(|text| text.as_str().expect("a text").to_owned() + "\n")
        .collect()
}

/// Whether stacks of sleeps are seen here; if not, says that a test is skipped.
pub fn sees_stacks(test: &str) -> bool {
    let (trace, _) = traced(&[], &["true"]);
    let sees = trace["programs"][0]["level"]["sees"] == "stacks"
        && !missing(&trace).contains("kptr_restrict");
    if !sees {
        skip(
            test,
            "tracing with stacks (perf_event_paranoid, CAP_PERFMON)",
        );
    }
    sees
}

/// Whether the test runs as root; if not, says that it is skipped.
pub fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip(test, "root: becomes another user");
    }
    root
}

/// Compiles a C program.
pub fn compile(folder: &Path, source: &str, options: &[&str]) -> PathBuf {
    let (file, program) = (folder.join("program.c"), folder.join("program"));
    std::fs::write(&file, source).expect("written");
    let output = Command::new("cc")
        .args(["-g", "-o"])
        .arg(&program)
        .arg(&file)
        .args(options)
        .output();
    let output = output.expect("cc runs; scripts/setup installs it");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    program
}
