//! The example programs, compiled as their comments say and run.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use headway_test_support::{made_kernel, skip};

/// Where cargo puts what it builds beside the test.
fn built() -> PathBuf {
    let test = std::env::current_exe().expect("the test has a path");
    test.parent().expect("a directory").to_owned()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../debox-c")
}

fn compile(directory: &Path, source: &Path, options: &[&str]) -> PathBuf {
    compile_with(&built(), directory, source, options)
}

/// Linked to the library in that place.
fn compile_with(library: &Path, directory: &Path, source: &Path, options: &[&str]) -> PathBuf {
    let program = directory.join(source.file_stem().expect("a name"));
    let rpath = format!("-Wl,-rpath,{}", library.display());
    let output = Command::new("cc")
        .args([
            "-Wall",
            "-Wextra",
            "-Werror",
            "-std=gnu11",
            "-O1",
            "-pthread",
            "-o",
        ])
        .arg(&program)
        .arg(source)
        .arg("-I")
        .arg(root().join("include"))
        .args(options)
        .arg("-L")
        .arg(library)
        .args(["-ldebox", &rpath])
        .output()
        .expect("cc runs; scripts/setup installs it");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    program
}

fn run(program: &Path, arguments: &[&Path]) -> String {
    let output: Output = Command::new(program)
        .args(arguments)
        // Cargo's, which would be looked into before the place the program was linked for.
        .env_remove("LD_LIBRARY_PATH")
        .output()
        .expect("the program runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

fn example(name: &str) -> String {
    let directory = tempfile::tempdir().expect("a directory");
    let source = root().join("examples").join(name);
    run(&compile(directory.path(), &source, &[]), &[])
}

#[test]
fn record_describes_the_one_call_when_a_mapped_file_is_copied() {
    let directory = tempfile::tempdir().expect("a directory");
    let program = compile(directory.path(), &root().join("examples/copy.c"), &[]);
    let (from, to) = (directory.path().join("from"), directory.path().join("to"));
    let bytes: Vec<u8> = (0..10 << 20).map(|at: u32| (at / 7) as u8).collect();
    std::fs::write(&from, &bytes).expect("room for 10 MB");
    let output = run(&program, &[&from, &to]);
    assert!(bytes == std::fs::read(&to).expect("the copy"));
    let number = |line: &str| -> i64 {
        let line = output.lines().find(|found| found.contains(line));
        let line = line.unwrap_or_else(|| panic!("{output}"));
        let digits = line.trim().split([',', ' ']).next().expect("a first word");
        digits.parse().unwrap_or_else(|_| panic!("{line}"))
    };
    assert_eq!(number("system call #"), libc::SYS_write);
    // 10 MB cannot be copied in less.
    assert!(number("call time") > 200, "{output}");
    // 2560 pages, mapped some at a time; -1 where faults are not to be seen.
    let faults = number("page faults");
    assert!(faults == -1 || (1..=2600).contains(&faults), "{output}");
}

#[test]
fn errno_and_record_are_independent_when_calls_fail() {
    let output = example("like_errno.c");
    assert_eq!(output.lines().count(), 5, "{output}");
    assert!(
        output.lines().all(|line| line.ends_with("right")),
        "{output}"
    );
}

#[test]
fn each_thread_and_child_has_its_own_record_when_many_run() {
    assert_eq!(
        example("threads.c"),
        "threads right\nchild right\nparent right\n"
    );
}

#[test]
fn callback_is_called_for_calls_that_meet_its_conditions() {
    let output = example("callbacks.c");
    assert!(
        output.contains(
            "slow: clock_nanosleep in request tardy, at least 50 ms: yes, from a site: yes\n"
        ),
        "{output}"
    );
    // On a busy machine the quick call may be slow as well.
    assert!(output.ends_with(", pipe reactions: 1\n"), "{output}");
    assert!(!output.contains("accepted"), "{output}");
}

#[test]
fn header_and_library_agree_on_every_offset() {
    use headway_debox_c::{CallTrace, DeBoxInfo, PerSleepInfo};
    use std::mem::offset_of;
    let directory = tempfile::tempdir().expect("a directory");
    let source = directory.path().join("offsets.c");
    let fields = [
        ("sizeof(DeBoxInfo)", size_of::<DeBoxInfo>()),
        ("sizeof(PerSleepInfo)", size_of::<PerSleepInfo>()),
        ("sizeof(CallTrace)", size_of::<CallTrace>()),
        (
            "offsetof(DeBoxInfo, CallTime)",
            offset_of!(DeBoxInfo, CallTime),
        ),
        (
            "offsetof(DeBoxInfo, numPerSleepInfo)",
            offset_of!(DeBoxInfo, numPerSleepInfo),
        ),
        (
            "offsetof(DeBoxInfo, traceLevel)",
            offset_of!(DeBoxInfo, traceLevel),
        ),
        ("offsetof(DeBoxInfo, callNs)", offset_of!(DeBoxInfo, callNs)),
        (
            "offsetof(DeBoxInfo, callSite)",
            offset_of!(DeBoxInfo, callSite),
        ),
        ("offsetof(DeBoxInfo, psi)", offset_of!(DeBoxInfo, psi)),
        ("offsetof(DeBoxInfo, ct)", offset_of!(DeBoxInfo, ct)),
        (
            "offsetof(PerSleepInfo, blockedTime)",
            offset_of!(PerSleepInfo, blockedTime),
        ),
        (
            "offsetof(PerSleepInfo, wmesg)",
            offset_of!(PerSleepInfo, wmesg),
        ),
        (
            "offsetof(PerSleepInfo, blockingFunction)",
            offset_of!(PerSleepInfo, blockingFunction),
        ),
        (
            "offsetof(PerSleepInfo, blockingAddress)",
            offset_of!(PerSleepInfo, blockingAddress),
        ),
        (
            "offsetof(PerSleepInfo, reserved)",
            offset_of!(PerSleepInfo, reserved),
        ),
        ("offsetof(CallTrace, depth)", offset_of!(CallTrace, depth)),
    ];
    let mut text = String::from("#include \"debox.h\"\n#include <stdio.h>\nint main(void) {\n");
    for (expression, _) in &fields {
        text.push_str(&format!("printf(\"%zu\\n\", (size_t)({expression}));\n"));
    }
    text.push_str("return 0; }\n");
    std::fs::write(&source, text).expect("room");
    let output = run(&compile(directory.path(), &source, &[]), &[]);
    for ((expression, expected), found) in fields.iter().zip(output.lines()) {
        assert_eq!(found, expected.to_string(), "{expression}");
    }
}

#[test]
fn call_without_control_leaves_no_trace_when_the_library_is_only_linked() {
    let directory = tempfile::tempdir().expect("a directory");
    let source = directory.path().join("bad.c");
    let text = r#"
        #include <errno.h>
        #include <stdio.h>
        #include <unistd.h>
        #include "debox.h"
        static DeBoxInfo info;
        int main(void) {
            getppid();
            printf("%d\n", debox_trace_level(NULL, 0));
            printf("%d\n", DeBoxControl(&info, 6, 0) == -1 && errno == EINVAL);
            printf("%d\n", DeBoxControl(&info, 0, -1) == -1 && errno == EINVAL);
            printf("%d\n", debox_control_sized(&info, 8, 0, 0) == -1 && errno == EINVAL);
            printf("%d\n", debox_react("slept", NULL, NULL) == -1 && errno == ENXIO);
            printf("%d %d\n", info.syscallNum, DeBoxControl(NULL, 0, 0));
            return 0;
        }"#;
    std::fs::write(&source, text).expect("room");
    let output = run(&compile(directory.path(), &source, &[]), &[]);
    assert_eq!(output, "-1\n1\n1\n1\n1\n0 0\n");
}

/// Threads that are cancelled in a call: with records, and without.
fn cancelled(library: &Path) -> String {
    let directory = tempfile::tempdir().expect("a directory");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cancel.c");
    run(&compile_with(library, directory.path(), &source, &[]), &[])
}

const CANCELLED: &str =
    "with records: cancelled, cleaned up\nwithout: cancelled, cleaned up\nafterwards: right\n";

#[test]
fn cancellation_works_when_the_thread_is_in_a_recorded_call() {
    assert_eq!(cancelled(&built()), CANCELLED);
}

/// A release is another library: panics abort in it and its unwinder is its own, so that a thread
/// which is cancelled in a call is unwound in another way.
#[test]
fn cancellation_works_when_the_library_is_built_as_for_a_release() {
    assert_eq!(cancelled(&release()), CANCELLED);
}

/// Where the library lies that is built with what makes a release another library, and without what
/// makes its building slow.
fn release() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("release-library");
    let output = Command::new(env!("CARGO"))
        .args([
            "build",
            "--quiet",
            "--release",
            "-p",
            "headway-debox-so",
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
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    target.join("release")
}

/// Compiles a text, runs it, and returns what it prints.
fn printed(text: &str) -> String {
    let directory = tempfile::tempdir().expect("a directory");
    let source = directory.path().join("program.c");
    std::fs::write(&source, text).expect("room");
    run(&compile(directory.path(), &source, &[]), &[])
}

#[test]
fn buffer_is_not_written_any_more_when_a_callback_stops_the_records() {
    let output = printed(
        r#"
        #include <errno.h>
        #include <stdio.h>
        #include <string.h>
        #include <unistd.h>
        #include "debox.h"
        static DeBoxInfo info, other, untouched;
        static int called, busy;
        static void stop(const DeBoxInfo *record, const void *site, void *context) {
            (void)record, (void)site, (void)context;
            called++;
            busy = DeBoxControl(&other, 5, 0) == -1 && errno == EBUSY;
            DeBoxControl(NULL, 0, 0);
            memset(&info, 0x55, sizeof info);
        }
        int main(void) {
            if (DeBoxControl(&info, 5, 0) < 0) return 1;
            debox_react("call=getppid", stop, NULL);
            getppid();
            getppid();
            memset(&untouched, 0x55, sizeof untouched);
            printf("called %d, busy %d, untouched %d\n", called, busy,
                   memcmp(&info, &untouched, sizeof info) == 0);
            printf("off %d\n", debox_trace_level(NULL, 0) == -1 && errno == ENXIO);
            return 0;
        }"#,
    );
    assert_eq!(output, "called 1, busy 1, untouched 1\noff 1\n");
}

#[test]
fn buffer_is_not_written_any_more_when_a_signal_handler_stops_the_records_in_a_call() {
    let output = printed(
        r#"
        #include <errno.h>
        #include <signal.h>
        #include <stdio.h>
        #include <string.h>
        #include <sys/time.h>
        #include <unistd.h>
        #include "debox.h"
        static DeBoxInfo info, untouched;
        static void stop(int number) {
            (void)number;
            DeBoxControl(NULL, 0, 0);
            memset(&info, 0x55, sizeof info);
        }
        int main(void) {
            int ends[2];
            char byte;
            struct sigaction action = {.sa_handler = stop};
            struct itimerval timer = {{0, 0}, {0, 20000}};
            if (pipe(ends) < 0 || DeBoxControl(&info, 5, 0) < 0) return 1;
            sigaction(SIGALRM, &action, NULL);
            setitimer(ITIMER_REAL, &timer, NULL);
            printf("interrupted %d\n", read(ends[0], &byte, 1) == -1 && errno == EINTR);
            getppid();
            memset(&untouched, 0x55, sizeof untouched);
            printf("untouched %d\n", memcmp(&info, &untouched, sizeof info) == 0);
            printf("on again %d\n", DeBoxControl(&info, 5, 0) == 0 && getppid() > 0 && info.callNs > 0
                   && info.callNs != untouched.callNs);
            return 0;
        }"#,
    );
    assert_eq!(output, "interrupted 1\nuntouched 1\non again 1\n");
}

#[test]
fn callback_is_called_at_every_nth_call_until_it_is_removed() {
    let output = printed(
        r#"
        #include <stdio.h>
        #include <unistd.h>
        #include "debox.h"
        static DeBoxInfo info;
        static int third, once;
        static void count(const DeBoxInfo *record, const void *site, void *context) {
            (void)record, (void)site;
            ++*(int *)context;
        }
        static void last(const DeBoxInfo *record, const void *site, void *context) {
            count(record, site, context);
            debox_forget_reactions();
        }
        int main(void) {
            if (DeBoxControl(&info, 5, 0) < 0) return 1;
            debox_react("every=3,call=getppid", count, &third);
            for (int i = 0; i < 7; i++) getppid();
            debox_react("call=getpid", last, &once);
            for (int i = 0; i < 7; i++) getpid();
            for (int i = 0; i < 7; i++) getppid();
            printf("%d %d\n", third, once);
            return 0;
        }"#,
    );
    assert_eq!(output, "3 1\n");
}

#[test]
fn metrics_of_a_loop_are_truncated_to_their_room_and_null_is_an_error() {
    let output = printed(
        r#"
        #include <errno.h>
        #include <stdio.h>
        #include <string.h>
        #include "debox.h"
        int main(void) {
            const debox_loop *watch = debox_watch_loop();
            char text[64], all[16384];
            debox_turn_end(watch);
            int begun = debox_turn_begin(watch), ended = debox_turn_end(watch);
            int length = debox_loop_metrics(watch, text, sizeof text);
            printf("%d %d\n", begun, ended);
            printf("%d %d\n", length > 64, strlen(text) == 63);
            printf("%d ", debox_loop_metrics(watch, all, sizeof all) < (int)sizeof all);
            printf("%d\n", strstr(all, "headway_loop_turn_seconds_count 1\n") != 0);
            printf("%d ", debox_turn_begin(NULL) == -1 && errno == EINVAL);
            printf("%d\n", debox_loop_lag(NULL, 1) == -1 && errno == EINVAL);
            return 0;
        }"#,
    );
    assert_eq!(output, "0 0\n1 1\n1 1\n1 1\n");
}

#[test]
fn forked_child_is_observed_by_a_watch_of_its_own_and_not_by_its_parents() {
    let output = printed(
        r#"
        #include <stdio.h>
        #include <string.h>
        #include <sys/wait.h>
        #include <unistd.h>
        #include "debox.h"
        static char text[16384];
        static void turn(const debox_loop *watch) {
            debox_turn_begin(watch);
            usleep(2000);
            debox_turn_end(watch);
        }
        static int has(const debox_loop *watch, const char *part) {
            debox_loop_metrics(watch, text, sizeof text);
            return strstr(text, part) != 0;
        }
        int main(void) {
            const debox_loop *parents = debox_watch_loop();
            turn(parents);
            if (!fork()) {
                turn(parents);
                const debox_loop *own = debox_watch_loop();
                turn(own);
                turn(own);
                printf("%d ", has(parents, "headway_loop_turn_seconds_count 1\n"));
                printf("%d ", has(own, "headway_loop_turn_seconds_count 2\n"));
                printf("%d\n", has(own, "headway_trace_level 0") || has(own, "\"} 2\n"));
                return 0;
            }
            wait(0);
            return 0;
        }"#,
    );
    assert_eq!(output, "1 1 1\n");
}

/// Compiles and runs a program of this directory.
fn own(name: &str, arguments: &[&Path]) -> String {
    let directory = tempfile::tempdir().expect("a directory");
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(name);
    run(&compile(directory.path(), &source, &[]), arguments)
}

#[test]
fn records_continue_without_system_calls_when_seccomp_forbids_them() {
    let expected = "call 1\nsleep 1\nwake-up 1\ncalled 1\nthread 1\nchild 1\nlimits 1\noff 0\n";
    assert_eq!(own("confined.c", &[]), expected);
    // The names of the kernel's functions are not there yet, and may not be read any more.
    assert_eq!(own("confined.c", &[Path::new("late")]), expected);
}

#[test]
fn records_have_only_times_when_an_earlier_seccomp_filter_forbids_perf() {
    assert_eq!(
        own("refused.c", &[]),
        "control 0\ntimes 1\nsleeps 0, faults -1\ntraceLevel 1\nsaid 1\n"
    );
}

/// Needs: tracing with stacks and kernel symbols
#[test]
fn sleep_has_its_line_when_the_kernels_debug_file_is_available_to_a_c_program() {
    let directory = tempfile::tempdir().expect("a directory");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lines.c");
    let program = compile(directory.path(), &source, &[]);
    let with = |file: &Path| {
        let mut command = Command::new(&program);
        command
            .env_remove("LD_LIBRARY_PATH")
            .env("HEADWAY_VMLINUX", file);
        let output = command.output().expect("the program runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let absent = with(Path::new("/there/is/none"));
    if absent == "not seen\n" {
        let test = "sleep_has_its_line_when_the_kernels_debug_file_is_available_to_a_c_program";
        return skip(
            test,
            "stacks and names (perf_event_paranoid, CAP_PERFMON, kptr_restrict)",
        );
    }
    assert_eq!(absent, "-1 No such file or directory :0, untouched 1\n");
    let found = with(&made_kernel::vmlinux(directory.path(), 0));
    let line = made_kernel::SLEEP_LINE;
    assert_eq!(found, format!("1 found {line}, untouched 1\n"));
}

#[test]
fn functions_replace_stacks_where_the_kernel_times_them_else_the_reason_is_shown() {
    let directory = tempfile::tempdir().expect("a directory");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/functions.c");
    let program = compile(directory.path(), &source, &[]);
    let mut command = Command::new(&program);
    let output = command.env_remove("LD_LIBRARY_PATH").output();
    let output = output.expect("the program runs");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    if stdout.contains("followed 0 yes") {
        let found = stdout
            .split("found ")
            .nth(1)
            .and_then(|rest| rest.split(',').next());
        let found: i32 = found
            .and_then(|number| number.parse().ok())
            .expect("a number");
        assert!(
            found > 1 && stdout.contains("same call 1") && stdout.ends_with("long 1\n"),
            "{stdout}"
        );
        return;
    }
    let refusals = [
        "Operation not supported",
        "No such file or directory",
        "Permission denied",
    ];
    let is_explained = refusals
        .iter()
        .any(|why| stdout.contains(&format!("followed -1 {why}, found -1, errno 1")));
    assert!(is_explained, "{stdout}");
    assert!(
        stdout.starts_with("before -1 1,") && stdout.contains("same call 1, trace kept 1"),
        "{stdout}"
    );
}
