//! Tests of the papers' presets: the same responses as Headway, byte for byte, by the system calls
//! that each preset is known for.

#[path = "../conversation/mod.rs"]
mod conversation;
#[path = "../support/mod.rs"]
mod support;
#[path = "../faults/tools.rs"]
mod tools;

mod accepting;
mod limits;
mod changing;
mod responses;
mod steps;

/// All presets, each as a line of configuration.
const PRESETS: [&str; 5] = [
    "preset = 'flash'",
    "preset = 'fd-pass'",
    "preset = 'no-mmap'",
    "preset = 'new-flash'",
    "preset = 'headway'",
];
