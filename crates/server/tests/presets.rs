//! Tests of the papers' presets: the same responses as Headway, byte for byte, by the system calls
//! that each preset is known for.

mod accepting;
mod limits;
mod changing;
mod responses;
mod steps;

use crate::faults::tools;

/// All presets, each as a line of configuration.
const PRESETS: [&str; 6] = [
    "research.preset = 'flash'",
    "research.preset = 'flash-sendfile'",
    "research.preset = 'fd-pass'",
    "research.preset = 'no-mmap'",
    "research.preset = 'new-flash'",
    "research.preset = 'headway'",
];
