//! Waiters of in-band records: the number of other tasks on the same resource is known, and must be
//! reported exactly.

use serde_json::Value;

use super::support::{compile, missing, sees_stacks, skip, traced};

/// Waits, in C, until a task of this process or of a child sleeps in a call.
const UNTIL_ASLEEP: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
enum { COUNT = 4 };
static void until_asleep(pid_t pid, pid_t tid, int number) {
    char path[64], text[64] = "", wanted[16];
    snprintf(path, sizeof path, "/proc/%d/task/%d/syscall", pid, tid);
    snprintf(wanted, sizeof wanted, "%d ", number);
    while (strncmp(text, wanted, strlen(wanted))) {
        usleep(300);
        int file = open(path, O_RDONLY);
        ssize_t bytes = read(file, text, sizeof text - 1);
        text[bytes > 0 ? bytes : 0] = 0;
        close(file);
    }
}
"#;

/// Four processes that want one lock, each asleep before the next comes.
const LOCK: &str = r#"
int main(int count, char **arguments) {
    int file = open(arguments[count - 1], O_RDWR | O_CREAT, 0600);
    if (flock(file, LOCK_EX)) return 1;
    for (int i = 0; i < COUNT; i++) {
        pid_t child = fork();
        if (child == 0) return flock(open(arguments[1], O_RDWR), LOCK_EX) ? 1 : 0;
        until_asleep(child, child, SYS_flock);
    }
    flock(file, LOCK_UN);
    for (int i = 0; i < COUNT; i++) wait(NULL);
    return 0;
}
"#;

/// Four threads that write to one full pipe, each asleep before the next comes.
const PIPE: &str = r#"
static int ends[2];
static char page[4096];
static volatile pid_t tids[COUNT];
static void *writer(void *slot) {
    *(volatile pid_t *)slot = gettid();
    return write(ends[1], page, sizeof page) == sizeof page ? NULL : slot;
}
int main(void) {
    pthread_t threads[COUNT];
    long left = COUNT * sizeof page;
    if (pipe(ends)) return 1;
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    for (ssize_t wrote; (wrote = write(ends[1], page, sizeof page)) > 0;) left += wrote;
    fcntl(ends[1], F_SETFL, 0);
    for (int i = 0; i < COUNT; i++) {
        pthread_create(&threads[i], NULL, writer, (void *)&tids[i]);
        while (!tids[i]) usleep(300);
        until_asleep(getpid(), tids[i], SYS_write);
    }
    while (left > 0) left -= read(ends[0], page, sizeof page);
    int wrong = 0;
    for (int i = 0; i < COUNT; i++) {
        void *answer;
        pthread_join(threads[i], &answer);
        wrong |= answer != NULL;
    }
    return wrong;
}
"#;

/// Whether waiters and stacks are there; if not, says that a test is skipped.
fn counts_waiters(test: &str) -> bool {
    let (trace, _) = traced(&["--waiters"], &["true"]);
    if missing(&trace).contains("Waiters are not counted") {
        skip(test, &missing(&trace));
        return false;
    }
    sees_stacks(test)
}

/// The waiters at the beginnings of all sleeps of the kept calls of that name, in the order they
/// began.
fn entries(trace: &Value, call: &str) -> Vec<u64> {
    let kept = trace["kept"].as_array().expect("kept calls").iter();
    kept.filter(|kept| kept["call"] == call)
        .flat_map(|kept| kept["sleeps"].as_array().expect("sleeps"))
        .map(|sleep| sleep["waiters_entry_max"].as_u64().expect("counted"))
        .collect()
}

/// The sleeps of the call sites of a call: how many, the waiters at their beginnings together, the
/// most.
fn sums(trace: &Value, call: &str) -> (u64, u64, u64) {
    let sites = trace["sites"].as_array().expect("sites").iter();
    let sleeps = sites
        .filter(|site| site["call"] == call)
        .flat_map(|site| site["sleeps"].as_array().expect("sleeps"));
    sleeps.fold((0, 0, 0), |(count, total, most), sleep| {
        let number = |name: &str| sleep[name].as_u64().expect("a number");
        (
            count + number("count"),
            total + number("waiters_entry_total"),
            most.max(number("waiters_entry_max")),
        )
    })
}

