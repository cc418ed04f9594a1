//! What each thread of the server did: the times that it was off the CPU, of the last minute.
//!
//! A thread is on a CPU when no such time says otherwise.

use std::collections::{BTreeMap, VecDeque};

use headway_debox::Label;
use headway_debox_bpf::{OffCpu, Thread};

use crate::names::FileNames;
use crate::parts::{At, Doing};

/// How long the past of a thread is kept. A response that takes longer is explained in part.
const KEPT_NS: u64 = 60_000_000_000;

/// How many times are kept of one thread, and of all.
const PER_THREAD_MAX: usize = 65_536;
const ALL_MAX: usize = 2_000_000;

/// A time off the CPU.
#[derive(Clone, Debug)]
struct Span {
    start_ns: u64,
    /// The end of the sleep; the start if there was none.
    woken_ns: u64,
    end_ns: u64,
    asleep: Doing,
    connection: Option<u64>,
    at: At,
    woken_by: Option<Thread>,
}

/// A piece of a thread's time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub start_ns: u64,
    pub length_ns: u64,
    pub doing: Doing,
    /// The connection that the thread had used last.
    pub connection: Option<u64>,
    pub at: At,
    /// The thread that ended the sleep, if it was one for work or a lock.
    pub woken_by: Option<Thread>,
}

/// The recent past of all threads.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    threads: BTreeMap<Thread, VecDeque<Span>>,
    spans: usize,
    /// Times that were dropped early, because there were too many.
    pub dropped: u64,
}

impl Timeline {
    /// Adds a time off the CPU that has ended. Returns where the thread was.
    pub fn add(&mut self, off: &OffCpu, names: &mut FileNames) -> At {
        let span = Span::of(off, names);
        let at = span.at;
        let spans = self.threads.entry(off.thread).or_default();
        while spans.len() >= PER_THREAD_MAX {
            spans.pop_front();
            self.spans -= 1;
            self.dropped += 1;
        }
        spans.push_back(span);
        self.spans += 1;
        at
    }

    /// Forgets what is too old.
    pub fn forget(&mut self, now_ns: u64) {
        let mut kept_ns = KEPT_NS;
        loop {
            let before_ns = now_ns.saturating_sub(kept_ns);
            let mut left = 0;
            self.threads.retain(|_, spans| {
                let old = spans.partition_point(|span| span.end_ns < before_ns);
                spans.drain(..old);
                left += spans.len();
                !spans.is_empty()
            });
            if kept_ns < KEPT_NS {
                self.dropped += (self.spans - left) as u64;
            }
            self.spans = left;
            if left <= ALL_MAX {
                return;
            }
            kept_ns /= 2;
        }
    }

    /// Whether something is known of a thread.
    pub fn knows(&self, thread: Thread) -> bool {
        self.threads.contains_key(&thread)
    }

    /// What a thread did from one time to another, in order. The lengths add up to the whole.
    /// `current` is a time off the CPU that has not ended.
    pub fn pieces(
        &self,
        thread: Thread,
        (from_ns, to_ns): (u64, u64),
        current: Option<(&OffCpu, &mut FileNames)>,
    ) -> Vec<Piece> {
        let mut pieces = Cut {
            at_ns: from_ns,
            to_ns,
            pieces: Vec::new(),
        };
        if let Some(spans) = self.threads.get(&thread) {
            let first = spans.partition_point(|span| span.end_ns <= from_ns);
            let inside = spans.range(first..);
            (inside.take_while(|span| span.start_ns < to_ns)).for_each(|span| pieces.add(span));
        }
        if let Some((off, names)) = current {
            pieces.add(&Span::of(off, names));
        }
        pieces.run(to_ns);
        pieces.pieces
    }
}

/// The thread that ended a sleep for work or a lock. If its beginning was not seen, only the wakeup tells.
fn woken_by(off: &OffCpu) -> Option<Thread> {
    let waker = off.waker.as_ref()?;
    let by_futex = || waker.functions.iter().any(|name| name.contains("futex"));
    let is_handover = off.label == Label::Futex || off.start_ns == 0 && by_futex();
    is_handover.then_some(waker.thread)
}

impl Span {
    fn of(off: &OffCpu, names: &mut FileNames) -> Span {
        Span {
            start_ns: off.start_ns,
            woken_ns: off.woken_ns.unwrap_or(off.start_ns),
            end_ns: off.end_ns,
            asleep: match off.start_ns {
                0 => Doing::Unseen,
                _ => Doing::Asleep {
                    call: off.call,
                    label: off.label,
                },
            },
            connection: off.connection,
            woken_by: woken_by(off),
            at: At {
                file: names.of(off),
                symbol: off.symbol.as_deref().map(|name| names.symbol(name)),
                holder: names.holder(off),
                woken_in: names.woken_in(off),
                within: off.within,
                waiters: u32::try_from(off.waiters).unwrap_or(u32::MAX),
                passed_on: false,
            },
        }
    }
}

