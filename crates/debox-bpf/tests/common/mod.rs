//! What the tests of the observer share: the process observed, and skipping in the open.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use headway_debox_bpf::{Attach, AttachError, SiteTotals};
use headway_test_support::skip;
use tempfile::TempDir;

/// The observer, or `None` after saying what this machine lacks. Any other error is the test's.
pub fn attach(test: &str, started: Result<Attach, AttachError>) -> Option<Attach> {
    match started {
        Ok(attach) => Some(attach),
        Err(error) if is_unsupported(&error) => {
            skip(test, &error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Whether the machine lacks something. A program that clang or the kernel's verifier refuses is
/// our mistake, unless the kernel is too old for it.
pub fn is_unsupported(error: &AttachError) -> bool {
    match error {
        AttachError::NotBuilt { why } => !why.contains("could not compile"),
        AttachError::Tracepoint { .. } => kernel_release() < (5, 18),
        AttachError::NotPermitted { .. }
        | AttachError::NoBtf { .. }
        | AttachError::Namespace { .. } => true,
        _ => false,
    }
}

fn kernel_release() -> (u32, u32) {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("proc");
    let mut numbers = text
        .split(['.', '-'])
        .map_while(|part| part.trim().parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// The program, running, and waiting for the word.
pub struct Sleeper {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// Where its functions that make the calls begin: `make_calls`, `read_once`.
    pub functions: Vec<u64>,
    _program: Program,
}

/// `tests/sleeper.c`, compiled; its file is there as long as this value.
pub struct Program {
    path: PathBuf,
    _folder: TempDir,
}

impl Program {
    pub fn compiled(statically: bool) -> Program {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("sleeper");
        let linked = (statically && compile(&path, &["-static"])) || compile(&path, &[]);
        assert!(linked, "cc compiles tests/sleeper.c");
        Program {
            path,
            _folder: folder,
        }
    }
}

impl Sleeper {
    /// Statically linked where the machine has libc.a, so that nothing but the observer could see
    /// it.
    pub fn start(role: &str, count: u32) -> Sleeper {
        Sleeper::linked(role, count, true)
    }

    /// Static or dynamic.
    pub fn linked(role: &str, count: u32, statically: bool) -> Sleeper {
        Sleeper::of(Program::compiled(statically), role, count)
    }

    pub fn of(program: Program, role: &str, count: u32) -> Sleeper {
        let mut child = Command::new(&program.path)
            .args([role, &count.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program that was just compiled");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let mut sleeper = Sleeper {
            input: child.stdin.take(),
            child,
            output,
            functions: Vec::new(),
            _program: program,
        };
        let line = sleeper.receive("ready");
        let numbers = line.split_ascii_whitespace().skip(1);
        sleeper.functions = numbers
            .map(|text| u64::from_str_radix(text, 16).expect("an address"))
            .collect();
        sleeper
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets it do what its role says; returns when that is done. It lives on.
    pub fn run(&mut self) {
        let input = self.input.as_mut().expect("it runs once");
        input.write_all(b"go\n").expect("it listens");
        self.receive("done");
    }

    /// Lets it end, and waits for that.
    pub fn finish(&mut self) {
        self.input = None;
        let status = self.child.wait().expect("it is our child");
        assert!(status.success(), "{status}");
    }

    fn receive(&mut self, word: &str) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("its output");
        assert!(line.starts_with(word), "the process says {line}");
        line
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn compile(program: &Path, more: &[&str]) -> bool {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sleeper.c");
    let output = Command::new("cc")
        .args(["-O1", "-pthread"])
        .args(more)
        .arg(source)
        .arg("-o")
        .arg(program)
        .output()
        .expect("a C compiler, which linking this test needed as well");
    output.status.success()
}

/// The totals of one call of one process or, without a number, of all, over all call sites.
pub fn of_call<'a>(
    totals: &'a [SiteTotals],
    pid: Option<u32>,
    name: &'a str,
) -> impl Iterator<Item = &'a SiteTotals> + use<'a> {
    totals
        .iter()
        .filter(move |site| site.name == name && pid.is_none_or(|pid| site.pid == pid))
}
