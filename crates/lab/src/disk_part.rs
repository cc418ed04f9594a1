//! The disk.
pub use crate::disk::{Disk, DiskError};
