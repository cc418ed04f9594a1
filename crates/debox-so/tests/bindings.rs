//! The packages for other languages in `bindings/`: each example serves the metrics of its own event loop, which is
//! blocked on purpose.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use headway_test_support::{WAIT_MAX, build_go, find_program, skip, wait_until};

fn bindings(language: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../bindings")
        .join(language)
}

/// Where cargo puts what it builds beside the test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("the test has a path");
    test.with_file_name("libdebox.so")
}

/// An example that serves; it ends with this.
struct Example {
    child: Child,
    address: SocketAddr,
}

impl Example {
    /// Its first line is its address.
    fn start(command: &mut Command) -> Example {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the example starts");
        let mut line = String::new();
        let output = child.stdout.take().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("a line");
        let address = line
            .trim()
            .strip_prefix("http://")
            .and_then(|line| line.strip_suffix('/'));
        let address = address.and_then(|address| address.parse().ok());
        let address = address.unwrap_or_else(|| panic!("no address: {line}"));
        Example { child, address }
    }

    fn get(&self, path: &str) -> String {
        let mut client = TcpStream::connect(self.address).expect("the example listens");
        client.set_read_timeout(Some(WAIT_MAX)).expect("a timeout");
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        client.write_all(request.as_bytes()).expect("a request");
        let mut answer = String::new();
        client.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        answer
    }

    /// What was slept in these calls: how often, and for how many seconds.
    fn blocked(&self, calls: &[&str]) -> (f64, f64) {
        let metrics = self.get("/metrics");
        let sum = |family: &str| -> f64 {
            let of_call = |line: &&str| {
                calls
                    .iter()
                    .any(|call| line.starts_with(&format!("{family}{{call=\"{call}\"")))
            };
            metrics.lines().filter(of_call).map(number).sum()
        };
        (
            sum("headway_loop_blocked_total"),
            sum("headway_loop_blocked_seconds_total"),
        )
    }

    fn value(&self, series: &str) -> f64 {
        let metrics = self.get("/metrics");
        let line = metrics.lines().find(|line| line.starts_with(series));
        number(line.unwrap_or_else(|| panic!("no {series} in\n{metrics}")))
    }

    /// Timers that were more than 66 ms late.
    fn late(&self) -> f64 {
        self.value("headway_loop_lag_seconds_count ")
            - self.value("headway_loop_lag_seconds_bucket{le=\"0.065536\"}")
    }

    /// Promtool would accept it: each family is introduced, and no series appears twice.
    fn check_text(&self) {
        let answer = self.get("/metrics");
        let (_, metrics) = answer.split_once("\r\n\r\n").expect("a body");
        let lines = metrics.lines().filter(|line| line.starts_with("headway_"));
        let mut series: Vec<&str> = lines
            .filter_map(|line| line.rsplit_once(' '))
            .map(|(name, _)| name)
            .collect();
        for name in &series {
            let family = name.split('{').next().expect("a name");
            let histogram = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|part| family.strip_suffix(part));
            let kind = format!("# TYPE {} ", histogram.unwrap_or(family));
            assert!(metrics.contains(&kind), "{name} in\n{metrics}");
        }
        let all = series.len();
        series.sort_unstable();
        series.dedup();
        assert_eq!(series.len(), all, "{metrics}");
    }
}

