//! A whole server whose clients speak HTTP/2: by the crate h2, or by frames made by hand.

pub mod client;
mod floods;
mod grpc;
mod h2spec;
mod handlers;
mod limits;
mod serving;
mod smuggling;
mod streams;
mod suspects;
mod trailers;
mod websockets;
