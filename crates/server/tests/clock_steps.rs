//! The real-time clock is set while a server serves: nothing ends because of it, and dates are those of the clock.
//!
//! No namespace has this clock, so the processes of the server preload a library which shifts it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use headway_http::date::parse;
use headway_test_support::{find_program, skip, wait_until};
use rustls::version::TLS13;
use serde_json::Value;

use crate::site::*;
use crate::tls::tools::*;

const HOUR: i64 = 60 * 60;
const DAY: i64 = 24 * HOUR;

const LIBRARY: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *shift;

__attribute__((constructor)) static void map_shift(void) {
    const char *path = getenv("HEADWAY_TEST_SHIFT");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) shift = mapped;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    long failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && shift && clock == CLOCK_REALTIME) now->tv_sec += *shift;
    return (int)failed;
}
"#;

/// How much later it is for a server than for this machine.
struct Shift(File);

impl Shift {
    fn set(&self, seconds: i64) {
        self.0.write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
    }
}

/// A server with a clock of its own, and why there is none.
fn start(settings: &str) -> Result<(Secured, Shift), String> {
    if find_program("cc").is_none() {
        return Err("the program cc".into());
    }
    let (site, certified) = (Site::new(), Certified::new());
    site.file("shift.c", LIBRARY, 0o644);
    let library = site.path("shift.so");
    let made = Command::new("cc")
        .args([
            "-std=gnu11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-shared",
            "-fPIC",
            "-o",
        ])
        .arg(&library)
        .arg(site.path("shift.c"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{said}");
    let shift = Shift(File::create(site.path("shift")).unwrap());
    shift.set(0);
    certified.write(&site.path(""));
    let file = site.path("headway.toml");
    fs::write(&file, tls_settings(&site.path(""), settings)).unwrap();
    let mut program = program();
    program.env("LD_PRELOAD", &library);
    program.env("HEADWAY_TEST_SHIFT", site.path("shift"));
    let arguments = ["--workers", "1", "--config", file.to_str().unwrap()];
    let server = Server::start(program, &site.path("root"), &arguments);
    let secured = Secured {
        site,
        server,
        certified,
    };
    Ok((secured, shift))
}

fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_secs().cast_signed()
}

fn date(response: &Response, name: &str) -> i64 {
    let field = response.field(name).expect(name);
    parse(field.as_bytes()).expect(field)
}

/// The server serves as before, and says that it is so much later.
fn serves_with_dates(secured: &Secured, seconds: i64) {
    let server = &secured.server;
    let of_the_clock = |response: &Response| {
        let shown = date(response, "Date") - seconds;
        (shown - now()).abs() < 60
    };
    server.wait_for("the date", |server| of_the_clock(&get(server, "/file.txt")));
    // A cache keeps nothing longer or shorter than before.
    for number in 0..3 {
        let content = format!("{seconds} {number}");
        fs::write(secured.site.path("root/new.txt"), &content).unwrap();
        server.wait_for("the new content", |server| {
            let response = get(server, "/new.txt");
            assert_eq!(response.status, 200);
            assert!(date(&response, "Last-Modified") <= date(&response, "Date"));
            response.text() == content
        });
    }
}

/// Needs: the program cc: scripts/setup
#[test]
fn server_goes_on_when_the_clock_is_set() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    let settings = format!("revalidate = \"50ms\"\nlog-format = \"json\"\nlog = {log:?}");
    let (secured, shift) = match start(&settings) {
        Ok(started) => started,
        Err(why) => return skip("server_goes_on_when_the_clock_is_set", &why),
    };
    let mut idle = secured.server.connect();
    let mut idle_over_tls = secured.connect(&TLS13);
    for seconds in [0, 3 * HOUR, 400 * DAY, -400 * DAY, 0] {
        shift.set(seconds);
        serves_with_dates(&secured, seconds);
        // They were idle for 400 days only on that clock.
        send(&mut idle, request("/file.txt"));
        assert_eq!(receive(&mut idle).unwrap().text(), "a file\n");
        assert_eq!(ask(&mut idle_over_tls, "/file.txt").text(), "a file\n");
        is_well_over_tls(&secured);
    }
    let path = "/last-request";
    assert_eq!(get(&secured.server, path).status, 404);
    let mut lines = String::new();
    wait_until("all lines", || {
        lines = fs::read_to_string(&log).unwrap_or_default();
        lines.contains(path) && lines.ends_with('\n')
    });
    for line in lines.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let duration = line["duration_us"].as_u64().expect("a length");
        assert!(duration < 60_000_000, "{line}");
    }
}

/// Needs: the program cc: scripts/setup
#[test]
fn sessions_are_resumed_when_the_clock_is_set() {
    let (secured, shift) = match start("") {
        Ok(started) => started,
        Err(why) => return skip("sessions_are_resumed_when_the_clock_is_set", &why),
    };
    let known = VERSIONS.map(|version| remembering(&secured, version));
    let resumed = || known.each_ref().map(|clients| resumes(&secured, clients));
    assert_eq!(resumed(), [false; 2]);
    assert_eq!(resumed(), [true; 2]);
    // Tickets are accepted for at least six hours.
    shift.set(3 * HOUR);
    assert_eq!(resumed(), [true; 2]);
    // The keys of long ago are forgotten.
    shift.set(40 * DAY);
    assert_eq!(resumed(), [false; 2]);
    assert_eq!(resumed(), [true; 2]);
    // What was forgotten stays so, and what came later is known.
    shift.set(-40 * DAY);
    assert_eq!(resumed(), [true; 2]);
    shift.set(0);
    assert_eq!(resumed(), [true; 2]);
    is_well_over_tls(&secured);
}
