//! Relays standard error of programs to the server's standard error.
//!
//! Standard error may be a stopped terminal or a full pipe, and writing to it then blocks. So a
//! separate thread writes; a bounded queue leads to it, and lines that do not fit are dropped and
//! counted. Programs are always read from, so that they do not block either, but after
//! [`PROGRAM_BYTES_MAX`] their output is discarded.
//!
//! Control characters are escaped: neither a program nor a path made up by a client can send
//! commands to a terminal.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use headway_base::error_line::ErrorLine;
use rustix::io::Errno;

/// Most queued lines.
const LINES_MAX: usize = 256;
/// A longer line is split.
const LINE_BYTES_MAX: usize = 1024;
/// Most output that is relayed: per program, or per minute for a long-running one.
const PROGRAM_BYTES_MAX: usize = 64 * 1024;
const MINUTE: Duration = Duration::from_secs(60);
/// Most reads from one program before others are served.
const READS_PER_TICK_MAX: usize = 8;

/// The queue to the thread that writes.
pub(super) struct StderrRelay {
    /// `None` only at shutdown.
    sender: Option<SyncSender<String>>,
    writer: JoinHandle<()>,
    lost: u64,
}

impl StderrRelay {
    #[expect(clippy::disallowed_methods, reason = "a thread of its own may wait")]
    pub(super) fn new(json: bool) -> io::Result<StderrRelay> {
        let (sender, lines) = sync_channel::<String>(LINES_MAX);
        let writer = std::thread::Builder::new()
            .name("stderr_relay".into())
            .spawn(move || {
                for message in lines {
                    let since = SystemTime::now().duration_since(UNIX_EPOCH);
                    let line = ErrorLine {
                        time_ms: since.map_or(0, |since| since.as_millis() as u64),
                        level: "error",
                        process: "spawner",
                        pid: std::process::id(),
                        message: &message,
                        request: None,
                    };
                    let line = if json { line.json() } else { line.text() };
                    // If standard error is closed, nothing can be reported.
                    let _ = writeln!(io::stderr(), "{line}");
                }
            })?;
        Ok(StderrRelay {
            sender: Some(sender),
            writer,
            lost: 0,
        })
    }

    /// Queues a line, or counts it as lost. The next line that fits says how many were lost.
    pub(super) fn log(&mut self, line: String) {
        let Some(sender) = &self.sender else { return };
        let line = escape_control(line.as_bytes());
        let line_with_note = match self.lost {
            0 => line,
            lost => format!("{line} ({lost} earlier lines lost: standard error is full)"),
        };
        match sender.try_send(line_with_note) {
            Ok(()) => self.lost = 0,
            Err(_) => self.lost += 1,
        }
    }