fn program(folder: &tempfile::TempDir, main: &str) -> String {
    let program = compile(
        folder.path(),
        &format!("{UNTIL_ASLEEP}{main}"),
        &["-pthread"],
    );
    program.to_str().expect("a path in UTF-8").to_owned()
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 5.18); clang at build; kernel symbols
#[test]
fn kept_calls_and_tables_have_their_waiters_when_processes_want_one_file_lock() {
    let test = "kept_calls_and_tables_have_their_waiters_when_processes_want_one_file_lock";
    if !counts_waiters(test) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = program(&folder, LOCK);
    let lock = folder.path().join("lock");
    let lock = lock.to_str().expect("a path in UTF-8");
    let history = folder.path().join("history.csv");
    let history = history.to_str().expect("a path in UTF-8");
    let (trace, ran) = traced(&["--waiters", "--history", history], &[&program, lock]);
    assert_eq!(ran.code, Some(0), "{}", ran.error);
    assert_eq!(trace["method"], "preload");
    let table = std::fs::read_to_string(history).expect("written");
    let rows = table.lines().filter(|row| row.starts_with("flock,"));
    let counts: Vec<&str> = rows
        .map(|row| row.rsplit(',').nth(1).expect("columns"))
        .collect();
    // The first lock is free, so there is no sleep to count waiters for.
    assert_eq!(counts, ["", "0", "1", "2", "3", ""]);
    assert_eq!(entries(&trace, "flock"), [0, 1, 2, 3]);
    assert_eq!(sums(&trace, "flock"), (4, 6, 3));
    // At the wakeup of the first, three others are left, and so on.
    let left: Vec<u64> = trace["kept"]
        .as_array()
        .expect("kept calls")
        .iter()
        .filter(|kept| kept["call"] == "flock")
        .filter_map(|kept| kept["sleeps"][0]["waiters_exit_max"].as_u64())
        .collect();
    assert_eq!(left, [3, 2, 1, 0]);
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 5.18); clang at build
#[test]
fn site_has_the_mean_of_its_sleeps_when_their_calls_were_not_kept() {
    let test = "site_has_the_mean_of_its_sleeps_when_their_calls_were_not_kept";
    if !counts_waiters(test) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = program(&folder, LOCK);
    let lock = folder.path().join("lock");
    let lock = lock.to_str().expect("a path in UTF-8");
    let (trace, ran) = traced(&["--waiters", "--call", "wait4"], &[&program, lock]);
    assert_eq!(ran.code, Some(0), "{}", ran.error);
    assert!(entries(&trace, "flock").is_empty());
    assert_eq!(sums(&trace, "flock"), (4, 6, 3));
}

/// Needs: root, or CAP_BPF and CAP_PERFMON; BTF (Linux 5.18); clang at build
#[test]
fn threads_count_each_other_when_they_write_to_one_full_pipe() {
    let test = "threads_count_each_other_when_they_write_to_one_full_pipe";
    if !counts_waiters(test) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (trace, ran) = traced(&["--waiters"], &[&program(&folder, PIPE)]);
    assert_eq!(ran.code, Some(0), "{}", ran.error);
    let entries = entries(&trace, "write");
    // One that was woken may have to wait for the lock of the pipe as well.
    assert!(entries.len() >= 4, "{entries:?}");
    assert_eq!(entries.iter().max(), Some(&3), "{entries:?}");
    assert_eq!(sums(&trace, "write").2, 3);
}

#[test]
fn waiters_are_not_counted_or_printed_without_the_option() {
    let (trace, _) = traced(&[], &["sh", "-c", "sleep 0.01"]);
    assert!(!missing(&trace).contains("aiters"), "{}", missing(&trace));
    let text = trace["sites"].to_string();
    assert!(text.contains("\"waiters_entry_max\":null"), "{text}");
    assert!(!text.contains("\"waiters_entry_max\":0"), "{text}");
}
