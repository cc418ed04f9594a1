//! Every mistake in a configuration is told with its key and line, and good ones come out as meant.

use headway_server::config::settings::{HostSettings, given};
use headway_server::config::units::{ListenAddress, Many};
use headway_server::config::{
    AcceptBatch, Checked, Config, ConfigError, Environment, LogFormat, Memory, Opening, Preset,
    SendMethod, Settings, Source,
};
use std::path::Path;

const HERE: Environment = Environment {
    cpus: 2,
    nofile: 20_000,
    somaxconn: 4096,
    memory: Memory {
        bytes: 8 << 30,
        limited: false,
    },
    process_memory_bytes: 4 << 30,
};

/// Checks a file that lies in a directory with `site/index.html` and `errors/404.html`.
fn check(text: &str) -> Result<Checked, Vec<ConfigError>> {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("site")).unwrap();
    std::fs::write(directory.path().join("site/index.html"), "hello").unwrap();
    std::fs::create_dir(directory.path().join("errors")).unwrap();
    std::fs::write(directory.path().join("errors/404.html"), "none").unwrap();
    let path = directory.path().join("headway.toml");
    let settings = Settings::from_toml(text, &path).map_err(|error| vec![error])?;
    Config::check(&settings, Some(Source { path: &path, text }), &HERE)
}

fn good(text: &str) -> Config {
    check(text)
        .unwrap_or_else(|errors| panic!("{text}\n{errors:?}"))
        .config
}

