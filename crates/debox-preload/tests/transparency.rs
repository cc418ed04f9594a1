//! A traced program does what it does untraced: results, output, errors, exit code.

use crate::support;
use std::path::Path;
use std::process::Command;

use support::{Bench, assert_alike, library};

use headway_test_support::skip;

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).exists())
}

/// A small tree for searching.
fn tree(root: &Path) {
    for directory in 0..4 {
        let directory = root.join(format!("d{directory}"));
        std::fs::create_dir(&directory).expect("a directory");
        for file in 0..20 {
            let text = format!("{file}\n").repeat(file * 50);
            std::fs::write(directory.join(format!("f{file}")), text).expect("a file");
        }
    }
}

/// Starts threads and processes.
const PYTHON: &str = "import os,subprocess,threading\n\
    l=[]\n\
    t=[threading.Thread(target=lambda i=i:l.append(os.stat('d0/f%d'%i).st_size)) for i in range(9)]\n\
    [x.start() for x in t]; [x.join() for x in t]\n\
    print(sorted(l), subprocess.run(['sh','-c','echo $0; exit 4'],capture_output=True))\n\
    os.close(1) if os.fork()==0 else os.wait()";

const SQL: &str = "create table t(a,b); insert into t select value, value*value from generate_series(1,500); \
    select count(*), sum(b) from t;";

/// Programs and their arguments, run in the directory of [`tree`].
const REAL_PROGRAMS: &[(&str, &[&str])] = &[
    ("ls", &["-lR", "."]),
    ("ls", &["/there/is/none"]),
    (
        "sh",
        &[
            "-c",
            "cat d*/f1* | sort | uniq -c | tail -n 3; (exit 3) | true; exit 5",
        ],
    ),
    (
        "sh",
        &[
            "-c",
            "for i in 1 2 3; do (echo $i; exec cat d1/f$i) & wait; done; kill -TERM $$",
        ],
    ),
    (
        "sh",
        &[
            "-c",
            "tar cf - d0 d1 | gzip -n | gzip -dc | tar tf - | sort",
        ],
    ),
    (
        "sh",
        &[
            "-c",
            "trap 'echo caught' USR1; kill -USR1 $$; read line < d1/f2; echo $line",
        ],
    ),
    (
        "find",
        &[
            ".", "-type", "f", "-size", "+1", "-exec", "wc", "-c", "{}", "+",
        ],
    ),
    ("grep", &["-rc", "7", "."]),
    (
        "dd",
        &["if=/dev/zero", "bs=1000", "count=10", "status=none"],
    ),
    ("python3", &["-c", PYTHON]),
    (
        "perl",
        &["-e", "open(F,'d0/f3'); print <F>; print `echo sub`; exit 6"],
    ),
    ("sqlite3", &["db", SQL]),
    ("git", &["hash-object", "d3/f19"]),
    ("bash", &["-c", "diff <(ls d0) <(ls d1) && echo same"]),
];

#[test]
fn real_programs_behave_alike_when_they_are_traced() {
    let bench = Bench::new();
    let directory = bench.path().join("tree");
    std::fs::create_dir(&directory).expect("a directory");
    tree(&directory);
    for (program, arguments) in REAL_PROGRAMS {
        if !is_there(program) {
            println!("not installed, so not compared: {program}");
            continue;
        }
        let what = format!("{program} {arguments:?}");
        let run = |mut command: Command| {
            let _ = std::fs::remove_file(directory.join("db"));
            command.args(*arguments).current_dir(&directory);
            command.output().expect("the program runs")
        };
        let plain = run(Command::new(program));
        let traced = run(bench.traced(program));
        assert_alike(&what, &plain, &traced);
        assert!(!bench.collection().processes.is_empty(), "{what}");
    }
}

#[test]
fn handlers_longjmp_and_cancellation_work_when_calls_are_traced() {
    let bench = Bench::new();
    let program = bench.compile("signals", &[]);
    let plain = Command::new(&program).output().expect("it runs");
    let traced = bench.traced(&program).output().expect("it runs");
    assert_eq!(plain.status.code(), Some(7), "{plain:?}");
    assert_alike("signals", &plain, &traced);
    let processes = bench.processes(&program);
    let process = processes.first().expect("it was traced");
    // Every handler made its call, ten of them while another one was under way.
    assert!(support::calls(process, "write").0 >= 10, "{process:#?}");
    assert!(process.losses.calls_nested > 0, "{:?}", process.losses);
    // What came after the jumps is not taken for part of the calls that were left.
    assert_eq!(support::calls(process, "getppid"), (100, 0));
}

