//! The application of a SPECweb99-like benchmark: what a server does for the 30 % of requests that
//! are dynamic.
//!
//! A standard GET wraps a file of the set into a page. A custom GET chooses an advertisement by the
//! user's profile and cookie, and inserts it into the file's placeholders. A POST appends a record
//! to a log. Housekeeping rebuilds the files and returns the log.
//!
//! [`application`] decides, without side effects: a request and two small tables in; status, header
//! fields and pieces of content out. So it can run inside a server's loop, which opens files and
//! appends in its own way, in a process that writes to the client itself, or as the CGI program of
//! [`cgi`] with the blocking file access of [`state`]. The benchmark's client uses the same tables,
//! and [`page`] and [`scan`] in reverse, to check the pages.
//!
//! Rejected: names outside the set (a [`FileName`] cannot express them) and bodies above
//! [`request::BODY_BYTES_MAX`]. The results must not be called SPECweb99. What is dynamic, in which
//! shares, what is rotated, scanned and logged follows the benchmark's public run rules and white
//! paper (Standard Performance Evaluation Corporation, 1999 to 2003) as far as they are known, and
//! Ruan's dissertation (2005), section 1.1. The format of names, records, pages and commands is
//! Headway's own; docs/research/src/specweb99.md says which is which.

#![forbid(unsafe_code)]

pub mod application;
pub mod request;
pub mod file;
pub mod page;
pub mod scan;
pub mod post;
pub mod state;
pub mod cgi;

pub use application::{BodyPiece, Files, Lookup, PageResponse, RequestAction};
pub use file::FileName;
pub use headway_specweb_files::tables::{Ads, Reset, ShownAd, User};
pub use headway_specweb_files::{placeholder, state_directory, tables};
pub use request::{Method, Operation, Request};