/// Each case: the file, the line it is about, and words that the message must contain.
const MISTAKES: &[(&str, usize, &[&str])] = &[
    (
        "workers = 2\nworker = 3",
        2,
        &["unknown key `worker`", "`workers`"],
    ),
    ("zzzzzzzzz = 1", 1, &["unknown key `zzzzzzzzz`"]),
    (
        "workers = \"two\"",
        1,
        &["workers", "invalid type", "string"],
    ),
    ("\nworkers = 0", 2, &["workers", "0 is not within 1 to 256"]),
    ("workers = -1", 1, &["workers", "-1"]),
    ("listing = 1", 1, &["listing", "boolean"]),
    (
        "listen = \"localhost:80\"",
        1,
        &["listen", "localhost:80", "127.0.0.1:8080"],
    ),
    ("listen = []", 1, &["listen", "at least one"]),
    (
        "listen = [\"8080\", \"127.0.0.1:8080\"]",
        1,
        &["given twice"],
    ),
    ("listen = [\":8080\", \"127.0.0.1:8080\"]", 1, &["overlap"]),
    (
        "events = \"kqueue\"",
        1,
        &["events", "kqueue", "select, poll, epoll"],
    ),
    ("early-reject = \"404\"", 1, &["404", "off", "503", "reset"]),
    (
        "listeners = \"one\"",
        1,
        &["one", "reuseport", "shared", "shared-thundering"],
    ),
    ("send = \"splice\"", 1, &["splice", "copy", "sendfile"]),
    ("preset = \"apache\"", 1, &["apache", "`flash`, `fd-pass`"]),
    (
        "opening = \"touch\"",
        1,
        &["touch-and-reopen", "probe-then-pass"],
    ),
    ("helpers = 0", 1, &["helpers", "0 is not within 1 to 256"]),
    ("helpers = \"4-2\"", 1, &["helpers", "1-16", "io_uring"]),
    (
        "helpers-min = 2\nhelpers = 3",
        2,
        &["helpers", "leave out helpers-min"],
    ),
    (
        "mapped-max = \"1MiB\"",
        1,
        &["mapped-max", "not within 2MiB"],
    ),
    (
        "chunk-cache-max = \"1MiB\"",
        1,
        &["chunk-cache-max", "1MiB is not within 2MiB"],
    ),
    (
        "header-timeout = 10",
        1,
        &["header-timeout", "ms, s, m or h"],
    ),
    (
        "header-timeout = \"10\"",
        1,
        &["header-timeout", "ms, s, m or h"],
    ),
    (
        "idle_timeout = \"0\"",
        1,
        &["idle-timeout", "0ms is not within 1ms"],
    ),
    ("send-timeout = \"25h\"", 1, &["send-timeout", "86400s"]),
    (
        "max-header-size = \"64kib\"",
        1,
        &["max-header-size", "KiB"],
    ),
    (
        "max-header-size = \"1KiB\"\nmax-target-size = \"2KiB\"",
        2,
        &["max-target-size", "more than max-header-size"],
    ),
    (
        "helpers-min = 5\nhelpers-max = 4",
        1,
        &["helpers-min", "5 is more than helpers-max, 4"],
    ),
    (
        "small-file-max = \"64KiB\"\nresponse-cache-max = \"1KiB\"",
        1,
        &["small-file-max", "never fits"],
    ),
    (
        "send = \"mmap\"\npin-max = \"1GiB\"",
        2,
        &["pin-max", "no file is a small one", "leave it out"],
    ),
    (
        "max-connections = 30000",
        1,
        &[
            "max-connections",
            "limit is 20000",
            "RLIMIT_NOFILE",
            "lower",
        ],
    ),
    ("max-connections = 0", 1, &["max-connections", "at least 1"]),
    (
        "max-connections-per-address = -1",
        1,
        &["max-connections-per-address", "-1"],
    ),
    ("defer-accept = \"1s\"", 1, &["defer-accept", "boolean"]),
    (
        "max-connections = 15000\nfile-cache-descriptors = 9000",
        1,
        &["RLIMIT_NOFILE"],
    ),
    ("status = \"8080\"", 1, &["status", "also a listen address"]),
    (
        "\n\nroot = \"missing\"",
        3,
        &["root", "missing", "No such file"],
    ),
    (
        "root = \"site/index.html\"",
        1,
        &["root", "not a directory"],
    ),
    (
        "index = [\"a/b.html\"]",
        1,
        &["index", "a/b.html", "not a path"],
    ),
    (
        "server-header = \"x\"\nhide-server-header = true",
        1,
        &["server-header", "at once"],
    ),
    (
        "server-header = \"a\\nb\"",
        1,
        &["server-header", "visible ASCII"],
    ),
    ("log-format = \"json\"", 1, &["log-format", "no file"]),
    (
        "log = \"nowhere/a.log\"",
        1,
        &["log", "nowhere", "create it"],
    ),
    ("log = \"site\"", 1, &["log", "is a directory"]),
    ("log = \"a\"\nlog-format = \"xml\"", 2, &["xml", "combined"]),
    ("[log]\npath = \"a\"", 1, &["log"]),
    (
        "[mime-types]\n\"\" = \"text/plain\"",
        1,
        &["mime-types", "extension"],
    ),
    (
        "[mime-types]\nmd = \"markdown\"",
        1,
        &["mime-types", "markdown", "text/markdown"],
    ),
    (
        "[error-pages]\n200 = \"errors/404.html\"",
        1,
        &["error-pages", "200"],
    ),
    (
        "[error-pages]\n404 = \"errors/none.html\"",
        1,
        &["error-pages", "none.html"],
    ),
    (
        "[[header]]\nprefix = \"x\"\nname = \"A\"\nvalue = \"b\"",
        1,
        &["header", "slash"],
    ),
    (
        "[[header]]\nname = \"A B\"\nvalue = \"b\"",
        1,
        &["header", "`A B` is not a header name"],
    ),
    (
        "[[header]]\nname = \"content-length\"\nvalue = \"0\"",
        1,
        &["set by the server itself"],
    ),
    (
        "[[header]]\nname = \"A\"\nvalue = \"b\\r\\nC: d\"",
        1,
        &["header", "control"],
    ),
    ("[[header]]\nname = \"A\"", 1, &["missing field `value`"]),
    (
        "[[host]]\nnames = \"a.example\"",
        1,
        &["host", "needs a root"],
    ),
    (
        "[[host]]\nnames = \"a b\"\nroot = \"site\"",
        2,
        &["host.names", "`a b`"],
    ),
    (
        "[[host]]\nnames = \"a\"\nroot = \"site\"\n[[host]]\nnames = \"A\"\nroot = \"site\"",
        5,
        &["`a` names two hosts"],
    ),
    (
        "root = \"site\"\n[[host]]\nroot = \"site\"",
        2,
        &["never reached"],
    ),
    (
        "[[host]]\nroot = \"site\"\nlisten = \"80\"",
        3,
        &["unknown key `listen`"],
    ),
    ("workers = 1\nworkers = 2", 2, &["duplicate key"]),
    ("workers = ", 1, &["workers"]),
];

#[test]
fn a_mistake_is_told_with_its_key_and_line_when_the_file_has_one() {
    for (text, line, words) in MISTAKES {
        let errors = check(text).map(|good| good.config).expect_err(text);
        let told: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let place = format!("headway.toml:{line}: ");
        let right = |told: &String| told.contains(&place) && words.iter().all(|w| told.contains(w));
        assert!(
            told.iter().any(right),
            "{text}\nexpected {place}{words:?}, told {told:#?}"
        );
    }
}

