//! Every preset says the same: the conversations of `tests/data` with each of the papers' servers, bytes in
//! and bytes out. What they may not share is the system calls they take for it; `tests/steps.rs` counts those.

mod conversation;
mod support;

fn hold_all(preset: &str) {
    let areas = std::fs::read_dir(conversation::data()).expect("the cases");
    let mut areas: Vec<_> = areas
        .map(|area| area.expect("an area").file_name())
        .collect();
    areas.sort();
    for area in areas {
        let area = area.to_str().expect("UTF-8");
        conversation::run_area(area, Some(preset));
    }
}

#[test]
fn flash_says_what_headway_says() {
    hold_all("flash");
}

#[test]
fn fd_pass_says_what_headway_says() {
    hold_all("fd-pass");
}

#[test]
fn no_mmap_says_what_headway_says() {
    hold_all("no-mmap");
}

#[test]
fn new_flash_says_what_headway_says() {
    hold_all("new-flash");
}
