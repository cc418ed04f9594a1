//! `headway fileset` as its users see it: words, exit codes, files.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use headway_test_support::skip;
use serde_json::Value;

const MANIFEST: &str = ".headway-fileset.toml";

fn headway(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headway"));
    command.arg("fileset").args(arguments);
    command
}

/// Exit code, standard output, standard error.
fn run(arguments: &[&str]) -> (i32, String, String) {
    finished(&mut headway(arguments))
}

fn finished(command: &mut Command) -> (i32, String, String) {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

fn done(arguments: &[&str]) -> String {
    let (code, out, err) = run(arguments);
    assert_eq!((code, err.as_str()), (0, ""), "{arguments:?}: {out}");
    out
}

/// A directory's name that can be given as a word, and what keeps it.
fn new_set() -> (tempfile::TempDir, String) {
    let kept = tempfile::tempdir().unwrap();
    let name = kept.path().join("set").to_str().unwrap().to_owned();
    (kept, name)
}

/// Every file below a directory with its bytes.
fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            let bytes = fs::read(&path).unwrap();
            found.insert(path.to_str().unwrap().to_owned(), bytes);
        }
    }
    found
}

/// The files of a set, with names relative to its directory.
fn relative(directory: &str) -> BTreeMap<String, Vec<u8>> {
    let strip = |name: String| name[directory.len()..].to_owned();
    contents(Path::new(directory))
        .into_iter()
        .map(|(name, bytes)| (strip(name), bytes))
        .collect()
}

#[test]
fn help_has_examples_of_every_profile() {
    let out = done(&["create", "--help"]);
    for word in [
        "--size 1.5GB",
        "--connections 400",
        "--file-size 10kB --count 1000",
        "--log -",
        "specweb96",
    ] {
        assert!(out.contains(word), "{word} is missing in\n{out}");
    }
    assert!(done(&["--help"]).contains("Exit codes"));
    assert_eq!(run(&[]).0, 2);
}

#[test]
fn fileset_is_created_verified_and_shown_by_size() {
    let (_kept, set) = new_set();
    let out = done(&["create", &set, "--size", "6MB"]);
    assert!(
        out.contains("specweb99, 72 files, 10.2 MB written"),
        "{out}"
    );
    assert!(Path::new(&set).join("dir00001/class3_9").exists());
    assert!(done(&["verify", &set]).contains("72 files"));
    let shown = done(&["show", &set]);
    assert!(shown.contains("in pages     10.4 MB"), "{shown}");
    let value: Value = serde_json::from_str(&done(&["show", &set, "--json"])).unwrap();
    assert_eq!(value["files"], 72);
    assert_eq!(value["top"][3]["share"], 0.99);
    assert_eq!(value["complete"], true);
    assert!(done(&["create", &set, "--size", "6MB"]).contains("are there already"));
    assert_eq!(done(&["create", &set, "--size", "6MB", "-q"]), "");
}

#[test]
fn profile_follows_from_its_options() {
    let (_kept, set) = new_set();
    let out = done(&["create", &set, "--file-size", "1.5kB", "--count", "1001"]);
    assert!(out.contains("uniform, 1001 files, 1.50 MB"), "{out}");
    let last = Path::new(&set).join("dir00001/file000");
    assert_eq!(fs::metadata(last).unwrap().len(), 1500);
    done(&["verify", &set, "--quick", "--threads", "1"]);

    let (_kept, set) = new_set();
    done(&["create", &set, "--size", "1", "--profile", "specweb96"]);
    assert!(done(&["show", &set]).contains("specweb96"));
}

#[test]
fn files_are_read_by_popularity() {
    let (_kept, set) = new_set();
    done(&["create", &set, "--file-size", "1000", "--count", "50"]);
    let out = done(&["read", &set, "--requests", "300"]);
    assert!(out.contains("300 files, 300 kB read"), "{out}");
    assert_eq!(done(&["read", &set, "-n", "300", "--quiet"]), "");

    // Few requests leave some of fifty files alone, many do not: one that is gone is noticed by
    // many only.
    fs::remove_file(Path::new(&set).join("dir00000/file007")).unwrap();
    let missed = |requests: &str| {
        let seeds: Vec<String> = (1..=8).map(|seed| seed.to_string()).collect();
        let codes = seeds
            .iter()
            .map(|seed| run(&["read", &set, "-n", requests, "--seed", seed]).0);
        codes.filter(|&code| code == 1).count()
    };
    assert!(missed("3") < 8);
    assert_eq!(missed("2000"), 8);
    let (code, _, err) = run(&["read", &set, "-n", "2000"]);
    assert_eq!(code, 1);
    assert!(
        err.contains("dir00000/file007") && err.contains("fileset verify"),
        "{err}"
    );
}

