//! The kinds of tokens by which events find their receivers. Connections and listeners have theirs
//! beside their tables.

/// The token kind of helper sockets.
pub(super) const HELPER: u8 = 2;
/// The token kind of the control socket.
pub(super) const CONTROL: u8 = 3;
/// The token kind of a program's input and output.
pub(super) const PROGRAM: u8 = 4;
/// The token kind of the spawner's socket.
pub(super) const SPAWNER: u8 = 5;
/// The token kind of long-running programs.
pub(super) const DIRECT_PROCESS: u8 = 6;
/// The token kind of upstream connections.
pub(super) const UPSTREAM_CONN: u8 = 7;
/// The token kind of the socket to the handshake process.
pub(super) const HANDSHAKES: u8 = 9;
/// The token kind of the socket to the store process.
pub(super) const STORE: u8 = 8;
