//! Runs the blocks of a page as a reader pastes them, on a machine of its own.
//!
//! The machine is this one with a private network, private process numbers, and private copies of
//! the directories that recipes write to. All ports are free there, and all processes end with it.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Once;
use std::time::{Duration, Instant};

use super::page::{Block, Kind, Page, missing_line};

const HEADWAY: &str = env!("CARGO_BIN_EXE_headway");

/// The longest that a page may take.
const PAGE_TIMEOUT: Duration = Duration::from_secs(180);

/// How a page ended.
#[derive(Debug)]
pub enum Outcome {
    Passed,
    /// There was no such machine to be had, for this reason.
    NoMachine(String),
    /// The text says where and why.
    Failed(String),
}

/// Commands before the first block, and the functions that start and end background blocks.
/// Directories are copied on write, so nothing of the real ones changes.
const PROLOGUE: &str = r#"
set -eu
shopt -s nullglob
readlink /proc/self/ns/net >"$STATE/network"
ip link set lo up
mkdir "$STATE/copies"
mount -t tmpfs tmpfs "$STATE/copies"
for directory in etc srv var run usr; do
    mkdir -p "$STATE/copies/$directory/upper" "$STATE/copies/$directory/work"
    mount -t overlay -o "lowerdir=/$directory,upperdir=$STATE/copies/$directory/upper,workdir=$STATE/copies/$directory/work" overlay "/$directory"
done

# As after `make install`, so that every user can run it.
mkdir -p /usr/local/bin /usr/local/lib
for file in bin/headway lib/libdebox_preload.so; do
    built=$BUILT/${file##*/}
    if [ -e "$built" ]; then touch "/usr/local/$file"; mount --bind "$built" "/usr/local/$file"; fi
done
PATH=$STATE/bin:/usr/local/bin:$PATH:/usr/local/sbin:/usr/sbin:/sbin

listening() {
    {
        awk 'FNR > 1 && $4 == "0A" { print $2, $10 }' /proc/net/tcp /proc/net/tcp6
        awk '$4 == "00010000" { print $7 }' /proc/net/unix
    } | sort
}

groups=()

# Starts a block in a process group of its own, and waits until it listens and no further socket has appeared for a moment.
in_background() {
    local before now attempt
    before=$(listening)
    setsid bash -eu "$STATE/$1.sh" >"$STATE/$1.out" 2>&1 </dev/null &
    groups+=($!)
    # So that a `wait` of the page does not wait for it.
    disown
    for attempt in {1..300}; do
        now=$(listening)
        if [ "$now" != "$before" ]; then
            sleep 0.2
            if [ "$now" = "$(listening)" ]; then return 0; fi
        fi
        if ! kill -0 "${groups[-1]}" 2>/dev/null; then echo "it has ended"; cat "$STATE/$1.out"; return 1; fi
        sleep 0.05
    done
    echo "it does not listen on any socket"
    cat "$STATE/$1.out"
    return 1
}

end_background() {
    local group attempt
    for group in "${groups[@]}"; do
        kill -TERM -- "-$group" 2>/dev/null || true
    done
    for attempt in {1..200}; do
        for group in "${groups[@]}"; do
            if kill -0 -- "-$group" 2>/dev/null; then sleep 0.05; continue 2; fi
        done
        break
    done
    groups=()
}

cd "$STATE/../paste"
"#;

/// Recipes say `sudo`; here its user is root already, and has to become another one only if a name
/// is given.
const SUDO: &str = r#"#!/bin/bash
user=root
while getopts 'u:nEH' option; do
    case $option in u) user=$OPTARG ;; *) ;; esac
done
shift $((OPTIND - 1))
if [ "$user" = root ]; then exec "$@"; fi
exec setpriv --reuid "$user" --regid "$(id -g "$user")" --init-groups --inh-caps=-all --bounding-set=-all,+net_bind_service,+setfcap "$@"
"#;

const SQL: &str = r"
import duckdb, sys
for query in open(sys.argv[1]).read().split(';'):
    if query.strip():
        print(duckdb.sql(query))