#[test]
fn bytes_are_equal_for_equal_arguments_and_differ_by_seed() {
    let sets: Vec<_> = ["1", "1", "2"]
        .iter()
        .map(|seed| {
            let (kept, set) = new_set();
            let arguments = ["--file-size", "100", "--count", "5", "--seed", seed];
            done(&[&["create", set.as_str()], &arguments[..]].concat());
            (relative(&set), kept)
        })
        .collect();
    assert_eq!(sets[0].0, sets[1].0);
    assert_eq!(sets[0].0.len(), 6);
    for (name, bytes) in &sets[2].0 {
        assert_ne!(&sets[0].0[name], bytes, "{name}");
    }
}

#[test]
fn exit_code_is_2_for_a_usage_error() {
    let (_kept, set) = new_set();
    for (arguments, expected) in [
        (&[][..], "how large?"),
        (&["--size", "0"], "above 0"),
        (&["--size", "-5GB"], "`-5GB` is not a size"),
        (&["--size", "lots"], "`lots` is not a size"),
        (
            &["--size", "99999999999999GB"],
            "larger than any file system",
        ),
        (&["--size", "999PB"], "more than a set may have"),
        (&["--size", "1GB", "--connections", "5"], "--connections"),
        (&["--connections", "0"], "at least 1"),
        (&["--connections", "-4"], "-4"),
        (&["--connections", "100000000"], "more than a set may have"),
        (&["--profile", "specweb05"], "is not a profile"),
        (
            &["--size", "1GB", "--profile", "uniform"],
            "--size does not belong",
        ),
        (&["--file-size", "1kB"], "both --file-size and --count"),
        (
            &["--file-size", "0", "--count", "5"],
            "0 bytes hold nothing",
        ),
        (&["--file-size", "9", "--count", "0"], "at least one file"),
        (&["--file-size", "-9", "--count", "1"], "`-9` is not a size"),
        (&["--file-size", "9", "--count", "-1"], "-1"),
        (&["--profile", "from-log"], "needs --log"),
        (&["--log", "x", "--size", "1GB"], "--size does not belong"),
        (&["--size", "1GB", "--seed", "-1"], "--seed"),
        (&["--size", "1GB", "--threads", "0"], "--threads"),
    ] {
        let (code, _, err) = run(&[&["create", set.as_str()], arguments].concat());
        assert_eq!(code, 2, "{arguments:?}: {err}");
        assert!(err.contains(expected), "{arguments:?}: {err}");
    }
    assert!(!Path::new(&set).exists());
}

#[test]
fn fileset_is_not_created_when_the_directory_is_unusable() {
    let kept = tempfile::tempdir().unwrap();
    let foreign = kept.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("letters.txt"), "dear").unwrap();
    let file = kept.path().join("file");
    fs::write(&file, "").unwrap();
    let below = file.join("below");
    let empty = kept.path().join("empty");
    fs::create_dir(&empty).unwrap();
    // A hundred petabytes, since some machines have a few.
    let huge = ["--file-size", "100GB", "--count", "1000000"];
    let small = ["--size", "5MB"];
    for (directory, arguments, expected) in [
        (foreign.as_path(), &small[..], "letters.txt is there"),
        (&file, &small, "is no directory"),
        (&below, &small, "Not a directory"),
        (&empty, &huge, "100 PB are needed and its file system has"),
        (
            Path::new("/proc/headway"),
            &small,
            "creating the directory /proc/headway",
        ),
    ] {
        let (code, out, err) = run(&[&["create", directory.to_str().unwrap()], arguments].concat());
        assert_eq!((code, out.as_str()), (1, ""), "{err}");
        assert!(err.contains(expected), "{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
    }
    assert_eq!(
        fs::read_to_string(foreign.join("letters.txt")).unwrap(),
        "dear"
    );
    assert_eq!(fs::read_dir(&empty).unwrap().count(), 0);
}

/// Runs `create` on a file system of its own, in a mount name space of its own; `None` where that
/// is not allowed.
fn create_on_tmpfs(options: &str, arguments: &[&str]) -> Option<(i32, String, String)> {
    let directory = tempfile::tempdir().unwrap();
    let script = format!("mount -t tmpfs -o {options} none \"$0\" || exit 77; exec \"$@\"; exit 1");
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--map-root-user", "sh", "-c", &script])
        .arg(directory.path())
        .args([env!("CARGO_BIN_EXE_headway"), "fileset", "create"])
        .arg(directory.path())
        .args(arguments);
    let output = command.output().ok()?;
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let err = text(output.stderr);
    if output.status.code() == Some(77) || err.contains("unshare") {
        return None;
    }
    Some((output.status.code()?, text(output.stdout), err))
}

