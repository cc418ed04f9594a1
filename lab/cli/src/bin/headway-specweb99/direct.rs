//! The application as the program of a `direct` location: `headway serve` hands it clients'
//! sockets, and it writes the responses to them.
//!
//! This is the program's side of docs/research/src/direct-protocol.md, version 1, as `clients/`
//! has it in C and Python. The socket is shared with the server, including its flags, so each write
//! is non-blocking and `poll` waits. A request may ask for the response to be sent back (`pipe`
//! locations); then it goes to the server in messages. A process handles one request at a time; the
//! server starts more processes for more.

use std::io::{self, BufWriter, IoSlice, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use headway_os::fd_passing::{ReceiveError, Wait, receive_with_descriptors, send_with_descriptors};
use headway_specweb::cgi::{self, Opened, Variables};
use headway_specweb::state::State;
use headway_specweb::state_directory::now_s;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::{Directories, log};

const VERSION: u8 = 1;
const REQUEST: u8 = 1;
const READY: u8 = 129;
const DONE: u8 = 130;
const OUTPUT: u8 = 131;
const MESSAGE_BYTES_MAX: usize = 128 * 1024;
const HEAD_BYTES: usize = 20;

const KEEP: u16 = 1;
const HEAD_ONLY: u16 = 2;
const OLD: u16 = 4;
const BACK: u16 = 16;
const KNOWN_FLAGS: u16 = 31;

/// Most bytes sent back in one message; with its header 64 KiB.
const OUTPUT_BYTES_MAX: usize = 64 * 1024 - 6;

/// Size of a write.
const BUFFER_BYTES: usize = 64 * 1024;

/// A request message. A body that is not in the message exceeds the application's limit.
struct Request<'m> {
    flags: u16,
    id: u32,
    variables: &'m [u8],
    body: &'m [u8],
}

/// The result that is reported to the server.
struct Done {
    keep: bool,
    status: u16,
    body_bytes: u64,
}

