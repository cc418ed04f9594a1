//! Bad luck and bad manners, met by a worker: slow clients, files that change while they are sent,
//! bounds that are reached, clients that come in crowds, helpers that die. What needs whole
//! processes is tested with the command.
//!
//! No test says how fast something is. Where a deadline is tested it is a short one, and the test
//! waits for the event with much more patience than the deadline.

#[path = "../support/mod.rs"]
mod support;

mod arriving;
mod bounds;
mod changing;
mod dying;
mod ring;
mod slow;
mod tools;
