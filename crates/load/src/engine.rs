//! The client engine: one thread that sends requests by a plan and times every reply.
//!
//! [`plan`] is what to do, [`observer`] is who hears of it and what comes out.

pub mod observer;
pub mod plan;

pub use observer::{Control, Epoch, Failure, Limits, Live, Measured, Observer, Stage};
pub use plan::{
    Address, Arrivals, Document, Draws, Mode, Order, Plan, PlanError, Popularity, Schedule,
    Segment, Sources, Stop, Target, Work,
};
