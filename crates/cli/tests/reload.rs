//! `headway reload` and `headway upgrade`, with servers of the test.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output};

use headway_test_support::executable;
use tempfile::TempDir;

use super::serving::{Server, headway};

struct Served {
    directory: TempDir,
    server: Server,
}

impl Served {
    fn start() -> Served {
        Served::by(headway(), tempfile::tempdir().expect("a directory"))
    }

    fn by(program: Command, directory: TempDir) -> Served {
        fs::create_dir(directory.path().join("root")).expect("a root");
        fs::write(directory.path().join("root/index.html"), "hello").expect("a file");
        let file = directory.path().join("headway.toml");
        write(&directory, "workers = 1");
        Served {
            server: Server::start_from_file(program, &file),
            directory,
        }
    }

    fn command(&self, name: &str) -> Output {
        let pid = self.server.master().to_string();
        headway().args([name, &pid]).output().expect("it runs")
    }
}

fn write(directory: &TempDir, settings: &str) {
    let root: PathBuf = directory.path().join("root");
    let text = format!(
        "root = {root:?}\nlisten = \"127.0.0.1:0\"\nstatus = \"127.0.0.1:0\"\n{settings}\n"
    );
    fs::write(directory.path().join("headway.toml"), text).expect("a file");
}

fn said(output: &Output) -> (Option<i32>, String) {
    let both = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    (output.status.code(), both.concat())
}

#[test]
fn reload_and_upgrade_say_whether_they_succeeded() {
    let served = Served::start();
    let number = served.server.master();
    for (command, done) in [
        ("reload", "configuration reloaded"),
        ("upgrade", "upgraded"),
    ] {
        let expected = (Some(0), format!("{done} (process {number})\n"));
        assert_eq!(said(&served.command(command)), expected);
        // The result is there when the command ends.
        assert_eq!(served.server.status()["master"][format!("{command}s")], 1);
    }
    write(&served.directory, "workers = \"many\"");
    for command in ["reload", "upgrade"] {
        let (code, text) = said(&served.command(command));
        assert_eq!(code, Some(1), "{text}");
        let begins = format!("headway: {command} failed: ");
        assert!(text.starts_with(&begins) && text.contains("many"), "{text}");
        assert!(text.contains("the server goes on as before"), "{text}");
    }
    write(&served.directory, "workers = 2");
    for command in ["upgrade", "reload"] {
        assert_eq!(served.command(command).status.code(), Some(0));
        assert_eq!(served.server.status()["master"][format!("{command}s")], 2);
    }
    assert_eq!(served.server.get("/").1, "hello");
}

/// While a process executes another program, it has no command line, or that of a shell.
#[test]
fn upgrade_is_reported_when_the_process_is_another_program_for_a_while() {
    let directory = tempfile::tempdir().expect("a directory");
    let (program, real) = (directory.path().join("headway"), headway());
    let real = real.get_program();
    symlink(real, &program).expect("a link");
    let served = Served::by(Command::new(&program), directory);
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *--rehearse-upgrade*) ;; *) sleep 1 ;; esac\nexec {real:?} \"$@\"\n"
    );
    let new = program.with_extension("new");
    executable::write(&new, &script, 0o755);
    fs::rename(new, program).expect("the same file system");
    let expected = format!("upgraded (process {})\n", served.server.master());
    assert_eq!(said(&served.command("upgrade")), (Some(0), expected));
}

#[test]
fn signal_goes_only_to_the_main_process_of_a_server() {
    let served = Served::start();
    let worker = served.server.children("serve-worker")[0].to_string();
    for pid in [&*worker, "1", "2147483647"] {
        let output = headway().args(["reload", pid]).output().expect("it runs");
        let (code, text) = said(&output);
        assert_eq!(code, Some(2), "{text}");
        assert!(
            text.contains("is not the main process of a server"),
            "{text}"
        );
    }
    let file = served.directory.path().join("ready.json");
    for (content, part) in [
        (r#"{"master_pid": 1}"#, "its server does not run any more"),
        (r#"{"master_pid": -1}"#, "its server does not run any more"),
        ("{}", "its server does not run any more"),
        ("no JSON", "ready.json"),
    ] {
        fs::write(&file, content).expect("a file");
        let output = headway()
            .args(["upgrade", "--ready-file"])
            .arg(&file)
            .output();
        let (code, text) = said(&output.expect("it runs"));
        assert_eq!(code, Some(1), "{content}: {text}");
        assert!(text.contains(part), "{content}: {text}");
    }
    assert_eq!(served.server.status()["master"]["reloads"], 0);
    assert_eq!(served.server.get("/").1, "hello");
}