#[test]
fn other_threads_go_on_when_a_handler_jumps_out_of_the_first_call() {
    let bench = Bench::new();
    let program = bench.compile("jumps", &[]);
    let output = bench.traced(&program).output().expect("it runs");
    assert_eq!(support::text(&output.stdout), "0 stuck\n", "{output:?}");
}

/// Anyone who may write to the directory could otherwise stop every traced program before its first
/// instruction.
#[test]
fn program_runs_when_files_of_the_trace_directory_are_fifos_or_links() {
    let bench = Bench::new();
    let program = bench.compile("counted", &[]);
    let fifo = bench.path().join("fifo");
    let make = |path: &Path| {
        let made = Command::new("mkfifo").arg(path).status().expect("it runs");
        assert!(made.success());
    };
    make(&fifo);
    for file in ["ticks", "symbols"] {
        for is_link in [false, true] {
            let path = bench.traces().join(file);
            // An earlier round may have left the regular one.
            let _ = std::fs::remove_file(&path);
            match is_link {
                true => std::os::unix::fs::symlink(&fifo, &path).expect("a link"),
                false => make(&path),
            }
            let output = Command::new("timeout")
                .arg("20")
                .arg("env")
                .arg(format!("LD_PRELOAD={}", library().display()))
                .arg(format!("HEADWAY_TRACE_DIR={}", bench.traces().display()))
                .arg("HEADWAY_TRACE_KEEP=label=pipe")
                .arg(&program)
                .output()
                .expect("it runs");
            assert_eq!(output.stdout, b"done\n", "{file}: {output:?}");
            std::fs::remove_file(&path).expect("it is there");
        }
    }
    // What reads the directory does not wait either.
    std::fs::rename(&fifo, bench.traces().join("1-1-0.debox")).expect("a name");
    let collection = headway_debox::collect::Collection::open(&bench.traces()).expect("a list");
    assert_eq!(collection.damaged.len(), 1);
    assert_eq!(collection.damaged[0].why, "not a regular file");
}

/// A release is another library: panics abort in it and its unwinder is its own, so that a thread
/// which is cancelled in a call is unwound in another way.
#[test]
fn cancellation_works_when_the_library_is_built_as_for_a_release() {
    let bench = Bench::new();
    let program = bench.compile("signals", &[]);
    let plain = Command::new(&program).output().expect("it runs");
    let traced = bench
        .traced(&program)
        .env("LD_PRELOAD", release_library())
        .output()
        .expect("it runs");
    assert_alike("signals", &plain, &traced);
    assert_eq!(bench.processes(&program).len(), 1);
}

/// Built with what makes a release another library, and without what makes its building slow.
fn release_library() -> std::path::PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("release-library");
    let output = Command::new(env!("CARGO"))
        .args([
            "build",
            "--quiet",
            "--release",
            "-p",
            "headway-debox-preload",
            "--target-dir",
        ])
        .arg(&target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        .output()
        .expect("cargo runs, since it runs this test");
    let errors = support::text(&output.stderr);
    assert!(output.status.success(), "{errors}");
    target.join("release/libdebox_preload.so")
}

#[test]
fn children_behave_alike_and_are_counted_when_created_in_any_way() {
    let bench = Bench::new();
    let program = bench.compile("children", &[]);
    let plain = Command::new(&program).output().expect("it runs");
    let traced = bench.traced(&program).output().expect("it runs");
    assert_eq!(plain.status.code(), Some(8), "{plain:?}");
    assert_alike("children", &plain, &traced);
    let processes = bench.processes(&program);
    let tens = processes
        .iter()
        .filter(|process| support::calls(process, "getppid") == (10, 0));
    // Forked; execl; vfork; posix_spawn; system; popen; the end; and the storm's.
    assert_eq!(tens.count(), 7 + 80);
    let first = processes
        .iter()
        .find(|process| process.image == 0 && process.command.len() == 1)
        .expect("the first process");
    // One vfork child called getuid, which is not its parent's.
    assert_eq!(support::calls(first, "getuid"), (0, 0));
    assert!(first.losses.calls_of_vfork > 0);
    assert_eq!(support::calls(first, "vfork").0, 2);
    // A missing library in the environment is noted.
    let without = processes.iter().flat_map(|process| &process.notes);
    let without: Vec<_> = without
        .filter(|note| note.kind == headway_debox::collect::NoteKind::Environment)
        .collect();
    assert_eq!(without.len(), 1, "{without:?}");
    assert_eq!(Path::new(&without[0].text), program);
}

