//! select(2): two bit sets in, two bit sets out.
//!
//! The sets grow with the highest file descriptor of interest, past the C library's 1,024. Each
//! call costs time proportional to that number, in the kernel and here; select is kept for
//! comparison with the servers of the papers. It cannot detect a hang-up apart from readability, so
//! a file descriptor without interest reports nothing at all. One file descriptor closed without
//! `remove` makes every wait fail with `EBADF`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use headway_os::select::WORD_BITS;

use crate::table::{Table, index};
use crate::types::{Condition, Interest, Ready, Registration};
use crate::{Backend, EVENTS_PER_WAIT_MAX};

#[derive(Debug)]
pub(crate) struct Select {
    table: Table<Registration>,
    /// The sets of interest. The kernel overwrites its arguments, so each call gets a copy.
    read: Vec<usize>,
    write: Vec<usize>,
    read_ready: Vec<usize>,
    write_ready: Vec<usize>,
    /// Words up to the highest file descriptor of interest.
    words: usize,
    /// Start of the next scan: after the last file descriptor that was reported when the limit was
    /// reached.
    cursor: usize,
}

impl Select {
    pub fn new() -> Select {
        Select {
            table: Table::new(),
            read: Vec::new(),
            write: Vec::new(),
            read_ready: Vec::new(),
            write_ready: Vec::new(),
            words: 0,
            cursor: 0,
        }
    }

    fn set_interest(&mut self, descriptor: usize, interest: Interest) {
        let (word, bit) = (descriptor / WORD_BITS, 1 << (descriptor % WORD_BITS));
        if word >= self.read.len() {
            for set in [
                &mut self.read,
                &mut self.write,
                &mut self.read_ready,
                &mut self.write_ready,
            ] {
                set.resize(word + 1, 0);
            }
        }
        assign(&mut self.read[word], bit, interest.reads());
        assign(&mut self.write[word], bit, interest.writes());
        if interest != Interest::NONE {
            self.words = self.words.max(word + 1);
        }
        while self.words > 0 && (self.read[self.words - 1] | self.write[self.words - 1]) == 0 {
            self.words -= 1;
        }
    }

    /// Turns `bits` set bits into events, from the cursor to the end and from the start to the
    /// cursor.
    fn collect(&mut self, mut bits: usize, ready: &mut Vec<Ready>) {
        let start = if self.cursor < self.words * WORD_BITS {
            self.cursor
        } else {
            0
        };
        let from_start = usize::MAX << (start % WORD_BITS);
        // The first word is visited twice: from the cursor on now, and below it at the very end.
        for step in 0..=self.words {
            let word = (start / WORD_BITS + step) % self.words;
            let mask = match step {
                0 => from_start,
                last if last == self.words => !from_start,
                _ => usize::MAX,
            };
            let mut left = (self.read_ready[word] | self.write_ready[word]) & mask;
            while left != 0 {
                let bit = left & left.wrapping_neg();
                left ^= bit;
                let descriptor = word * WORD_BITS + bit.trailing_zeros() as usize;
                let input = self.read_ready[word] & bit != 0;
                let output = self.write_ready[word] & bit != 0;
                bits -= usize::from(input) + usize::from(output);
                self.deliver(descriptor, input, output, ready);
                if ready.len() == EVENTS_PER_WAIT_MAX {
                    self.cursor = descriptor + 1;
                    return;
                }
            }
            if bits == 0 {
                return;
            }
        }
    }

    fn deliver(&self, descriptor: usize, input: bool, output: bool, ready: &mut Vec<Ready>) {
        let condition = Condition {
            input,
            output,
            hangup: false,
            error: false,
        };
        let registration = self.table.get(descriptor as i32);
        ready.extend(registration.and_then(|registration| registration.ready(condition)));
    }
}

fn assign(word: &mut usize, bit: usize, on: bool) {
    if on {
        *word |= bit;
    } else {
        *word &= !bit;
    }
}

impl Backend for Select {
    fn name(&self) -> &'static str {
        "select"
    }

    fn register(
        &mut self,
        fd: BorrowedFd<'_>,
        registration: Registration,
        _shared: bool,
    ) -> io::Result<()> {
        self.table.check_unknown(fd.as_raw_fd())?;
        self.table.insert(fd.as_raw_fd(), registration);
        self.set_interest(index(fd.as_raw_fd()), registration.interest);
        Ok(())
    }

    fn modify(&mut self, fd: BorrowedFd<'_>, registration: Registration) -> io::Result<()> {
        *self.table.known(fd.as_raw_fd())? = registration;
        self.set_interest(index(fd.as_raw_fd()), registration.interest);
        Ok(())
    }

    fn remove(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.table.remove(fd.as_raw_fd())?;
        self.set_interest(index(fd.as_raw_fd()), Interest::NONE);
        Ok(())
    }

    fn wait(&mut self, ready: &mut Vec<Ready>, timeout_ms: Option<u32>) -> io::Result<()> {
        let words = self.words;
        self.read_ready[..words].copy_from_slice(&self.read[..words]);
        self.write_ready[..words].copy_from_slice(&self.write[..words]);
        let bits = headway_os::select::select(
            &mut self.read_ready[..words],
            &mut self.write_ready[..words],
            timeout_ms,
        )?;
        if bits > 0 {
            self.collect(bits, ready);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Token;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    fn registration(token: u64, interest: Interest) -> Registration {
        let token = Token(token);
        Registration { token, interest }
    }

    #[test]
    fn descriptor_below_the_cursor_is_found_when_the_scan_starts_inside_its_word() {
        let (near, mut far) = UnixStream::pair().unwrap();
        far.write_all(b"x").unwrap();
        let fd = rustix::io::fcntl_dupfd_cloexec(&near, 10 * WORD_BITS as i32 + 3).unwrap();
        let mut select = Select::new();
        select
            .register(fd.as_fd(), registration(1, Interest::READ), false)
            .unwrap();
        for cursor in [
            0,
            10 * WORD_BITS,
            fd.as_raw_fd() as usize,
            fd.as_raw_fd() as usize + 1,
        ] {
            select.cursor = cursor;
            let mut ready = Vec::new();
            select.wait(&mut ready, Some(0)).unwrap();
            assert_eq!(ready.len(), 1, "scan from {cursor}");
        }
    }

    #[test]
    fn sets_are_empty_and_short_when_the_last_interest_is_gone() {
        // A bit left behind would wake every wait for nothing: the loop would spin.
        let (near, far) = UnixStream::pair().unwrap();
        let high = rustix::io::fcntl_dupfd_cloexec(&far, 700).unwrap();
        let mut select = Select::new();
        select
            .register(near.as_fd(), registration(1, Interest::BOTH), false)
            .unwrap();
        select
            .register(high.as_fd(), registration(2, Interest::BOTH), false)
            .unwrap();
        assert!(select.words > 700 / WORD_BITS);
        select
            .modify(high.as_fd(), registration(2, Interest::NONE))
            .unwrap();
        assert_eq!(select.words, near.as_raw_fd() as usize / WORD_BITS + 1);
        select.remove(near.as_fd()).unwrap();
        assert_eq!(select.words, 0);
        assert!(
            select
                .read
                .iter()
                .chain(&select.write)
                .all(|word| *word == 0)
        );
    }
}
