//! Files that a configuration file includes: what they add, and mistakes with the right file and line.

use headway_config::{Checked, Config, ConfigError, ConfigFile, Settings};
use std::fmt::Write;
use std::path::Path;

use crate::HERE;

/// Writes files into a directory, and loads the first one.
fn load_in(directory: &Path, files: &[(&str, &str)]) -> Result<Checked, Vec<ConfigError>> {
    for (name, text) in files {
        let path = directory.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let path = directory.join(files[0].0);
    let text = files[0].1;
    Config::load(ConfigFile { path: &path, text }, Settings::default(), &HERE)
}

fn load(files: &[(&str, &str)]) -> Result<Checked, Vec<ConfigError>> {
    let directory = tempfile::tempdir().unwrap();
    load_in(directory.path(), files)
}

/// The messages, without the directory.
fn messages(directory: &Path, errors: &[ConfigError]) -> Vec<String> {
    let begin = format!("{}/", directory.display());
    let shown = errors
        .iter()
        .map(|error| error.to_string().replace(&begin, ""));
    shown.collect()
}

fn mistakes(files: &[(&str, &str)]) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    messages(
        directory.path(),
        &load_in(directory.path(), files).unwrap_err(),
    )
}

#[test]
fn hosts_and_keys_of_included_files_are_added_in_the_order_of_their_names() {
    let config = load(&[
        ("headway.toml", "include = [\"conf.d/*.toml\", \"one.conf\"]\nworkers = 1\n[[location]]\nprefix = \"/m/\"\nproxy = \"127.0.0.1:1\""),
        ("conf.d/b.toml", "[[host]]\nnames = \"b.example\"\nroot = \"b\"\n[[header]]\nname = \"X-B\"\nvalue = \"1\""),
        ("conf.d/a.toml", "[[host]]\nroot = \"../a\"\n[[location]]\nprefix = \"/a/\"\nproxy = \"127.0.0.1:2\""),
        ("conf.d/c.toml~", "this is no TOML"),
        ("conf.d/.hidden.toml", "this is no TOML"),
        ("conf.d/b/index.html", ""),
        ("a/index.html", ""),
        ("one.conf", "idle-timeout = \"7s\"\nlog = \"access.log\""),
    ])
    .unwrap()
    .config;
    let names: Vec<_> = config.hosts.iter().map(|host| host.names.clone()).collect();
    assert_eq!(names, [vec![], vec!["b.example".to_owned()]]);
    assert!(config.hosts[0].root.ends_with("a") && config.hosts[1].root.ends_with("conf.d/b"));
    let paths = config.hosts[1]
        .locations
        .iter()
        .map(|one| one.path.to_string());
    assert_eq!(paths.collect::<Vec<_>>(), ["/m/", "/a/"]);
    assert_eq!(config.headers.len(), 1);
    assert_eq!((config.workers, config.idle_timeout_ms), (1, 7_000));
    let log = config.log.unwrap().path;
    assert!(!log.parent().unwrap().ends_with("conf.d"), "{log:?}");
}

#[test]
fn options_of_the_command_line_replace_those_of_included_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("headway.toml");
    std::fs::write(directory.path().join("more.toml"), "workers = 3").unwrap();
    let text = "include = \"more.toml\"";
    let file = ConfigFile { path: &path, text };
    let mut options = Settings::default();
    options
        .set_from_option("workers", &["2".into()], HERE.extensions)
        .unwrap();
    assert_eq!(
        Config::load(file, options, &HERE).unwrap().config.workers,
        2
    );
    let config = Config::load(file, Settings::default(), &HERE)
        .unwrap()
        .config;
    assert_eq!(config.workers, 3);
}

#[test]
fn mistakes_of_included_files_name_their_file_and_line() {
    let found = mistakes(&[
        ("headway.toml", "include = \"conf.d/*.toml\"\n\nworkers = 0"),
        (
            "conf.d/a.toml",
            "\n\n[[host]]\nroot = \"none\"\nnmes = \"a.example\"",
        ),
        (
            "conf.d/b.toml",
            "\nbacklog = \"many\"\n[[host]]\nnames = \"b\"\nroot = \"\"\n= 3",
        ),
        (
            "conf.d/c.toml",
            "\n\n[[location]]\nprefix = \"x\"\nproxy = \"127.0.0.1:1\"",
        ),
    ]);
    for (begin, part) in [
        ("headway.toml:3: workers: ", "0 is not within"),
        ("conf.d/a.toml:5: host.nmes: ", "unknown key"),
        ("conf.d/a.toml:4: host.root: ", "No such file"),
        (
            "conf.d/b.toml:2: backlog: ",
            "`\"many\"` is not a whole number",
        ),
        ("conf.d/b.toml:5: host.root: ", "not empty"),
        ("conf.d/b.toml:6: `= 3`: ", "not valid TOML"),
        ("conf.d/c.toml:4: location: ", "`x` is not a path"),
    ] {
        let is_there = found
            .iter()
            .any(|one| one.starts_with(begin) && one.contains(part));
        assert!(is_there, "{begin}{part}: {found:#?}");
    }
    let files: Vec<&str> = found
        .iter()
        .map(|one| one.split(':').next().unwrap())
        .collect();
    assert!(
        files.is_sorted_by_key(|file| file.replace("headway", "a")),
        "{found:#?}"
    );
}

