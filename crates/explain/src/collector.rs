//! All requests: joins each with the timeline of its threads, and stores its parts.

use std::collections::HashMap;

use headway_base::random::{Draw, SplitMix64};
use headway_debox_bpf::{
    FailedCall, OpenResponse, RequestObserver, SeenHead, SeenRequest, SeenResponse, SeenStatus,
    ServerEvent,
};
use headway_latency::Cells;

use crate::figures::{Failure, Sleeps};
use crate::kept::Kept;
use crate::names::FileNames;
use crate::parts::{At, Cause, Part, Threads, of_response, until_response};
use crate::timeline::Timeline;

/// How many requests are stored. Of more, each is stored with the same probability.
const STORED_MAX: usize = 200_000;

/// How many connections have the method and path of their latest request stored.
const HEADS_MAX: usize = 131_072;

/// A response that was acknowledged this long ago has ended, unless more of it comes.
const QUIET_NS: u64 = 500_000_000;

/// A request that is over.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub total_ns: u64,
    /// Method and path.
    pub line: Option<u32>,
    /// Of the response.
    pub status: Option<u16>,
    pub parts: Vec<(u32, At, u64)>,
}

/// A request whose response is under way.
struct Pending {
    request: SeenRequest,
    line: Option<u32>,
    status: Option<u16>,
    parts: Vec<Part>,
}

/// What a collector does beyond the tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// Hashes paths.
    pub anonymous: bool,
    /// Keeps requests and times of threads for [`Collector::chrome`].
    pub timeline: bool,
}

/// Stores the requests of a server with their parts.
#[derive(Default)]
pub struct Collector {
    timeline: Timeline,
    pub(crate) names: FileNames,
    numbers: HashMap<Cause, u32>,
    pub(crate) causes: Vec<Cause>,
    batch: Vec<ServerEvent>,
    pending: HashMap<u64, Pending>,
    /// By connection: the request on it, and its method and path.
    heads: HashMap<u64, (u64, Option<u32>)>,
    kept: Option<Kept>,
    pub(crate) stored: Vec<Stored>,
    pub(crate) answered: u64,
    pub(crate) unanswered: u64,
    pub(crate) seen_late: u64,
    pub(crate) sleeps: Sleeps,
    /// Requests by the bytes of their responses.
    pub(crate) cells: Cells,
    random: Option<SplitMix64>,
}

impl Collector {
    /// One that keeps more than the tables need.
    pub fn new(keep: Keep) -> Collector {
        Collector {
            names: match keep.anonymous {
                true => FileNames::anonymous(),
                false => FileNames::default(),
            },
            kept: keep.timeline.then(Kept::default),
            ..Collector::default()
        }
    }

    /// Requests and threads as Chrome's trace-event JSON, if they were kept.
    pub fn chrome(&self, server: &str) -> Option<String> {
        let kept = self.kept.as_ref()?;
        Some(kept.chrome(server, &self.names))
    }

    /// A path as it may be shown.
    pub fn shown(&self, path: &str) -> String {
        self.names.shown(path)
    }

    /// Failed calls with the names of their files.
    pub fn failures(&mut self, failed: &[FailedCall]) -> Vec<Failure> {
        let names = &mut self.names;
        (failed.iter())
            .map(|failed| Failure::of(failed, names))
            .collect()
    }

    /// Takes an event of the observer.
    pub fn take(&mut self, event: ServerEvent) {
        match event {
            ServerEvent::OffCpu(off) => {
                let at = self.timeline.add(&off, &mut self.names);
                self.sleeps.add(&off);
                if let Some(kept) = &mut self.kept {
                    kept.span(&off, at);
                }
            }
            // Their threads' times may still be in the ring.
            other => self.batch.push(other),
        }
    }

    /// Joins what came since the last time; to be called when the ring has been emptied.
    pub fn settle(&mut self, observer: &mut RequestObserver) {
        for event in std::mem::take(&mut self.batch) {
            match event {
                ServerEvent::Request(request) => self.request(request, observer),
                ServerEvent::Response(response) => self.response(&response, observer),
                ServerEvent::Head(head) => self.head(&head),
                ServerEvent::Status(status) => self.status(status),
                ServerEvent::OffCpu(_) => {}
            }
        }
    }

