//! The socket of syslog or the journal, to which the log process sends one packet per line.
//!
//! Nothing here waits: while the daemon does not keep up, lines are dropped and counted. A daemon that was
//! restarted is found again with the next line.
//!
//! Sources: syslog(3), RFC 3164, and "Native Journal Protocol" of systemd.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use headway_config::LogDaemon;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

/// What syslog(3) calls LOG_LOCAL7 and LOG_INFO. The daemon adds the time.
const SYSLOG_HEADER: &[u8] = b"<190>headway: ";
const JOURNAL_HEADER: &[u8] =
    b"PRIORITY=6\nSYSLOG_FACILITY=23\nSYSLOG_IDENTIFIER=headway\nMESSAGE=";

/// A connection to the daemon.
pub(crate) struct Daemon {
    kind: LogDaemon,
    path: PathBuf,
    /// `None` after it was lost.
    socket: Option<OwnedFd>,
    packet: Vec<u8>,
}

impl Daemon {
    /// Connects.
    pub(crate) fn open(kind: LogDaemon, path: &Path) -> Result<Daemon, String> {
        Ok(Daemon {
            kind,
            path: path.to_owned(),
            socket: Some(connect(path)?),
            packet: Vec::new(),
        })
    }

    /// Sends each line of a batch. Returns how many were dropped, and why.
    pub(crate) fn append(&mut self, batch: &[u8]) -> (u64, String) {
        let (mut dropped, mut last) = (0, String::new());
        for line in batch.split(|byte| *byte == b'\n') {
            if line.is_empty() {
                continue;
            }
            if let Err(why) = self.send(line) {
                (dropped, last) = (dropped + 1, why);
            }
        }
        (dropped, last)
    }

    fn send(&mut self, line: &[u8]) -> Result<(), String> {
        self.packet.clear();
        self.packet.extend_from_slice(match self.kind {
            LogDaemon::Syslog => SYSLOG_HEADER,
            LogDaemon::Journal => JOURNAL_HEADER,
        });
        self.packet.extend_from_slice(line);
        if self.kind == LogDaemon::Journal {
            self.packet.push(b'\n');
        }
        let was_connected = self.socket.is_some();
        match self.try_send() {
            // It was restarted since the last line.
            Err(Errno::CONNREFUSED | Errno::NOTCONN | Errno::CONNRESET | Errno::PIPE)
                if was_connected =>
            {
                self.socket = None;
            }
            sent => return self.checked(sent),
        }
        let sent = self.try_send();
        self.checked(sent)
    }

    fn checked(&mut self, sent: Result<(), Errno>) -> Result<(), String> {
        sent.map_err(|error| format!("sendto({}): {error}", self.path.display()))
    }

    fn try_send(&mut self) -> Result<(), Errno> {
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => open(&self.path)?,
        };
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = rustix::io::retry_on_intr(|| rustix::net::send(&socket, &self.packet, flags));
        self.socket = Some(socket);
        sent.map(drop)
    }
}

fn open(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

fn connect(path: &Path) -> Result<OwnedFd, String> {
    open(path).map_err(|error| format!("connect({}): {error}", path.display()))
}