#[test]
fn key_that_two_files_set_is_an_error_which_names_both_places() {
    let found = mistakes(&[
        (
            "headway.toml",
            "include = \"conf.d/*\"\nmime-types = { a = \"text/a\" }",
        ),
        ("conf.d/a", "\nworkers = 2"),
        ("conf.d/b", "\n\nworkers = 2\n[mime-types]\nb = \"text/b\""),
    ]);
    let expected = [
        "conf.d/b:3: workers: it is set at conf.d/a:2 already",
        "conf.d/b:4: mime-types: it is set at headway.toml:2 already",
    ];
    assert_eq!(found, expected);
}

#[test]
fn include_is_an_error_when_the_file_is_missing_is_no_file_or_comes_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fifo.toml");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        0o600.into(),
        0,
    )
    .unwrap();
    std::os::unix::fs::symlink("headway.toml", directory.path().join("again.toml")).unwrap();
    std::os::unix::fs::symlink("loop.toml", directory.path().join("loop.toml")).unwrap();
    std::fs::create_dir(directory.path().join("directory.toml")).unwrap();
    std::fs::write(directory.path().join("bytes.toml"), b"log = \"\xff\"").unwrap();
    for (pattern, part) in [
        ("none.toml", "none.toml: No such file"),
        ("none.d/*.toml", "the directory none.d: No such file"),
        ("*.d/x.toml", "only the file name can have"),
        ("fifo.toml", "fifo.toml is not a regular file"),
        ("fifo*", "fifo.toml is not a regular file"),
        ("directory.toml", "directory.toml is not a regular file"),
        (
            "headway.toml",
            "headway.toml is read already, as headway.toml",
        ),
        ("again.toml", "again.toml is read already, as headway.toml"),
        (
            "bytes.toml",
            "bytes.toml: stream did not contain valid UTF-8",
        ),
        ("loop.toml", "loop.toml: Too many levels"),
        ("/dev/null", "/dev/null is not a regular file"),
        ("..", ".. is not a file"),
    ] {
        let text = format!("\ninclude = \"{pattern}\"");
        let errors = load_in(directory.path(), &[("headway.toml", &text)]).unwrap_err();
        let found = messages(directory.path(), &errors);
        assert!(
            found[0].starts_with("headway.toml:2: include: "),
            "{found:?}"
        );
        assert!(
            found[0].contains(part) && found.len() == 1,
            "{part}: {found:?}"
        );
        assert!(errors[0].is_environment());
    }
    // No file may match, but not by mistake.
    load_in(
        directory.path(),
        &[("headway.toml", "include = \"*.none\"")],
    )
    .unwrap();
    let text = "include = []\n[[host]]\ninclude = \"x\"";
    let errors = load_in(directory.path(), &[("headway.toml", text)]).unwrap_err();
    let found = messages(directory.path(), &errors);
    assert!(
        found[0].contains("belongs at the top of the file"),
        "{found:?}"
    );
}

#[test]
fn included_files_have_limits_of_depth_and_number() {
    let directory = tempfile::tempdir().unwrap();
    let chain = |links: usize| {
        let mut files = vec![("headway.toml".to_owned(), "include = \"1\"".to_owned())];
        let next = |link| match link == links {
            true => String::new(),
            false => format!("include = \"{}\"", link + 1),
        };
        files.extend((1..=links).map(|link| (link.to_string(), next(link))));
        let files: Vec<_> = files
            .iter()
            .map(|(name, text)| (&**name, &**text))
            .collect();
        load_in(directory.path(), &files)
    };
    chain(8).unwrap();
    let found = messages(directory.path(), &chain(9).unwrap_err());
    assert!(
        found[0].starts_with("8:1: include: 9: at most 8"),
        "{found:?}"
    );
    let mut all = String::new();
    for number in 0..1_001 {
        std::fs::write(directory.path().join(format!("{number}.many")), "").unwrap();
        write!(all, "\"{number}.many\",").unwrap();
    }
    let found = load_in(
        directory.path(),
        &[("headway.toml", "include = \"*.many\"")],
    );
    let found = messages(directory.path(), &found.unwrap_err());
    assert!(
        found.len() == 1 && found[0].contains("at most 1000 files"),
        "{found:?}"
    );
}
