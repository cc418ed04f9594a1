//! Run directories in, one self-contained HTML file out.
#![forbid(unsafe_code)]

mod chart;
mod html;
mod units;

pub use html::escaped;