    /// Waits until `deadline` for queued lines to be written.
    pub(super) fn end(mut self, deadline: Instant) {
        self.sender = None;
        while !self.writer.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Reads one program's standard error.
pub(super) struct StderrReader {
    pipe: OwnedFd,
    line: Vec<u8>,
    read_bytes: usize,
    /// Start of the current minute, for a long-running program.
    minute: Option<Instant>,
}

impl StderrReader {
    /// Reads a non-blocking pipe. `stays`: the program is long-running.
    pub(super) fn new(pipe: OwnedFd, stays: bool) -> StderrReader {
        StderrReader {
            pipe,
            line: Vec::new(),
            read_bytes: 0,
            minute: stays.then(Instant::now),
        }
    }

    pub(super) fn pipe(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }

    /// Reads what is available; returns `false` at the end.
    pub(super) fn read(&mut self, source: (&str, i32), stderr_relay: &mut StderrRelay) -> bool {
        if self.minute.is_some_and(|begun| begun.elapsed() >= MINUTE) {
            self.minute = Some(Instant::now());
            self.read_bytes = 0;
        }
        let mut buffer = [0; 4096];
        for _ in 0..READS_PER_TICK_MAX {
            match rustix::io::read(&self.pipe, &mut buffer) {
                Ok(0) => {
                    self.end_line(source, stderr_relay);
                    return false;
                }
                Ok(count) => self.take(&buffer[..count], source, stderr_relay),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                Err(_) => return false,
            }
        }
        true
    }

    fn take(&mut self, bytes: &[u8], source: (&str, i32), stderr_relay: &mut StderrRelay) {
        let left = PROGRAM_BYTES_MAX.saturating_sub(self.read_bytes);
        let was_heard = self.read_bytes <= PROGRAM_BYTES_MAX;
        self.read_bytes = self.read_bytes.saturating_add(bytes.len());
        for &byte in &bytes[..bytes.len().min(left)] {
            match byte {
                b'\n' => self.end_line(source, stderr_relay),
                _ => self.line.push(byte),
            }
            if self.line.len() == LINE_BYTES_MAX {
                self.end_line(source, stderr_relay);
            }
        }
        if was_heard && self.read_bytes > PROGRAM_BYTES_MAX {
            self.end_line(source, stderr_relay);
            let (name, pid) = source;
            stderr_relay.log(format!(
                "{name}[{pid}]: wrote more than {PROGRAM_BYTES_MAX} bytes to standard error; the rest is dropped"
            ));
        }
    }

    fn end_line(&mut self, source: (&str, i32), stderr_relay: &mut StderrRelay) {
        if !self.line.is_empty() {
            let (name, pid) = source;
            let line = String::from_utf8_lossy(&self.line);
            stderr_relay.log(format!("{name}[{pid}]: {line}"));
            self.line.clear();
        }
    }
}

/// The text with control characters escaped.
pub fn escape_control(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for character in String::from_utf8_lossy(bytes).chars() {
        match character {
            '\t' => text.push(' '),
            '\r' => {}
            control if control.is_control() => {
                // Writing to a String cannot fail.
                let _ = write!(text, "\\x{:02x}", u32::from(control));
            }
            other => text.push(other),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::mpsc::Receiver;

    /// A relay that ends in a queue instead of standard error.
    fn stderr_relay(lines_max: usize) -> (StderrRelay, Receiver<String>) {
        let (sender, lines) = sync_channel(lines_max);
        let stderr_relay = StderrRelay {
            sender: Some(sender),
            writer: std::thread::spawn(|| ()),
            lost: 0,
        };
        (stderr_relay, lines)
    }

    fn lines_of(by: &[u8]) -> Vec<String> {
        use rustix::pipe::{PipeFlags, pipe_with};
        let (ours, theirs) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap();
        let (mut stderr_relay, lines) = stderr_relay(1000);
        let mut stderr = StderrReader::new(ours, false);
        for part in by.chunks(4096) {
            rustix::io::write(&theirs, part).unwrap();
            assert!(stderr.read(("p", 7), &mut stderr_relay));
        }
        drop(theirs);
        // A program that another test starts holds the pipe between its fork and its exec.
        headway_test_support::wait_until("the end of the output", || {
            !stderr.read(("p", 7), &mut stderr_relay)
        });
        lines.try_iter().collect()
    }

    #[test]
    fn relayed_lines_name_their_program() {
        assert_eq!(
            lines_of(b"one\n\ntwo\r\nthree"),
            ["p[7]: one", "p[7]: two", "p[7]: three"]
        );
        assert!(lines_of(b"").is_empty());
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(
            lines_of(b"a\x1b[2Jb\xff\tc\0\n"),
            ["p[7]: a\\x1b[2Jb\u{fffd} c\\x00"]
        );
    }

    #[test]
    fn output_above_the_limit_is_dropped() {
        let lines = lines_of(&[b'x'; 3 * PROGRAM_BYTES_MAX]);
        assert_eq!(lines.len(), PROGRAM_BYTES_MAX / LINE_BYTES_MAX + 1);
        assert!(lines.last().unwrap().contains("the rest is dropped"));
        let exactly = lines_of(&[b'x'; PROGRAM_BYTES_MAX]);
        assert_eq!(exactly.len(), PROGRAM_BYTES_MAX / LINE_BYTES_MAX);
    }

    #[test]
    fn lines_that_do_not_fit_are_counted() {
        let (mut stderr_relay, lines) = stderr_relay(1);
        for number in 0..4 {
            stderr_relay.log(format!("{number}"));
        }
        assert_eq!(lines.recv().unwrap(), "0");
        stderr_relay.log("4".into());
        let line_with_note = lines.recv().unwrap();
        assert_eq!(
            line_with_note,
            "4 (3 earlier lines lost: standard error is full)"
        );
    }
}
