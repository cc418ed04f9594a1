//! One question to all workers: the numbers of this moment, put together when the last has
//! answered.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::signals;
use super::worker::Place;
use crate::control::ToWorker;
use crate::tally::{MasterTally, NetworkDrops, Overview, Skew, Snapshot};

/// Workers that have not answered by then are called silent.
const PATIENCE: Duration = Duration::from_secs(1);
/// The status thread waits longer than the master does, so that it hears of silent workers.
const ANSWER_PATIENCE: Duration = Duration::from_secs(3);

/// Somebody wants an [`Overview`].
pub(super) struct Question(SyncSender<Overview>);

/// How the status thread asks the master: a queue, and a pipe that wakes the master's wait.
#[derive(Debug)]
pub struct Asker {
    questions: Sender<Question>,
    wake: UnixStream,
}

impl Asker {
    /// Asks and waits; `None` when the master is stopping.
    pub fn ask(&self) -> Option<Overview> {
        let (answer, answers) = sync_channel(1);
        self.questions.send(Question(answer)).ok()?;
        // A full pipe wakes the master just as well.
        let _ = (&self.wake).write(&[0]);
        answers.recv_timeout(ANSWER_PATIENCE).ok()
    }
}

/// The master's side.
pub(super) struct Gather {
    pub(super) wake: UnixStream,
    /// The other end, kept so that the pipe never hangs up: without a status thread, or after its
    /// end, the master would find it ready for ever and spin.
    _waker: UnixStream,
    questions: Receiver<Question>,
    id: u64,
    round: Option<Round>,
    /// What workers that are gone had counted when they were last seen.
    departed: Option<Snapshot>,
}

struct Round {
    deadline: Instant,
    waiting: Vec<usize>,
    asking: Vec<Question>,
}

impl Gather {
    pub(super) fn new() -> std::io::Result<(Gather, Asker)> {
        let (wake, waker) = signals::pair()?;
        let (sender, questions) = channel();
        let gather = Gather {
            wake,
            _waker: waker.try_clone()?,
            questions,
            id: 0,
            round: None,
            departed: None,
        };
        Ok((
            gather,
            Asker {
                questions: sender,
                wake: waker,
            },
        ))
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.round.as_ref().map(|round| round.deadline)
    }

    /// Takes questions; those that come during a round share its answer.
    pub(super) fn take_questions(&mut self, places: &mut [Place]) {
        signals::drain(&self.wake);
        let asking: Vec<Question> = self.questions.try_iter().collect();
        match &mut self.round {
            _ if asking.is_empty() => {}
            Some(round) => round.asking.extend(asking),
            None => self.begin(places, asking),
        }
    }

    /// Begins a round without a question of the status thread, for the master itself.
    pub(super) fn begin_own(&mut self, places: &mut [Place]) {
        if self.round.is_none() {
            self.begin(places, Vec::new());
        }
    }

    fn begin(&mut self, places: &mut [Place], asking: Vec<Question>) {
        self.id += 1;
        let mut waiting = Vec::new();
        for (number, place) in places.iter_mut().enumerate() {
            if let Some(running) = place.running.as_mut().filter(|running| running.ready)
                && running.send(ToWorker::Snapshot { id: self.id }, Vec::new())
            {
                waiting.push(number);
            }
        }
        self.round = Some(Round {
            deadline: Instant::now() + PATIENCE,
            waiting,
            asking,
        });
    }

    /// A worker answered. An answer to an earlier round is still news, but does not end this one.
    pub(super) fn answered(&mut self, number: usize, id: u64) {
        if let Some(round) = self.round.as_mut().filter(|_| id == self.id) {
            round.waiting.retain(|waiting| *waiting != number);
        }
    }

    /// A worker is gone: its counters stay in the total, which must never go back.
    pub(super) fn departed(&mut self, number: usize, last: Option<Snapshot>) {
        if let Some(round) = &mut self.round {
            round.waiting.retain(|waiting| *waiting != number);
        }
        if let Some(mut last) = last {
            last.counters.clear_gauges();
            last.back_ends.clear();
            match &mut self.departed {
                Some(departed) => departed.merge(&last),
                None => self.departed = Some(last),
            }
        }
    }

    /// Ends the round when everybody has answered or time is up.
    pub(super) fn finish(&mut self, places: &[Place], master: &MasterTally) -> Option<Overview> {
        let over = |round: &mut Round| round.waiting.is_empty() || round.deadline <= Instant::now();
        let round = self.round.take_if(over)?;
        let overview = self.overview(places, master, &round.waiting);
        for question in &round.asking {
            // The status thread may have given up.
            let _ = question.0.try_send(overview.clone());
        }
        Some(overview)
    }

    fn overview(&self, places: &[Place], master: &MasterTally, late: &[usize]) -> Overview {
        let alive = || {
            places
                .iter()
                .enumerate()
                .filter(|(_, place)| place.running.is_some())
        };
        let seen = alive().filter(|(number, _)| !late.contains(number));
        let workers: Vec<Snapshot> = seen.filter_map(|(_, place)| place.last.clone()).collect();
        let known = alive().filter_map(|(_, place)| place.last.as_ref());
        let silent = |(number, place): &(usize, &Place)| late.contains(number) || !place.is_ready();
        let mut total = Snapshot::total(known.chain(&self.departed));
        if let Some(total) = &mut total {
            (total.worker, total.pid) = (0, 0);
        }
        Overview {
            version: env!("CARGO_PKG_VERSION").into(),
            time_ms: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_millis() as u64,
            master: MasterTally {
                network: NetworkDrops::read(),
                ..master.clone()
            },
            total,
            skew: Skew::of(&workers),
            workers,
            silent: alive()
                .filter(silent)
                .map(|(number, _)| number as u32)
                .collect(),
        }
    }
}
