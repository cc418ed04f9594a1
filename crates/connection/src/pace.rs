//! How fast a client must be.

/// The deadline of a client that sends a body or reads a response: it must never be silent for the
/// timeout, and keep up the least rate on average.
///
/// Each byte extends the deadline by the time that it takes at the least rate, up to the whole
/// timeout from now. So a byte now and then gains nothing, and a short pause costs nothing
/// (`MinRate` of Apache's mod_reqtimeout, with a limit on what a fast start earns).
///
/// ```
/// use headway_connection::Pace;
/// let (mut pace, timeout_ms, rate) = (Pace::default(), 1000, 100);
/// assert_eq!(pace.deadline_ms(0, timeout_ms), 1000);
/// pace.progress(1, rate, 900, timeout_ms);
/// assert_eq!(pace.deadline_ms(900, timeout_ms), 1010);
/// pace.progress(1000, rate, 950, timeout_ms);
/// assert_eq!(pace.deadline_ms(950, timeout_ms), 1950);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// In microseconds, because a byte may take less than a millisecond; 0 while nothing is expected.
    due_us: u64,
}

impl Pace {
    /// The deadline; the timeout starts now if nothing has been expected from the client.
    pub fn deadline_ms(&mut self, now_ms: u64, timeout_ms: u64) -> u64 {
        if self.due_us == 0 {
            self.due_us = (now_ms + timeout_ms) * 1000;
        }
        self.due_us / 1000
    }

    /// The client has sent or read this many bytes; the rate is in bytes per second, 0 for none.
    pub fn progress(&mut self, bytes: u64, rate: u64, now_ms: u64, timeout_ms: u64) {
        if self.due_us == 0 {
            return;
        }
        let most_us = (now_ms + timeout_ms) * 1000;
        let earned_us = (bytes * 1_000_000).checked_div(rate);
        let due_us = earned_us.map_or(most_us, |earned_us| self.due_us + earned_us);
        self.due_us = due_us.min(most_us);
    }

    /// Nothing is expected from the client now.
    pub fn rest(&mut self) {
        self.due_us = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::Pace;

    /// When a client is given up that sends `bytes` every `interval_ms`, within an hour.
    fn given_up_at(bytes: u64, interval_ms: u64, rate: u64) -> Option<u64> {
        let (mut pace, mut now_ms, timeout_ms) = (Pace::default(), 0, 10_000);
        while now_ms < 3_600_000 {
            if now_ms > pace.deadline_ms(now_ms, timeout_ms) {
                return Some(now_ms);
            }
            pace.progress(bytes, rate, now_ms, timeout_ms);
            now_ms += interval_ms;
        }
        None
    }

    #[test]
    fn client_below_the_least_rate_is_given_up_however_often_it_sends() {
        assert_eq!(given_up_at(500, 1000, 500), None);
        assert_eq!(given_up_at(5, 10, 500), None, "small parts at the rate");
        assert_eq!(given_up_at(100_000, 9_000, 500), None, "bursts");
        assert!(given_up_at(1, 5_000, 500).is_some_and(|at| at <= 15_000));
        assert!(given_up_at(250, 1000, 500).is_some_and(|at| at <= 21_000));
        assert!(given_up_at(1, 5, 500).is_some_and(|at| at <= 18_000));
        assert!(given_up_at(1 << 30, 11_000, 500).is_some(), "silence");
        assert_eq!(given_up_at(1, 9_000, 0), None, "no least rate");
    }
}
