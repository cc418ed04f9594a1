//! The command as its users see it: words, exit codes, and what `serve` says when it cannot start.

use crate::serving::{Server, headway};
use headway_test_support::{is_root, skip};

/// Wrong command lines, and a part of the answer.
const USAGE_ERRORS: &[(&[&str], &str)] = &[
    (&["serve", "--frobnicate"], "--frobnicate"),
    (
        &["serve", "--workers", "two"],
        "headway: --workers: `two` is not a whole number",
    ),
    (&["serve", "--workers", "-1"], "--workers: -1 is negative"),
    (
        &["serve", "--listing=maybe"],
        "--listing: `maybe` is not on or off",
    ),
    (
        &["serve", "--port", "http"],
        "--listen: `http` is not an address",
    ),
    (
        &["serve", "--workers", "0"],
        "--workers: 0 is not within 1 to 256",
    ),
    (&["serve", "--events", "kqueue"], "kqueue"),
    (&["serve", "--send", "splice"], "copy, sendfile"),
    (&["serve", "--preset", "flash"], "headway-lab serve"),
    (&["serve", "--caching=off"], "headway-lab serve"),
    (&["serve", "--helpers", "2-1"], "1-16"),
    (
        &["serve", "--helpers", "2", "--helpers-max", "3"],
        "--helpers: it sets both limits; remove helpers-min and helpers-max",
    ),
    (&["serve", "--idle-timeout", "soon"], "ms, s, m, h or d"),
    (
        &["serve", "--listen", "example.com:80"],
        "no host name but localhost",
    ),
    (
        &["serve", "--log-format", "xml", "--log", "x"],
        "common, combined, json",
    ),
    (&["serve", "--early-reject", "404"], "off, 503, reset"),
    (
        &["serve", "--accept-batch", "25", "--early-reject", "503"],
        "set accept-batch = \"auto\" instead",
    ),
    (&["serve", "--listeners", "one"], "reuseport, shared"),
    (
        &["serve", "--accept-batch", "-1"],
        "`-1` is not a number of connections; write a number up to 1000000, 0 for all that wait, or auto",
    ),
    (
        &["serve", "--backlog", "-3"],
        "--backlog: -3 is not within 1 to 1048576; the kernel allows at most",
    ),
    (
        &["serve", "--backlog", "99999999999"],
        "(sysctl net.core.somaxconn)",
    ),
    (&["serve", "--json"], "--check"),
    (&["nonsense"], "nonsense"),
];

fn run(arguments: &[&str]) -> (i32, String, String) {
    let output = headway().args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn help_names_every_group_and_gives_examples_when_asked() {
    let (code, out, _) = run(&["serve", "--help"]);
    assert_eq!(code, 0);
    for word in [
        "Serving:",
        "Connections:",
        "TLS:",
        "Timeouts:",
        "Logs and status:",
        "Examples:",
    ] {
        assert!(out.contains(word), "{word} is missing in\n{out}");
    }
    assert!(
        !out.contains("Research:") && !out.contains("--preset"),
        "{out}"
    );
    assert!(!run(&["--help"]).1.contains("trace-gate"));
}

#[test]
fn table_of_the_papers_servers_is_a_usage_error_that_names_the_program_for_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("headway.toml");
    std::fs::write(&file, "[research]\npreset = \"flash\"\n").unwrap();
    let (code, _, err) = run(&["serve", "--config", file.to_str().unwrap(), "--check"]);
    assert_eq!(code, 2, "{err}");
    assert!(
        err.contains("headway.toml:1: research: ") && err.contains("`headway-lab serve`"),
        "{err}"
    );
}

#[test]
fn program_contains_no_code_of_the_papers_servers() {
    let program = std::fs::read(env!("CARGO_BIN_EXE_headway")).unwrap();
    let has = |text: &str| memchr::memmem::find(&program, text.as_bytes()).is_some();
    assert!(has("is not within 1 to"), "texts of messages are found");
    // A value of a key, a message of its check, and how a sender describes itself.
    for text in [
        "accept25+cache",
        "in this preset eager writes need",
        "used lately (a guess)",
    ] {
        assert!(!has(text), "{text}");
    }
}

#[test]
fn exit_code_is_2_for_a_usage_error() {
    for (arguments, word) in USAGE_ERRORS {
        let (code, _, err) = run(arguments);
        assert_eq!(code, 2, "{arguments:?}: {err}");
        assert!(err.contains(word), "{arguments:?}: {err}");
    }
}

#[test]
fn exit_code_is_1_when_a_directory_or_file_is_missing() {
    let (code, _, err) = run(&["serve", "/no/such/directory"]);
    assert_eq!(code, 1);
    assert!(
        err.starts_with("headway: DIR: the document root /no/such/directory"),
        "{err}"
    );
    let (code, _, err) = run(&["serve", "--config", "/no/such.toml"]);
    assert_eq!(code, 1);
    assert!(err.contains("/no/such.toml"), "{err}");
}

