//! The application behind FastCGI: each connection of a web server is served by a thread of its
//! own.
//!
//! A keep-alive connection waits in its thread for the next request, so an idle one delays no
//! other. Connections above the limit wait in the backlog. Several processes may share a socket,
//! and several sockets a file set: posts are ordered by the lock of their log.
//!
//! The protocol is implemented in the gateway crate. Rejected: a second request on a connection
//! before the first is answered, and roles other than responder.
//!
//! Source: FastCGI Specification, section 2.2 (the listening socket is descriptor 0), 5 and 6.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use headway_gateway::cgi::Variables as Pairs;
use headway_gateway::fastcgi::{RecordKind, Responder, ResponderRequest, write_end, write_stream};
use headway_specweb::cgi::{self, Variables};
use headway_specweb::request::BODY_BYTES_MAX;
use headway_specweb::state::State;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, set_tcp_nodelay, socket_acceptconn};
use rustix::net::{SocketFlags, accept_with};

use crate::{Directories, log};

/// Default limit of connections: more than a server has processes or keep-alive connections.
pub(crate) const CONNECTIONS: usize = 256;

/// A web server that reads nothing of a response for this long is disconnected.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);

/// Pause after running out of descriptors or threads.
const PAUSE: Duration = Duration::from_millis(100);

/// Size of a read: a request with its variables.
const READ_BYTES: usize = 16 * 1024;

/// A response is sent in pieces of about this size.
const WRITE_BYTES: usize = 64 * 1024;

/// Whether a descriptor is a listening socket.
pub(crate) fn is_listening(descriptor: &impl AsFd) -> bool {
    socket_acceptconn(descriptor).unwrap_or(false)
}

/// The listening socket that the parent process has left as standard input.
pub(crate) fn inherited_listener() -> io::Result<OwnedFd> {
    io::stdin().as_fd().try_clone_to_owned()
}

/// Listens on `unix:/path` or on an address with a port.
pub(crate) fn listen(address: &str) -> io::Result<OwnedFd> {
    let listened = match address.strip_prefix("unix:") {
        Some(path) => listen_unix(Path::new(path)).map(OwnedFd::from),
        None => match address.parse::<SocketAddr>() {
            Ok(address) => TcpListener::bind(address).map(OwnedFd::from),
            Err(_) => {
                let why = "an address is unix:/path or 127.0.0.1:9000";
                Err(io::Error::new(io::ErrorKind::InvalidInput, why))
            }
        },
    };
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("listening at {address}: {error}"));
    let listened = listened.map_err(named)?;
    log(&format!("headway-specweb99: FastCGI at {address}"));
    Ok(listened)
}

/// Replaces a socket file of a process that has gone. Web servers run as users of their own and may
/// connect.
fn listen_unix(path: &Path) -> io::Result<UnixListener> {
    let is_socket = path
        .symlink_metadata()
        .is_ok_and(|status| status.file_type().is_socket());
    let is_left = || {
        let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        UnixStream::connect(path).is_err_and(refused)
    };
    if is_socket && is_left() {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}

/// Accepts and serves connections until the process is killed.
pub(crate) fn serve(
    listener: OwnedFd,
    directories: &Directories,
    connections_max: usize,
) -> io::Result<()> {
    let room = Arc::new(FreeSlots::new(connections_max));
    loop {
        let taken = room.take();
        let stream = match accept_with(&listener, SocketFlags::CLOEXEC) {
            Ok(stream) => stream,
            Err(Errno::INTR | Errno::CONNABORTED) => continue,
            // Without the pause, accepting would fail again at once.
            Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                log(&format!(
                    "headway-specweb99: accept: {error}; again in 100 ms"
                ));
                std::thread::sleep(PAUSE);
                continue;
            }
            Err(error) => {
                let why = format!("accept: {error}");
                return Err(io::Error::new(io::Error::from(error).kind(), why));
            }
        };
        let mut state = directories.open();
        let conversing = std::thread::Builder::new().spawn(move || {
            // The slot is free when the thread ends, for whatever reason.
            let _taken = taken;
            if let Err(error) = serve_connection(stream, &mut state) {
                log(&format!("headway-specweb99: {error}"));
            }
        });
        if let Err(error) = conversing {
            log(&format!(
                "headway-specweb99: a thread for a connection: {error}"
            ));
            std::thread::sleep(PAUSE);
        }
    }
}

