//! Fault tests of a worker: slow clients, files that change while they are sent, limits that are
//! reached, many clients at once, helpers that die. Tests that need whole processes are in
//! `processes`.
//!
//! No test judges speed. Where a timeout is tested it is short, and the test waits for the event
//! much longer than the timeout.

mod arriving;
mod limits;
mod releases;
mod closing;
mod changing;
mod deleted;
mod dying;
mod growing;
mod ring;
mod room;
mod slow;
mod stored;
mod validators;
pub mod tools;