/// Needs: root, or user name spaces: mounts file systems in memory
#[test]
fn error_names_the_file_system_when_it_is_read_only_or_too_small() {
    for (options, arguments, expected) in [
        ("ro", &["--size", "5MB"][..], "Read-only file system"),
        ("size=1m", &["--size", "5MB"], "5.18 MB are needed"),
        // 122 + 3.22 MB: 25 directories of 5,177,344 bytes and a page each.
        ("size=1m", &["--connections", "1"], "130 MB are needed"),
        (
            "size=9m,nr_inodes=20",
            &["--file-size", "10", "--count", "100"],
            "101 inodes are needed",
        ),
    ] {
        let Some((code, _, err)) = create_on_tmpfs(options, arguments) else {
            return skip(
                "error_names_the_file_system_when_it_is_read_only_or_too_small",
                "a mount name space is not allowed",
            );
        };
        assert_eq!(code, 1, "{options}: {err}");
        assert!(err.contains(expected), "{options}: {err}");
    }
    let fits = create_on_tmpfs("size=9m", &["--size", "5MB"]).unwrap();
    assert_eq!(fits.0, 0, "{}", fits.2);
}

/// Starts `create`, and kills it when it has begun to write.
fn create_and_kill(set: &str, arguments: &[&str]) {
    let mut child = headway(&[&["create", set, "--threads", "1"], arguments].concat())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    let second = Path::new(set).join("dir00001");
    while !second.join("class3_4").exists() && child.try_wait().unwrap().is_none() {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "nothing is written"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn progress_is_shown_when_there_is_a_terminal() {
    let (_kept, directory) = new_set();
    let program = env!("CARGO_BIN_EXE_headway");
    let command = format!("{program} fileset create {directory} --size 20MB");
    let output = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .stdin(Stdio::null())
        .output()
        .expect("script(1) runs");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains(" written; waiting for the disk\x1b[K"),
        "{text:?}"
    );
    // What stays is one line.
    let (_, result) = text
        .rsplit_once("\r\x1b[K")
        .expect("the line is taken away");
    assert!(result.starts_with(&directory), "{result}");
}

#[test]
fn fileset_is_the_same_when_its_creation_was_killed_and_resumed() {
    let arguments = ["--size", "40MB"];
    let ((_kept, set), (_other, whole)) = (new_set(), new_set());
    create_and_kill(&set, &arguments);
    let manifest = fs::read_to_string(Path::new(&set).join(MANIFEST)).unwrap();
    assert!(
        manifest.contains("complete = false"),
        "it was not killed in the middle"
    );
    let (code, out, err) = run(&["verify", &set]);
    assert_eq!(code, 1, "{out}");
    assert!(
        err.contains("missing") && err.contains("it was interrupted"),
        "{err}"
    );
    assert!(done(&["show", &set]).contains("complete     no"));

    let again = done(&[&["create", set.as_str()], &arguments[..]].concat());
    assert!(again.contains("of the files were missing"), "{again}");
    done(&["verify", &set]);
    done(&[&["create", whole.as_str()], &arguments[..]].concat());
    assert!(relative(&set) == relative(&whole), "the two sets differ");
}

#[test]
fn fileset_verify_prints_each_difference() {
    let (_kept, set) = new_set();
    done(&["create", &set, "--file-size", "3000", "--count", "30"]);
    let inside = Path::new(&set).join("dir00000");
    fs::remove_file(inside.join("file001")).unwrap();
    fs::write(inside.join("file002"), "x".repeat(3000)).unwrap();
    fs::write(inside.join("file003"), "x").unwrap();
    fs::write(Path::new(&set).join("notes"), "x").unwrap();
    let (code, out, err) = run(&["verify", &set]);
    assert_eq!(code, 1);
    let expected = "missing: /dir00000/file001\n\
        wrong size: /dir00000/file003: 1 bytes instead of 3000\n\
        wrong content: /dir00000/file002\n\
        extra: /notes\n";
    assert_eq!(out, expected);
    let counts = "1 missing, 1 wrong size, 1 wrong content, 1 extra";
    assert!(err.contains(counts), "{err}");
    let (code, out, _) = run(&["verify", &set, "--json", "--quick"]);
    let value: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &value["same"]), (1, &Value::Bool(false)));
    assert_eq!(value["wrong_content"]["count"], 0);
    assert_eq!(value["extra"]["examples"][0], "/notes");
}

