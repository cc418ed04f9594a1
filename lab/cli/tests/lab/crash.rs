//! What is left of a lab when its maker is killed or interrupted: nothing, after `down --all`.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::support::{Lab, can, command_lines, headway_lab, text, traces_of, wait_until};

const WHOLE: [&str; 13] = [
    "--disk",
    "nvme",
    "--disk-size",
    "64MiB",
    "--writable",
    "--overlay",
    "tmpfs",
    "--memory",
    "64MiB",
    "--cpu-share",
    "0.5",
    "--link",
    "1Gbit",
];
const PARTS: [&str; 4] = ["disk", "memory limit", "CPU quota", "link"];

/// How many things the maker has begun to make.
fn begun(lab: &Lab) -> usize {
    let text = std::fs::read_to_string(lab.directory().join("state.json")).unwrap_or_default();
    let state: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    state["begun"].as_array().map_or(0, Vec::len)
}

fn making(lab: &Lab) -> Child {
    let mut command = lab.making(&WHOLE);
    command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started")
}

fn down_all(prefix: &str) {
    let output = headway_lab(&["down", "--all", "--prefix", prefix])
        .output()
        .expect("started");
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// Needs: root: makes a lab
#[test]
fn nothing_is_left_when_lab_up_is_killed_at_any_step() {
    let test = "nothing_is_left_when_lab_up_is_killed_at_any_step";
    if !can(test, &PARTS) {
        return;
    }
    // The moment a step begins, and some way into it: the disk is made of several things.
    let moments = (0..=5).flat_map(|step| [(step, 0), (step, 3), (step, 15)]);
    for (step, later_ms) in moments {
        let lab = Lab {
            name: super::support::name(),
        };
        let mut maker = making(&lab);
        wait_until("the step begins", || {
            begun(&lab) >= step || maker.try_wait().expect("asked").is_some()
        });
        std::thread::sleep(Duration::from_millis(later_ms));
        let _ = maker.kill();
        maker.wait().expect("ended");
        down_all(&lab.name);
        assert_eq!(
            traces_of(&lab.name),
            Vec::<String>::new(),
            "killed {later_ms} ms into step {step}"
        );
    }
}

/// Needs: root: makes a lab
#[test]
fn nothing_is_left_when_the_record_of_a_lab_is_damaged_or_missing() {
    let test = "nothing_is_left_when_the_record_of_a_lab_is_damaged_or_missing";
    if !can(test, &PARTS) {
        return;
    }
    let lab = Lab::up(&WHOLE);
    std::fs::write(lab.directory().join("state.json"), "{\"format\": 1, \"spe").expect("written");
    let output = lab.exec("server", &["true"]).output().expect("started");
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("never finished"),
        "{}",
        text(&output.stderr)
    );
    down_all(&lab.name);
    assert_eq!(traces_of(&lab.name), Vec::<String>::new());

    let lab = Lab::up(&["--memory", "64MiB", "--link", "1Gbit"]);
    std::fs::remove_dir_all(lab.directory()).expect("removed");
    assert!(!traces_of(&lab.name).is_empty());
    down_all(&lab.name);
    assert_eq!(traces_of(&lab.name), Vec::<String>::new());
}

/// Needs: root: makes a lab
#[test]
fn nothing_is_left_when_lab_up_is_interrupted() {
    let test = "nothing_is_left_when_lab_up_is_interrupted";
    if !can(test, &PARTS) {
        return;
    }
    for (step, signal) in [(1, Signal::INT), (4, Signal::TERM), (5, Signal::INT)] {
        let lab = Lab {
            name: super::support::name(),
        };
        let mut maker = making(&lab);
        wait_until("the step begins", || {
            begun(&lab) >= step || maker.try_wait().expect("asked").is_some()
        });
        kill_process(Pid::from_child(&maker), signal).expect("signalled");
        let output = maker.wait_with_output().expect("ended");
        assert_eq!(output.status.code(), Some(1), "{:?}", output.status);
        assert!(
            text(&output.stderr).contains("interrupted"),
            "{}",
            text(&output.stderr)
        );
        assert_eq!(
            traces_of(&lab.name),
            Vec::<String>::new(),
            "{signal:?} at step {step}"
        );
    }
}

