//! Commands to a disk: one line of JSON each way over a Unix socket.
//!
//! The socket lies in the disk's folder, so any process that may write there can give orders: the
//! lab that started the disk, and the one that takes it down.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::spec::Order;
use super::statistics::DiskStatistics;

/// The longest line; a longer one is an error.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// A command to the disk process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum DiskCommand {
    Order(Order),
    /// Answer without delay, fault and count while this is true: the lab works on the file system.
    Maintenance(bool),
    /// Give every request one known delay while this is true, to measure the overhead.
    Probe(bool),
    /// What the way to the disk process and back costs in nanoseconds. Answers leave so much
    /// earlier.
    ReadOverhead(u64),
    /// Make the kernel forget everything of a remote file system.
    DropCaches,
    Statistics,
    /// Say whether the disk has no delays.
    Fast,
}

/// The answer of the disk process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    Done,
    Statistics(DiskStatistics),
    Fast(bool),
    /// Something of it is in use.
    Busy,
    Refused(String),
}

/// Sends a command to the disk with this socket. Each command has a connection of its own, so a
/// process that died keeps nothing busy.
pub(crate) fn send(socket: &Path, command: &DiskCommand, timeout: Duration) -> io::Result<Answer> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    write_line(&mut stream, command)?;
    read_line(&stream)
}

/// Reads one command from a stream and answers it.
pub(crate) fn serve(
    stream: &UnixStream,
    answer: impl FnOnce(DiskCommand) -> Answer,
) -> io::Result<()> {
    // A connection that sends nothing must not keep the others waiting.
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    let reply = match read_line(stream) {
        Ok(command) => answer(command),
        Err(error) => Answer::Refused(error.to_string()),
    };
    let mut stream = stream;
    write_line(&mut stream, &reply)
}

fn write_line(stream: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    stream.write_all(&line)
}

fn read_line<T: for<'a> Deserialize<'a>>(stream: &UnixStream) -> io::Result<T> {
    let mut line = String::new();
    BufReader::new(io::Read::take(stream, LINE_BYTES_MAX)).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_arrives_and_answer_returns_when_both_ends_are_open() {
        let (asking, answering) = UnixStream::pair().expect("sockets");
        let order = DiskCommand::Order(Order::Stall { for_ms: 5 });
        write_line(&mut &asking, &order).expect("room");
        serve(&answering, |command| {
            assert_eq!(command, order);
            Answer::Done
        })
        .expect("the other end reads");
        assert_eq!(read_line::<Answer>(&asking).expect("a line"), Answer::Done);
    }

    #[test]
    fn line_is_refused_when_it_is_no_command() {
        let (mut asking, answering) = UnixStream::pair().expect("sockets");
        asking.write_all(b"hello\n").expect("room");
        serve(&answering, |command| panic!("{command:?}")).expect("the other end reads");
        let answer: Answer = read_line(&asking).expect("a line");
        assert!(matches!(answer, Answer::Refused(_)), "{answer:?}");
    }
}