/// A time that is being cut into pieces.
struct Cut {
    at_ns: u64,
    to_ns: u64,
    pieces: Vec<Piece>,
}

impl Cut {
    fn add(&mut self, span: &Span) {
        if span.start_ns >= self.to_ns || span.end_ns <= self.at_ns {
            return;
        }
        self.run(span.start_ns);
        self.fill(span.woken_ns, |piece| Piece {
            doing: span.asleep.clone(),
            connection: span.connection,
            at: span.at,
            woken_by: span.woken_by,
            ..piece
        });
        self.fill(span.end_ns, |piece| Piece {
            doing: Doing::Runnable,
            connection: span.connection,
            ..piece
        });
    }

    /// On a CPU up to this time.
    fn run(&mut self, to_ns: u64) {
        self.fill(to_ns, |piece| piece);
    }

    /// Everything up to this time: a piece of a thread that runs, but for what is changed.
    fn fill(&mut self, to_ns: u64, change: impl FnOnce(Piece) -> Piece) {
        let to_ns = to_ns.min(self.to_ns);
        if to_ns <= self.at_ns {
            return;
        }
        self.pieces.push(change(Piece {
            start_ns: self.at_ns,
            length_ns: to_ns - self.at_ns,
            doing: Doing::Running,
            connection: None,
            at: At::default(),
            woken_by: None,
        }));
        self.at_ns = to_ns;
    }
}

#[cfg(test)]
mod tests {
    use headway_debox::Label;
    use headway_debox_bpf::{OffCpu, Thread};

    use super::{Doing, FileNames, PER_THREAD_MAX, Timeline};

    const THREAD: Thread = Thread { pid: 1, tid: 1 };

    fn off(start_ns: u64, woken_ns: Option<u64>, end_ns: u64) -> OffCpu {
        OffCpu {
            thread: THREAD,
            call: None,
            start_ns,
            woken_ns,
            end_ns,
            label: Label::PageIo,
            ..OffCpu::default()
        }
    }

    #[test]
    fn pieces_add_up_to_the_whole_and_keep_their_order() {
        let (mut timeline, mut names) = (Timeline::default(), FileNames::default());
        timeline.add(&off(100, Some(150), 160), &mut names);
        timeline.add(&off(200, None, 230), &mut names);
        let current = off(300, Some(900), 900);
        let pieces = timeline.pieces(THREAD, (120, 320), Some((&current, &mut names)));
        let lengths: Vec<u64> = pieces.iter().map(|piece| piece.length_ns).collect();
        assert_eq!(lengths, [30, 10, 40, 30, 70, 20]);
        assert_eq!(pieces[1].doing, Doing::Runnable);
        assert_eq!(pieces[2].doing, Doing::Running);
        assert_eq!(pieces[3].doing, Doing::Runnable);
        assert!(matches!(pieces[5].doing, Doing::Asleep { .. }));
    }

    #[test]
    fn thread_without_a_past_has_run() {
        let timeline = Timeline::default();
        let pieces = timeline.pieces(THREAD, (5, 9), None);
        assert_eq!((pieces.len(), pieces[0].length_ns), (1, 4));
        assert!(timeline.pieces(THREAD, (9, 9), None).is_empty());
    }

    #[test]
    fn what_was_before_the_observation_is_not_seen() {
        let (mut timeline, mut names) = (Timeline::default(), FileNames::default());
        timeline.add(&off(0, Some(145), 150), &mut names);
        let pieces = timeline.pieces(THREAD, (120, 160), None);
        let seen: Vec<(&Doing, u64)> = (pieces.iter())
            .map(|piece| (&piece.doing, piece.length_ns))
            .collect();
        let expected = [
            (&Doing::Unseen, 25),
            (&Doing::Runnable, 5),
            (&Doing::Running, 10),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn the_past_is_bounded() {
        let (mut timeline, mut names) = (Timeline::default(), FileNames::default());
        for time in 1..PER_THREAD_MAX as u64 + 6 {
            timeline.add(&off(time, Some(time), time + 1), &mut names);
        }
        assert_eq!((timeline.spans, timeline.dropped), (PER_THREAD_MAX, 5));
        timeline.forget(u64::MAX);
        assert_eq!((timeline.spans, timeline.dropped), (0, 5));
    }
}