/// Whether files are being made on the lab's disk.
fn is_filled(lab: &Lab) -> bool {
    let directory = format!("{}/", lab.directory().display());
    command_lines()
        .iter()
        .any(|line| line.contains("fileset create") && line.contains(&directory))
}

#[test]
fn nothing_is_left_when_lab_up_is_interrupted_during_fileset_creation() {
    let test = "nothing_is_left_when_lab_up_is_interrupted_during_fileset_creation";
    if !can(test, &["disk"]) {
        return;
    }
    let lab = Lab {
        name: super::support::name(),
    };
    let parts = [
        "--disk",
        "nvme",
        "--disk-size",
        "512MiB",
        "--fileset",
        "400MB",
    ];
    let mut maker = lab
        .making(&parts)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    wait_until("files are made", || {
        is_filled(&lab) || maker.try_wait().expect("asked").is_some()
    });
    kill_process(Pid::from_child(&maker), Signal::INT).expect("signalled");
    let output = maker.wait_with_output().expect("ended");
    assert_eq!(output.status.code(), Some(1), "{:?}", output.status);
    assert!(
        text(&output.stderr).contains("interrupted"),
        "{}",
        text(&output.stderr)
    );
    assert!(!is_filled(&lab));
    assert_eq!(traces_of(&lab.name), Vec::<String>::new());
}

#[test]
fn disk_delays_are_restored_when_lab_fill_is_interrupted() {
    let test = "disk_delays_are_restored_when_lab_fill_is_interrupted";
    if !can(test, &["disk"]) {
        return;
    }
    let lab = Lab::up(&["--disk", "nvme", "--disk-size", "512MiB"]);
    let loading = headway_lab(&["fill", &lab.name, "--fileset", "400MB"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    wait_until("files are made", || is_filled(&lab));
    assert_eq!(lab.status()["disk"]["fast"], true);
    kill_process(Pid::from_child(&loading), Signal::INT).expect("signalled");
    let output = loading.wait_with_output().expect("ended");
    assert_eq!(output.status.code(), Some(1), "{:?}", output.status);
    assert!(
        text(&output.stderr).contains("interrupted; the disk keeps what is on it"),
        "{}",
        text(&output.stderr)
    );
    assert!(!is_filled(&lab));
    assert_eq!(lab.status()["disk"]["fast"], false);
}

/// Needs: root: makes a lab
#[test]
fn lab_stays_up_when_one_with_a_longer_or_shorter_name_goes_down() {
    let test = "lab_stays_up_when_one_with_a_longer_or_shorter_name_goes_down";
    if !can(test, &["memory limit", "link"]) {
        return;
    }
    let one = Lab::up(&["--memory", "64MiB", "--link", "1Gbit"]);
    let longer = Lab {
        name: format!("{}-b", one.name),
    };
    let parts = ["--memory", "32MiB", "--link", "100Mbit"];
    assert!(longer.making(&parts).status().expect("started").success());
    let addresses = [&one, &longer].map(|lab| lab.status()["link"]["server_ip"].clone());
    assert_ne!(addresses[0], addresses[1]);
    assert!(one.down().status.success());
    assert_eq!(traces_of(&one.name), Vec::<String>::new());
    assert_eq!(longer.answer("server", &["echo", "here"]), "here");
    assert_eq!(longer.status()["memory"]["limit_bytes"], 32 << 20);
}

/// Needs: root: makes a lab
#[test]
fn lab_down_names_the_process_that_is_creating_the_lab_and_does_not_wait() {
    let test = "lab_down_names_the_process_that_is_creating_the_lab_and_does_not_wait";
    if !can(test, &PARTS) {
        return;
    }
    let lab = Lab {
        name: super::support::name(),
    };
    let maker = making(&lab);
    wait_until("it is begun", || begun(&lab) >= 1);
    let output = lab.down();
    let made = maker.wait_with_output().expect("ended");
    // The maker may have been quicker, or between two steps: then the lab was removed.
    if !output.status.success() {
        assert!(
            text(&output.stderr).contains("another process"),
            "{}",
            text(&output.stderr)
        );
        assert!(made.status.success(), "{}", text(&made.stderr));
    }
    drop(lab.down());
    assert!(!Path::new(&lab.directory()).exists());
}
