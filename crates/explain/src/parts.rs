//! The parts of a request: phases, and what the thread did that the request depended on.

use headway_debox::Label;
use headway_debox_bpf::{OffCpu, SeenRequest, SeenResponse, Thread, Within};
use serde::Serialize;

use crate::names::FileNames;
use crate::timeline::{Piece, Timeline};

/// Where a request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// It has arrived, and its connection waits in the accept queue.
    AcceptQueue,
    /// It has arrived, and waits in the socket until it is read.
    ReceiveQueue,
    /// The server has read it and has not answered.
    #[default]
    Service,
    /// The response is sent.
    Transfer,
}

impl Phase {
    /// Every phase, in the order of a request.
    pub const ALL: [Phase; 4] = [
        Phase::AcceptQueue,
        Phase::ReceiveQueue,
        Phase::Service,
        Phase::Transfer,
    ];

    /// In a table.
    pub fn name(self) -> &'static str {
        match self {
            Phase::AcceptQueue => "accept queue",
            Phase::ReceiveQueue => "receive queue",
            Phase::Service => "service",
            Phase::Transfer => "transfer",
        }
    }
}

/// What a thread did, or another that time passed for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Doing {
    /// It was on a CPU.
    Running,
    /// It could run, and had no CPU.
    Runnable,
    /// It slept in a call, or in a page fault.
    Asleep {
        /// The number of the call; `None` in a page fault.
        call: Option<u32>,
        /// What it waited for.
        label: Label,
    },
    /// The client and the network.
    Client,
    /// No thread is known.
    Unseen,
}

/// Why time passed: what a table of causes has as a row.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cause {
    /// Where the request was.
    pub phase: Phase,
    /// What the thread did.
    pub doing: Doing,
    /// Whether the thread worked for another request: that one delayed this one.
    pub for_others: bool,
}

impl Cause {
    /// Whether the thread was idle, and another one passed the request on to it.
    pub fn is_handover(&self) -> bool {
        let idle = matches!(self.doing, Doing::Asleep { label, .. } if label == Label::Futex);
        idle && self.phase == Phase::ReceiveQueue
    }

    /// Whether a call or a fault kept the thread from all of its requests.
    pub fn is_blocked(&self) -> bool {
        let Doing::Asleep { label, .. } = self.doing else {
            return false;
        };
        // A thread that sleeps in a timer or for a child beside a request that it should read or answer does
        // so for a handler.
        let is_paused = matches!(label, Label::Timer | Label::Child);
        let is_used = matches!(self.phase, Phase::ReceiveQueue | Phase::Service);
        let waits_for_work = match label {
            Label::EventWait | Label::SocketAccept | Label::Signal => true,
            _ => is_paused && !is_used,
        };
        !waits_for_work && !self.is_handover()
    }
}

/// A part of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub cause: Cause,
    pub length_ns: u64,
    pub at: At,
}

/// Where a thread slept, by numbers of [`FileNames`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct At {
    pub file: Option<u32>,
    pub symbol: Option<u32>,
    /// The process which had the lock.
    pub holder: Option<u32>,
    /// The kernel functions in which that one woke the thread.
    pub woken_in: Option<u32>,
    pub within: Option<Within>,
    /// Other threads that waited for the same.
    pub waiters: u32,
    /// It is the thread that then passed the request on.
    pub passed_on: bool,
}

/// What a thread does that has not ended.
pub(crate) type Current<'a> = Box<dyn FnMut(Thread) -> Option<OffCpu> + 'a>;

/// Asks about threads.
pub(crate) struct Threads<'a> {
    pub timeline: &'a Timeline,
    pub names: &'a mut FileNames,
    pub current: Current<'a>,
}

