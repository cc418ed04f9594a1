//! The client engine: one thread that sends requests by a plan and times every reply.
//!
//! [`plan`] is what to do.

pub mod plan;

pub use plan::{
    Address, Arrivals, Document, Draws, Mode, Order, Plan, PlanError, Popularity, Schedule,
    Segment, Sources, Stop, Target, Work,
};
