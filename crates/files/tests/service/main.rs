//! The open-file service, over its socket: what it answers, and that nobody who misbehaves harms
//! others.

#[path = "../common/mod.rs"]
mod common;

mod answers;
mod clients;
mod helpers;
mod pinned;
mod running;
mod socket;