#[test]
fn parents_records_are_complete_when_vfork_children_shared_its_memory() {
    let bench = Bench::new();
    let program = bench.compile("vforks", &[]);
    let plain = Command::new(&program).output().expect("it runs");
    let traced = bench.traced(&program).output().expect("it runs");
    assert_eq!(
        support::text(&plain.stdout),
        "ending: 3\nsleeping: 4\nnested: 6\nexecing: 7\nthread: 3\nrefused: 1\nwritten: 4\n"
    );
    assert_eq!(plain.status.code(), Some(8), "{plain:?}");
    assert_alike("vforks", &plain, &traced);
    let processes = bench.processes(&program);
    // The parent, and the child that became a program; the others were in their parent's memory and
    // left nothing.
    assert_eq!(processes.len(), 2);
    let parent = processes.iter().find(|process| process.command.len() == 1);
    let parent = parent.expect("the parent");
    // The grandchild belongs to its parent, which is not recorded. The refused one is a failure.
    assert_eq!(support::calls(parent, "vfork"), (6, 1));
    assert_eq!(support::calls(parent, "getppid"), (40, 0));
    for call in ["getuid", "clock_nanosleep"] {
        assert_eq!(support::calls(parent, call), (0, 0), "{call}");
    }
    // Of the children's calls at least those of getuid, nanosleep and waitpid stand in the count.
    assert!(parent.losses.calls_of_vfork >= 6, "{:?}", parent.losses);
    // A parent waits until its child has ended, and that is its call's time.
    let vforks = parent.sites.iter().filter(|site| site.name == "vfork");
    let longest_ns = vforks.map(|site| site.wall_max_ns).max();
    assert!(longest_ns >= Some(20_000_000), "{longest_ns:?}");
    let child = processes.iter().find(|process| process.command.len() == 2);
    assert_eq!(
        support::calls(child.expect("the child"), "getppid"),
        (10, 0)
    );
}

#[test]
fn program_with_an_empty_environment_is_traced_when_following_is_on() {
    let bench = Bench::new();
    let program = bench.compile("children", &[]);
    let traced = bench
        .traced(&program)
        .env("HEADWAY_TRACE_FOLLOW", "1")
        .output()
        .expect("it runs");
    assert_eq!(traced.status.code(), Some(8), "{traced:?}");
    let processes = bench.processes(&program);
    let followed = processes
        .iter()
        .find(|process| process.command.last().is_some_and(|word| word == "6"));
    let followed = followed.expect("the one with the empty environment");
    assert_eq!(support::calls(followed, "getppid"), (10, 0));
}

#[test]
fn program_sees_no_descriptor_of_the_tracer_when_it_lists_them() {
    let bench = Bench::new();
    let program = bench.compile("descriptors", &[]);
    let plain = Command::new(&program).output().expect("it runs");
    let traced = bench.traced(&program).output().expect("it runs");
    assert_alike("descriptors", &plain, &traced);
}

#[test]
fn program_runs_untraced_when_the_directory_is_missing_or_limits_are_exceeded() {
    let bench = Bench::new();
    let program = bench.compile("counted", &[]);
    for directory in ["/there/is/none", "relative", ""] {
        let output = bench
            .traced(&program)
            .env("HEADWAY_TRACE_DIR", directory)
            .output()
            .expect("it runs");
        assert_eq!(output.stdout, b"done\n", "{directory}: {output:?}");
    }
    // Exceeding a file-size limit would raise a signal.
    let output = Command::new("sh")
        .args([
            "-c",
            "ulimit -f 20; LD_PRELOAD=$1 HEADWAY_TRACE_DIR=$2 exec $3",
            "sh",
        ])
        .arg(library())
        .arg(bench.traces())
        .arg(&program)
        .output()
        .expect("it runs");
    assert_eq!(output.stdout, b"done\n", "{output:?}");
}

