//! Commands to a disk: one line of JSON each way over a Unix socket.
//!
//! The socket lies in the disk's folder, so any process that may write there can give orders: the
//! lab that started the disk, and the one that takes it down.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::spec::{DiskStatistics, Order};

/// The longest line; a longer one is refused.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// What the disk process is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Ask {
    Order(Order),
    /// Answer without delay, fault and count while this is true: the lab looks after the file
    /// system.
    Aside(bool),
    /// Give every request one known delay while this is true, to measure the way.
    Probe(bool),
    /// What the way to the disk process and back costs, in nanoseconds: answers leave so much
    /// earlier.
    Way(u64),
    Statistics,
    /// Whether it has no delays.
    Fast,
}

/// What it answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    Done,
    Statistics(DiskStatistics),
    Fast(bool),
    Refused(String),
}

/// Asks the disk whose socket this is; each ask is a connection of its own, so a process that died
/// keeps nothing busy.
pub(crate) fn ask(socket: &Path, ask: &Ask, timeout: Duration) -> io::Result<Answer> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    write_line(&mut stream, ask)?;
    read_line(&stream)
}

/// Takes one question from a stream and answers it.
pub(crate) fn serve(stream: &UnixStream, answer: impl FnOnce(Ask) -> Answer) -> io::Result<()> {
    // A connection that sends nothing must not keep the others waiting.
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    let reply = match read_line(stream) {
        Ok(question) => answer(question),
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
    fn question_arrives_and_answer_returns_when_both_ends_are_there() {
        let (asking, answering) = UnixStream::pair().expect("sockets");
        let order = Ask::Order(Order::Stall { for_ms: 5 });
        write_line(&mut &asking, &order).expect("room");
        serve(&answering, |ask| {
            assert_eq!(ask, order);
            Answer::Done
        })
        .expect("somebody reads");
        assert_eq!(read_line::<Answer>(&asking).expect("a line"), Answer::Done);
    }

    #[test]
    fn protocol_words_are_rejected_when_they_are_no_request() {
        let (mut asking, answering) = UnixStream::pair().expect("sockets");
        asking.write_all(b"hello\n").expect("room");
        serve(&answering, |ask| panic!("{ask:?}")).expect("somebody reads");
        let answer: Answer = read_line(&asking).expect("a line");
        assert!(matches!(answer, Answer::Refused(_)), "{answer:?}");
    }
}
