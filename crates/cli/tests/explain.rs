//! `headway explain` as a user meets it: bad input, missing privileges, JSON, conditions.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use headway_test_support::server::{Server, without_bpf};
use headway_test_support::skip;
use serde_json::Value;

fn headway() -> Command {
    Command::new(env!("CARGO_BIN_EXE_headway"))
}

fn explain(arguments: &[&str]) -> Output {
    headway()
        .arg("explain")
        .args(arguments)
        .output()
        .expect("headway runs")
}

fn error_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn wrong_target_or_condition_is_a_usage_error() {
    let cases: &[(&[&str], &str)] = &[
        (&[], "--port"),
        (
            &["-p", "no-such-server"],
            "no process is named no-such-server",
        ),
        (&["-p", "4294967295"], "no such process"),
        (&["-p", ""], "none was given"),
        (&["--port", "1"], "listens on TCP port 1"),
        (&["-p", "nginx", "--port", "80"], "cannot be used with"),
        (
            &["-p", "nginx", "--fail-if", "p99 > 5"],
            "blocked_share(p99) > 0.2",
        ),
        (&["-p", "nginx", "--duration", "0"], "longer than 0"),
    ];
    for (arguments, says) in cases {
        let output = explain(arguments);
        let error = error_of(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(says), "{arguments:?}: {error}");
    }
}

#[test]
fn process_that_listens_nowhere_is_an_error() {
    let own = std::process::id();
    let mut child = Command::new("sleep").arg("100").spawn().expect("sleep");
    let output = explain(&["-p", &child.id().to_string()]);
    child.kill().expect("our child");
    child.wait().expect("our child");
    assert_eq!(output.status.code(), Some(1), "{own}");
    let error = error_of(&output);
    assert!(error.contains("listens on no socket"), "{error}");
}

/// A server of a directory with one file.
fn server(folder: &tempfile::TempDir) -> Server {
    std::fs::write(folder.path().join("index.html"), "hello").expect("written");
    Server::start(headway(), folder.path(), &[])
}

#[test]
fn missing_capability_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = server(&folder);
    let mut command = headway();
    command.args(["explain", "-p", &server.master().to_string()]);
    let output = without_bpf(command).output().expect("setpriv");
    let error = error_of(&output);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.contains("CAP_BPF") || error.contains("without its BPF part"),
        "{error}"
    );
}

/// The error of `explain` in a mount namespace of its own, where a script has hidden or replaced a file of the kernel;
/// `None` after saying what this machine lacks.
fn error_after(test: &str, script: &str) -> Option<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let server = server(&folder);
    let script = format!("{{ {script}; }} || exit 77; exec \"$1\" explain -p \"$2\"");
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script, "sh"])
        .args([env!("CARGO_BIN_EXE_headway"), &server.master().to_string()])
        .output()
        .expect("unshare of util-linux");
    let error = error_of(&output);
    match output.status.code() {
        Some(1) if !error.starts_with("unshare") && !error.contains("without its BPF part") => {
            Some(error)
        }
        Some(1 | 77) => {
            skip(test, error.trim());
            None
        }
        other => panic!("{other:?}: {error}"),
    }
}