";

/// The interpreter that has the readers of Parquet, if they are installed.
pub fn python() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/duckdb/bin/python");
    if own.exists() { own } else { "python3".into() }
}

/// Builds the library that `headway trace` preloads, which a build of the binary alone does not
/// make.
fn build_preload_library() {
    static BUILT: Once = Once::new();
    BUILT.call_once(|| {
        let profile = Path::new(HEADWAY).parent().expect("a directory");
        let target = profile.parent().expect("a target directory");
        let is_release = profile.file_name().is_some_and(|name| name == "release");
        let status = Command::new(env!("CARGO"))
            .args([
                "build",
                "--quiet",
                "-p",
                "headway-debox-preload",
                "--target-dir",
            ])
            .arg(target)
            .args(is_release.then_some("--release"))
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status();
        assert!(status.expect("cargo, which runs this test").success());
    });
}

fn executable(path: &Path, text: &str) {
    fs::write(path, text).expect("a program");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("its mode");
}

/// Writes the blocks and the script that runs them.
fn prepare(state: &Path, page: &Page) {
    let bin = state.join("bin");
    fs::create_dir(&bin).expect("a directory");
    executable(&bin.join("sudo"), SUDO);
    fs::write(state.join("sql.py"), SQL).expect("a program");
    let mut script = PROLOGUE.to_owned();
    for (number, block) in page.blocks.iter().enumerate() {
        let suffix = match &block.kind {
            Kind::Output | Kind::Skipped(_) => continue,
            Kind::Python => "py",
            Kind::Sql => "sql",
            _ => "sh",
        };
        let name = format!("{number}.{suffix}");
        fs::write(state.join(name), &block.text).expect("a block");
        let _ = writeln!(script, "echo {number} >\"$STATE/current\"");
        let redirected = match &block.kind {
            Kind::Background { .. } => format!("{number}.start"),
            _ => format!("{number}.out"),
        };
        let _ = writeln!(script, "exec >\"$STATE/{redirected}\" 2>&1 </dev/null");
        let command = match &block.kind {
            Kind::Run => format!(". \"$STATE/{number}.sh\""),
            Kind::Background { is_restart: false } => format!("in_background {number}"),
            Kind::Background { is_restart: true } => {
                format!("end_background; in_background {number}")
            }
            Kind::Python => format!("\"$PYTHON\" \"$STATE/{number}.py\""),
            Kind::Sql => format!("\"$PYTHON\" \"$STATE/sql.py\" \"$STATE/{number}.sql\""),
            Kind::File(name) => {
                format!("mkdir -p \"$(dirname '{name}')\"; cp \"$STATE/{number}.sh\" '{name}'")
            }
            Kind::Output | Kind::Skipped(_) => continue,
        };
        script.push_str(&command);
        script.push('\n');
    }
    script.push_str("end_background\necho end >\"$STATE/current\"\n");
    fs::write(state.join("page.sh"), script).expect("a script");
}

fn start(state: &Path, page: &Page) -> Child {
    let errors = fs::File::create(state.join("machine.out")).expect("a file");
    Command::new("setpriv")
        .args([
            "--pdeathsig",
            "KILL",
            "unshare",
            "--mount",
            "--net",
            "--fork",
            "--kill-child",
        ])
        .args(
            (!page.has_host_pids)
                .then_some(["--pid", "--mount-proc"])
                .iter()
                .flatten(),
        )
        .arg("bash")
        .arg(state.join("page.sh"))
        .env("STATE", state)
        .env("BUILT", Path::new(HEADWAY).parent().expect("a directory"))
        .env("PYTHON", python())
        .env(
            "REPOSITORY",
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."),
        )
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::null())
        .stdout(errors.try_clone().expect("a copy"))
        .stderr(errors)
        .spawn()
        .expect("setpriv of util-linux")
}

