//! The clients: how they connect, send and read, and what becomes of each request.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use headway_base::random::{Draw, SplitMix64};

use crate::client::{Connection, Pace, wrong};
use crate::journal::{Failure, Journal, Route};
use crate::site::{SMALL, Site};
use crate::wanted::{Body, Expected, Wanted};

/// Lines about lost and wrong responses which are kept.
const LINES_MAX: usize = 200;

/// What has become of the requests.
#[derive(Default)]
pub struct Results {
    pub requests: AtomicU64,
    /// Responses of which every byte was checked and right.
    pub checked: AtomicU64,
    pub excused: AtomicU64,
    /// Pipelined behind a response which announced the end of the connection.
    pub unanswered: AtomicU64,
    /// Requests of clients which went away.
    pub vanished: AtomicU64,
    pub lost: AtomicU64,
    pub wrong: AtomicU64,
    pub bytes: AtomicU64,
    pub connections: AtomicU64,
    pub lines: Mutex<Vec<String>>,
    pub routes: Mutex<BTreeMap<String, u64>>,
}

/// What all clients share.
pub struct Load<'a> {
    pub site: &'a Site,
    pub journal: &'a Journal,
    pub results: &'a Results,
    pub has_ended: &'a AtomicBool,
}

#[derive(Clone, Copy, Debug)]
pub enum Manner {
    Steady,
    /// A connection for each request.
    Fresh,
    Pipelining,
    Uploading,
    Slow,
    Vanishing,
}

/// The clients of a run.
pub const MANNERS: [(Manner, usize); 6] = [
    (Manner::Steady, 8),
    (Manner::Fresh, 3),
    (Manner::Pipelining, 3),
    (Manner::Uploading, 4),
    (Manner::Slow, 4),
    (Manner::Vanishing, 2),
];

/// A client with its connection.
pub struct Client<'a> {
    load: &'a Load<'a>,
    manner: Manner,
    random: SplitMix64,
    connection: Option<Connection>,
    /// The tags of the small files, which never change.
    etags: Vec<Option<String>>,
}

