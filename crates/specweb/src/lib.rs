//! The application of a SPECweb99-like measurement: what a server does for the 30 % of the requests
//! that are dynamic.
//!
//! A standard GET wraps a file of the set into a page; a custom GET chooses an advertisement by the
//! user's profile and the cookie, and puts it into the places that the file has for it; a POST
//! appends a record to a log; housekeeping makes the files anew and hands out the log.
//! [`application`] decides, purely: a request and two small tables in, a status, fields and pieces
//! of content out. So it can run inside a server's loop, which opens files and appends in its own
//! ways, in a worker that writes to the client itself, or as the CGI program of [`cgi`], for which
//! [`state`] does the waiting.
//!
//! The client of a measurement uses the same tables, and [`page`] and [`scan`] the other way round,
//! to tell a right page from a wrong one.
//!
//! Refused: names outside the set (a [`FileName`] can be nothing else), bodies above
//! [`request::BODY_BYTES_MAX`], and any claim to be SPECweb99. What is dynamic, in which shares,
//! what is rotated, scanned and logged follows the benchmark's public run rules and white paper
//! (Standard Performance Evaluation Corporation, 1999 to 2003) as far as we know them, and Ruan's
//! dissertation (2005), section 1.1; the spelling of names, records, pages and commands is our own.
//! docs/research/src/specweb99.md says what is which.

#![forbid(unsafe_code)]

pub mod application;
pub mod request;
pub mod file;
pub mod profile;
pub mod page;
pub mod scan;
pub mod post;
pub mod state;
pub mod cgi;

pub use application::{Files, Lookup, Piece, Reply, Step};
pub use file::FileName;
pub use profile::{Ads, Reset, Shown, User};
pub use request::{Asked, Method, Request};