#[test]
fn program_survives_when_seccomp_forbids_the_tracers_calls() {
    for way in ["prctl", "syscall"] {
        let bench = Bench::new();
        let program = bench.compile("confined", &[]);
        let plain = Command::new(&program).arg(way).output().expect("it runs");
        assert_eq!(plain.status.code(), Some(3), "{way}: {plain:?}");
        let traced = bench
            .traced(&program)
            .arg(way)
            .env("HEADWAY_TRACE_WAKEUP", "1")
            .output()
            .expect("it runs");
        assert_alike(way, &plain, &traced);
        let processes = bench.processes(&program);
        assert_eq!(processes.len(), 1, "{way}");
        assert_eq!(support::calls(&processes[0], "getuid"), (10, 0));
        let confined = |note: &&headway_debox::collect::Note| {
            note.kind == headway_debox::collect::NoteKind::Confined
        };
        assert_eq!(processes[0].notes.iter().filter(confined).count(), 1);
    }
}

#[test]
fn program_lives_when_it_gives_up_the_counter() {
    for way in ["prctl", "syscall", "syscall-prctl", "tsc"] {
        let bench = Bench::new();
        let program = bench.compile("clockless", &[]);
        let plain = Command::new(&program).arg(way).output().expect("it runs");
        assert_eq!(plain.status.code(), Some(3), "{way}: {plain:?}");
        let traced = bench.traced(&program).arg(way).output().expect("it runs");
        assert_alike(way, &plain, &traced);
        let processes = bench.processes(&program);
        let first = processes
            .iter()
            .find(|process| support::calls(process, "getuid").0 > 0);
        let first = first.expect("it was traced until then");
        assert_eq!(support::calls(first, "getuid"), (10, 0));
        let named = |note: &&headway_debox::collect::Note| {
            note.kind == headway_debox::collect::NoteKind::Clockless
        };
        assert_eq!(first.notes.iter().filter(named).count(), 1, "{way}");
    }
}

#[test]
fn program_is_traced_on_when_it_keeps_the_counter() {
    for way in ["failing", "vfork"] {
        let bench = Bench::new();
        let program = bench.compile("clockless", &[]);
        let plain = Command::new(&program).arg(way).output().expect("it runs");
        assert_eq!(plain.status.code(), Some(3), "{way}: {plain:?}");
        let traced = bench.traced(&program).arg(way).output().expect("it runs");
        assert_alike(way, &plain, &traced);
        let processes = bench.processes(&program);
        assert_eq!(processes.len(), 1, "{way}");
        assert_eq!(support::calls(&processes[0], "getuid"), (20, 0), "{way}");
        let named = |note: &&headway_debox::collect::Note| {
            note.kind == headway_debox::collect::NoteKind::Clockless
        };
        assert_eq!(processes[0].notes.iter().find(named), None, "{way}");
    }
}

/// Needs: root: changes its root directory
#[test]
fn loader_prints_nothing_when_the_library_is_not_behind_a_chroot() {
    let test = "loader_prints_nothing_when_the_library_is_not_behind_a_chroot";
    let bench = Bench::new();
    let root = bench.path().join("root");
    std::fs::create_dir(&root).expect("a directory");
    for directory in ["bin", "lib", "lib64", "usr"] {
        std::fs::create_dir(root.join(directory)).expect("a directory");
    }
    let script = "for d in bin lib lib64 usr; do mount --rbind /$d \"$0/$d\" || exit 77; done; chroot \"$0\" /bin/sh -c \
                  '/bin/sh -c \"exit 4\"; exit $?'";
    let run = |mut command: Command| {
        command.args(["--mount", "sh", "-c", script]).arg(&root);
        command.output().expect("unshare runs")
    };
    let plain = run(Command::new("unshare"));
    if plain.status.code() != Some(4) {
        return skip(
            test,
            &format!("no chroot here: {}", support::text(&plain.stderr)),
        );
    }
    let traced = run(bench.traced("unshare"));
    assert_alike("chroot", &plain, &traced);
    let processes = bench.collection().processes;
    let notes = processes.iter().flat_map(|process| &process.notes);
    let unreachable = headway_debox::collect::NoteKind::Unreachable;
    assert_eq!(notes.filter(|note| note.kind == unreachable).count(), 1);
}

/// Needs: root: becomes another user
#[test]
fn program_is_named_when_it_cannot_write_to_the_trace_directory() {
    let test = "program_is_named_when_it_cannot_write_to_the_trace_directory";
    let bench = Bench::new();
    let program = bench.compile("dropped", &[]);
    let plain = Command::new(&program).output().expect("it runs");
    if plain.status.code() == Some(77) {
        return skip(test, "only root can become another user");
    }
    // A library that any user finds, as the program's own.
    let own = "libm.so.6";
    let plain = Command::new(&program)
        .env("LD_PRELOAD", own)
        .output()
        .expect("it runs");
    let both = format!("{}:{own}", library().display());
    let traced = bench
        .traced(&program)
        .env("LD_PRELOAD", both)
        .output()
        .expect("it runs");
    assert_eq!(support::text(&traced.stdout), format!("{own}\n"));
    assert_alike("dropped", &plain, &traced);
    let processes = bench.collection().processes;
    let notes = processes.iter().flat_map(|process| &process.notes);
    let unreachable = headway_debox::collect::NoteKind::Unreachable;
    assert_eq!(notes.filter(|note| note.kind == unreachable).count(), 1);
}

