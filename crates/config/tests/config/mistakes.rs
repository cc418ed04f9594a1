//! Mistakes, each with its line and key.

use headway_config::keys::reference;
use headway_config::settings::from_command_line;
use headway_config::{AcceptBatch, Config, Settings};
use std::path::Path;

use super::mistakes_of_tables::MISTAKES_OF_TABLES;
use super::{check, good};
use crate::{HERE, RESEARCH_SERVER};

/// The file, the line it is about, and parts that the message must contain.
pub(super) type Mistake = (&'static str, usize, &'static [&'static str]);

const MISTAKES: &[Mistake] = &[
    (
        "workers = 2\nworker = 3",
        2,
        &["worker: unknown key", "did you mean `workers`?"],
    ),
    ("zzzzzzzzz = 1", 1, &["zzzzzzzzz: unknown key"]),
    (
        "workers = \"two\"",
        1,
        &["workers: `\"two\"` is not a whole number; example: workers = 4"],
    ),
    ("\nworkers = 0", 2, &["workers", "0 is not within 1 to 256"]),
    (
        "worker-timeout = \"1ms\"",
        1,
        &["worker-timeout: less than 1s", "0 turns it off"],
    ),
    ("log = \"\"", 1, &["log: a path is not empty"]),
    ("root = \"a\\u0000b\"", 1, &["has no null byte"]),
    ("log = \"a\\nb/c\"", 1, &[r"/a\nb does not exist"]),
    ("workers = -1", 1, &["workers: -1 is negative"]),
    (
        "workers = \"2\"",
        1,
        &["write the number without quotes: workers = 4"],
    ),
    ("workers = 1.5", 1, &["`1.5` is not a whole number"]),
    (
        "max-connections = 99999999999",
        1,
        &["99999999999 is too large; write at most 4294967295"],
    ),
    ("root = 8", 1, &["`8` is not a path in quotes", "example"]),
    ("port = 80", 1, &["port: unknown key", "listen = 8080"]),
    (
        "proxy = \"127.0.0.1:1\"",
        1,
        &["it belongs in a [[location]] table"],
    ),
    (
        "[[location]]\nprefix = \"/\"\nproxi = \"a:1\"",
        3,
        &["location.proxi: unknown key", "`proxy`"],
    ),
    (
        "[[location]]\nprefix = \"/\"\nupstreams = \"a:1\"",
        3,
        &["location.upstreams: unknown key", "write proxy ="],
    ),
    (
        "[[location]]\nprefix = \"/\"\nfiles = true\ncgi = true\nproxy = \"127.0.0.1:1\"",
        1,
        &["this one has cgi, proxy and files; keep one"],
    ),
    ("[host]\nroot = \"site\"", 1, &["[[host]]"]),
    ("host = 1", 1, &["[[host]]"]),
    (
        "listing = 1",
        1,
        &["`1` is not true or false; example: listing = true"],
    ),
    (
        "listen = \"example.com:80\"",
        1,
        &["listen", "example.com:80", "127.0.0.1:8080"],
    ),
    ("listen = []", 1, &["listen", "at least one"]),
    (
        "listen = [\"8080\", \"127.0.0.1:8080\"]",
        1,
        &["listed twice"],
    ),
    ("listen = [\":8080\", \"127.0.0.1:8080\"]", 1, &["overlap"]),
    (
        "events = \"kqueue\"",
        1,
        &["events", "kqueue", "select, poll, epoll"],
    ),
    ("early-reject = \"404\"", 1, &["404", "off", "503", "reset"]),
    ("listeners = \"one\"", 1, &["one", "reuseport", "shared"]),
    ("send = \"splice\"", 1, &["splice", "copy", "sendfile"]),
    (
        "research.preset = \"apache\"",
        1,
        &["apache", "flash, flash-sendfile, fd-pass"],
    ),
    (
        "research.opening = \"touch\"",
        1,
        &["touch-and-reopen", "probe-then-pass"],
    ),
    ("helpers = 0", 1, &["helpers", "0 is not within 1 to 256"]),
    ("helpers = \"4-2\"", 1, &["helpers", "1-16", "io_uring"]),
    (
        "helpers-min = 2\nhelpers = 3",
        2,
        &["helpers", "remove helpers-min"],
    ),
    (
        "research.stall-every = 0",
        1,
        &["stall-every", "0 is not a number of requests"],
    ),
    (
        "research.mapped-max = \"1MiB\"",
        1,
        &["mapped-max", "not within 2MiB"],
    ),
    (
        "chunk-cache-max = \"1MiB\"",
        1,
        &["chunk-cache-max", "1MiB is not within 2MiB"],
    ),
    (
        "header-timeout = \"10 weeks\"",
        1,
        &["header-timeout", "ms, s, m, h or d"],
    ),
    (
        "header-timeout = true",
        1,
        &["`true` is not a time", "example: header-timeout = \"5s\""],
    ),
    (
        "idle-timeout = \"0\"",
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
        &["small-file-max", "never fit"],
    ),
    (
        "research.send-method = \"mmap\"\npin-max = \"1GiB\"",
        2,
        &["pin-max", "there are no small files", "remove it"],
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
    (
        "defer-accept = \"1s\"",
        1,
        &["defer-accept", "is not true or false"],
    ),
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
        &["server-header", "cannot be combined"],
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
    (
        "[log]\npath = \"a\"",
        1,
        &["log", "is not a path in quotes"],
    ),
    (
        "[mime-types]\n\"\" = \"text/plain\"",
        1,
        &["mime-types", "extension", "example: md = \"text/markdown\""],
    ),
    (
        "[mime-types]\nmd = \"markdown\"",
        1,
        &["mime-types", "markdown", "example: md = \"text/markdown\""],
    ),
    (
        "[mime-types]\nmd = 1",
        2,
        &["mime-types.md", "example: md = \"text/markdown\""],
    ),
    (
        "[error-pages]\n200 = \"errors/404.html\"",
        1,
        &["error-pages", "200", "example: 404 = \"errors/404.html\""],
    ),
    (
        "[error-pages]\nabc = 5",
        2,
        &["error-pages.abc", "example: 404 = \"errors/404.html\""],
    ),
    (
        "[error-pages]\n404 = \"errors/none.html\"",
        1,
        &["error-pages", "none.html"],
    ),
    (
        "[[host]]\nnames = \"a.example\"",
        1,
        &["host: a host needs a document root"],
    ),
    (
        "[[host]]\nnames = \"a b\"\nroot = \"site\"",
        2,
        &["host.names", "`a b`"],
    ),
    (
        "[[host]]\nnames = \"a\"\nroot = \"site\"\n[[host]]\nnames = \"A\"\nroot = \"site\"",
        5,
        &["`a` is the name of two hosts"],
    ),
    (
        "root = \"site\"\n[[host]]\nroot = \"site\"",
        2,
        &["never used"],
    ),
    (
        "[[host]]\nroot = \"site\"\nworkers = 2",
        3,
        &["host.workers: unknown key here", "top of the file"],
    ),
    ("workers = 1\nworkers = 2", 2, &["duplicate key"]),
    ("workers = ", 1, &["workers"]),
];

#[test]
fn mistake_of_a_file_is_reported_with_line_and_key() {
    for (text, line, parts) in MISTAKES.iter().chain(MISTAKES_OF_TABLES) {
        let errors = check(text).map(|good| good.config).expect_err(text);
        let messages: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let position = format!("headway.toml:{line}: ");
        let right = |message: &String| {
            message.contains(&position) && parts.iter().all(|w| message.contains(w))
        };
        assert!(
            messages.iter().any(right),
            "{text}\nexpected {position}{parts:?}, message {messages:#?}"
        );
    }
}

#[test]
fn all_mistakes_of_a_file_are_reported_at_once_in_the_order_of_lines() {
    let text = "workers = \"many\"\nport = 80\nidle-timeout = \"soon\"\nbacklog = -3\n\
                [[location]]\nprefix = 5\ncgi = true\n[[location]]\nsuffix = \".cgi\"\n\
                [[host]]\nroot = \"site\"\nlistng = true\n[[header]]\nname = \"A B\"\nvalue = 1";
    let errors = check(text).unwrap_err();
    let messages: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let expected = [
        (1, "workers: "),
        (2, "port: "),
        (3, "idle-timeout: "),
        (4, "backlog: "),
        (6, "location.prefix: "),
        (8, "location: a location needs a handler"),
        (12, "host.listng: "),
        (15, "header.value: "),
    ];
    assert_eq!(messages.len(), expected.len(), "{messages:#?}");
    for ((line, start), message) in expected.into_iter().zip(&messages) {
        assert!(
            message.contains(&format!("headway.toml:{line}: {start}")),
            "{line}: {message}"
        );
    }
}

#[test]
fn errors_of_the_syntax_are_reported_with_those_of_other_lines() {
    let errors = check("workers = \nlisten = [\"8080\"]\nroot = \"site\nportt = 1\nlisting = 3")
        .unwrap_err();
    let messages: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let has = |line: usize, part: &str| {
        let position = format!("headway.toml:{line}: ");
        messages
            .iter()
            .any(|message| message.contains(&position) && message.contains(part))
    };
    assert!(
        has(1, "not valid TOML") && has(3, "not valid TOML"),
        "{messages:#?}"
    );
    assert!(has(4, "unknown key") && has(5, "listing"), "{messages:#?}");
}

#[test]
fn messages_have_no_terms_of_rust_when_types_are_wrong() {
    for key in reference(RESEARCH_SERVER) {
        for value in [
            "-1",
            "true",
            "1.5",
            "\"x y\"",
            "[1, [2]]",
            "{ a = 1 }",
            "1979-05-27",
        ] {
            let heading = match key.table {
                "" => String::new(),
                "research" => "[research]\n".into(),
                table => format!("[[{table}]]\n"),
            };
            let errors = match check(&format!("{heading}{} = {value}", key.name)) {
                Ok(_) => continue,
                Err(errors) => errors,
            };
            for error in errors {
                let message = error.to_string();
                // The name of the directory is random.
                let (_, message) = message.split_once("headway.toml").unwrap_or(("", &message));
                for word in [
                    "usize",
                    "u32",
                    "i64",
                    "invalid type",
                    "expected",
                    "variant",
                    "digit",
                    "integer",
                ] {
                    assert!(!message.contains(word), "{} = {value}: {message}", key.name);
                }
            }
        }
    }
}

#[test]
fn mistake_of_an_option_is_reported_with_the_option() {
    let settings = Settings {
        workers: Some(from_command_line(0)),
        ..Settings::default()
    };
    let errors = Config::check(&settings, None, &HERE).unwrap_err();
    assert_eq!(errors[0].to_string(), "--workers: 0 is not within 1 to 256");
    let settings = Settings {
        root: Some(from_command_line("/no/such".into())),
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
fn option_is_an_error_when_it_contradicts_the_preset() {
    for (text, expected) in [
        (
            "research.preset = 'accept1'\naccept-batch = 25",
            "accept-batch: the preset accept1 has accept-batch 1; remove",
        ),
        (
            "research.preset = 'accept25+cache'\nresearch.caching = false",
            "caching: the preset accept25+cache has caching on",
        ),
        (
            "research.preset = 'eager'\nresearch.full-read = true",
            "full-read: the preset eager has full-read off",
        ),
        (
            "research.preset = 'accept25'\nresearch.eager-write = true",
            "eager-write: in this preset eager writes need eager reads",
        ),
        (
            "research.preset = 'accept25'\naccept-batch = 'auto'",
            "accept-batch: accept-batch = \"auto\" cannot be combined with preset = \"accept25\"",
        ),
        (
            "research.preset = 'flash'\naccept-batch = 'auto'",
            "accept-batch: accept-batch = \"auto\" cannot be combined with preset = \"flash\"",
        ),
        (
            "accept-batch = 'auto'\nresearch.accept-on-close = true",
            "accept-on-close: it cannot be combined with accept-batch = \"auto\"",
        ),
        (
            "research.preset = 'accept25'\nresponse-cache-max = '1MiB'",
            "response-cache-max: with caching = false there is no response cache",
        ),
        (
            "accept-batch = 25\nearly-reject = 'reset'",
            "early-reject: it needs accept-batch = \"auto\", which measures the load, but accept-batch is 25; \
             set accept-batch = \"auto\"",
        ),
        (
            "research.preset = 'eager'\nearly-reject = '503'",
            "but accept-batch is 0; remove the preset",
        ),
        (
            "research.accept-on-close = true\nearly-reject = '503'",
            "but accept-batch is 25; remove accept-on-close",
        ),
        (
            "backlog = -3",
            "backlog: -3 is not within 1 to 1048576; the kernel allows at most 4096",
        ),
        (
            "backlog = 99999999999",
            "backlog: 99999999999 is not within",
        ),
        (
            "max-connections = 30000",
            "or lower max-connections or file-cache-descriptors",
        ),
    ] {
        let errors = check(&format!("root = \"site\"\n{text}")).unwrap_err();
        let messages: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert!(
            messages.len() == 1 && messages[0].contains(expected),
            "{messages:?}"
        );
    }
}

#[test]
fn option_is_accepted_when_it_agrees_with_the_preset() {
    // What Headway itself can do, and what agrees with the name.
    good("root = \"site\"\nresearch.eager-read = false\nresearch.eager-write = true");
    good(
        "root = \"site\"\nresearch.preset = 'eager'\nresearch.eager-read = true\naccept-batch = 0",
    );
    let count = |text: &str| good(&format!("root = \"site\"\n{text}")).accept_batch;
    for text in [
        "research.accept-on-close = true",
        "research.preset = 'flash'",
        "research.preset = 'new-flash'",
    ] {
        assert_eq!(count(text), AcceptBatch::Most(25), "{text}");
    }
    assert_eq!(count("early-reject = 'reset'"), AcceptBatch::Auto);
}

#[test]
fn only_what_is_sent_from_mappings_can_be_closed_when_it_is_mapped() {
    let closes = |text: &str| {
        good(&format!("root = \"site\"\n{text}"))
            .research
            .close_mapped
    };
    assert!(closes("research.preset = 'flash'"));
    assert!(!closes(
        "research.preset = 'flash'\nresearch.close-mapped = false"
    ));
    assert!(closes(
        "research.preset = 'fd-pass'\nresearch.close-mapped = true"
    ));
    let errors =
        check("root = \"site\"\nresearch.preset = 'new-flash'\nresearch.close-mapped = true");
    let error = errors.unwrap_err()[0].to_string();
    assert!(
        error.contains("close-mapped: it needs send-method = \"mmap\""),
        "{error}"
    );
}

#[test]
fn thundering_herd_needs_a_shared_socket() {
    good("root = \"site\"\nlisteners = \"shared\"\nresearch.thundering-herd = true");
    let errors = check("root = \"site\"\nresearch.thundering-herd = true").unwrap_err();
    let message = errors[0].to_string();
    assert!(
        message.contains("needs listeners = \"shared\""),
        "{message}"
    );
}

#[test]
fn prefix_in_a_research_key_is_an_error_without_a_location_of_that_kind() {
    let locations = "[[location]]\nprefix = \"/c/\"\ncgi = true\n\
        [[location]]\nprefix = \"/d/\"\ndirect = [\"/bin/true\"]";
    let text = |keys: &str| format!("root = \"site\"\n{keys}\n{locations}");
    let config = good(&text(
        "research.pipe = \"/d/\"\nresearch.fork-in-server = [\"/c/\"]",
    ));
    let [cgi, direct] = &config.hosts[0].locations[..] else {
        panic!("{config:?}");
    };
    assert!(cgi.forks_in_worker() && direct.reads_responses());
    for (key, message) in [
        (
            "research.pipe = [\"/d/\", \"/c/\"]",
            "no direct location has the prefix `/c/`",
        ),
        (
            "research.fork-in-server = \"/d\"",
            "no cgi location has the prefix `/d`",
        ),
    ] {
        let errors = check(&text(key)).unwrap_err();
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].to_string().contains(message), "{errors:?}");
    }
}

#[test]
fn keys_for_research_are_errors_that_name_the_other_program_in_a_server_for_users() {
    for (text, key) in [
        ("[research]\npreset = \"flash\"", "research"),
        ("research.eager-read = false", "research"),
        (
            "research.pipe = \"/a/\"\n[[location]]\nprefix = \"/a/\"\ndirect = [\"/bin/true\"]",
            "research",
        ),
        (
            "[[location]]\nprefix = \"/a/\"\ncgi = true\nfork-in-server = true",
            "fork-in-server",
        ),
    ] {
        let errors = Settings::from_toml(text, Path::new("/t.toml")).unwrap_err();
        assert_eq!(errors.len(), 1, "{errors:?}");
        let message = errors[0].to_string();
        assert!(
            message.contains(key) && message.contains("`headway-lab serve`"),
            "{message}"
        );
    }
    // At the top level they were never keys.
    let errors = Settings::from_toml("preset = \"flash\"", Path::new("/t.toml")).unwrap_err();
    let message = errors[0].to_string();
    assert!(message.contains("headway-lab serve"), "{message}");
}

#[test]
fn mistakes_are_all_reported_when_there_are_several() {
    let errors = check("workers = 0\nroot = \"missing\"\nevents = \"none\"").unwrap_err();
    assert_eq!(errors.len(), 3, "{errors:?}");
}