#[test]
fn error_names_rlimit_nofile_when_max_connections_exceeds_it() {
    let (code, _, err) = run(&["serve", "--max-connections", "4000000000", "--check"]);
    assert_eq!(code, 1, "the words are right, the machine lacks something");
    assert!(
        err.contains("--max-connections: 4000000000 connections") && err.contains("RLIMIT_NOFILE"),
        "{err}"
    );
}

#[test]
fn effective_backlog_is_reported_when_the_kernel_shortens_it() {
    let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
    if most.trim().parse::<u64>().unwrap() >= 1_048_576 {
        // Nothing is cut here.
        return;
    }
    let (code, _, err) = run(&["serve", "--backlog", "1048576", "--check"]);
    assert_eq!(code, 0);
    let message = format!(
        "warning: --backlog: the kernel reduces 1048576 to {} (sysctl net.core.somaxconn)",
        most.trim()
    );
    assert!(err.contains(&message), "{err}");
}

#[test]
fn check_prints_effective_settings_when_the_configuration_is_valid() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("headway.toml");
    std::fs::write(&file, "root = \".\"\nworkers = 3\nlisten = \"8081\"\n").unwrap();
    let file = file.to_str().unwrap();
    let (code, out, _) = run(&["serve", "--config", file, "--check", "--listing"]);
    assert_eq!(code, 0);
    assert!(
        out.starts_with("# configuration OK; effective settings:\n"),
        "{out}"
    );
    assert!(
        out.contains("workers = 3\n") && out.contains("listing = true\n"),
        "{out}"
    );
    let (_, out, _) = run(&[
        "serve",
        "--config",
        file,
        "--check",
        "--json",
        "--workers",
        "1",
    ]);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&json["workers"], &json["listen"][0]),
        (&1.into(), &"127.0.0.1:8081".into())
    );
}

#[test]
fn check_warns_when_a_port_is_in_use() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let (code, _, err) = run(&["serve", "--check", "--port", &port]);
    assert_eq!(code, 0, "{err}");
    let expected = format!("headway: warning: listen: bind(127.0.0.1:{port}): EADDRINUSE: ");
    assert!(err.contains(&expected), "{err}");
    let (code, _, err) = run(&["serve", "--check", "--port", "0", "--status", &port]);
    assert!(code == 0 && err.contains("warning: status: bind("), "{err}");
    drop(taken);
    let (_, _, err) = run(&["serve", "--check", "--port", &port]);
    assert!(!err.contains("EADDRINUSE"), "{err}");
}

#[test]
fn check_json_has_the_keys_of_the_configuration_file() {
    let arguments = [
        "serve",
        "--check",
        "--max-connections",
        "100",
        "--listen",
        "8081",
    ];
    let (_, text, _) = run(&arguments);
    let (_, json, _) = run(&[&arguments[..], &["--json"]].concat());
    let json: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&json).unwrap();
    let top = text.split("\n[").next().unwrap();
    let keys = top
        .lines()
        .filter_map(|line| line.split_once(" = "))
        .map(|(key, _)| key);
    for key in keys {
        assert!(json.contains_key(key), "{key}");
    }
    assert_eq!(json["max-connections"], 100);
    assert_eq!(json["idle-timeout"], "60s");
}

#[test]
fn time_without_a_unit_is_in_seconds() {
    let (code, out, err) = run(&["serve", "--check", "--idle-timeout", "10"]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("idle-timeout = \"10s\"\n"), "{out}");
}

#[test]
fn port_option_listens_on_the_loopback_address() {
    for port in [&["-p", "8081"][..], &["--port", "8081"], &["--port=8081"]] {
        let (code, out, err) = run(&[&["serve", "--check"][..], port].concat());
        assert_eq!(code, 0, "{err}");
        assert!(out.contains("listen = [\"127.0.0.1:8081\"]\n"), "{out}");
    }
}

#[test]
fn all_mistakes_are_reported_when_options_and_file_have_some() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("headway.toml");
    std::fs::write(&file, "port = 1\nbacklog = \"long\"\n").unwrap();
    let arguments = ["--workers", "two", "--idle-timeout", "soon"];
    let file = ["serve", "--check", "--config", file.to_str().unwrap()];
    let (code, _, err) = run(&[&file[..], &arguments].concat());
    assert_eq!((code, err.lines().count()), (2, 4), "{err}");
}

#[test]
fn check_names_file_and_line_when_the_configuration_is_bad() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("headway.toml");
    std::fs::write(&file, "# mine\nlissten = \"8081\"\n").unwrap();
    let (code, _, err) = run(&["serve", "--config", file.to_str().unwrap(), "--check"]);
    assert_eq!(code, 2);
    assert!(
        err.contains("headway.toml:2: ") && err.contains("did you mean `listen`?"),
        "{err}"
    );
}

