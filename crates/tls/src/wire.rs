//! Messages between the master, a worker and its handshake process: packets on a `SOCK_SEQPACKET`
//! pair.
//!
//! The master sends the first one through the worker's end, before it passes that end to the worker.
//! So the worker never sees a key.

use headway_os::codec::{Field, Malformed, Version};
use zeroize::Zeroize;

use crate::established::Established;
use crate::failure::Failure;

/// The version of these messages.
pub type WireVersion = Version<1>;

/// The most bytes of a client's records in one message: a handshake message may be 64 KiB long.
pub const RECORDS_BYTES_MAX: usize = 96 << 10;
/// The longest message.
pub const MESSAGE_BYTES_MAX: usize = 160 << 10;

/// To a handshake process.
#[derive(Debug, PartialEq, Eq)]
pub enum Order<'b> {
    /// The first message, of the master. Descriptors: those of [`read_acceptor`](crate::process::read_acceptor).
    Start {
        /// The version.
        version: WireVersion,
    },
    /// Records of a client. The first ones begin a handshake.
    Feed {
        /// The connection.
        token: u64,
        /// Whole records.
        records: &'b [u8],
    },
    /// The client has gone.
    Forget {
        /// The connection.
        token: u64,
    },
}

/// From a handshake process to its worker: what [`Handshake::feed`](crate::Handshake::feed) has made.
// There is one at a time, on the stack.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, PartialEq, Eq)]
pub enum Answer<'b> {
    /// More records are needed.
    More {
        /// The connection.
        token: u64,
        /// The host that the client asks for, as far as it is known.
        server_name: Option<Vec<u8>>,
        /// What has to be sent to the client.
        output: &'b [u8],
    },
    /// The handshake is done.
    Done {
        /// The connection.
        token: u64,
        /// What was agreed on.
        established: Established,
        /// What has to be sent to the client first.
        output: &'b [u8],
    },
    /// The handshake has failed.
    Failed {
        /// The connection.
        token: u64,
        /// Why.
        failure: Failure,
        /// The host that the client has asked for, as far as it is known.
        server_name: Option<Vec<u8>>,
        /// An alert for the client.
        output: &'b [u8],
    },
}

headway_os::encoding! {
    enum<'b> Order {
        1 => Start { version },
        2 => Feed { token, records: rest },
        3 => Forget { token },
    }
}

headway_os::encoding! {
    enum<'b> Answer {
        1 => More { token, server_name, output: rest },
        2 => Done { token, established, output: rest },
        3 => Failed { token, failure, server_name, output: rest },
    }
}

/// To the end of the message.
mod rest {
    use super::Malformed;

    pub(super) fn write(value: &[u8], bytes: &mut Vec<u8>) {
        bytes.extend(value);
    }

    pub(super) fn read<'b>(bytes: &mut &'b [u8]) -> Result<&'b [u8], Malformed> {
        Ok(std::mem::take(bytes))
    }
}

/// An owned text.
pub(crate) mod text {
    use std::borrow::Cow;

    use super::{Field, Malformed};

    pub(crate) fn write(value: &str, bytes: &mut Vec<u8>) {
        Cow::Borrowed(value).write(bytes);
    }

    pub(crate) fn read(bytes: &mut &[u8]) -> Result<String, Malformed> {
        Cow::read(bytes).map(Cow::into_owned)
    }
}

/// Bytes of which no copy may stay in memory that was freed, as if they were a list.
pub(crate) mod secret {
    use super::{Field, Malformed};

    pub(crate) fn write(value: &[u8], bytes: &mut Vec<u8>) {
        (value.len() as u32).write(bytes);
        bytes.extend(value);
    }

    pub(crate) fn read(bytes: &mut &[u8]) -> Result<Vec<u8>, Malformed> {
        let length = u32::read(bytes)? as usize;
        let (value, rest) = bytes
            .split_at_checked(length)
            .ok_or(Malformed { what: "too short" })?;
        *bytes = rest;
        Ok(value.to_vec())
    }
}

/// Overwrites a message that had secrets in it.
pub fn wipe(message: &mut [u8]) {
    message.zeroize();
}

/// Encodes a message.
pub fn encode<'b>(message: &impl Field<'b>, bytes: &mut Vec<u8>) {
    bytes.clear();
    message.write(bytes);
}
