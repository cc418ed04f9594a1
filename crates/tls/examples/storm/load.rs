//! The two open loops.

use std::collections::VecDeque;
use std::fmt::Display;
use std::io;
use std::time::{Duration, Instant};

use super::connection::{Connection, NEW_CONNECTION_TIMEOUT, Target, ready, wait};

/// For what is under way at the end.
const GRACE: Duration = Duration::from_secs(2);

/// Intended starts with equal gaps.
pub(super) struct Plan {
    pub(super) begin: Instant,
    pub(super) per_second: f64,
    pub(super) total: u64,
}

impl Plan {
    fn start_of(&self, index: u64) -> Instant {
        self.begin + Duration::from_secs_f64(index as f64 / self.per_second)
    }
}

#[derive(Default)]
pub(super) struct Figures {
    pub(super) offered: u64,
    pub(super) answered: u64,
    pub(super) failed: u64,
    pub(super) resumed: u64,
    /// From the intended start to the end of the response. Requests without one count with their age.
    pub(super) times: Vec<Duration>,
    /// From the intended start until the client was there: what it lacks itself.
    pub(super) lags: Vec<Duration>,
    pub(super) first_error: Option<String>,
}

impl Figures {
    /// The intended start of the next request that is due.
    fn next_due(&mut self, plan: &Plan, now: Instant) -> Option<Instant> {
        let intended = plan.start_of(self.offered);
        if self.offered == plan.total || intended > now {
            return None;
        }
        self.lags.push(now - intended);
        self.offered += 1;
        Some(intended)
    }

    fn answer(&mut self, intended: Instant) {
        self.answered += 1;
        self.times.push(intended.elapsed());
    }

    fn fail(&mut self, why: &dyn Display) {
        self.failed += 1;
        self.first_error.get_or_insert_with(|| why.to_string());
    }
}

/// The open loop on established connections. A request waits if none of them is free.
pub(super) fn load_with_requests(
    target: &Target,
    connections: Vec<Connection>,
    plan: &Plan,
) -> Figures {
    let mut requests = Requests {
        target,
        idle: (0..connections.len()).collect(),
        under_way: vec![None; connections.len()],
        connections: connections.into_iter().map(Some).collect(),
        waiting: VecDeque::new(),
        figures: Figures::default(),
    };
    let end = plan.start_of(plan.total) + GRACE;
    loop {
        let now = Instant::now();
        while let Some(intended) = requests.figures.next_due(plan, now) {
            requests.waiting.push_back(intended);
        }
        requests.send();
        let is_all_offered = requests.figures.offered == plan.total;
        if (is_all_offered && requests.is_idle()) || now >= end {
            break;
        }
        let deadline = match is_all_offered {
            true => end,
            false => plan.start_of(requests.figures.offered),
        };
        if let Err(error) = requests.receive(deadline) {
            requests.figures.fail(&error);
            break;
        }
    }
    requests.end()
}

struct Requests<'t> {
    target: &'t Target,
    /// `None` when it has failed. No other one takes its place: handshakes are not what is measured here.
    connections: Vec<Option<Connection>>,
    idle: VecDeque<usize>,
    /// The intended start of the request on each connection.
    under_way: Vec<Option<Instant>>,
    /// Those of requests without a connection.
    waiting: VecDeque<Instant>,
    figures: Figures,
}

impl Requests<'_> {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.under_way.iter().all(Option::is_none)
    }

    fn send(&mut self) {
        while !self.waiting.is_empty() {
            let Some(place) = self.idle.pop_front() else {
                break;
            };
            let Some(connection) = &mut self.connections[place] else {
                continue;
            };
            self.under_way[place] = self.waiting.pop_front();
            if let Err(error) = connection.request(self.target) {
                self.lose(place, &error);
            }
        }
    }

    fn receive(&mut self, deadline: Instant) -> io::Result<()> {
        let open = self.connections.iter().enumerate();
        let open = open.filter_map(|(place, one)| Some((one.as_ref()?.poll_fd(), place)));
        let (mut descriptors, places): (Vec<_>, Vec<_>) = open.unzip();
        wait(&mut descriptors, deadline)?;
        for place in ready(&descriptors, &places) {
            let Some(connection) = &mut self.connections[place] else {
                continue;
            };
            match connection.advance() {
                Ok(true) => {
                    if let Some(intended) = self.under_way[place].take() {
                        self.figures.answer(intended);
                        self.idle.push_back(place);
                    }
                }
                Ok(false) => {}
                Err(error) => self.lose(place, &error),
            }
        }
        Ok(())
    }

    fn lose(&mut self, place: usize, error: &io::Error) {
        self.connections[place] = None;
        if let Some(intended) = self.under_way[place].take() {
            self.figures.times.push(intended.elapsed());
        }
        self.figures.fail(error);
    }

    fn end(mut self) -> Figures {
        for intended in self.under_way.into_iter().flatten().chain(self.waiting) {
            self.figures.times.push(intended.elapsed());
            self.figures.fail(&"not answered until the end");
        }
        let open = self.connections.into_iter().flatten();
        open.for_each(Connection::close);
        self.figures
    }
}

/// The open loop of new connections.
pub(super) fn load_with_connections(target: &Target, plan: &Plan) -> Figures {
    let mut figures = Figures::default();
    let mut under_way: Vec<(Connection, Instant)> = Vec::new();
    while figures.offered < plan.total || !under_way.is_empty() {
        let now = Instant::now();
        while let Some(intended) = figures.next_due(plan, now) {
            match Connection::open(target) {
                Ok(connection) => under_way.push((connection, intended)),
                Err(error) => figures.fail(&error),
            }
        }
        under_way.retain(|(_, intended)| {
            let is_late = now.saturating_duration_since(*intended) > NEW_CONNECTION_TIMEOUT;
            if is_late {
                figures.fail(&"no response in time");
            }
            !is_late
        });
        let late = under_way.first().map(|one| one.1 + NEW_CONNECTION_TIMEOUT);
        let next = (figures.offered < plan.total).then(|| plan.start_of(figures.offered));
        let Some(deadline) = next.into_iter().chain(late).min() else {
            break;
        };
        let mut descriptors: Vec<_> = under_way.iter().map(|one| one.0.poll_fd()).collect();
        let places: Vec<usize> = (0..descriptors.len()).collect();
        if let Err(error) = wait(&mut descriptors, deadline) {
            figures.fail(&error);
            break;
        }
        // From the end, so that the places of the others stay.
        for place in ready(&descriptors, &places).into_iter().rev() {
            match under_way[place].0.advance() {
                Ok(false) => {}
                Ok(true) => {
                    let (connection, intended) = under_way.remove(place);
                    figures.answer(intended);
                    figures.resumed += u64::from(connection.is_resumed());
                    connection.close();
                }
                Err(error) => {
                    under_way.remove(place);
                    figures.fail(&error);
                }
            }
        }
    }
    figures
}
