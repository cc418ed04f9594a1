//! A disk whose delays are a model's.
//!
//! A request of the file system goes through the kernel's block layer to a loop device in direct-I/O mode, from there
//! to a FUSE process (`process`), which keeps it for as long as the model (`model`) and the faults
//! (`faults`) say, and answers from memory. Nothing above the block layer is simulated.
//!
//! Sources: Ruemmler and Wilkes, "An introduction to disk drive modeling" (1994), for the spindle.

mod spec;

pub use spec::{
    DiskSpec, DiskStatistics, Fault, FaultPlan, Filesystem, Mechanics, Model, Order, Parallel,
    Queue, Spindle,
};