#[test]
fn the_flag_is_named_when_the_mistake_is_on_the_command_line() {
    let settings = Settings {
        workers: Some(given(0)),
        ..Settings::default()
    };
    let errors = Config::check(&settings, None, &HERE).unwrap_err();
    assert_eq!(errors[0].to_string(), "--workers: 0 is not within 1 to 256");
    let settings = Settings {
        root: Some(given("/no/such".into())),
        ..Settings::default()
    };
    let errors = Config::check(&settings, None, &HERE).unwrap_err();
    assert!(
        errors[0]
            .to_string()
            .starts_with("DIR: the document root /no/such: ")
    );
    assert!(errors[0].is_environment());
}

#[test]
fn options_are_refused_when_they_say_otherwise_than_the_server_that_is_named() {
    for (text, expected) in [
        (
            "preset = 'accept1'\naccept-batch = 25",
            "accept-batch: the preset accept1 is the server whose accept-batch is 1; leave out",
        ),
        (
            "preset = 'accept25+cache'\ncaching = false",
            "caching: the preset accept25+cache is the server whose caching is on",
        ),
        (
            "preset = 'eager'\nfull-read = true",
            "full-read: the preset eager is the server whose full-read is off",
        ),
        (
            "preset = 'accept25'\neager-write = true",
            "eager-write: the micro-server writes eagerly to connections that it has read from",
        ),
        (
            "preset = 'accept25'\naccept-batch = 'auto'",
            "accept-batch: auto is a policy of Headway's own, the preset accept25 a server of a paper",
        ),
        (
            "preset = 'flash'\naccept-batch = 'auto'",
            "accept-batch: auto is a policy of Headway's own, the preset flash",
        ),
        (
            "accept-batch = 'auto'\naccept-on-close = true",
            "accept-on-close: accept-batch = \"auto\" decides how many clients a turn takes",
        ),
        (
            "preset = 'accept25'\nresponse-cache-max = '1MiB'",
            "response-cache-max: without caching nothing is kept",
        ),
        (
            "accept-batch = 25\nearly-reject = 'reset'",
            "early-reject: clients are turned away when the loop sees that more come than it can serve, and with \
             accept-batch = 25 it does not look; give accept-batch = \"auto\"",
        ),
        (
            "preset = 'eager'\nearly-reject = '503'",
            "with accept-batch = 0 it does not look; leave the preset out",
        ),
        (
            "accept-on-close = true\nearly-reject = '503'",
            "with accept-batch = 25 it does not look; leave accept-on-close out",
        ),
        (
            "backlog = -3",
            "backlog: -3 is no length for a queue: write 1 to 1048576, and the kernel makes at most 4096 of it",
        ),
        ("backlog = 99999999999", "backlog: 99999999999 is no length"),
        (
            "max-connections = 30000",
            "(RLIMIT_NOFILE, ulimit -Hn); lower max-connections",
        ),
    ] {
        let errors = check(&format!("root = \"site\"\n{text}")).unwrap_err();
        let told: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert!(told.len() == 1 && told[0].contains(expected), "{told:?}");
    }
    // What Headway itself can do, and what agrees with the name.
    good("root = \"site\"\neager-read = false\neager-write = true");
    good("root = \"site\"\npreset = 'eager'\neager-read = true\naccept-batch = 0");
    let count = |text: &str| good(&format!("root = \"site\"\n{text}")).accept_batch;
    for text in [
        "accept-on-close = true",
        "preset = 'flash'",
        "preset = 'new-flash'",
    ] {
        assert_eq!(count(text), AcceptBatch::Most(25), "{text}");
    }
    assert_eq!(count("early-reject = 'reset'"), AcceptBatch::Auto);
}

#[test]
fn every_mistake_is_told_at_once_when_there_are_several() {
    let errors = check("workers = 0\nroot = \"missing\"\nevents = \"none\"").unwrap_err();
    assert_eq!(errors.len(), 3, "{errors:?}");
}