/// Waits for the machine to end; what takes too long is killed, with everything in it.
fn wait(machine: &mut Child) -> bool {
    let end = Instant::now() + PAGE_TIMEOUT;
    loop {
        if machine.try_wait().expect("a child").is_some() {
            return true;
        }
        if Instant::now() > end {
            machine.kill().expect("it ends");
            machine.wait().expect("it ends");
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Kills the processes in the network of this machine. Only a page with host process numbers can
/// leave any. (Their environment is no mark: nginx writes its title over it.)
fn kill_processes(state: &Path) {
    let network = read(state.join("network"));
    let is_inside = |directory: &Path| {
        let link = fs::read_link(directory.join("ns/net")).unwrap_or_default();
        !network.is_empty() && link == Path::new(network.trim())
    };
    for _ in 0..100 {
        let processes = fs::read_dir("/proc").expect("/proc").flatten();
        let inside: Vec<_> = processes
            .filter(|entry| is_inside(&entry.path()))
            .map(|entry| entry.file_name())
            .collect();
        if inside.is_empty() {
            return;
        }
        let _ = Command::new("kill").arg("-KILL").args(inside).output();
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn read(path: PathBuf) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn described(block: &Block, why: &str, output: &str) -> String {
    let (line, text) = (block.line, block.text.trim_end());
    format!("line {line}: {why}\n--- the block\n{text}\n--- what it printed\n{output}")
}

/// The outputs that the page shows and its blocks did not print.
fn wrong_output(state: &Path, page: &Page) -> Option<String> {
    let mut printed = String::new();
    for (number, block) in page.blocks.iter().enumerate() {
        match &block.kind {
            Kind::Output => {
                if let Some(line) = missing_line(&block.text, &printed) {
                    let why = format!("the line `{line}` is missing");
                    return Some(described(block, &why, &printed));
                }
            }
            Kind::Skipped(_) | Kind::File(_) => {}
            _ => printed = read(state.join(format!("{number}.out"))),
        }
    }
    None
}

/// Prints what was pasted and what came of it, to be read with `--nocapture`.
fn transcript(name: &str, state: &Path, page: &Page) -> String {
    let mut text = format!("\n=== {name}\n");
    for (number, block) in page.blocks.iter().enumerate() {
        let what = match &block.kind {
            Kind::Output => continue,
            Kind::Skipped(reason) => format!("skipped: {reason}"),
            Kind::File(name) => format!("saved as {name}"),
            Kind::Background { .. } => "run in the background".to_owned(),
            _ => "run".to_owned(),
        };
        let output = read(state.join(format!("{number}.out")));
        let _ = write!(text, "--- line {}, {what}\n{}", block.line, block.text);
        for line in output.lines() {
            let _ = writeln!(text, "    {line}");
        }
    }
    text
}

/// Runs the blocks of a page in order, in an empty directory.
pub fn run(name: &str, page: &Page) -> Outcome {
    let folder = tempfile::Builder::new()
        .prefix("headway-guide-")
        .permissions(fs::Permissions::from_mode(0o755))
        .tempdir()
        .expect("a directory");
    let state = folder.path().join("state");
    for directory in [&state, &folder.path().join("paste")] {
        fs::create_dir(directory).expect("a directory");
    }
    if page
        .blocks
        .iter()
        .any(|block| block.text.contains("headway trace"))
    {
        build_preload_library();
    }
    prepare(&state, page);
    let is_ended = wait(&mut start(&state, page));
    kill_processes(&state);
    let current = read(state.join("current"));
    println!("{}", transcript(name, &state, page));
    if current.is_empty() {
        return Outcome::NoMachine(read(state.join("machine.out")).trim().replace('\n', "; "));
    }
    if let Ok(number) = current.trim().parse::<usize>() {
        let block = &page.blocks[number];
        let mut output = read(state.join(format!("{number}.start")));
        output.push_str(&read(state.join(format!("{number}.out"))));
        let why = if is_ended {
            "a command failed"
        } else {
            "it does not end"
        };
        return Outcome::Failed(described(block, why, &output));
    }
    match wrong_output(&state, page) {
        Some(text) => Outcome::Failed(text),
        None => Outcome::Passed,
    }
}