#[test]
fn another_set_is_not_overwritten() {
    let (_kept, set) = new_set();
    done(&["create", &set, "--file-size", "10", "--count", "3"]);
    let before = relative(&set);
    for arguments in [
        &["--file-size", "10", "--count", "4"][..],
        &["--file-size", "10", "--count", "3", "--seed", "2"],
        &["--size", "5MB"],
    ] {
        let (code, _, err) = run(&[&["create", set.as_str()], arguments].concat());
        assert_eq!(code, 1);
        assert!(
            err.contains("holds another file set (uniform, 3 files"),
            "{err}"
        );
    }
    assert_eq!(relative(&set), before);
}

#[test]
fn manifest_is_an_error_when_newer_edited_or_missing() {
    let (_kept, set) = new_set();
    let arguments = ["--file-size", "10", "--count", "3"];
    done(&[&["create", set.as_str()], &arguments[..]].concat());
    let path = Path::new(&set).join(MANIFEST);
    let text = fs::read_to_string(&path).unwrap();
    for (from, to, expected) in [
        ("version = 1", "version = 9", "newer Headway (format 9"),
        ("count = 3", "count = 2", "has been edited"),
        ("format", "form", "is not a manifest"),
    ] {
        fs::write(&path, text.replace(from, to)).unwrap();
        for action in [&["verify"][..], &["show"], &["create"]] {
            let arguments = if action == ["create"] {
                &arguments[..]
            } else {
                &[]
            };
            let (code, _, err) = run(&[action, &[set.as_str()], arguments].concat());
            assert_eq!(code, 1, "{action:?}");
            assert!(err.contains(expected), "{action:?}: {err}");
        }
    }
    fs::remove_file(&path).unwrap();
    let (code, _, err) = run(&["verify", &set]);
    assert_eq!(code, 1);
    assert!(err.contains("holds no file set"), "{err}");
    let (code, _, err) = run(&["verify", "/nowhere/at/all"]);
    assert_eq!(code, 1);
    assert!(err.contains("/nowhere/at/all: No such file"), "{err}");
}

const LOG: &str = r#"1.2.3.4 - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.1" 200 5000 "-" "curl"
1.2.3.4 - - [10/Oct/2000:13:55:37 -0700] "GET /img/a%20b.png HTTP/1.1" 200 70000
1.2.3.4 - - [10/Oct/2000:13:55:38 -0700] "GET / HTTP/1.1" 304 -
1.2.3.4 - - [10/Oct/2000:13:55:39 -0700] "GET /../../etc/passwd HTTP/1.1" 200 900
1.2.3.4 - - [10/Oct/2000:13:55:40 -0700] "GET /%00 HTTP/1.1" 200 900
1.2.3.4 - - [10/Oct/2000:13:55:41 -0700] "POST /form HTTP/1.1" 200 10
nonsense
"#;

#[test]
fn fileset_has_the_sizes_and_popularity_of_the_access_log() {
    let (kept, set) = new_set();
    let log = kept.path().join("access.log");
    fs::write(&log, LOG).unwrap();
    let out = done(&["create", &set, "--log", log.to_str().unwrap()]);
    assert!(out.contains("3 of 7 lines of the log"), "{out}");
    assert!(
        out.contains("2 left out: paths with .. or control characters"),
        "{out}"
    );
    assert!(out.contains("from-log, 2 files, 75.0 kB"), "{out}");
    let image = fs::read(Path::new(&set).join("img/a b.png")).unwrap();
    assert_eq!(image.len(), 70_000);
    assert!(image.starts_with(b"/img/a%20b.png\n"));
    done(&["verify", &set]);

    let (_kept, second) = new_set();
    let mut child = headway(&["create", &second, "--log", "-", "--profile", "from-log"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(LOG.as_bytes())
        .unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(relative(&set), relative(&second));
}

#[test]
fn log_error_has_advice_when_it_has_no_file() {
    let (kept, set) = new_set();
    let path = kept.path().join("access.log");
    let log = path.to_str().unwrap();
    let (code, _, err) = run(&["create", &set, "--log", log]);
    assert_eq!(code, 1);
    assert!(
        err.contains("opening") && err.contains("No such file"),
        "{err}"
    );
    for (bytes, expected) in [
        (
            &b"\x1f\x8b\x08\x00junk"[..],
            "zcat LOG | headway fileset create DIR --log -",
        ),
        (b"", "none of its 0 lines"),
        (
            b"{}\n\xff\xfe\x00\n",
            "2 are in neither common nor combined format",
        ),
    ] {
        fs::write(&path, bytes).unwrap();
        let (code, _, err) = run(&["create", &set, "--log", log]);
        assert_eq!(code, 1);
        assert!(err.contains(expected), "{err}");
    }
    let (code, _, err) = run(&["create", &set, "--log", kept.path().to_str().unwrap()]);
    assert_eq!(code, 1);
    assert!(err.contains("directory"), "{err}");
    assert!(!Path::new(&set).exists());
}