#[test]
fn defaults_hold_when_nothing_is_written() {
    let config = good("root = \"site\"");
    assert_eq!(config.listen, ["127.0.0.1:8080".parse().unwrap()]);
    assert_eq!(
        (config.workers, config.events.as_str(), config.accept_batch),
        (2, "epoll", AcceptBatch::Auto)
    );
    assert_eq!(
        (config.header_timeout_ms, config.idle_timeout_ms),
        (10_000, 60_000)
    );
    assert_eq!(
        (config.max_header_bytes, config.small_file_max_bytes),
        (16384, 131_072)
    );
    assert_eq!(config.server_header.as_deref(), Some("Headway"));
    assert!(config.defer_accept && config.max_connections_per_address == 0);
    assert!(config.trace && config.log.is_none() && config.status.is_none());
    let host = &config.hosts[0];
    assert!(!host.listing && !host.dotfiles && host.precompressed);
    assert_eq!(host.index, ["index.html"]);
}

#[test]
fn memory_that_is_not_there_is_an_error_when_workers_would_take_it() {
    let said = |text: &str, environment: Environment| {
        let settings = Settings::from_toml(text, Path::new("/headway.toml")).unwrap();
        let errors = Config::check(&settings, None, &environment).unwrap_err();
        assert!(errors.iter().all(ConfigError::is_environment), "{errors:?}");
        errors[0].to_string()
    };
    let all = said("workers = 3\nresponse-cache-max = \"3GiB\"", HERE);
    let one = said("workers = 1\nresponse-cache-max = \"4GiB\"", HERE);
    for (said, words) in [
        (
            &all,
            ["3 workers", "8GiB", "lower response-cache-max or workers"],
        ),
        (&one, ["a worker", "4GiB", "RLIMIT_AS"]),
    ] {
        for word in words {
            assert!(said.contains(word), "{word}: {said}");
        }
    }
    good("workers = 2\nresponse-cache-max = \"3GiB\"");
    let small = Environment {
        memory: Memory {
            bytes: 256 << 20,
            limited: false,
        },
        ..HERE
    };
    let config = Config::check(&Settings::default(), None, &small)
        .unwrap()
        .config;
    let defaults = (
        config.response_cache_max_bytes,
        config.chunk_cache_max_bytes,
    );
    assert_eq!(defaults, (1 << 20, 2 << 20), "the defaults give way");
}

#[test]
fn the_descriptor_budget_is_kept_when_the_limit_is_any() {
    for nofile in [256, 1024, 4096, 20_000, 1 << 20] {
        let environment = Environment { nofile, ..HERE };
        let config = Config::check(&Settings::default(), None, &environment)
            .unwrap()
            .config;
        let used = u64::from(config.max_connections) + config.file_cache_descriptors as u64;
        assert!(used + 160 <= nofile, "{nofile}: {used}");
        assert!(config.max_connections <= 15_000);
    }
}

#[test]
fn hosts_inherit_from_the_top_level_when_they_leave_a_setting_out() {
    let config = good(
        "listing = true\nindex = \"home.html\"\n[[host]]\nnames = [\"A.Example.\", \"*.b\"]\n\
         root = \"site\"\n[[host]]\nnames = \"c\"\nroot = \"errors\"\nlisting = false\nindex = []",
    );
    assert_eq!(config.hosts.len(), 2);
    assert_eq!(config.hosts[0].names, ["a.example", "*.b"]);
    assert_eq!(
        (config.hosts[0].listing, config.hosts[1].listing),
        (true, false)
    );
    assert_eq!(config.hosts[0].index, ["home.html"]);
    assert!(config.hosts[1].index.is_empty());
    assert!(config.hosts[0].root.is_absolute() && config.hosts[0].root.ends_with("site"));
}

#[test]
fn the_default_host_stands_first_when_a_root_is_given() {
    let config = good("root = \"errors\"\n[[host]]\nnames = \"a\"\nroot = \"site\"");
    assert!(config.hosts[0].names.is_empty() && config.hosts[0].root.ends_with("errors"));
}

#[test]
fn a_key_with_underscores_is_an_error_when_it_is_written_with_hyphens() {
    let errors = check("root = \"site\"\nheader_timeout = \"2s\"").unwrap_err();
    let told: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert!(
        told[0].contains("did you mean `header-timeout`?"),
        "{told:?}"
    );
}

#[test]
fn the_command_line_wins_when_the_file_says_otherwise() {
    let mut settings = Settings::from_toml(
        "workers = 1\nlisten = \"1\"\nlog = \"/a.log\"",
        Path::new("/headway.toml"),
    )
    .unwrap();
    let listen = Many(vec!["2".parse::<ListenAddress>().unwrap()]);
    settings.overlay(Settings {
        listen: Some(given(listen)),
        log_format: Some(given(LogFormat::Json)),
        ..Settings::default()
    });
    let config = Config::check(&settings, None, &HERE).unwrap().config;
    assert_eq!((config.workers, config.listen[0].port()), (1, 2));
    let log = config.log.unwrap();
    assert_eq!(
        (log.path.as_path(), log.format),
        (Path::new("/a.log"), LogFormat::Json)
    );
}

