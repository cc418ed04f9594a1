//! `libdebox.a`: a program that is linked statically records the calls it wraps in `DEBOX_CALL`.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The newest static library cargo has put beside the test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("the test has a path");
    let directory = test.parent().expect("a directory");
    let listed = std::fs::read_dir(directory).expect("a directory");
    listed
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with("libheadway_debox_c") && name.ends_with(".a"))
        })
        .max_by_key(|path| path.metadata().and_then(|found| found.modified()).ok())
        .expect("cargo builds the static library for this test")
}

const PROGRAM: &str = r#"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "debox.h"
static DeBoxInfo info;
static void handler(int number) {
    (void)number;
    struct timespec length = {0, 3000000};
    nanosleep(&length, NULL);
    DEBOX_CALL(SYS_getppid, getppid());
}
int main(void) {
    struct timespec length = {0, 3000000};
    if (DeBoxControl(&info, 5, 0) < 0) return 1;
    signal(SIGUSR1, handler);
    DEBOX_CALL(SYS_kill, raise(SIGUSR1));
    printf("outer %d\n", info.syscallNum == SYS_kill && info.callNs > 3000000);
    errno = 0;
    int closed = DEBOX_CALL(SYS_close, close(-1));
    printf("close %d\n", closed == -1 && errno == EBADF && info.syscallNum == SYS_close);
    int slept = DEBOX_CALL(SYS_clock_nanosleep, nanosleep(&length, NULL));
    printf("sleep %d\n", slept == 0 && info.syscallNum == SYS_clock_nanosleep && info.callNs >= 3000000);
    printf("seen %d\n", info.traceLevel == DEBOX_LEVEL_OFF || info.numPerSleepInfo == 1);
    getppid();
    printf("others are not seen %d\n", info.syscallNum == SYS_clock_nanosleep);
    return 0;
}"#;

#[test]
fn wrapped_calls_are_recorded_when_the_program_is_static_or_not() {
    let directory = tempfile::tempdir().expect("a directory");
    let source = directory.path().join("program.c");
    std::fs::write(&source, PROGRAM).expect("room");
    for option in ["-static", "-O2"] {
        let program = directory.path().join("program");
        let output = Command::new("cc")
            .args([
                "-Wall",
                "-Wextra",
                "-Werror",
                "-std=gnu11",
                option,
                "-pthread",
                "-o",
            ])
            .arg(&program)
            .arg(&source)
            .arg("-I")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include"))
            .arg(library())
            .args(if option == "-static" {
                &["-lgcc_eh", "-lm"][..]
            } else {
                &["-lgcc_s", "-lm"]
            })
            .output()
            .expect("cc runs; scripts/setup installs it");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{option}: {errors}");
        let output = Command::new(&program).output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(
            text, "outer 1\nclose 1\nsleep 1\nseen 1\nothers are not seen 1\n",
            "{option}: {output:?}"
        );
    }
}