impl Threads<'_> {
    /// What a thread did. One that reports an event itself is on a CPU, so only of others has to be
    /// asked what they do now.
    fn pieces(&mut self, thread: Thread, times: (u64, u64), is_reporter: bool) -> Vec<Piece> {
        if times.1 <= times.0 {
            return Vec::new();
        }
        let current = match is_reporter {
            true => None,
            false => (self.current)(thread),
        };
        let current = current.as_ref().map(|off| (off, &mut *self.names));
        self.timeline.pieces(thread, times, current)
    }

    /// While the thread that read a request was idle, another one had yet to pass it on: the pieces of that one.
    fn before_handover(&mut self, pieces: Vec<Piece>, depth: usize) -> Vec<Piece> {
        let mut followed = Vec::new();
        for piece in pieces {
            match piece.woken_by.filter(|by| self.timeline.knows(*by)) {
                Some(by) if depth > 0 => {
                    let times = (piece.start_ns, piece.start_ns + piece.length_ns);
                    let mut pieces = self.pieces(by, times, false);
                    pieces
                        .iter_mut()
                        .for_each(|piece| piece.at.passed_on = true);
                    followed.extend(self.before_handover(pieces, depth - 1));
                }
                _ => followed.push(piece),
            }
        }
        followed
    }
}

/// How many threads pass a request on, at most.
const HANDOVERS_MAX: usize = 3;

/// The parts of a request up to the beginning of its response. The time in which the client had
/// yet to send the rest is left out.
pub(crate) fn until_response(request: &SeenRequest, threads: &mut Threads<'_>) -> Vec<Part> {
    let mut parts = Parts {
        connection: request.connection,
        writer: request.writer,
        is_sending: false,
        parts: Vec::new(),
    };
    let arrived_ns = request.arrived_ns;
    // Each time is not before the one before it, whatever the clocks of the CPUs say.
    let accepted_ns = request.accepted_ns.unwrap_or(arrived_ns).max(arrived_ns);
    let end_ns = request.written_ns.max(arrived_ns);
    let accepted_ns = match request.accepted_ns {
        // It ended in the queue.
        None if !request.seen_late && request.read_ns.is_none() => end_ns,
        _ => accepted_ns.min(end_ns),
    };
    let read_ns = request.read_ns.unwrap_or(end_ns).clamp(accepted_ns, end_ns);
    let last_read_ns = request.last_read_ns.unwrap_or(read_ns);
    let last_read_ns = last_read_ns.clamp(read_ns, end_ns);
    let last_arrived_ns = request.last_arrived_ns.unwrap_or(read_ns);
    let last_arrived_ns = last_arrived_ns.clamp(read_ns, last_read_ns);
    let reader = request.reader;
    let acceptor = request.acceptor.or(reader);
    parts.add(
        Phase::AcceptQueue,
        acceptor,
        (arrived_ns, accepted_ns),
        threads,
    );
    parts.add(Phase::ReceiveQueue, reader, (accepted_ns, read_ns), threads);
    // While the client sends the rest, the request waits for nothing that the server does.
    let again = (last_arrived_ns, last_read_ns);
    parts.add(Phase::ReceiveQueue, reader, again, threads);
    parts.service((last_read_ns, end_ns), reader, threads);
    parts.parts
}

/// The parts of a response.
pub(crate) fn of_response(
    request: &SeenRequest,
    response: &SeenResponse,
    threads: &mut Threads<'_>,
) -> Vec<Part> {
    let mut parts = Parts {
        connection: request.connection,
        writer: None,
        is_sending: false,
        parts: Vec::new(),
    };
    let last_ns = response.last_written_ns.max(request.written_ns);
    let times = (request.written_ns, last_ns);
    parts.add(Phase::Transfer, request.writer, times, threads);
    let drained_ns = response.drained_ns.unwrap_or(last_ns);
    let rest_ns = drained_ns.saturating_sub(last_ns);
    parts.push(Phase::Transfer, Doing::Client, rest_ns);
    parts.parts
}

struct Parts {
    connection: u64,
    writer: Option<Thread>,
    /// It sleeps in its first write, until the client takes more.
    is_sending: bool,
    parts: Vec<Part>,
}