/// Answers requests from the server at the other end of a socket until it closes.
///
/// # Errors
/// The socket is broken, or a message is malformed: the program exits, and the server starts
/// another.
pub(crate) fn serve(server: impl AsFd, directories: &Directories) -> io::Result<()> {
    let mut state = directories.open();
    let mut message = vec![0; MESSAGE_BYTES_MAX];
    if !send_message(&server, &[VERSION, READY])? {
        return Ok(());
    }
    loop {
        let received = match receive_with_descriptors(&server, &mut message, 2, Wait::Block) {
            Ok(Some(received)) if !received.is_end() => received,
            Ok(_) | Err(ReceiveError::Os(Errno::CONNRESET)) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let request = Request::read(&message[..received.length]);
        let client = received.descriptors.into_iter().next();
        let (request, destination) = match (request, client) {
            (Some(request), _) if request.has(BACK) => {
                let (server, id) = (server.as_fd(), request.id);
                (request, Destination::Server { server, id })
            }
            (Some(request), Some(client)) => (request, Destination::Client(client)),
            _ => {
                let why = "malformed request message (version 1 expected)";
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
        };
        let done = answer(&request, destination, &mut state);
        if !send_message(&server, &encoded(&request, &done))? {
            return Ok(());
        }
    }
}

/// Sends a message to the server. Returns `false` if it has gone.
fn send_message(server: &impl AsFd, message: &[u8]) -> io::Result<bool> {
    match send_with_descriptors(server, &[IoSlice::new(message)], &[], Wait::Block) {
        Ok(_) => Ok(true),
        Err(Errno::PIPE | Errno::CONNRESET) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

impl<'m> Request<'m> {
    fn read(message: &'m [u8]) -> Option<Request<'m>> {
        let (head, rest) = message.split_first_chunk::<HEAD_BYTES>()?;
        let number =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let flags = u16::from_le_bytes([head[2], head[3]]);
        let (variables, body) = rest.split_at_checked(number(16) as usize)?;
        let is_known = head[..2] == [VERSION, REQUEST] && flags <= KNOWN_FLAGS;
        is_known.then_some(Request {
            flags,
            id: number(4),
            variables,
            body,
        })
    }

    fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    fn variable(&self, name: &str) -> Option<String> {
        let mut pairs = self.variables.split(|byte| *byte == 0);
        let value =
            pairs.find_map(|pair| pair.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
        Some(String::from_utf8_lossy(value).into_owned())
    }
}

fn encoded(request: &Request<'_>, done: &Done) -> Vec<u8> {
    let mut message = vec![VERSION, DONE];
    let flags = if done.keep { KEEP } else { 0 };
    message.extend(flags.to_le_bytes());
    message.extend(request.id.to_le_bytes());
    message.extend(done.status.to_le_bytes());
    message.extend(done.body_bytes.to_le_bytes());
    message
}

/// Writes the response. The client's socket is closed here after that.
fn answer(request: &Request<'_>, destination: Destination<'_>, state: &mut State) -> Done {
    let variables = Variables::of(|name| request.variable(name));
    let (response, error) = cgi::answered(&variables, state, &mut &request.body[..]);
    if let Some(error) = error {
        log(&format!("headway-specweb99: {error}"));
    }
    let head = match destination {
        Destination::Client(_) => head(request, variables.server(), &response),
        // The server adds the fields about the connection.
        Destination::Server { .. } => cgi::head(&response).into_bytes(),
    };
    let (status, body_bytes) = (response.status, response.length);
    let mut output = Output {
        destination,
        sent_bytes: 0,
    };
    match write(request, &head, response, &mut output) {
        Ok(()) => Done {
            keep: request.has(KEEP),
            status,
            body_bytes: if request.has(HEAD_ONLY) {
                0
            } else {
                body_bytes
            },
        },
        Err(error) => {
            // A client that disconnects is not an error.
            if error.kind() == io::ErrorKind::UnexpectedEof {
                log(&format!(
                    "headway-specweb99: a file has become shorter: {error}"
                ));
            }
            Done {
                keep: false,
                status,
                body_bytes: output.sent_bytes.saturating_sub(head.len() as u64),
            }
        }
    }
}

fn head(request: &Request<'_>, server: &str, response: &Opened) -> Vec<u8> {
    let Opened {
        status,
        fields,
        length,
        ..
    } = response;
    let date = headway_http::date::format(i64::try_from(now_s()).unwrap_or(i64::MAX));
    let mut text = format!(
        "HTTP/1.1 {status} {}\r\nServer: {server}\r\nDate: {}\r\n",
        cgi::phrase(*status),
        String::from_utf8_lossy(&date)
    );
    for (name, value) in fields {
        text += &format!("{name}: {value}\r\n");
    }
    text += &format!("Content-Length: {length}\r\n");
    text += match (request.has(KEEP), request.has(OLD)) {
        (false, _) => "Connection: close\r\n\r\n",
        (true, true) => "Connection: keep-alive\r\n\r\n",
        (true, false) => "\r\n",
    };
    text.into_bytes()
}

fn write(
    request: &Request<'_>,
    head: &[u8],
    response: Opened,
    output: &mut Output<'_>,
) -> io::Result<()> {
    // Head and body in one write if they are small.
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, output);
    out.write_all(head)?;
    if !request.has(HEAD_ONLY) {
        response.write_body(&mut out)?;
    }
    out.flush()
}

/// Where a response goes.
enum Destination<'s> {
    /// To the client, by non-blocking writes.
    Client(OwnedFd),
    /// Back to the server, in messages with this ID, which block while the server reads none.
    Server { server: BorrowedFd<'s>, id: u32 },
}

/// A response being sent.
struct Output<'s> {
    destination: Destination<'s>,
    sent_bytes: u64,
}

impl Write for Output<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = match &self.destination {
            Destination::Client(socket) => send_to_client(socket, bytes)?,
            Destination::Server { server, id } => {
                let bytes = &bytes[..bytes.len().min(OUTPUT_BYTES_MAX)];
                let [a, b, c, d] = id.to_le_bytes();
                let head = [VERSION, OUTPUT, a, b, c, d];
                let parts = [IoSlice::new(&head), IoSlice::new(bytes)];
                send_with_descriptors(server, &parts, &[], Wait::Block)?;
                bytes.len()
            }
        };
        self.sent_bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn send_to_client(socket: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    loop {
        match rustix::net::send(socket, bytes, flags) {
            Ok(count) => return Ok(count),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let mut waits = [PollFd::new(socket, PollFlags::OUT)];
                match poll(&mut waits, None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message as the server encodes it: a variable, a body, all flags that may come together.
    const MESSAGE: &[u8] = b"\x01\x01\x05\x00\x04\x03\x02\x01\x03\0\0\0\0\0\0\0\x04\0\0\0A=b\0xyz";

    #[test]
    fn request_message_has_the_documented_layout() {
        let request = Request::read(MESSAGE).expect("a request");
        assert_eq!((request.id, request.body), (0x0102_0304, &b"xyz"[..]));
        assert!(request.has(KEEP) && request.has(OLD) && !request.has(HEAD_ONLY));
        assert_eq!(request.variable("A").as_deref(), Some("b"));
        assert_eq!(request.variable("B"), None);
        for wrong in [
            &MESSAGE[..19],
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            &MESSAGE[..22],
        ] {
            assert!(Request::read(wrong).is_none(), "{}", wrong.escape_ascii());
        }
    }

    #[test]
    fn done_message_has_the_documented_layout() {
        let request = Request::read(MESSAGE).expect("a request");
        let done = Done {
            keep: true,
            status: 200,
            body_bytes: 5,
        };
        let expected = [1, 130, 1, 0, 4, 3, 2, 1, 200, 0, 5, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(encoded(&request, &done), expected);
    }

    #[test]
    fn response_is_sent_back_in_messages_when_requested() {
        let (server, program) = headway_os::fd_passing::pair().expect("a pair");
        let mut output = Output {
            destination: Destination::Server {
                server: program.as_fd(),
                id: 7,
            },
            sent_bytes: 0,
        };
        let response = vec![b'x'; OUTPUT_BYTES_MAX + 10];
        output.write_all(&response).expect("two messages");
        let mut buffer = vec![0; MESSAGE_BYTES_MAX];
        for length in [OUTPUT_BYTES_MAX, 10] {
            let message = receive_with_descriptors(&server, &mut buffer, 0, Wait::Never);
            let message = message.expect("a message").expect("at once");
            assert_eq!(message.length, 6 + length);
            assert_eq!(buffer[..6], [1, 131, 7, 0, 0, 0]);
        }
        assert_eq!(output.sent_bytes, response.len() as u64);
    }
}
