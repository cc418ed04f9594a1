//! What programs say on standard error, on its way to the server's.
//!
//! Standard error can be a stopped terminal or a full pipe, and whoever writes to it then waits. So
//! a thread of its own writes; a bounded queue leads to it, and what finds no room there is counted
//! instead. A program is always read from, so that it does not wait either, but after
//! [`PROGRAM_BYTES_MAX`] of it nothing is passed on.
//!
//! Control characters are written as escapes: neither a program nor a path that a client has made
//! up can make a terminal do anything.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;

/// Lines on their way at most.
const LINES_MAX: usize = 256;
/// A longer line is cut in pieces.
const LINE_BYTES_MAX: usize = 1024;
/// What one program may say; in a minute, if it stays.
const PROGRAM_BYTES_MAX: usize = 64 * 1024;
const MINUTE: Duration = Duration::from_secs(60);
/// Read from one program before the others have their turn.
const READS_A_TURN: usize = 8;

/// The way to standard error.
pub(super) struct Words {
    /// `None` at the end only.
    sender: Option<SyncSender<String>>,
    writer: JoinHandle<()>,
    lost: u64,
}

impl Words {
    pub(super) fn new() -> io::Result<Words> {
        let (sender, lines) = sync_channel::<String>(LINES_MAX);
        let writer = std::thread::Builder::new()
            .name("words".into())
            .spawn(move || {
                for line in lines {
                    // If standard error is closed there is nobody to tell.
                    let _ = writeln!(io::stderr(), "headway: {line}");
                }
            })?;
        Ok(Words {
            sender: Some(sender),
            writer,
            lost: 0,
        })
    }

    /// Passes a line on, or counts it as lost. The next one that finds room says how many were.
    pub(super) fn say(&mut self, line: String) {
        let Some(sender) = &self.sender else { return };
        let line = harmless(line.as_bytes());
        let told = match self.lost {
            0 => line,
            lost => format!("{line} ({lost} lines before it are lost: standard error is full)"),
        };
        match sender.try_send(told) {
            Ok(()) => self.lost = 0,
            Err(_) => self.lost += 1,
        }
    }

    /// Waits for what is under way, until `deadline`.
    pub(super) fn end(mut self, deadline: Instant) {
        self.sender = None;
        while !self.writer.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// One program's standard error.
pub(super) struct Ear {
    pipe: OwnedFd,
    line: Vec<u8>,
    heard_bytes: usize,
    /// When the minute began, of a program that stays.
    minute: Option<Instant>,
}

impl Ear {
    /// Listens to a non-blocking pipe, of a program that stays or of one that does not.
    pub(super) fn new(pipe: OwnedFd, stays: bool) -> Ear {
        Ear {
            pipe,
            line: Vec::new(),
            heard_bytes: 0,
            minute: stays.then(Instant::now),
        }
    }

    pub(super) fn pipe(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }

    /// Takes what there is; `false` when there will be nothing more.
    pub(super) fn hear(&mut self, speaker: (&str, i32), words: &mut Words) -> bool {
        if self.minute.is_some_and(|begun| begun.elapsed() >= MINUTE) {
            self.minute = Some(Instant::now());
            self.heard_bytes = 0;
        }
        let mut buffer = [0; 4096];
        for _ in 0..READS_A_TURN {
            match rustix::io::read(&self.pipe, &mut buffer) {
                Ok(0) => {
                    self.end_line(speaker, words);
                    return false;
                }
                Ok(count) => self.take(&buffer[..count], speaker, words),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                Err(_) => return false,
            }
        }
        true
    }

    fn take(&mut self, bytes: &[u8], speaker: (&str, i32), words: &mut Words) {
        let left = PROGRAM_BYTES_MAX.saturating_sub(self.heard_bytes);
        let was_heard = self.heard_bytes <= PROGRAM_BYTES_MAX;
        self.heard_bytes = self.heard_bytes.saturating_add(bytes.len());
        for &byte in &bytes[..bytes.len().min(left)] {
            match byte {
                b'\n' => self.end_line(speaker, words),
                _ => self.line.push(byte),
            }
            if self.line.len() == LINE_BYTES_MAX {
                self.end_line(speaker, words);
            }
        }
        if was_heard && self.heard_bytes > PROGRAM_BYTES_MAX {
            self.end_line(speaker, words);
            let (name, pid) = speaker;
            words.say(format!(
                "{name}[{pid}]: says more than {PROGRAM_BYTES_MAX} bytes; the rest is left out"
            ));
        }
    }

    fn end_line(&mut self, speaker: (&str, i32), words: &mut Words) {
        if !self.line.is_empty() {
            let (name, pid) = speaker;
            let line = String::from_utf8_lossy(&self.line);
            words.say(format!("{name}[{pid}]: {line}"));
            self.line.clear();
        }
    }
}

/// As text without control characters.
pub(crate) fn harmless(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for character in String::from_utf8_lossy(bytes).chars() {
        match character {
            '\t' => text.push(' '),
            '\r' => {}
            control if control.is_control() => {
                // Writing to a String can not fail.
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

    /// Words that end in a queue instead of on standard error.
    fn words(lines_max: usize) -> (Words, Receiver<String>) {
        let (sender, lines) = sync_channel(lines_max);
        let words = Words {
            sender: Some(sender),
            writer: std::thread::spawn(|| ()),
            lost: 0,
        };
        (words, lines)
    }

    fn said(by: &[u8]) -> Vec<String> {
        let (ours, theirs) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        let (mut words, lines) = words(1000);
        let mut ear = Ear::new(ours, false);
        for part in by.chunks(4096) {
            rustix::io::write(&theirs, part).unwrap();
            assert!(ear.hear(("p", 7), &mut words));
        }
        drop(theirs);
        assert!(!ear.hear(("p", 7), &mut words));
        lines.try_iter().collect()
    }

    #[test]
    fn lines_bear_the_name_of_their_speaker_when_they_are_passed_on() {
        assert_eq!(
            said(b"one\n\ntwo\r\nthree"),
            ["p[7]: one", "p[7]: two", "p[7]: three"]
        );
        assert!(said(b"").is_empty());
    }

    #[test]
    fn line_is_harmless_when_it_holds_control_characters() {
        assert_eq!(
            said(b"a\x1b[2Jb\xff\tc\0\n"),
            ["p[7]: a\\x1b[2Jb\u{fffd} c\\x00"]
        );
    }

    #[test]
    fn rest_is_left_out_when_a_program_says_too_much() {
        let lines = said(&[b'x'; 3 * PROGRAM_BYTES_MAX]);
        assert_eq!(lines.len(), PROGRAM_BYTES_MAX / LINE_BYTES_MAX + 1);
        assert!(lines.last().unwrap().contains("the rest is left out"));
        let exactly = said(&[b'x'; PROGRAM_BYTES_MAX]);
        assert_eq!(exactly.len(), PROGRAM_BYTES_MAX / LINE_BYTES_MAX);
    }

    #[test]
    fn lines_are_counted_when_nobody_takes_them() {
        let (mut words, lines) = words(1);
        for number in 0..4 {
            words.say(format!("{number}"));
        }
        assert_eq!(lines.recv().unwrap(), "0");
        words.say("4".into());
        let told = lines.recv().unwrap();
        assert_eq!(
            told,
            "4 (3 lines before it are lost: standard error is full)"
        );
    }
}
