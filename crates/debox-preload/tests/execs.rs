//! Programs that become others, by each function of exec(3).

use std::path::Path;
use std::process::{Command, Output};

use headway_debox::collect::{NoteKind, Process};
use headway_test_support::skip;

use crate::support::{self, Bench, assert_alike};

const WAYS: [&str; 11] = [
    "execl",
    "execl-short",
    "execlp",
    "execle",
    "execle-short",
    "execveat",
    "execv",
    "execve",
    "execvp",
    "execvpe",
    "fexecve",
];

/// Runs tests/programs/execs.c, plain and traced.
fn both(bench: &Bench, execs: &Path, arguments: &[&Path]) -> (Output, Output) {
    let [plain, traced] = [Command::new(execs), bench.traced(execs)].map(|mut command| {
        command.args(arguments).env("VARIABLE", "variable");
        command.output().expect("it runs")
    });
    (plain, traced)
}

/// What the library does to look at a program is no call of the process.
fn assert_none_of_the_library(process: &Process, way: &str) {
    let own = process.sites.iter().filter(|site| {
        let module = process.locate(site.address);
        module.is_some_and(|(module, _)| module.path.ends_with("/libdebox_preload.so"))
    });
    let names: Vec<_> = own.map(|site| &site.name).collect();
    assert!(names.is_empty(), "{way}: {names:?}");
}

/// The notes of all processes.
fn notes(bench: &Bench) -> Vec<(NoteKind, String)> {
    let processes = bench.collection().processes.into_iter();
    let notes = processes.flat_map(|process| process.notes);
    notes.map(|note| (note.kind, note.text)).collect()
}

#[test]
fn program_and_the_one_it_becomes_are_recorded_when_it_calls_any_exec() {
    for way in WAYS.into_iter().chain(["execveat-file"]) {
        let bench = Bench::new();
        let execs = bench.compile("execs", &[]);
        let (plain, traced) = both(&bench, &execs, &[Path::new(way), &execs]);
        let list = if way.ends_with("short") {
            "zero"
        } else {
            "zero 1 2 3 4 5 6 7 8"
        };
        assert_eq!(
            support::text(&plain.stdout),
            format!("{list} variable\n"),
            "{way}"
        );
        assert_alike(way, &plain, &traced);
        let processes = bench.processes(&execs);
        assert_eq!(processes.len(), 2, "{way}");
        let first = processes.iter().find(|process| process.image == 0);
        let first = first.expect("the program");
        let calls = ["execve", "execveat"].map(|call| support::calls(first, call).0);
        assert_eq!(calls.iter().sum::<u64>(), 1, "{way}");
        assert_none_of_the_library(first, way);
        let second = processes.iter().find(|process| process.image == 1);
        let second = second.expect("the one that it became");
        assert_eq!(support::calls(second, "getppid"), (10, 0), "{way}");
        assert_eq!(notes(&bench), [], "{way}");

        let none = Path::new("/there/is/none");
        let (plain, traced) = both(&bench, &execs, &[Path::new(way), none]);
        assert_eq!(plain.status.code(), Some(9), "{way}");
        assert_alike(way, &plain, &traced);
    }
}

#[test]
fn parent_goes_on_when_its_vfork_child_calls_any_exec() {
    for way in WAYS {
        let bench = Bench::new();
        let execs = bench.compile("execs", &[]);
        let way = format!("vfork-{way}");
        let (plain, traced) = both(&bench, &execs, &[Path::new(&way), &execs]);
        assert_eq!(plain.status.code(), Some(6), "{way}: {plain:?}");
        assert_alike(&way, &plain, &traced);
        let processes = bench.processes(&execs);
        assert_eq!(processes.len(), 2, "{way}");
        // The exec, and none that the library made in the child.
        let vforks = processes
            .iter()
            .map(|process| process.losses.calls_of_vfork);
        assert_eq!(vforks.sum::<u64>(), 1, "{way}");
    }
}

#[test]
fn program_without_the_library_is_noted_when_it_is_started_by_any_exec() {
    for way in ["execle-empty", "execveat-empty", "execve-empty"] {
        let bench = Bench::new();
        let execs = bench.compile("execs", &[]);
        let (plain, traced) = both(&bench, &execs, &[Path::new(way), &execs]);
        assert_alike(way, &plain, &traced);
        let program = execs.to_str().expect("a name").to_owned();
        assert_eq!(notes(&bench), [(NoteKind::Environment, program)], "{way}");
    }
    for way in WAYS {
        let bench = Bench::new();
        let fixed = bench.path().join("fixed");
        std::fs::rename(bench.compile("execs", &["-static"]), &fixed).expect("renamed");
        let execs = bench.compile("execs", &[]);
        let (plain, traced) = both(&bench, &execs, &[Path::new(way), &fixed]);
        assert_eq!(plain.status.code(), Some(5), "{way}: {plain:?}");
        assert_alike(way, &plain, &traced);
        let kinds: Vec<_> = notes(&bench).into_iter().map(|note| note.0).collect();
        assert_eq!(kinds, [NoteKind::Static], "{way}");
    }
}

/// Copies the loader and libc to a root directory. Another process copies them: a descriptor for writing of this one would
/// also be in children that other tests start at that moment, and the kernel executes no file that is open for writing.
fn fill_root(root: &Path) {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("proc(5)");
    let files = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5));
    let libc = files.into_iter().find(|file| file.ends_with("/libc.so.6"));
    for file in [libc.expect("libc"), "/lib64/ld-linux-x86-64.so.2"] {
        let copy = root.join(&file[1..]);
        std::fs::create_dir_all(copy.parent().expect("a directory")).expect("made");
        let copied = Command::new("cp").arg(file).arg(copy).status();
        assert!(copied.expect("cp").success());
    }
}

/// Needs: root: changes its root directory
#[test]
fn loader_prints_nothing_when_a_program_behind_a_chroot_calls_any_exec() {
    let test = "loader_prints_nothing_when_a_program_behind_a_chroot_calls_any_exec";
    for way in WAYS {
        let bench = Bench::new();
        let execs = bench.compile("execs", &[]);
        let root = bench.path().join("root");
        fill_root(&root);
        let inside = Path::new("/execs");
        std::fs::hard_link(&execs, root.join("execs")).expect("linked");
        // So that it can be opened before the root is changed.
        let program = if way == "fexecve" { &execs } else { inside };
        let (plain, traced) = both(&bench, &execs, &[Path::new(way), program, &root]);
        if plain.status.code() == Some(77) {
            return skip(test, "only root can change its root directory");
        }
        assert_eq!(plain.status.code(), Some(5), "{way}: {plain:?}");
        assert_alike(way, &plain, &traced);
        let kinds: Vec<_> = notes(&bench).into_iter().map(|note| note.0).collect();
        assert_eq!(kinds, [NoteKind::Unreachable], "{way}");
    }
}
