//! Load on a server, and honest figures of what it did to a client.
//!
//! [`fileset`] creates the documents and their popularity. [`engine`] sends requests and times the
//! responses. [`session`] is one run, from the [`cli_types`] of a command line to a run directory,
//! with what [`client`] knows of this machine and the [`verdict`] on it. [`profile`] is a series of
//! runs. [`scenario`] has requests that follow from responses. [`tls`] is the client's side of HTTPS, [`fail_if`] decides whether a run passed. [`checksum`] has to be the same on every machine, as the streams of `headway_base::random`
//! are.
//!
//! Sources: dissertation sections 3.2.2 and 3.2.3 (clients, infinite demand, relative load); Brecht
//! and Ostrowski section 5 (the overload client: a timeout of 3 s, errors counted); Banga and
//! Druschel, "Measuring the capacity of a web server" (1997), for why an overload needs an open
//! loop.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod checksum;
pub mod cli_types;
pub mod client;
mod cookies;
pub mod engine;
pub mod fail_if;
pub mod fileset;
pub mod knee;
pub mod meeting;
pub mod profile;
pub mod scenario;
pub mod session;
pub mod tls;
mod verdict;

// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
