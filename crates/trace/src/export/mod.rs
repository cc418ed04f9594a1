//! A trace in the forms other programs read.

mod chrome;
mod folded;
mod history;
mod parquet;

pub use chrome::chrome;
pub use folded::folded;
pub use history::{csv, svg};
pub use parquet::parquet;

use crate::model::{Kept, Trace};

/// The resource of a kept call in one word; empty if it did not sleep.
fn label(kept: &Kept) -> String {
    kept.label()
        .map(|label| label.to_string())
        .unwrap_or_default()
}

/// Where a kept call was made.
fn place(trace: &Trace, kept: &Kept) -> String {
    trace
        .places
        .get(kept.place)
        .map(|place| place.words())
        .unwrap_or_default()
}
