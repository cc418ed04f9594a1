//! What a file set for a SPECweb99-like measurement has beside plain files.
//!
//! Some of its documents have [`placeholder`]s for an advertisement. A directory of the set
//! ([`state_directory`]) holds the [`tables`] of users and advertisements, and a log of posts.
//!
//! `load` makes all of it with the set. The application which serves the set, and the client which
//! measures with it, belong to the lab; nothing here knows them.

#![forbid(unsafe_code)]

pub mod placeholder;
pub mod state_directory;
pub mod tables;
