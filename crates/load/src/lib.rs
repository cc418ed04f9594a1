//! Load on a server, and honest figures of what it did to a client.
//!
//! [`fileset`] makes the documents and knows how often each is asked for. [`engine`] sends requests
//! and times the replies. [`session`] is one run from a user's [`words`] to a run directory, with
//! what [`client`] knows of this machine and the [`verdict`] on it; [`profile`] is many of them,
//! and [`specweb99`] three with a benchmark's rules. [`checksum`] and [`random`] are the two things
//! that must be the same on every machine: what a file's content is compared by, and what a seed
//! draws.
//!
//! Sources: dissertation sections 3.2.2 and 3.2.3 (clients, infinite demand, relative load); Brecht
//! and Ostrowski section 5 (the overload client: a time-out of 3 s, errors counted); Banga and
//! Druschel, "Measuring the capacity of a web server" (1997), for why an overload needs an open
//! loop.

#![forbid(unsafe_code)]

pub mod checksum;
pub mod client;
pub mod engine;
pub mod fileset;
pub mod profile;
pub mod random;
pub mod session;
pub mod specweb99;
pub mod verdict;
pub mod words;
