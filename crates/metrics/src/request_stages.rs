//! How long requests spend in each stage of their way through the server.
//!
//! A stage begins where the request begins to wait for something else, and ends where the next one begins. What a
//! request has not entered does not count there.

use serde::{Deserialize, Serialize};

use super::Durations;

/// A stage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RequestStage {
    /// From its complete header until a file is found and read, or its handler is known and has its body.
    Lookup,
    /// It waits for a slot of its location.
    Queue,
    /// From its start at a program or an upstream to the header of their response.
    Upstream,
    /// From the header of the response until its last byte is in the socket.
    Send,
}

impl RequestStage {
    /// All stages.
    pub const ALL: [RequestStage; 4] = [
        RequestStage::Queue,
        RequestStage::Lookup,
        RequestStage::Upstream,
        RequestStage::Send,
    ];

    /// The stage's name.
    pub fn as_str(self) -> &'static str {
        match self {
            RequestStage::Lookup => "lookup",
            RequestStage::Queue => "queue",
            RequestStage::Upstream => "upstream",
            RequestStage::Send => "send",
        }
    }
}

/// The time that requests spent in each stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestStages([Durations; 4]);

impl RequestStages {
    /// Those of a stage.
    pub fn of(&self, stage: RequestStage) -> &Durations {
        &self.0[stage as usize]
    }

    /// Counts a request which has ended.
    pub fn record(&mut self, clock: &StageClock) {
        for (at, durations) in self.0.iter_mut().enumerate() {
            if clock.entered & 1 << at != 0 {
                durations.record(clock.spent_us[at]);
            }
        }
    }

    /// Adds another worker's requests.
    pub fn merge(&mut self, other: &RequestStages) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            mine.merge(theirs);
        }
    }
}

/// The stages of one request. Times are in microseconds of any clock that runs steadily.
///
/// ```
/// use headway_metrics::{RequestStage, StageClock};
///
/// let mut clock = StageClock::default();
/// clock.begin(1_000);
/// clock.enter(RequestStage::Upstream, 1_300);
/// clock.enter(RequestStage::Send, 1_800);
/// clock.end(1_900);
/// let spent = |stage| clock.spent_us(stage);
/// assert_eq!(spent(RequestStage::Lookup), Some(300));
/// assert_eq!(spent(RequestStage::Upstream), Some(500));
/// assert_eq!((spent(RequestStage::Send), spent(RequestStage::Queue)), (Some(100), None));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct StageClock {
    stage: u8,
    /// A bit for each stage.
    entered: u8,
    since_us: u64,
    spent_us: [u64; 4],
}

impl StageClock {
    /// Another request begins, with its lookup.
    #[inline]
    pub fn begin(&mut self, now_us: u64) {
        *self = StageClock {
            stage: RequestStage::Lookup as u8,
            entered: 1 << RequestStage::Lookup as u8,
            since_us: now_us,
            spent_us: [0; 4],
        };
    }

    /// The stage before ends. A stage that is entered again goes on.
    #[inline]
    pub fn enter(&mut self, stage: RequestStage, now_us: u64) {
        self.end(now_us);
        self.stage = stage as u8;
        self.entered |= 1 << stage as u8;
    }

    /// The last stage ends.
    #[inline]
    pub fn end(&mut self, now_us: u64) {
        if self.entered != 0 {
            self.spent_us[usize::from(self.stage)] += now_us.saturating_sub(self.since_us);
        }
        self.since_us = now_us;
    }

    /// The time in a stage, if the request has been there.
    pub fn spent_us(&self, stage: RequestStage) -> Option<u64> {
        (self.entered & 1 << stage as u8 != 0).then(|| self.spent_us[stage as usize])
    }

    /// The value of `Server-Timing` for a response whose header is made now: milliseconds in each stage.
    pub fn server_timing(mut self, now_us: u64) -> String {
        self.end(now_us);
        let part = |stage: RequestStage| {
            let spent_us = self.spent_us(stage)?;
            Some(format!(
                "{};dur={}.{:03}",
                stage.as_str(),
                spent_us / 1000,
                spent_us % 1000
            ))
        };
        let parts = RequestStage::ALL.into_iter().filter_map(part);
        parts.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_that_a_request_has_not_entered_do_not_count() {
        let mut stages = RequestStages::default();
        let mut clock = StageClock::default();
        stages.record(&clock);
        for (begun_us, queued) in [(0, false), (5_000, true)] {
            clock.begin(begun_us);
            if queued {
                clock.enter(RequestStage::Queue, begun_us + 10);
                clock.enter(RequestStage::Upstream, begun_us + 30);
            }
            clock.enter(RequestStage::Send, begun_us + 100);
            clock.end(begun_us + 1_100);
            stages.record(&clock);
        }
        let mut twice = stages;
        twice.merge(&stages);
        let sums = RequestStage::ALL.map(|stage| (twice.of(stage).count(), twice.of(stage).sum_us));
        assert_eq!(sums, [(2, 40), (4, 220), (2, 140), (4, 4_000)]);
    }

    #[test]
    fn header_has_the_stages_so_far_in_milliseconds() {
        let mut clock = StageClock::default();
        clock.begin(0);
        clock.enter(RequestStage::Queue, 50);
        clock.enter(RequestStage::Upstream, 12_050);
        clock.enter(RequestStage::Lookup, 13_050);
        assert_eq!(
            clock.server_timing(13_060),
            "queue;dur=12.000, lookup;dur=0.060, upstream;dur=1.000"
        );
    }
}