/// A small file system in memory, unmounted when dropped.
struct SmallFilesystem(std::path::PathBuf);

impl SmallFilesystem {
    fn mount(mount_point: &Path, size: &str) -> Result<SmallFilesystem, String> {
        let options = format!("size={size}");
        let output = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "headway-small"])
            .arg(mount_point)
            .output()
            .map_err(|error| format!("mount: {error}"))?;
        match output.status.success() {
            true => Ok(SmallFilesystem(mount_point.to_owned())),
            false => Err(support::text(&output.stderr)),
        }
    }
}

impl Drop for SmallFilesystem {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// Needs: root: mounts a small file system in memory
#[test]
fn program_survives_and_is_counted_in_part_when_the_directory_is_nearly_full() {
    let test = "program_survives_and_is_counted_in_part_when_the_directory_is_nearly_full";
    for (size, is_traced) in [("40m", true), ("6m", true), ("4k", false)] {
        let bench = Bench::new();
        let program = bench.compile("threads", &[]);
        let _small = match SmallFilesystem::mount(&bench.traces(), size) {
            Ok(small) => small,
            Err(why) => return skip(test, why.trim()),
        };
        let output = bench
            .traced(&program)
            .env("HEADWAY_TRACE_KEEP", "all")
            .output()
            .expect("it runs");
        assert_eq!(output.stdout, b"joined\n", "{size}: {output:?}");
        assert!(output.status.success(), "{size}: {output:?}");
        let processes = bench.processes(&program);
        assert_eq!(!processes.is_empty(), is_traced, "{size}");
        for process in processes {
            let seen = support::calls(&process, "getppid").0;
            assert!(
                seen + process.losses.calls_without_lane >= 100_000,
                "{size}"
            );
        }
    }
}

#[test]
fn program_runs_when_its_address_space_is_limited() {
    let bench = Bench::new();
    let program = bench.compile("counted", &[]);
    let output = Command::new("sh")
        .args([
            "-c",
            "ulimit -v 102400; LD_PRELOAD=$1 HEADWAY_TRACE_DIR=$2 exec $3",
            "sh",
        ])
        .arg(library())
        .arg(bench.traces())
        .arg(&program)
        .output()
        .expect("it runs");
    assert_eq!(output.stdout, b"done\n", "{output:?}");
    let processes = bench.processes(&program);
    assert_eq!(support::calls(&processes[0], "read"), (1000, 0));
}

/// Needs: root: makes a set-user-ID program of another user's
#[test]
fn untraceable_programs_are_noted_when_they_are_started() {
    let bench = Bench::new();
    let program = bench.compile("threads", &["-static"]);
    let shell = |bench: &Bench, program: &Path| {
        let output = bench
            .traced("sh")
            .args(["-c", "\"$0\"; exit 0"])
            .arg(program)
            .output()
            .expect("it runs");
        assert_eq!(output.stdout, b"joined\n", "{output:?}");
        let notes: Vec<_> = bench
            .collection()
            .processes
            .iter()
            .flat_map(|process| process.notes.clone())
            .collect();
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert_eq!(Path::new(&notes[0].text), program);
        notes[0].kind
    };
    assert_eq!(
        shell(&bench, &program),
        headway_debox::collect::NoteKind::Static
    );

    let bench = Bench::new();
    let program = bench.compile("threads", &[]);
    // A file of another user with this bit grants privileges to any user, but only root may create
    // one.
    let owned = std::os::unix::fs::chown(&program, Some(65534), None);
    if owned.is_err() {
        let test = "untraceable_programs_are_noted_when_they_are_started";
        return skip(
            test,
            "only root can make a set-user-ID program of another user's",
        );
    }
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
    std::fs::set_permissions(&program, mode).expect("the mode can be set");
    assert_eq!(
        shell(&bench, &program),
        headway_debox::collect::NoteKind::Privileged
    );
}
