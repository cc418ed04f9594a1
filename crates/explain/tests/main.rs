//! A truth bed: servers whose requests are delayed on purpose.

#[path = "../../debox/tests/ground_truth/fuse.rs"]
#[allow(dead_code, reason = "it is shared with the truth bed of labels")]
mod fuse;
mod bed;
mod cases;
mod kinds;
mod many;
mod real;
mod servers;
mod truth;
mod unix;
