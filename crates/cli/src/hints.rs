//! What a user means who types an option of another tool, or a subcommand of `headway-lab`.

const DIRECTORY: &str = "give the directory as the first argument: headway serve DIR";
const LISTEN: &str = "give the address with --listen ADDRESS:PORT";
const URL: &str = "give the address in the URL: http://HOST:PORT/path";
const PERCENTILES: &str = "percentiles are always printed";
const CONNECTIONS: &str = "set the number of connections with -c N, or a rate with -R N";
const RESPONSE_HEADERS: &str = "add response headers with [[header]] in a configuration file";
const TIMEOUTS: &str = "set a timeout by what it limits: --idle-timeout, --header-timeout, --body-timeout or --send-timeout";

const RESEARCH: &str =
    "the servers of the papers are for research: headway-lab serve has this option";

/// Options of other tools, by command, and what to use here.
pub const HINTS: &[(&str, &[&str], &str)] = &[
    ("serve", &["--root", "--directory", "-d"], DIRECTORY),
    ("serve", &["-t"], "check the configuration with --check"),
    ("serve", &["--host", "--bind"], LISTEN),
    (
        "serve",
        &["--threads"],
        "set the number of worker processes with --workers N",
    ),
    (
        "serve",
        &["--access-log"],
        "write an access log with --log PATH",
    ),
    ("serve", &["-H", "--header"], RESPONSE_HEADERS),
    ("serve", &["--timeout", "--deadline"], TIMEOUTS),
    (
        "serve",
        &["--cert", "--https", "--ssl", "--certificate"],
        "serve HTTPS with --tls-listen :443 --tls-certificate PATH --tls-key PATH, or with --tls for development",
    ),
    (
        "serve",
        &["--latency"],
        "measure latency with headway load URL",
    ),
    (
        "serve",
        &[
            "--preset",
            "--opening",
            "--send-method",
            "--mapped-max",
            "--close-mapped",
            "--original-limits",
            "--eager-read",
            "--eager-write",
            "--accept-on-close",
            "--full-read",
            "--send-order",
            "--caching",
            "--thundering-herd",
            "--stall-every",
        ],
        RESEARCH,
    ),
    (
        "backend",
        &["--port", "-p", "--listen"],
        "clients connect to a Unix socket: --socket PATH",
    ),
    ("load", &["-u", "--vus"], CONNECTIONS),
    ("load", &["--latency"], PERCENTILES),
    ("load", &["-z"], "set the duration with -d TIME"),
    ("load", &["--port", "-p", "--bind"], URL),
    (
        "load",
        &["--disable-keepalive"],
        "close each connection with --requests-per-connection 1",
    ),
    (
        "load",
        &["-k"],
        "connections are kept alive; --insecure does not verify certificates",
    ),
    (
        "load",
        &["--specweb99"],
        "measure a SPECweb99-like load with headway-lab specweb99 URL",
    ),
    ("profile", &["--latency"], PERCENTILES),
    ("profile", &["--port", "-p", "--bind"], URL),
    ("trace", &["-f"], "child processes are always followed"),
    ("trace", &["-c"], "the summary is always printed"),
    ("trace", &["-e"], "choose system calls with --call NAME,…"),
    (
        "trace",
        &["-t", "-r"],
        "keep calls with their times: --every-call --chrome FILE",
    ),
];

/// Subcommands of `headway-lab`.
pub const ELSEWHERE: &[(&str, &str)] = &[
    (
        "lab",
        "the lab is a program of its own: headway-lab up, headway-lab exec, headway-lab down",
    ),
    (
        "study",
        "repeat the papers' experiments with headway-lab study",
    ),
    (
        "specweb99",
        "measure a SPECweb99-like load with headway-lab specweb99",
    ),
    ("counters", "count what CPUs do with headway-lab counters"),
    (
        "schedule",
        "analyze pairs of programs with headway-lab schedule",
    ),
];