impl Parts {
    fn push(&mut self, phase: Phase, doing: Doing, length_ns: u64) {
        if length_ns > 0 {
            let cause = Cause {
                phase,
                doing,
                for_others: false,
            };
            self.parts.push(Part {
                cause,
                length_ns,
                at: At::default(),
            });
        }
    }

    fn add(
        &mut self,
        phase: Phase,
        thread: Option<Thread>,
        times: (u64, u64),
        threads: &mut Threads<'_>,
    ) {
        let Some(thread) = thread else {
            self.push(phase, Doing::Unseen, times.1.saturating_sub(times.0));
            return;
        };
        let mut pieces = threads.pieces(thread, times, Some(thread) == self.writer);
        if phase == Phase::ReceiveQueue {
            pieces = threads.before_handover(pieces, HANDOVERS_MAX);
        }
        self.pieces(phase, pieces);
    }

    /// What a thread did in a phase. In service, one that has waited for events works for others,
    /// until an event of this request makes it runnable, at last.
    fn pieces(&mut self, phase: Phase, pieces: Vec<Piece>) {
        let waits = |piece: &Piece| matches!(piece.doing, Doing::Asleep { label, .. } if label == Label::EventWait);
        let left = match phase {
            Phase::Service => pieces.iter().position(waits).unwrap_or(pieces.len()),
            _ => pieces.len(),
        };
        let returned = pieces.len().saturating_sub(2);
        for (index, piece) in pieces.into_iter().enumerate() {
            let elsewhere = index > left && index < returned && !waits(&piece);
            self.piece(phase, piece, elsewhere);
        }
    }

    fn piece(&mut self, phase: Phase, piece: Piece, elsewhere: bool) {
        let sends =
            matches!(piece.doing, Doing::Asleep { label, .. } if label == Label::SocketSend);
        self.is_sending |= sends && phase == Phase::Service;
        let phase = match (phase, self.is_sending) {
            (Phase::Service, true) => Phase::Transfer,
            (phase, _) => phase,
        };
        let own = piece.connection == Some(self.connection);
        let for_others = match phase {
            // Nothing has been done for a request that has not been read.
            Phase::AcceptQueue | Phase::ReceiveQueue => true,
            _ => elsewhere || piece.doing != Doing::Running && piece.connection.is_some() && !own,
        };
        // A server that waits until it can go on sending waits for the client. So does an idle thread of a pool.
        let for_client = phase == Phase::Transfer
            && matches!(piece.doing, Doing::Asleep { label, .. }
                if matches!(label, Label::EventWait | Label::SocketSend | Label::Futex));
        let (doing, for_others) = match for_client {
            true => (Doing::Client, false),
            false => (piece.doing, for_others),
        };
        self.parts.push(Part {
            cause: Cause {
                phase,
                doing,
                for_others,
            },
            length_ns: piece.length_ns,
            at: piece.at,
        });
    }

    /// Between reading and writing. A thread that passes the request on waits for events or for a
    /// lock; from then on it is the writer's.
    fn service(
        &mut self,
        (from_ns, to_ns): (u64, u64),
        reader: Option<Thread>,
        threads: &mut Threads<'_>,
    ) {
        let (Some(reader), Some(writer)) = (reader, self.writer) else {
            self.add(Phase::Service, reader, (from_ns, to_ns), threads);
            return;
        };
        if reader == writer {
            self.add(Phase::Service, Some(reader), (from_ns, to_ns), threads);
            return;
        }
        let waits = |piece: &&Piece| {
            matches!(piece.doing, Doing::Asleep { label, .. }
                if matches!(label, Label::EventWait | Label::Futex | Label::SocketAccept))
        };
        let pieces = threads.pieces(reader, (from_ns, to_ns), false);
        let passed_ns = (pieces.iter().find(waits)).map_or(to_ns, |piece| piece.start_ns);
        let before = (pieces.into_iter()).filter(|piece| piece.start_ns < passed_ns);
        self.pieces(Phase::Service, before.collect());
        self.add(Phase::Service, Some(writer), (passed_ns, to_ns), threads);
    }
}

#[cfg(test)]
mod tests;