#[test]
fn preset_decides_what_is_not_given_and_nothing_else() {
    let flash = good("preset = \"flash\"");
    assert_eq!(
        (flash.opening, flash.send),
        (Opening::Touch, SendMethod::Mmap)
    );
    let memory = (flash.small_file_max_bytes, flash.response_cache_max_bytes);
    assert_eq!(memory, (0, 0), "no small files in memory, and none taken");
    assert_eq!(flash.memory_bytes(), 0);
    assert_eq!(flash.revalidate_ms, 60_000);
    let mixed = good(
        "preset = \"flash\"\nopening = \"probe-then-pass\"\nsmall-file-max = \"1KiB\"\nresponse-cache-max = \"1MiB\"",
    );
    assert_eq!(
        (mixed.opening, mixed.send),
        (Opening::Probe, SendMethod::Mmap)
    );
    assert_eq!(
        (mixed.small_file_max_bytes, mixed.revalidate_ms),
        (1024, 1000)
    );
    let usual = good("root = \"/\"");
    assert_eq!(good("root = \"/\"\npreset = \"headway\""), usual);
    assert_eq!(
        (usual.small_file_max_bytes, usual.revalidate_ms),
        (128 << 10, 1000)
    );
}

#[test]
fn preset_of_the_command_line_wins_over_the_axes_of_the_file() {
    let text = "send = \"sendfile\"\nopening = \"pass-descriptor\"\nhelpers-min = 3";
    let mut settings = Settings::from_toml(text, Path::new("/headway.toml")).unwrap();
    settings.overlay(Settings {
        preset: Some(given(Preset::Flash)),
        helpers: Some(given("5".parse().unwrap())),
        ..Settings::default()
    });
    let config = Config::check(&settings, None, &HERE).unwrap().config;
    assert_eq!(
        (config.opening, config.send),
        (Opening::Touch, SendMethod::Mmap)
    );
    assert_eq!((config.helpers_min, config.helpers_max), (5, 5));
}

#[test]
fn a_warning_is_given_when_the_status_page_is_public_or_the_queue_is_cut() {
    let checked = check("status = \":9090\"\nbacklog = 8192").unwrap();
    let told: Vec<String> = checked.warnings.iter().map(ToString::to_string).collect();
    assert!(
        told.iter()
            .any(|told| told.contains("toml:2: backlog") && told.contains("4096"))
    );
    assert!(
        told.iter()
            .any(|told| told.contains("toml:1: status") && told.contains("loopback"))
    );
}

#[test]
fn the_effective_settings_are_the_same_when_read_back() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("404.html"), "none").unwrap();
    let text = "listen = [\":0\", \"[::1]:0\"]\nstatus = \"9\"\nhide-server-header = true\nlisting = true\n\
        log = \"a \\\"b\\\".log\"\nlog-format = \"json\"\n\
        max-connections-per-address = 7\ndefer-accept = false\npreset = \"no-mmap\"\nhelpers = \"2-5\"\n\
        [mime-types]\nmd = \"text/markdown\"\n[error-pages]\n404 = \"404.html\"\n\
        [[header]]\nprefix = \"/a/\"\nname = \"Cache-Control\"\nvalue = \"max-age=60\"\n\
        [[host]]\nroot = \".\"\n[[host]]\nnames = \"x\"\nroot = \".\"\nindex = []";
    let path = directory.path().join("headway.toml");
    let settings = Settings::from_toml(text, &path).unwrap();
    let config = Config::check(&settings, None, &HERE).unwrap().config;
    let printed = config.to_toml();
    let again = Settings::from_toml(&printed, Path::new("/printed.toml")).unwrap();
    assert_eq!(
        Config::check(&again, None, &HERE).unwrap().config,
        config,
        "{printed}"
    );
}

#[test]
fn a_host_without_settings_is_the_current_directory_when_none_is_written() {
    let config = Config::check(&Settings::default(), None, &HERE)
        .unwrap()
        .config;
    assert_eq!(
        config.hosts[0].root,
        std::env::current_dir().unwrap().canonicalize().unwrap()
    );
    assert!(HostSettings::default().names.is_none());
}
