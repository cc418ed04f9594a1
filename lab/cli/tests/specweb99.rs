//! `headway-lab specweb99` and the CGI program: the words, and the whole of it behind a real Apache.

use crate::common;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, io::Write};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::Value;

use common::headway_lab;
use headway_test_support::{executable, skip};

const APACHE: &str = "/usr/sbin/apache2";
const PROGRAM: &str = env!("CARGO_BIN_EXE_headway-specweb99");

/// Patience for things that must happen but are not timed.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Runs a program; exit code, standard output, standard error.
fn finished(command: &mut Command) -> (i32, String, String) {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let code = output.status.code().expect("it ended by itself");
    (code, text(output.stdout), text(output.stderr))
}

fn headway(arguments: &[&str]) -> (i32, String, String) {
    finished(Command::new(common::headway()).args(arguments))
}

fn measured(arguments: &[&str]) -> (i32, String, String) {
    finished(headway_lab().arg("specweb99").args(arguments))
}

fn read_json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// An Apache that runs the CGI program; ended when dropped.
struct Apache {
    child: Child,
    url: String,
    folder: tempfile::TempDir,
}

impl Apache {
    /// `None` when it is not installed.
    fn start(test: &str) -> Option<Apache> {
        if !Path::new(APACHE).exists() {
            skip(test, "no apache2; scripts/setup installs it");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let set = folder.path().join("set");
        let arguments = [
            "--size",
            "10MB",
            "--profile",
            "specweb99-dynamic",
            "--quiet",
        ];
        let (code, _, err) = headway(
            &[
                &["fileset", "create", set.to_str().unwrap()],
                &arguments[..],
            ]
            .concat(),
        );
        assert_eq!(code, 0, "{err}");
        // Apache gives up root's rights: its user reads the set and the program, and writes the
        // application's files.
        executable::copy(Path::new(PROGRAM), &folder.path().join("program"));
        opened(folder.path(), 0o777);
        let state = set.join(".specweb99");
        opened(&state, 0o777);
        for entry in fs::read_dir(&state).unwrap() {
            opened(&entry.unwrap().path(), 0o666);
        }
        let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let address = format!("127.0.0.1:{}", port.unwrap().port());
        let configuration = folder.path().join("apache.conf");
        fs::write(&configuration, configured(&address, folder.path())).unwrap();
        let child = Command::new(APACHE)
            .args(["-D", "FOREGROUND", "-f"])
            .arg(&configuration)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let mut apache = Apache {
            child,
            url: format!("http://{address}/"),
            folder,
        };
        let begun = Instant::now();
        while TcpStream::connect(&address).is_err() {
            let ended = apache.child.try_wait().unwrap();
            assert!(
                ended.is_none() && begun.elapsed() < TIMEOUT,
                "{}",
                apache.errors()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(apache)
    }

    fn set(&self) -> String {
        self.path("set")
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn errors(&self) -> String {
        fs::read_to_string(self.folder.path().join("error.log")).unwrap_or_default()
    }
}

impl Drop for Apache {
    fn drop(&mut self) {
        // The number stays reserved until the process is waited for.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
            let _ = self.child.wait();
        }
    }
}

fn opened(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn configured(address: &str, folder: &Path) -> String {
    let folder = folder.display();
    let modules = ["mpm_event", "authz_core", "alias", "env", "cgid"];
    let modules = modules
        .map(|name| format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n"));
    let user = match geteuid().is_root() {
        true => "User www-data\nGroup www-data\n",
        false => "",
    };
    format!(
        "ServerRoot {folder}\n{}{user}\
         PidFile {folder}/pid\nErrorLog {folder}/error.log\nServerName localhost\nListen {address}\n\
         ScriptSock {folder}/cgid.sock\nDefaultRuntimeDir {folder}\n\
         KeepAlive On\nMaxKeepAliveRequests 0\nKeepAliveTimeout 30\n\
         DocumentRoot {folder}/set\n<Directory {folder}>\nRequire all granted\n</Directory>\n\
         ScriptAlias /specweb99 {folder}/program\nScriptAlias /cgi-bin/specweb99 {folder}/program\n\
         SetEnv HEADWAY_SPECWEB99_ROOT {folder}/set\n",
        modules.concat()
    )
}

/// Needs: the program apache2: scripts/setup
#[test]
fn apache_is_measured_and_its_log_is_in_order_when_it_runs_the_program() {
    let test = "apache_is_measured_and_its_log_is_in_order_when_it_runs_the_program";
    let Some(apache) = Apache::start(test) else {
        return;
    };
    let (run, set) = (apache.path("run"), apache.set());
    // With this seed no client draws one of the largest files, whose response alone would take
    // twenty seconds.
    let load = "--whole-set --connections 12 --iterations 2 --ramp 100ms --warmup 0 --duration 1s \
                --timeout 25s --seed 412 --json";
    let mut arguments = vec![apache.url.as_str(), "--fileset", &set];
    arguments.extend(["-o", &run]);
    arguments.extend(load.split(' '));
    let (code, out, err) = measured(&arguments);
    assert_eq!(code, 0, "{err}\n{}", apache.errors());
    let json: Value = serde_json::from_str(&out).unwrap();
    let info = &json["specweb99"];
    assert_eq!(info["connections"], 12);
    assert_eq!(info["data_rule"], false);
    for iteration in info["iterations"].as_array().unwrap() {
        assert_eq!(iteration["errors"], 0, "{iteration}\n{}", apache.errors());
        assert_eq!(iteration["rates_bits_per_s"].as_array().unwrap().len(), 12);
    }
    let log = &info["log"];
    assert_eq!(log["fault"], Value::Null, "{}", apache.errors());
    assert_eq!(
        (&log["missing"], &log["out_of_order"], &log["unknown"]),
        (&0.into(), &0.into(), &0.into())
    );
    assert_eq!(log["records"], log["acknowledged"]);
    assert!(
        json["server"]["field"]
            .as_str()
            .unwrap()
            .starts_with("Apache")
    );

    // The other commands read the same from the run directory.
    assert_eq!(
        read_json(&Path::new(&run).join("run.json"))["specweb99"],
        *info
    );
    let (code, text, err) = headway(&["analyze", &run]);
    assert_eq!(code, 0, "{err}");
    assert!(
        text.contains("no SPEC result") && text.contains("custom GET"),
        "{text}"
    );
    let page = apache.path("report.html");
    let (code, _, err) = headway(&["report", &run, "-o", &page]);
    assert_eq!(code, 0, "{err}");
    let page = fs::read_to_string(page).unwrap();
    assert!(
        page.contains("SPECweb99-like score") && page.contains("closed, 12"),
        "no section"
    );
    // The set is smaller than the rule demands.
    let (code, _, err) = measured(&[&arguments[..3], &["-c", "12"]].concat());
    assert_eq!(code, 1);
    assert!(
        err.contains("122 + 3.22 N MB") && err.contains("--whole-set"),
        "{err}"
    );
}

#[test]
fn specweb99_with_other_options_is_a_usage_error() {
    for (line, expected) in [
        ("-c 5", "--fileset"),
        ("--fileset /x", "--connections"),
        ("--fileset /x", "--find"),
        ("--fileset /x -c 5 --find", "cannot be used with"),
        ("--fileset /x -c 5 --most 50", "cannot be used with"),
        ("--fileset /x -c 5 --rate 5", "--rate"),
        (
            "--fileset /x -c 5 http://127.0.0.1:2/",
            "http://127.0.0.1:2/",
        ),
        ("--fileset /x -c 5 --cgi-path x", "begins with /"),
        ("--find", "--fileset"),
        ("--find --fileset /x --first 9 --most 5", "--first"),
        (
            "--find --fileset /x --trial-iterations 4",
            "--trial-iterations",
        ),
    ] {
        let mut arguments = vec!["http://127.0.0.1:1/"];
        arguments.extend(line.split(' '));
        let (code, _, err) = measured(&arguments);
        assert_eq!(code, 2, "{line}: {err}");
        assert!(err.contains(expected), "{line}: {err}");
    }
}

#[test]
fn program_prints_its_usage_when_not_run_as_cgi() {
    let mut by_hand = Command::new(PROGRAM);
    let (code, _, err) = finished(by_hand.env_remove("REQUEST_METHOD"));
    assert_eq!(code, 2);
    assert!(err.contains("HEADWAY_SPECWEB99_ROOT"), "{err}");
    let mut unconfigured = Command::new(PROGRAM);
    unconfigured
        .env("REQUEST_METHOD", "GET")
        .env_remove("HEADWAY_SPECWEB99_ROOT");
    let (code, out, err) = finished(&mut unconfigured);
    assert_eq!(code, 1);
    assert!(out.starts_with("Status: 500 "), "{out}");
    assert!(err.contains("is not set"), "{err}");
}

#[test]
fn program_answers_one_request_when_a_server_starts_it() {
    let directory = tempfile::tempdir().unwrap();
    let set = directory.path().join("set");
    let arguments = [
        "fileset",
        "create",
        set.to_str().unwrap(),
        "--size",
        "5MB",
        "--profile",
        "specweb99-dynamic",
    ];
    assert_eq!(headway(&arguments).0, 0);
    let body = "dir=0&class=0&file=3&client=1&serial=1";
    let mut child = Command::new(PROGRAM)
        .env("HEADWAY_SPECWEB99_ROOT", &set)
        .env("REQUEST_METHOD", "POST")
        .env("CONTENT_LENGTH", body.len().to_string())
        .env("SERVER_SOFTWARE", "a <server>")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(body.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.starts_with("Status: 200 OK\r\n") && text.contains("posted_cookie=record=1\r\n"),
        "{text}"
    );
    assert!(
        text.contains("/dir00000/class0_3\n") && text.contains("a &lt;server&gt;"),
        "{text}"
    );
    let log = fs::read_to_string(set.join(".specweb99/post.log")).unwrap();
    assert_eq!(log.lines().count(), 1);
}
