//! Small files that the service keeps in memory: Apache finds them there, and asks no more.

use super::command::{backend, stderr_text};
use super::descriptors::give_to_apache;
use super::faults::{NumberedFiles, built};
use super::support::{Apache, Backend, folder, get, is_root, make_cold, wait_until};
use std::process::Command;

#[test]
fn apache_requests_a_small_file_once_when_the_service_pins_it() {
    const NAME: &str = "apache_requests_a_small_file_once_when_the_service_pins_it";
    let Some(module) = built(NAME) else {
        return;
    };
    let served = NumberedFiles::new();
    give_to_apache(&served.file(0));
    for (most, files, questions) in [("1MiB", 1, 1), ("0", 0, 3)] {
        let options = ["--pin-max", most];
        let service = Backend::start_with(&options, &served.root(), &served.socket());
        let apache = Apache::start(
            "prefork",
            &served.configuration(&module, "HeadwayEnable On"),
        );
        for _ in 0..3 {
            make_cold(&served.file(0));
            assert_eq!(get(&apache.address, "/f0"), "x".repeat(96 << 10));
            // It is kept a moment after the answer.
            wait_until("the file is not kept", || {
                service.counter("pinned_files") == files
            });
        }
        assert_eq!(
            service.counter("requests_total"),
            questions,
            "--pin-max {most}"
        );
        assert_eq!(service.counter("pinned_bytes"), files * (96 << 10));
    }
}

#[test]
fn less_is_pinned_with_a_warning_when_less_may_be_locked() {
    let root = folder();
    let socket = root.path().join("socket").display().to_string();
    let options = ["--pin-max", "1MiB", "--socket", &socket, "--", "true"];
    let command = backend(root.path(), &options);
    let mut limited = if is_root() {
        let mut command = Command::new("setpriv");
        command.arg("--bounding-set=-ipc_lock,-sys_resource");
        command.args(["prlimit", "--memlock=65536:65536"]);
        command
    } else {
        let mut command = Command::new("prlimit");
        command.arg("--memlock=65536:65536");
        command
    };
    limited.arg(command.get_program()).args(command.get_args());
    let output = limited.output().unwrap();
    assert!(output.status.success(), "{}", stderr_text(&output));
    let wanted = "--pin-max 1MiB: only 64KiB can be pinned";
    assert!(
        stderr_text(&output).contains(wanted),
        "{}",
        stderr_text(&output)
    );
}