/// The number of free connection slots.
struct FreeSlots {
    left: Mutex<usize>,
    freed: Condvar,
}

/// The slot of one connection; freed when dropped.
struct Slot(Arc<FreeSlots>);

impl FreeSlots {
    fn new(connections: usize) -> FreeSlots {
        FreeSlots {
            left: Mutex::new(connections),
            freed: Condvar::new(),
        }
    }

    /// Waits for a free slot and takes it.
    fn take(self: &Arc<FreeSlots>) -> Slot {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        while *left == 0 {
            left = self
                .freed
                .wait(left)
                .unwrap_or_else(PoisonError::into_inner);
        }
        *left -= 1;
        Slot(Arc::clone(self))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let room = &self.0;
        *room.left.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        room.freed.notify_one();
    }
}

/// Answers requests one after the other, until the server closes the connection or asks to close
/// it.
fn serve_connection(stream: OwnedFd, state: &mut State) -> io::Result<()> {
    // Unix sockets have no such option.
    let _ = set_tcp_nodelay(&stream, true);
    set_socket_timeout(&stream, Timeout::Send, Some(SEND_TIMEOUT))?;
    let mut stream = File::from(stream);
    let mut responder = Responder::new(BODY_BYTES_MAX);
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let count = match stream.read(&mut buffer) {
            // A server that is killed resets its connections.
            Ok(0) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        };
        let mut input = &buffer[..count];
        loop {
            let request = responder.feed(&mut input).map_err(io::Error::other)?;
            stream.write_all(&responder.take_unsent())?;
            let Some(request) = request else { break };
            if !answer(&request, &mut stream, state)? || !request.keep {
                return Ok(());
            }
        }
    }
}

/// Answers one request. Returns `false` if the server has gone or does not read.
fn answer(request: &ResponderRequest, stream: &mut File, state: &mut State) -> io::Result<bool> {
    let variables = Variables::of(|name| text(&request.variables, name));
    let mut output = StandardOutput {
        stream,
        id: request.id,
        records: Vec::with_capacity(WRITE_BYTES + READ_BYTES),
        is_broken: false,
    };
    let ran = cgi::run(&variables, state, &mut &request.body[..], &mut output);
    if output.is_broken {
        return Ok(false);
    }
    if let Err(error) = &ran {
        log(&format!("headway-specweb99: {error}"));
    }
    output.end(u32::from(ran.is_err()))?;
    Ok(true)
}

fn text(variables: &Pairs, name: &str) -> Option<String> {
    let value = variables.get(name.as_bytes())?;
    Some(String::from_utf8_lossy(value).into_owned())
}

/// A response being written into records. A small one is sent in one piece with its end.
struct StandardOutput<'s> {
    stream: &'s mut File,
    id: u16,
    records: Vec<u8>,
    is_broken: bool,
}

impl StandardOutput<'_> {
    fn end(mut self, exit_status: u32) -> io::Result<()> {
        write_end(&mut self.records, self.id, exit_status);
        self.send()
    }

    fn send(&mut self) -> io::Result<()> {
        let sent = self.stream.write_all(&self.records);
        self.records.clear();
        self.is_broken |= sent.is_err();
        sent
    }
}

impl Write for StandardOutput<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        write_stream(&mut self.records, RecordKind::STDOUT, self.id, bytes);
        if self.records.len() >= WRITE_BYTES {
            self.send()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
