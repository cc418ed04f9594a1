//! A session and its streams, with clients that are a library or bytes by hand.

mod bodies;
mod client;
mod floods;
mod frames;
mod headers;
mod streams;
