//! Runs the conversations of `tests/data` with each preset.

use crate::conversation::{Way, data, run_area};

fn hold_all(preset: &str) {
    let areas = std::fs::read_dir(data()).expect("the cases");
    let mut areas: Vec<_> = areas
        .map(|area| area.expect("an area").file_name())
        .collect();
    areas.sort();
    for area in areas {
        run_area(area.to_str().expect("UTF-8"), Way::Preset(preset));
    }
}

#[test]
fn flash_sends_the_same_responses_as_headway() {
    hold_all("flash");
}

#[test]
fn fd_pass_sends_the_same_responses_as_headway() {
    hold_all("fd-pass");
}

#[test]
fn no_mmap_sends_the_same_responses_as_headway() {
    hold_all("no-mmap");
}

#[test]
fn new_flash_sends_the_same_responses_as_headway() {
    hold_all("new-flash");
}

/// The micro-servers differ from Headway in when they read and write, and in that they cache
/// nothing. So the least and the most eager of them run the areas about bodies, connections and
/// files; the rest is the same code.
#[test]
fn micro_servers_send_the_same_responses_as_headway() {
    for preset in ["accept1", "cm"] {
        for area in ["bodies", "connections", "ranges"] {
            run_area(area, Way::Preset(preset));
        }
    }
}