    /// Ends responses of open connections which nothing follows. They are to be read before the
    /// events which have been settled: one that ends meanwhile is among these. `all` ends those too that have not
    /// been quiet for long.
    pub fn sweep(
        &mut self,
        open: &[OpenResponse],
        now_ns: u64,
        all: bool,
        observer: &mut RequestObserver,
    ) {
        for response in open {
            let sequence = response.sequence;
            let known = self.pending.get(&response.connection);
            let end_ns = response.drained_ns.unwrap_or(response.last_written_ns);
            let quiet = response.drained_ns.is_some() && end_ns + QUIET_NS < now_ns;
            if known.is_some_and(|known| known.request.sequence == sequence) && (quiet || all) {
                self.response(response, observer);
            }
        }
        self.timeline.forget(now_ns);
    }

    /// Times off the CPU that were dropped because there were too many.
    pub fn dropped(&self) -> u64 {
        self.timeline.dropped
    }

    /// Requests whose response has ended.
    pub fn answered(&self) -> u64 {
        self.answered
    }

    fn head(&mut self, head: &SeenHead) {
        if self.heads.len() >= HEADS_MAX {
            self.heads.clear();
        }
        let line = self.names.request(&head.line);
        self.heads.insert(head.connection, (head.sequence, line));
    }

    /// It comes after its request, and before the end of its response.
    fn status(&mut self, seen: SeenStatus) {
        if let Some(pending) = self.pending.get_mut(&seen.connection)
            && pending.request.sequence == seen.sequence
        {
            pending.status = Some(seen.status);
        }
    }

    fn request(&mut self, request: SeenRequest, observer: &mut RequestObserver) {
        self.seen_late += u64::from(request.seen_late && request.sequence == 0);
        let parts = until_response(
            &request,
            &mut threads(&self.timeline, &mut self.names, observer),
        );
        if request.unanswered {
            self.unanswered += 1;
            return;
        }
        // The end of the one before was lost.
        let connection = request.connection;
        let line = match self.heads.remove(&connection) {
            Some((sequence, line)) if sequence == request.sequence => line,
            _ => None,
        };
        let pending = Pending {
            request,
            line,
            status: None,
            parts,
        };
        self.pending.insert(connection, pending);
    }

    fn response(&mut self, response: &SeenResponse, observer: &mut RequestObserver) {
        let Some(pending) = self.pending.remove(&response.connection) else {
            return;
        };
        if pending.request.sequence != response.sequence {
            return;
        }
        let mut threads = threads(&self.timeline, &mut self.names, observer);
        let mut parts = pending.parts;
        parts.extend(of_response(&pending.request, response, &mut threads));
        drop(threads);
        if let Some(kept) = &mut self.kept {
            kept.request(&pending.request, response, (pending.line, pending.status));
        }
        let total_ns = parts.iter().map(|part| part.length_ns).sum();
        self.cells.record(response.written_bytes, total_ns, true);
        self.store(&parts, pending.line, pending.status);
    }

    fn store(&mut self, parts: &[Part], line: Option<u32>, status: Option<u16>) {
        self.answered += 1;
        let mut stored = Stored {
            line,
            status,
            total_ns: parts.iter().map(|part| part.length_ns).sum(),
            parts: Vec::new(),
        };
        for part in parts {
            let cause = self.number(&part.cause);
            let same = |known: &&mut (u32, At, u64)| (known.0, known.1) == (cause, part.at);
            match stored.parts.iter_mut().find(same) {
                Some(known) => known.2 += part.length_ns,
                None => stored.parts.push((cause, part.at, part.length_ns)),
            }
        }
        if self.stored.len() < STORED_MAX {
            self.stored.push(stored);
            return;
        }
        let random = self.random.get_or_insert(SplitMix64(1));
        let index = random.below(self.answered) as usize;
        if let Some(slot) = self.stored.get_mut(index) {
            *slot = stored;
        }
    }

    fn number(&mut self, cause: &Cause) -> u32 {
        if let Some(number) = self.numbers.get(cause) {
            return *number;
        }
        let number = self.causes.len() as u32;
        self.causes.push(cause.clone());
        self.numbers.insert(cause.clone(), number);
        number
    }
}

fn threads<'a>(
    timeline: &'a Timeline,
    names: &'a mut FileNames,
    observer: &'a mut RequestObserver,
) -> Threads<'a> {
    Threads {
        timeline,
        names,
        current: Box::new(|thread| observer.off_cpu_now(thread)),
    }
}

impl std::fmt::Debug for Collector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (f.debug_struct("Collector"))
            .field("answered", &self.answered)
            .field("pending", &self.pending.len())
            .finish_non_exhaustive()
    }
}
