//! The open-file service, over its socket: its answers, and that a misbehaving client does not harm
//! others.

mod answers;
mod clients;
mod helpers;
mod pinned;
mod running;
mod socket;