#[test]
fn child_process_names_the_command_that_starts_it_without_a_master() {
    let output = headway()
        .arg("serve-log")
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("started by `headway serve`"), "{stderr}");
}

#[test]
fn manual_pages_and_completions_are_written_when_asked() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(run(&["man", directory.path().to_str().unwrap()]).0, 0);
    let page = std::fs::read_to_string(directory.path().join("headway-serve.1")).unwrap();
    assert!(page.contains("idle\\-timeout"), "{page}");
    assert!(!directory.path().join("headway-serve-worker.1").exists());
    let (code, out, _) = run(&["completions", "bash"]);
    assert!(code == 0 && out.contains("headway"));
}

/// Needs: root, and no user `headway`
#[test]
fn root_starts_no_server_for_other_machines_without_a_user() {
    const NAME: &str = "root_starts_no_server_for_other_machines_without_a_user";
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    if !is_root() || users.lines().any(|line| line.starts_with("headway:")) {
        return skip(NAME, "root, and no user `headway`");
    }
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().to_str().unwrap();
    let serve = |more: &[&str]| {
        let listen = ["serve", root, "--listen", "127.0.0.1:0", "--listen", ":0"];
        run(&[&listen[..], more].concat())
    };
    let (code, _, err) = serve(&[]);
    assert_eq!(code, 1, "{err}");
    for part in [
        "headway: user: root starts no server at 0.0.0.0:0",
        "useradd --system headway",
        "--user www-data",
        "--user root stays root",
    ] {
        assert!(err.contains(part), "{part}: {err}");
    }
    // It may be for a server that another user starts.
    let (code, _, err) = serve(&["--check"]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("user: root starts no server"), "{err}");
    let (code, _, err) = serve(&["--check", "--user", "root"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let server = Server::start_hello(headway(), &["--listen", ":0", "--user", "root"]);
    assert_eq!(server.get("/").0, 200);
}

#[test]
fn error_names_the_port_when_it_is_in_use() {
    let server = Server::start_hello(headway(), &[]);
    let (code, _, err) = run(&["serve", "--listen", &server.address]);
    assert_eq!(code, 1);
    let expected = format!(
        "headway: listen: bind({}): EADDRINUSE: another process",
        server.address
    );
    assert!(err.starts_with(&expected), "{err}");
}

#[test]
fn server_does_not_start_when_the_log_cannot_be_opened() {
    let directory = tempfile::tempdir().unwrap();
    let locked = directory.path().join("socket");
    let _socket = std::os::unix::net::UnixListener::bind(&locked).unwrap();
    let log = locked.to_str().unwrap();
    let (code, _, err) = run(&["serve", "--listen", "127.0.0.1:0", "--log", log]);
    assert_eq!(code, 1);
    assert!(
        err.contains("cannot open access log: open(") && err.contains("not starting"),
        "{err}"
    );
}

#[test]
fn server_does_not_start_when_the_log_is_a_pipe_without_a_reader() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("pipe");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &log, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let log = log.to_str().unwrap();
    let (code, _, err) = run(&["serve", "--listen", "127.0.0.1:0", "--log", log]);
    assert_eq!(code, 1);
    assert!(err.contains("it has no reader; not starting"), "{err}");
}

#[test]
fn server_ends_with_the_file_name_when_the_ready_file_cannot_be_written() {
    let (code, _, err) = run(&[
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--ready-file",
        "/no/such/ready",
    ]);
    assert_eq!(code, 1);
    assert!(err.contains("ready file /no/such/ready: "), "{err}");
}

#[test]
fn ready_file_has_the_port_that_the_kernel_chose() {
    let server = Server::start_hello(headway(), &[]);
    assert!(!server.address.ends_with(":0"));
    assert_eq!(server.get("/"), (200, "hello".into()));
    let stderr = server.stop();
    assert!(stderr.contains(&format!(
        "on http://{} (2 workers, epoll)",
        server_address(&stderr)
    )));
}

fn server_address(text: &str) -> String {
    text.split("http://")
        .nth(1)
        .unwrap()
        .split(' ')
        .next()
        .unwrap()
        .into()
}

/// The example of the documentation, word for word, in a directory which has the files it names.
#[test]
fn example_configuration_is_valid_when_its_files_exist() {
    let example = include_str!("../../../docs/examples/headway.toml");
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::create_dir_all(at("www")).unwrap();
    std::fs::create_dir_all(at("blog")).unwrap();
    std::fs::create_dir_all(at("cgi-bin")).unwrap();
    std::fs::write(at("www/missing.html"), "gone").unwrap();
    std::fs::write(at("headway.toml"), example).unwrap();
    let file = at("headway.toml");
    let (code, stdout, error) = run(&["serve", "--check", "--config", file.to_str().unwrap()]);
    assert_eq!((code, error.as_str()), (0, ""), "{stdout}");
    assert!(stdout.contains("idle-timeout = \"60s\""), "{stdout}");
}
