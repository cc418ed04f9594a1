//! The SPECweb99-like application over every interface of a server: one conversation, identical
//! bytes.
//!
//! The server is a real one with a location for each interface; behind one of them is the FastCGI
//! program, started as a user would.

mod conversation;
mod load;
mod built_in;
mod other_servers;
mod directories;
