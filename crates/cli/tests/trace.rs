//! `headway trace -p` as its users see it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

/// A process that does nothing but sleep, ended with the test.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Sleeper {
        let script = "while :; do sleep 0.01; done";
        Sleeper(
            Command::new("sh")
                .args(["-c", script])
                .spawn()
                .expect("a shell"),
        )
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn trace(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_headway"))
        .arg("trace")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("the binary that was just built")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Says why the test does not run, if the machine does not let it.
fn refused(test: &str, output: &Output) -> bool {
    let error = text(&output.stderr);
    let reasons = [
        "not permitted",
        "without its BPF part",
        "/sys/kernel/btf",
        "is needed",
        "of a container",
    ];
    let refused =
        output.status.code() == Some(1) && reasons.iter().any(|reason| error.contains(reason));
    if refused {
        println!("SKIP: {error}");
        if let Some(path) = std::env::var_os("HEADWAY_SKIP_LOG") {
            let log = std::fs::File::options()
                .append(true)
                .create(true)
                .open(path);
            let mut log = log.expect("the skip log can be appended to");
            std::io::Write::write_all(&mut log, format!("{test}: {}\n", error.trim()).as_bytes())
                .expect("the skip log can be written");
        }
    }
    refused
}

#[test]
fn words_that_make_no_sense_are_refused_when_tracing() {
    for (arguments, word) in [
        (&[][..], "--attach"),
        (&["-p", "many"], "many"),
        (&["-p", "1", "--duration=-1"], "negative"),
        (
            &["-p", "1", "--duration", "soon"],
            "not a number of seconds",
        ),
        (&["-p", "4294967295"], "there is none with this number"),
    ] {
        let output = trace(arguments);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(word), "{arguments:?}: {error}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn tables_name_call_label_and_losses_when_a_shell_waits_for_its_children() {
    let test = "tables_name_call_label_and_losses_when_a_shell_waits_for_its_children";
    let sleeper = Sleeper::start();
    let output = trace(&["-p", &sleeper.pid(), "--duration", "1"]);
    if refused(test, &output) {
        return;
    }
    let tables = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let row = |call: &str, label: &str| {
        let words = |line: &str| {
            line.split_ascii_whitespace()
                .take(2)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        tables.lines().any(|line| words(line) == [call, label])
    };
    assert!(row("wait4", "child"), "{tables}");
    assert!(
        row("clock_nanosleep", "timer"),
        "the children are followed:\n{tables}"
    );
    let last = tables.lines().last().expect("a last line");
    assert!(
        last.starts_with("not seen: ") || last == "nothing was lost",
        "{tables}"
    );
}

#[test]
fn document_is_json_and_the_command_ends_when_the_process_does() {
    let test = "document_is_json_and_the_command_ends_when_the_process_does";
    let mut child = Command::new("cat")
        .stdin(Stdio::piped())
        .spawn()
        .expect("cat");
    let mut command = Command::new(env!("CARGO_BIN_EXE_headway"))
        .args(["trace", "-p", &child.id().to_string(), "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary that was just built");
    let mut said = String::new();
    let mut errors = BufReader::new(command.stderr.take().expect("piped"));
    errors.read_line(&mut said).expect("its first words");
    drop(child.stdin.take());
    child.wait().expect("our child");
    let mut output = command.wait_with_output().expect("its output");
    output.stderr = said.clone().into_bytes();
    if refused(test, &output) {
        return;
    }
    assert_eq!(
        (output.status.code(), said.contains("observing")),
        (Some(0), true),
        "{said}"
    );
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(
        document["rung"]
            .as_str()
            .is_some_and(|rung| rung.contains("BPF")),
        "{document}"
    );
    let sites = document["sites"].as_array().expect("call sites");
    let end = sites
        .iter()
        .find(|site| site["name"] == "exit_group")
        .expect("its end");
    assert_eq!(end["unfinished"], 1, "{end}");
    assert_eq!(document["lost"]["calls"], 0, "{document}");
}
