//! Mistakes of a configuration are reported with key and line, and valid settings take effect.

use headway_config::research::{Preset, ResearchSettings};
use headway_config::settings::{HostSettings, from_command_line};
use headway_config::units::OneOrMany;
use headway_config::{
    AcceptBatch, Checked, Config, ConfigError, ConfigFile, Endpoint, Environment, KnownExtensions,
    Location, LogFormat, Memory, Opening, SendMethod, SendVariant, Settings,
};
use std::path::Path;

use crate::{HERE, RESEARCH_SERVER};

mod acme;
mod include;
mod mistakes;
mod mistakes_of_tables;
mod reference;
mod tls;

/// Checks a file that lies in a directory with `site/index.html` and `errors/404.html`.
fn check(text: &str) -> Result<Checked, Vec<ConfigError>> {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("site")).unwrap();
    std::fs::write(directory.path().join("site/index.html"), "hello").unwrap();
    std::fs::create_dir(directory.path().join("errors")).unwrap();
    std::fs::write(directory.path().join("errors/404.html"), "none").unwrap();
    let path = directory.path().join("headway.toml");
    Config::load(ConfigFile { path: &path, text }, Settings::default(), &HERE)
}

fn good(text: &str) -> Config {
    check(text)
        .unwrap_or_else(|errors| panic!("{text}\n{errors:?}"))
        .config
}

