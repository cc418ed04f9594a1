//! Tests of a session and its streams, with a library as the client or with bytes made by hand.

mod bodies;
mod client;
mod errors;
mod floods;
mod frames;
mod headers;
mod oracles;
mod streams;
mod tables;
