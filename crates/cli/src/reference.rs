//! The generated reference pages of the guide.

#[allow(dead_code, reason = "the command that writes the pages comes with it")]
pub mod metrics;
