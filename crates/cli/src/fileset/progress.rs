//! How far writing, comparing or reading has come, for a person at a terminal.

use std::io::{self, IsTerminal, Write};
use std::time::Instant;

use headway_load::fileset::{Amount, Progress};

/// A progress line on standard error that replaces itself, if that is a terminal.
pub(super) struct ProgressLine {
    verb: &'static str,
    begun: Instant,
    shown: bool,
    on: bool,
}

impl ProgressLine {
    pub(super) fn new(verb: &'static str, quiet: bool) -> ProgressLine {
        ProgressLine {
            verb,
            begun: Instant::now(),
            shown: false,
            on: !quiet && io::stderr().is_terminal(),
        }
    }

    pub(super) fn show(&mut self, progress: Progress) {
        if !self.on {
            return;
        }
        self.shown = true;
        let (done, total) = (progress.bytes_done, progress.bytes_total);
        let text = if progress.syncing {
            format!("{} {}; waiting for the disk", Amount(total), self.verb)
        } else {
            let rate = done as f64 / self.begun.elapsed().as_secs_f64().max(1e-3);
            let percent = done as f64 * 100.0 / total.max(1) as f64;
            let left_s = (total.saturating_sub(done)) as f64 / rate.max(1.0);
            let (done, total, rate) = (Amount(done), Amount(total), Amount(rate as u64));
            format!(
                "{percent:3.0} %  {done} of {total} {}  {rate}/s  {left_s:.0} s left",
                self.verb
            )
        };
        // Carriage return and "erase to the end of the line". A closed terminal does not stop it.
        let _ = write!(io::stderr(), "\r{text}\x1b[K");
    }

    pub(super) fn clear(&self) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