fn number(line: &str) -> f64 {
    let text = line.rsplit(' ').next().expect("a value");
    text.parse().unwrap_or_else(|_| panic!("{line}"))
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Blocks the loop once, in one of these calls, for longer than the lag's timer waits.
fn names_the_call(test: &str, example: &Example, calls: &[&str]) {
    assert!(example.get("/").ends_with("hello\n"));
    if example.value("headway_trace_level ") != 2.0 {
        return skip(
            test,
            "tracing with stacks (perf_event_paranoid, CAP_PERFMON)",
        );
    }
    let before = example.blocked(calls);
    assert!(example.get("/slow").ends_with("slept\n"));
    let after = example.blocked(calls);
    assert!(after.0 > before.0, "{}", example.get("/metrics"));
    assert!(after.1 - before.1 >= 0.2, "{before:?} {after:?}");
    assert!(example.late() >= 1.0, "{}", example.get("/metrics"));
    assert!(example.value("headway_loop_turn_seconds_sum ") >= 0.2);
    example.check_text();
}

/// The wheel, built without a tool from outside.
fn wheel(python: &Path, folder: &Path) -> PathBuf {
    let program = format!(
        "import sys; sys.path.insert(0, {:?}); import build_wheel; print(build_wheel.build_wheel({:?}))",
        bindings("python").display().to_string(),
        folder.display().to_string()
    );
    let output = Command::new(python)
        .args(["-c", &program])
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("python3 runs");
    assert!(output.status.success(), "{output:?}");
    let name = String::from_utf8(output.stdout).expect("a name");
    folder.join(name.trim())
}

fn asyncio_server(python: &Path, package: &Path) -> Example {
    Example::start(
        Command::new(python)
            .arg(bindings("python").join("examples/asyncio_server.py"))
            .arg("0")
            .env("PYTHONPATH", package)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("HEADWAY_LIBDEBOX", library()),
    )
}

/// What `time.sleep` calls, in old versions too.
const SLEEPS_OF_PYTHON: &[&str] = &["clock_nanosleep", "select", "pselect6"];

/// Needs: the program python3: scripts/setup; tracing with stacks (perf_event_paranoid, CAP_PERFMON)
#[test]
fn asyncio_loop_names_the_call_that_blocks_it_when_the_wheel_is_on_the_path() {
    let test = "asyncio_loop_names_the_call_that_blocks_it_when_the_wheel_is_on_the_path";
    let Some(python) = find_program("python3") else {
        return skip(test, "the program python3");
    };
    let folder = tempfile::tempdir().expect("a folder");
    let example = asyncio_server(&python, &wheel(&python, folder.path()));
    names_the_call(test, &example, SLEEPS_OF_PYTHON);
}

/// Needs: the program python3 with pip
#[test]
fn pip_installs_the_package_without_compiling_and_without_the_network() {
    let test = "pip_installs_the_package_without_compiling_and_without_the_network";
    let Some(python) = find_program("python3") else {
        return skip(test, "the program python3");
    };
    let pip = |arguments: &[&str]| {
        let mut command = Command::new(&python);
        command.args(["-m", "pip"]).args(arguments);
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command
    };
    if !pip(&["--version"])
        .output()
        .is_ok_and(|output| output.status.success())
    {
        return skip(test, "pip of the program python3");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let output = pip(&[
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--no-compile",
        "--target",
    ])
    .arg(folder.path())
    .arg(bindings("python"))
    .env("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    .output()
    .expect("pip runs");
    assert!(output.status.success(), "{output:?}");
    let version = Command::new(&python)
        .args([
            "-B",
            "-c",
            "import headway_debox, importlib.metadata as m; print(m.version('headway-debox'))",
        ])
        .env("PYTHONPATH", folder.path())
        .output()
        .expect("python3 runs");
    assert_eq!(
        String::from_utf8_lossy(&version.stdout).trim(),
        env!("CARGO_PKG_VERSION"),
        "{version:?}"
    );
}

/// Needs: the program python3: scripts/setup
#[test]
fn asyncio_loop_is_not_watched_and_the_error_says_why_when_the_library_or_its_selector_is_missing()
{
    let test = "asyncio_loop_is_not_watched_and_the_error_says_why_when_the_library_or_its_selector_is_missing";
    let Some(python) = find_program("python3") else {
        return skip(test, "the program python3");
    };
    let program = "import asyncio, headway_debox\n\
        class Loop: pass\n\
        for loop in (None, Loop()):\n\
        \x20   async def main():\n\
        \x20       headway_debox.watch_loop(loop)\n\
        \x20   try: asyncio.run(main())\n\
        \x20   except (OSError, TypeError) as error: print(error)\n";
    let output = Command::new(&python)
        .args(["-B", "-c", program])
        .env("PYTHONPATH", bindings("python").join("src"))
        .env("HEADWAY_LIBDEBOX", "/there/is/none.so")
        .output()
        .expect("python3 runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{output:?}");
    assert!(
        lines[0].contains("/there/is/none.so") && lines[0].contains("HEADWAY_LIBDEBOX"),
        "{text}"
    );
    assert!(lines[1].starts_with("Loop has no selector"), "{text}");
}

/// Needs: the program go; tracing with stacks (perf_event_paranoid, CAP_PERFMON)
#[test]
fn go_loop_names_the_call_that_blocks_it_without_cgo() {
    let test = "go_loop_names_the_call_that_blocks_it_without_cgo";
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("loop");
    let Some(output) = build_go(&bindings("go"), "./examples/loop", &program) else {
        return skip(test, "the program go");
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("requires go >=") {
        return skip(test, "go 1.21 or later");
    }
    assert!(output.status.success(), "{errors}");
    let example = Example::start(Command::new(&program).arg("127.0.0.1:0"));
    names_the_call(test, &example, &["nanosleep"]);
}

/// Needs: libuv with its header (libuv1-dev); tracing with stacks (perf_event_paranoid, CAP_PERFMON)
#[test]
fn libuv_loop_names_the_call_that_blocks_it() {
    let test = "libuv_loop_names_the_call_that_blocks_it";
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("server");
    let library = library();
    let place = library.parent().expect("a folder").display().to_string();
    let header = concat!(env!("CARGO_MANIFEST_DIR"), "/../debox-c/include");
    let output = Command::new("cc")
        .arg(bindings("libuv").join("server.c"))
        .args(["-Wall", "-Werror", "-I", header, "-o"])
        .arg(&program)
        .args([&format!("-L{place}"), &format!("-Wl,-rpath,{place}")])
        .args(["-luv", "-ldebox"])
        .output()
        .expect("a C compiler, which linking this test needed as well");
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("uv.h: No such file") || errors.contains("'uv.h' file not found") {
        return skip(test, "libuv with its header (libuv1-dev)");
    }
    assert!(output.status.success(), "{errors}");
    let example = Example::start(Command::new(&program).arg("0"));
    names_the_call(test, &example, &["clock_nanosleep", "nanosleep"]);
}

/// Needs: the program node
#[test]
fn node_loop_names_the_call_in_which_a_second_thread_finds_it() {
    let test = "node_loop_names_the_call_in_which_a_second_thread_finds_it";
    let Some(node) = find_program("node") else {
        return skip(test, "the program node");
    };
    let example = Example::start(
        Command::new(node)
            .arg(bindings("node").join("examples/server.js"))
            .arg("0"),
    );
    assert!(example.get("/").ends_with("hello\n"));
    // `execFileSync` waits for its child in a loop of its own.
    let calls = &["epoll_pwait", "epoll_wait"];
    wait_until("the second thread finds the loop asleep", || {
        assert!(example.get("/slow").ends_with("slept\n"));
        assert_eq!(example.value("headway_trace_level "), 1.0);
        example.blocked(calls).0 >= 1.0
    });
    assert!(example.blocked(calls).1 > 0.0);
    assert!(example.late() >= 1.0, "{}", example.get("/metrics"));
    example.check_text();
}