/// Needs: root; clang at build
#[test]
fn kernel_without_btf_or_in_lockdown_is_named() {
    let test = "kernel_without_btf_or_in_lockdown_is_named";
    let Some(error) = error_after(test, "mount -t tmpfs headway-none /sys/kernel/btf") else {
        return;
    };
    assert!(error.contains("/sys/kernel/btf/vmlinux"), "{error}");
    assert!(error.contains("CONFIG_DEBUG_INFO_BTF"), "{error}");
    let locked = "mount -t tmpfs headway-lockdown /sys/kernel/security && \
                  echo 'none integrity [confidentiality]' >/sys/kernel/security/lockdown";
    let Some(error) = error_after(test, locked) else {
        return;
    };
    assert!(error.contains("lockdown=integrity"), "{error}");
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 6.3); clang at build
#[test]
fn running_server_is_explained_in_json_and_conditions_are_checked() {
    let test = "running_server_is_explained_in_json_and_conditions_are_checked";
    let folder = tempfile::tempdir().expect("a folder");
    let server = server(&folder);
    let (_, port) = server.address.rsplit_once(':').expect("a port");
    let files =
        ["--html", "--chrome", "--folded"].map(|option| (option, folder.path().join(&option[2..])));
    let mut explaining = headway()
        .args([
            "explain",
            "--port",
            port,
            "--duration",
            "5",
            "--json",
            "--paths",
            "--anonymize",
        ])
        .args(
            files
                .iter()
                .flat_map(|(option, file)| [std::ffi::OsStr::new(option), file.as_os_str()]),
        )
        .args([
            "--fail-if",
            "max > 0ms",
            "--fail-if",
            "queue_share(p99) < 0",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("headway runs");
    // Until the end, since a busy machine takes seconds to begin.
    let mut asked = 0;
    while explaining.try_wait().expect("our child").is_none() {
        assert_eq!(server.get("/index.html"), (200, "hello".to_owned()));
        asked += 1;
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let output = explaining.wait_with_output().expect("it ends");
    let error = error_of(&output);
    if output.status.code() == Some(1) {
        return skip(test, &error);
    }
    assert_eq!(output.status.code(), Some(3), "{error}");
    // Nothing but the condition that is met: no progress.
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.contains("max > 0ms: it is"), "{error}");
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(json["schema"], 1);
    assert_eq!(
        json["ports"],
        serde_json::json!([port.parse::<u16>().expect("a port")])
    );
    let answered = json["requests"]["answered"].as_u64().expect("a number");
    assert!((1..=asked).contains(&answered), "{answered} of {asked}");
    assert!(
        json["causes"]
            .as_array()
            .is_some_and(|causes| !causes.is_empty())
    );
    assert_eq!(json["paths"][0]["path"], "GET /index.html");
    // One that was read while the observation began may have no path.
    let named = json["paths"][0]["requests"].as_u64().expect("a number");
    assert!((1..=answered).contains(&named), "{named} of {answered}");
    let statuses = json["paths"][0]["statuses"].as_object().expect("a map");
    assert!(
        statuses.keys().all(|status| status == "200") && !statuses.is_empty(),
        "{statuses:?}"
    );
    let [page, timeline, folded] =
        files.map(|(_, file)| std::fs::read_to_string(file).expect("it was written"));
    assert!(
        page.contains("<h1>Why requests of headway wait</h1>"),
        "{page}"
    );
    let timeline: Value = serde_json::from_str(&timeline).expect("JSON");
    let events = timeline["traceEvents"].as_array().expect("a list");
    let begun = |event: &&Value| event["ph"] == "b" && event["name"] == "GET /index.html";
    assert_eq!(events.iter().filter(begun).count() as u64, named);
    assert!(
        folded
            .lines()
            .any(|line| line.starts_with("headway;service;")),
        "{folded}"
    );
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 6.3); clang at build
#[test]
fn server_that_is_started_for_it_is_explained_and_ended() {
    let test = "server_that_is_started_for_it_is_explained_and_ended";
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("index.html"), "hello").expect("written");
    let mut explaining = headway()
        .args([
            "explain",
            "--duration",
            "4",
            "--",
            env!("CARGO_BIN_EXE_headway"),
            "serve",
        ])
        .arg(folder.path())
        .args(["--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("headway runs");
    // The server says where it listens.
    let lines = BufReader::new(explaining.stderr.take().expect("piped")).lines();
    let mut said = String::new();
    for line in lines.map_while(Result::ok) {
        if let Some((_, address)) = line.split_once("http://") {
            let address = address.split(['/', ' ']).next().expect("an address");
            let (status, _, _) = headway_test_support::server::get(address, "/index.html");
            assert_eq!(status, 200);
        }
        said += &(line + "\n");
    }
    let output = explaining.wait_with_output().expect("it ends");
    if output.status.code() == Some(1) {
        return skip(test, &said);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let words: Vec<&str> = text.split_whitespace().collect();
    assert!(words.join(" ").contains("1 request in"), "{text}\n{said}");
    let ended = Command::new("pgrep")
        .args(["-f", folder.path().to_str().expect("UTF-8")])
        .output();
    assert!(ended.is_ok_and(|found| found.stdout.is_empty()), "{said}");
}

/// Needs: the program python3: scripts/setup; root; BTF (Linux 6.3); clang at build
#[test]
fn parts_of_requests_add_up_to_what_the_load_generator_measured() {
    let test = "parts_of_requests_add_up_to_what_the_load_generator_measured";
    let python = "/usr/bin/python3";
    if !std::path::Path::new(python).exists() {
        return skip(test, "the program python3");
    }
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../explain/tests/bed/blocking.py"
    );
    let port = {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        socket.local_addr().expect("an address").port()
    };
    // Each request delays the next one, by much more than anything that a busy machine adds.
    let explaining = headway()
        .args([
            "explain",
            "--json",
            "--duration",
            "60",
            "--",
            python,
            script,
        ])
        .args([&port.to_string(), "0.4"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("headway runs");
    let mut listens = false;
    for _ in 0..600 {
        listens = listens || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
        if listens {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let url = format!("http://127.0.0.1:{port}/slow");
    let load = [
        "load", "--closed", "-c", "3", "-n", "15", "--warmup", "0", "--json", &url,
    ];
    let load = headway().args(load).output().expect("headway runs");
    let pid = rustix::process::Pid::from_child(&explaining);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("our child");
    let output = explaining.wait_with_output().expect("it ends");
    let error = error_of(&output);
    if !listens || output.status.code() == Some(1) {
        return skip(test, &error);
    }
    assert!(load.status.success(), "{}", error_of(&load));
    let seen: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let measured: Value = serde_json::from_slice(&load.stdout).expect("JSON");
    assert_eq!(seen["requests"]["answered"], 15, "{seen:#}");
    for figure in ["p50_us", "p95_us", "p99_us", "mean_us"] {
        let of = |value: &Value| value[figure].as_f64().expect("a number");
        let (ours, its) = (of(&seen["latency"]), of(&measured["analysis"]["response"]));
        assert!(
            (ours - its).abs() < 0.05 * its,
            "{figure}: {ours} and {its}\n{seen:#}"
        );
    }
    let blocked = |cause: &&Value| cause["label"] == "timer";
    let causes = seen["causes"].as_array().expect("a list");
    let share: f64 = (causes.iter().filter(blocked))
        .filter_map(|cause| cause["share"]["all"].as_f64())
        .sum();
    // On a busy machine, threads also wait for a CPU.
    assert!(share > 0.8, "{seen:#}");
}
