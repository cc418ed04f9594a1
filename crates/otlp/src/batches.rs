//! The queue between the workers' sockets and the thread which sends: limited, and what does not fit is dropped.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The most spans that wait: about 8 MB.
const SPANS_MAX: usize = 16_384;
/// The most bytes that wait.
const BYTES_MAX: usize = 16 << 20;
/// The most spans of a request to the collector.
pub(crate) const BATCH_SPANS_MAX: usize = 512;
/// How long a batch that is not full waits for more.
const BATCH_AGE: Duration = Duration::from_secs(1);

/// Spans on their way, and what became of others.
#[derive(Default)]
pub(crate) struct Batches {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    spans: VecDeque<Box<[u8]>>,
    bytes: usize,
    /// Spans of the batch that is being sent.
    in_flight: u64,
    is_ending: bool,
    done: Done,
}

/// What became of spans since this was last taken.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    /// The collector has them.
    pub(crate) exported: u64,
    /// They are lost.
    pub(crate) dropped: u64,
    /// Why, for the last ones.
    pub(crate) why: Option<String>,
}

impl Batches {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the spans of a packet, one a line. Those that do not fit are dropped.
    pub(crate) fn push(&self, lines: &[u8]) {
        let mut queue = self.lock();
        for line in lines.split(|byte| *byte == b'\n') {
            if line.is_empty() {
                continue;
            }
            if queue.spans.len() >= SPANS_MAX || queue.bytes + line.len() > BYTES_MAX {
                queue.done.dropped += 1;
                queue.done.why = Some("the collector does not keep up".into());
                continue;
            }
            queue.bytes += line.len();
            queue.spans.push_back(line.into());
        }
        self.changed.notify_one();
    }

    /// Waits for a batch: a full one, or what there is a while after the first span. `None` at the end.
    pub(crate) fn take(&self) -> Option<Vec<Box<[u8]>>> {
        let is_waiting = |queue: &mut Queue| queue.spans.is_empty() && !queue.is_ending;
        let waited = self.changed.wait_while(self.lock(), is_waiting);
        let queue = waited.unwrap_or_else(PoisonError::into_inner);
        let is_small = |queue: &mut Queue| queue.spans.len() < BATCH_SPANS_MAX && !queue.is_ending;
        let waited = self.changed.wait_timeout_while(queue, BATCH_AGE, is_small);
        let mut queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        if queue.spans.is_empty() {
            return None;
        }
        let count = queue.spans.len().min(BATCH_SPANS_MAX);
        let batch: Vec<_> = queue.spans.drain(..count).collect();
        queue.bytes -= batch.iter().map(|span| span.len()).sum::<usize>();
        queue.in_flight = count as u64;
        Some(batch)
    }

    /// Whether there are spans on their way, or counts that have not been taken.
    pub(crate) fn is_busy(&self) -> bool {
        let queue = self.lock();
        queue.in_flight > 0 || !queue.spans.is_empty() || queue.done != Done::default()
    }

    /// Waits, but not beyond the end. Returns whether it has come.
    pub(crate) fn pause(&self, length: Duration) -> bool {
        let queue = self.lock();
        let waited = self
            .changed
            .wait_timeout_while(queue, length, |queue| !queue.is_ending);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_ending
    }

    /// No more spans come.
    pub(crate) fn end(&self) {
        self.lock().is_ending = true;
        self.changed.notify_all();
    }

    /// Counts the spans of the batch that was taken last.
    pub(crate) fn finish(&self, exported: u64, dropped: u64, why: Option<String>) {
        self.lock().in_flight = 0;
        self.count(exported, dropped, why);
    }

    /// Counts spans of which this became.
    pub(crate) fn count(&self, exported: u64, dropped: u64, why: Option<String>) {
        let mut queue = self.lock();
        queue.done.exported += exported;
        queue.done.dropped += dropped;
        if why.is_some() {
            queue.done.why = why;
        }
    }

    /// Takes the counts.
    pub(crate) fn take_done(&self) -> Done {
        std::mem::take(&mut self.lock().done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_beyond_the_limit_are_dropped_and_counted() {
        let batches = Batches::default();
        let lines = b"{}\n".repeat(100);
        (0..200).for_each(|_| batches.push(&lines));
        let done = batches.take_done();
        assert_eq!(done.dropped, 20_000 - SPANS_MAX as u64);
        assert!(done.why.is_some());
        assert_eq!(batches.take().unwrap().len(), BATCH_SPANS_MAX);
        batches.push(&lines);
        assert_eq!(batches.take_done(), Done::default(), "there is room again");
        // Long ones are limited by their size.
        let batches = Batches::default();
        let long = [vec![b'x'; 60_000], vec![b'\n']].concat();
        (0..400).for_each(|_| batches.push(&long));
        assert_eq!(
            batches.take_done().dropped,
            400 - (BYTES_MAX / 60_000) as u64
        );
    }

    #[test]
    fn what_is_left_is_taken_at_the_end() {
        let batches = Batches::default();
        batches.push(&b"{}\n".repeat(BATCH_SPANS_MAX + 1));
        batches.end();
        assert_eq!(
            batches.take().map(|batch| batch.len()),
            Some(BATCH_SPANS_MAX)
        );
        assert_eq!(batches.take().map(|batch| batch.len()), Some(1));
        assert!(batches.take().is_none());
        assert!(batches.pause(Duration::from_secs(3600)));
    }
}