#[test]
fn settings_have_defaults_when_nothing_is_set() {
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
fn response_cache_is_an_error_when_memory_is_short() {
    let option = |text: &str, environment: Environment| {
        let settings = Settings::from_toml(text, Path::new("/headway.toml")).unwrap();
        let errors = Config::check(&settings, None, &environment).unwrap_err();
        assert!(errors.iter().all(ConfigError::is_environment), "{errors:?}");
        errors[0].to_string()
    };
    let all = option("workers = 3\nresponse-cache-max = \"3GiB\"", HERE);
    let one = option("workers = 1\nresponse-cache-max = \"4GiB\"", HERE);
    for (option, parts) in [
        (
            &all,
            ["3 workers", "8GiB", "lower response-cache-max or workers"],
        ),
        (&one, ["a worker", "4GiB", "RLIMIT_AS"]),
    ] {
        for word in parts {
            assert!(option.contains(word), "{word}: {option}");
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
fn content_store_takes_descriptors_of_the_file_cache() {
    let text =
        "root = \"site\"\nworkers = 4\nmax-connections = 1000\ncontent-store-max = \"64MiB\"";
    let checked =
        |descriptors: u32| good(&format!("{text}\nfile-cache-descriptors = {descriptors}"));
    let config = checked(10_000);
    assert_eq!(config.content_store_bytes_per_worker(), 16 << 20);
    // A quarter of the file cache's, and no more than files of the least size fit.
    assert_eq!(config.content_store_descriptors(), 2500);
    assert_eq!(checked(1000).content_store_descriptors(), 250);
    let small = good("root = \"site\"\nworkers = 4\ncontent-store-max = \"1MiB\"");
    assert_eq!(small.content_store_descriptors(), 64);
}

#[test]
fn connections_and_cached_files_fit_the_descriptor_limit() {
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
fn host_inherits_settings_of_the_top_level() {
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
fn default_host_is_first_when_root_is_set() {
    let config = good("root = \"errors\"\n[[host]]\nnames = \"a\"\nroot = \"site\"");
    assert!(config.hosts[0].names.is_empty() && config.hosts[0].root.ends_with("errors"));
}

#[test]
fn key_with_underscores_is_an_error_with_the_right_spelling() {
    let errors = check("root = \"site\"\nheader_timeout = \"2s\"").unwrap_err();
    let messages: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert!(
        messages[0].contains("did you mean `header-timeout`?"),
        "{messages:?}"
    );
}

#[test]
fn options_take_precedence_over_the_file() {
    let mut settings = Settings::from_toml(
        "workers = 1\nlisten = \"1\"\nlog = \"/a.log\"",
        Path::new("/headway.toml"),
    )
    .unwrap();
    let listen = OneOrMany(vec!["2".parse::<Endpoint>().unwrap()]);
    settings.overlay(
        Settings {
            listen: Some(from_command_line(listen)),
            log_format: Some(from_command_line(LogFormat::Json)),
            ..Settings::default()
        },
        KnownExtensions::NONE,
    );
    let config = Config::check(&settings, None, &HERE).unwrap().config;
    let port = config.listen[0].tcp().unwrap().port();
    assert_eq!((config.workers, port), (1, 2));
    let log = config.log.unwrap();
    assert_eq!(
        (log.path.as_path(), log.format.clone()),
        (Path::new("/a.log"), LogFormat::Json)
    );
}

#[test]
fn preset_sets_defaults_only() {
    let flash = good("research.preset = \"flash\"");
    assert_eq!(
        (flash.research.opening, flash.research.send_method),
        (Opening::Touch, Some(SendVariant::Mmap))
    );
    let memory = (flash.small_file_max_bytes, flash.response_cache_max_bytes);
    assert_eq!(memory, (0, 0), "no small files in memory, and none taken");
    assert_eq!(flash.memory_bytes(), 0);
    assert_eq!(flash.revalidate_ms, 60_000);
    let mixed = good(
        "research.preset = \"flash\"\nresearch.opening = \"probe-then-pass\"\nsmall-file-max = \"1KiB\"\nresponse-cache-max = \"1MiB\"",
    );
    assert_eq!(
        (mixed.research.opening, mixed.research.send_method),
        (Opening::Probe, Some(SendVariant::Mmap))
    );
    assert_eq!(
        (mixed.small_file_max_bytes, mixed.revalidate_ms),
        (1024, 1000)
    );
    let usual = good("root = \"/\"");
    assert_eq!(good("root = \"/\"\nresearch.preset = \"headway\""), usual);
    assert_eq!(
        (usual.small_file_max_bytes, usual.revalidate_ms),
        (128 << 10, 1000)
    );
}

#[test]
fn send_written_beside_a_preset_is_a_way_of_headway() {
    let config = good("research.preset = \"flash\"\nsend = \"sendfile\"");
    assert_eq!(
        (config.send, config.research.send_method),
        (SendMethod::Sendfile, None)
    );
    assert_eq!(config.research.opening, Opening::Touch);
}

#[test]
fn server_for_users_prints_no_research_table() {
    let users = Environment {
        extensions: KnownExtensions::NONE,
        ..HERE
    };
    let checked = Config::check(&Settings::default(), None, &users).unwrap();
    let printed = checked.config.to_toml();
    for word in ["[research]", "opening", "eager", "mapped", "fork"] {
        assert!(!printed.contains(word), "{word}: {printed}");
    }
}

#[test]
fn preset_option_replaces_opening_and_send_of_the_file() {
    let text = "send = \"sendfile\"\nresearch.opening = \"pass-descriptor\"\nhelpers-min = 3";
    let path = Path::new("/headway.toml");
    let mut settings = Settings::from_toml_with(text, path, RESEARCH_SERVER).unwrap();
    let research = ResearchSettings {
        preset: Some(from_command_line(Preset::Flash)),
        ..ResearchSettings::default()
    };
    let over = Settings {
        research: Some(from_command_line(research)),
        helpers: Some(from_command_line("5".parse().unwrap())),
        ..Settings::default()
    };
    settings.overlay(over, RESEARCH_SERVER);
    let config = Config::check(&settings, None, &HERE).unwrap().config;
    assert_eq!(
        (config.research.opening, config.research.send_method),
        (Opening::Touch, Some(SendVariant::Mmap))
    );
    assert_eq!((config.helpers_min, config.helpers_max), (5, 5));
}

#[test]
fn warning_when_status_is_public_or_backlog_is_reduced() {
    let checked = check("status = \":9090\"\nbacklog = 8192").unwrap();
    let messages: Vec<String> = checked.warnings.iter().map(ToString::to_string).collect();
    assert!(
        messages
            .iter()
            .any(|messages| messages.contains("toml:2: backlog") && messages.contains("4096"))
    );
    assert!(
        messages
            .iter()
            .any(|messages| messages.contains("toml:1: status") && messages.contains("loopback"))
    );
}

#[test]
fn effective_settings_are_the_same_when_read_back() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("404.html"), "none").unwrap();
    let text = "listen = [\":0\", \"[::1]:0\", \"unix:a b.sock\"]\nlisten-mode = \"600\"\nstatus = \"9\"\nhide-server-header = true\nlisting = true\n\
        log = \"a \\\"b\\\".log\"\nlog-format = \"json\"\n\
        max-connections-per-address = 7\nmin-transfer-rate = 0\nbuffer-memory-max = \"1MiB\"\n\
        buffer-disk-max = 0\ndefer-accept = false\nresearch.preset = \"no-mmap\"\nhelpers = \"2-5\"\n\
        [mime-types]\nmd = \"text/markdown\"\n[error-pages]\n404 = \"404.html\"\n\
        [[header]]\nprefix = \"/a/\"\nname = \"Cache-Control\"\nvalue = \"max-age=60\"\n\
        [[header]]\nsuffix = \".js\"\ncontent-type = \"TEXT/*\"\nwhen = [404, \"5xx\", \"success\"]\n\
        name = \"X\"\naction = \"remove\"\n\
        [[cors]]\nprefix = \"/api/\"\norigins = \"https://a.example\"\ncredentials = true\nmax-age = 5\n\
        [[host]]\nroot = \".\"\nlog = \"-\"\n[[host.cors]]\norigins = \"*\"\nheaders = \"*\"\n\
        [[host]]\nnames = [\"y\", \"www.y\", \"*.y\"]\ncanonical = \"https://www.y:8443\"\nroot = \".\"\nclean-urls = true\n\
        [[host]]\nnames = \"z\"\ncanonical = \"z\"\nroot = \".\"\nfallback = \"/a\"\nlog-format = \"{client}\"\n\
        [[host]]\nnames = \"x\"\nroot = \".\"\nindex = []\n\
        [[host.header]]\nwhen = \"any\"\naction = \"append\"\nname = \"Y\"\nvalue = \"z\"";
    let path = directory.path().join("headway.toml");
    let settings = Settings::from_toml_with(text, &path, RESEARCH_SERVER).unwrap();
    let config = Config::check(&settings, None, &HERE).unwrap().config;
    let printed = config.to_toml();
    let path = Path::new("/printed.toml");
    let again = Settings::from_toml_with(&printed, path, RESEARCH_SERVER).unwrap();
    assert_eq!(
        Config::check(&again, None, &HERE).unwrap().config,
        config,
        "{printed}"
    );
}

#[test]
fn values_of_otlp_headers_are_in_no_output() {
    let secret = "Bearer-s3cret";
    let text = |headers: &str| {
        format!("root = \"site\"\notlp-endpoint = \"http://c\"\notlp-headers = {headers}\n")
    };
    let config = good(&text(&format!("{{ Authorization = {secret:?} }}")));
    let (toml, json) = (config.to_toml(), config.to_json());
    for printed in [&toml, &json, &format!("{config:?}")] {
        assert!(printed.contains("Authorization"), "{printed}");
        assert!(!printed.contains("s3cret"), "{printed}");
    }
    assert!(toml.contains("otlp-headers = { \"Authorization\" = \"(hidden)\" }"));
    for wrong in [
        format!("{{ Authorization = [{secret:?}] }}"),
        format!("{secret:?}"),
        format!("[{secret:?}]"),
        format!("{{ Authorization = {secret:?} "),
        format!("{{ \"\" = {secret:?} }}"),
    ] {
        let errors = check(&text(&wrong)).unwrap_err();
        let said: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert!(!said.is_empty(), "{wrong}");
        assert!(said.iter().all(|one| !one.contains("s3cret")), "{said:?}");
    }
}

#[test]
fn log_is_standard_output_when_it_is_a_dash() {
    let path = |log: &str| {
        good(&format!("root = \"site\"\nlog = {log:?}"))
            .log
            .unwrap()
            .path
    };
    assert_eq!(path("-"), Path::new("/dev/stdout"));
    assert!(path("./-").ends_with("-"), "a file");
}

#[test]
fn proxies_have_more_slots_than_handlers_with_a_process_for_each_request() {
    let config = good(
        "root = \"site\"\n[[location]]\nprefix = \"/a/\"\nproxy = \"127.0.0.1:1\"\n\
         [[location]]\nprefix = \"/b/\"\nfastcgi = \"127.0.0.1:2\"\n",
    );
    let slots = |location: &Location| (location.concurrency, location.request_buffering);
    let all: Vec<_> = config.hosts[0].locations.iter().map(slots).collect();
    assert_eq!(all, [(256, true), (16, true)]);
    assert!(config.buffer_files_max >= 16);
    assert_eq!(good("root = \"site\"").buffer_files_max, 0, "no handlers");
}

#[test]
fn root_is_the_current_directory_when_none_is_set() {
    let config = Config::check(&Settings::default(), None, &HERE)
        .unwrap()
        .config;
    assert_eq!(
        config.hosts[0].root,
        std::env::current_dir().unwrap().canonicalize().unwrap()
    );
    assert!(HostSettings::default().names.is_none());
}