impl<'a> Client<'a> {
    pub fn new(load: &'a Load<'a>, manner: Manner, seed: u64) -> Client<'a> {
        let (random, connection) = (SplitMix64(seed), None);
        let etags = vec![None; SMALL];
        Client {
            load,
            manner,
            random,
            connection,
            etags,
        }
    }

    /// Makes requests until the run ends.
    pub fn run(mut self) {
        while !self.load.has_ended.load(Ordering::Relaxed) {
            match self.manner {
                Manner::Steady => self.ask_one(),
                Manner::Fresh => {
                    self.ask_one();
                    self.connection = None;
                }
                Manner::Pipelining => {
                    let count = 2 + self.random.below(14);
                    let batch = (0..count).map(|_| self.draw_file()).collect();
                    self.ask(batch);
                }
                Manner::Uploading => {
                    let wanted = Wanted::upload(&mut self.random);
                    self.ask(vec![wanted]);
                }
                Manner::Slow => {
                    let wanted = match self.random.below(2) {
                        0 => Wanted::large(&mut self.random, self.load.site),
                        _ => Wanted::generated(&mut self.random, 3_000_000),
                    };
                    self.ask(vec![wanted]);
                }
                Manner::Vanishing => self.vanish(),
            }
            let pause = if self.random.below(50) == 0 { 400 } else { 12 };
            std::thread::sleep(Duration::from_millis(self.random.below(pause)));
        }
    }

    fn draw_file(&mut self) -> Wanted {
        Wanted::file(&mut self.random, self.load.site, &self.etags)
    }

    fn ask_one(&mut self) {
        let wanted = match self.random.below(20) {
            0 => Wanted::program(&mut self.random),
            1..4 => Wanted::generated(&mut self.random, 40_000),
            _ => self.draw_file(),
        };
        self.ask(vec![wanted]);
    }

    fn pace(&mut self) -> Option<Pace> {
        let pause = Duration::from_millis(5 + self.random.below(40));
        matches!(self.manner, Manner::Slow).then_some(Pace {
            part: 32 << 10,
            pause,
        })
    }

    /// The connection there is, or a new one.
    fn connect(&mut self) -> Result<Connection, Failure> {
        if let Some(connection) = self.connection.take() {
            return Ok(connection);
        }
        count(&self.load.results.connections, 1);
        Connection::open(self.pace())
    }

    /// Sends requests at once, and checks their responses.
    fn ask(&mut self, batch: Vec<Wanted>) {
        let load = self.load;
        let begun = Instant::now();
        count(&load.results.requests, batch.len() as u64);
        let mut connection = match self.connect() {
            Ok(connection) => connection,
            Err(failure) => {
                count(&load.results.unanswered, batch.len() as u64 - 1);
                self.fail(&batch[0], failure, begun, begun);
                return std::thread::sleep(Duration::from_millis(50));
            }
        };
        let bytes: Vec<u8> = batch
            .iter()
            .flat_map(|wanted| wanted.bytes.clone())
            .collect();
        connection.send(&bytes);
        for (number, wanted) in batch.iter().enumerate() {
            if !self.receive(&mut connection, wanted, begun) {
                return count(&load.results.unanswered, (batch.len() - number - 1) as u64);
            }
        }
        if connection.has_surplus() {
            let failure = wrong("bytes behind the last response".into());
            return self.fail(batch.last().expect("a request"), failure, begun, begun);
        }
        // A server that dies leaves what it has sent in the kernel, which a slow client reads much
        // later. So it may have died at any time since it got these requests.
        connection.good = begun;
        self.connection = Some(connection);
    }

    /// Reads a response and checks it; whether the connection can be used further.
    fn receive(&mut self, connection: &mut Connection, wanted: &Wanted, begun: Instant) -> bool {
        let load = self.load;
        let good = connection.good;
        let reply = match connection.read_reply(wanted.method) {
            Ok(reply) => reply,
            Err(failure) => {
                let partial = connection.partial_body();
                let failure = match wanted.may_begin_with(partial, load.site) {
                    true => failure,
                    false => wrong(format!("{failure:?} after {} wrong bytes", partial.len())),
                };
                self.fail(wanted, failure, good, begun);
                return false;
            }
        };
        count(&load.results.bytes, reply.body.len() as u64);
        match wanted.check(&reply, load.site) {
            Ok(()) => {
                count(&load.results.checked, 1);
                let mut routes = load.results.routes.lock().expect("routes");
                *routes.entry(format!("{:?}", wanted.route)).or_default() += 1;
                if let (Expected::Whole(Body::Small(at)), Route::Files) =
                    (&wanted.expected, wanted.route)
                {
                    self.etags[*at] = reply.header("etag").map(str::to_owned);
                }
            }
            Err(failure) => self.fail(wanted, failure, begun, begun),
        }
        !reply.closes()
    }

    fn fail(&self, wanted: &Wanted, failure: Failure, from: Instant, begun: Instant) {
        fail(self.load, self.manner, wanted, failure, from, begun);
    }

    /// Begins something and goes away.
    fn vanish(&mut self) {
        self.connection = None;
        let load = self.load;
        count(&load.results.vanished, 1);
        let wanted = match self.random.below(4) {
            0 => self.draw_file(),
            1 => Wanted::large(&mut self.random, load.site),
            2 => Wanted::upload(&mut self.random),
            _ => Wanted::generated(&mut self.random, 2_000_000),
        };
        let cut = match self.random.below(3) {
            0 => 1 + self.random.index(wanted.bytes.len()),
            _ => wanted.bytes.len(),
        };
        let resets = self.random.below(2) == 0;
        let Ok(mut connection) = self.connect() else {
            return;
        };
        connection.send(&wanted.bytes[..cut]);
        if cut == wanted.bytes.len() {
            let _ = connection.read_some();
        }
        if resets {
            connection.reset();
        }
    }
}

/// Decides whether a fault explains it, and counts it.
fn fail(
    load: &Load<'_>,
    manner: Manner,
    wanted: &Wanted,
    failure: Failure,
    from: Instant,
    begun: Instant,
) {
    if load
        .journal
        .excuse(wanted.route, &failure, wanted.is_upload, from)
        .is_some()
    {
        return count(&load.results.excused, 1);
    }
    let counter = match failure {
        Failure::Wrong(_) => &load.results.wrong,
        _ => &load.results.lost,
    };
    count(counter, 1);
    let line = format!(
        "LOST {failure:?} {} {} {:?} upload={} manner={manner:?} after={:?} good={:?} ago",
        wanted.method,
        wanted.path,
        wanted.route,
        wanted.is_upload,
        begun.elapsed(),
        from.elapsed()
    );
    load.journal.say(&line);
    let mut lines = load.results.lines.lock().expect("lines");
    if lines.len() < LINES_MAX {
        lines.push(line);
    }
}

fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}
