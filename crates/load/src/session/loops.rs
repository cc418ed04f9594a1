//! The loops of a run, on one thread or on several.
//!
//! With one loop the calling thread is it. With several each has a thread of its own, prepares there
//! what it needs, and waits for the others: all begin at one moment, which is the epoch of the run. If
//! one fails, the others end early and the run is an error.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::SessionError;
use super::observer::Watched;
use super::pin;
use crate::client::watch::{ThreadWatch, Waited, allowed_cpus};
use crate::engine::{Epoch, Loop, Measured, Part, Plan};

/// What all loops together leave behind.
pub(super) struct Turned {
    pub measured: Measured,
    pub waited: Waited,
    /// When the run was interrupted, in nanoseconds since its epoch.
    pub stopped_ns: Option<u64>,
    /// Rows that found no room.
    pub dropped: u64,
}

/// Why one loop did not end well.
enum LoopError {
    /// It failed.
    Failed(SessionError),
    /// Another one could not begin.
    Cancelled,
}

impl From<SessionError> for LoopError {
    fn from(error: SessionError) -> LoopError {
        LoopError::Failed(error)
    }
}

/// Runs a loop for each observer. `failed` ends the other loops when one fails.
pub(super) fn run(
    plan: &Plan,
    cpus: &[usize],
    observers: Vec<Watched>,
    failed: &AtomicBool,
) -> Result<Turned, SessionError> {
    plan.check()?;
    let mut ended = match <[Watched; 1]>::try_from(observers) {
        Ok([observer]) => vec![one(
            plan,
            Part::WHOLE,
            cpus,
            observer,
            || Some(Epoch::now()),
        )],
        Err(observers) => several(plan, cpus, observers, failed)?,
    };
    let count = ended.len();
    // What failed is the reason; the others were only cancelled.
    let failure = ended
        .iter()
        .position(|one| matches!(one, Err(LoopError::Failed(_))));
    if let Some(at) = failure {
        let Err(LoopError::Failed(error)) = ended.swap_remove(at) else {
            unreachable!("found there");
        };
        return Err(match count {
            1 => error,
            _ => SessionError::Loop {
                number: at + 1,
                count,
                source: Box::new(error),
            },
        });
    }
    let turned = ended.into_iter().filter_map(Result::ok);
    let all = turned.reduce(together);
    all.ok_or_else(|| SessionError::Use("a run needs at least one thread".to_owned()))
}

/// Of counts the sum, of shares the largest.
fn together(mut all: Turned, other: Turned) -> Turned {
    let larger = |one: Option<f64>, other: Option<f64>| match (one, other) {
        (Some(one), Some(other)) => Some(one.max(other)),
        (one, other) => one.or(other),
    };
    all.measured.absorb(&other.measured);
    all.waited = Waited {
        run_queue_s: larger(all.waited.run_queue_s, other.waited.run_queue_s),
        steal_share: larger(all.waited.steal_share, other.waited.steal_share),
    };
    all.stopped_ns = [all.stopped_ns, other.stopped_ns]
        .into_iter()
        .flatten()
        .min();
    all.dropped += other.dropped;
    all
}

/// Each loop on a thread of its own.
fn several(
    plan: &Plan,
    cpus: &[usize],
    observers: Vec<Watched>,
    failed: &AtomicBool,
) -> Result<Vec<Result<Turned, LoopError>>, SessionError> {
    let count = observers.len();
    let parts = Part::all(count as u32);
    thread::scope(|scope| {
        let (is_ready, ready) = channel();
        let (mut gates, mut threads) = (Vec::new(), Vec::new());
        for ((at, part), observer) in parts.enumerate().zip(observers) {
            let own: Vec<usize> = cpus.iter().skip(at).step_by(count).copied().collect();
            let (gate, opened) = channel();
            gates.push(gate);
            let is_ready = is_ready.clone();
            let body = move || {
                let ended = one(plan, part, &own, observer, || begin(is_ready, &opened));
                if ended.is_err() {
                    failed.store(true, Ordering::Relaxed);
                }
                ended
            };
            let name = format!("loop-{at}");
            let spawned = thread::Builder::new().name(name).spawn_scoped(scope, body);
            // Dropping the gates cancels those that wait.
            threads.push(spawned.map_err(SessionError::Thread)?);
        }
        drop(is_ready);
        // One that cannot begin drops its sender without a word.
        if ready.iter().take(count).count() == count {
            let epoch = Epoch::now();
            for gate in &gates {
                let _ = gate.send(epoch);
            }
        }
        drop(gates);
        let joined = threads.into_iter().map(|thread| match thread.join() {
            Ok(ended) => ended,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        Ok(joined.collect())
    })
}

/// Says that a loop is ready, and waits for the epoch. `None` if another loop cannot begin.
fn begin(is_ready: Sender<()>, opened: &Receiver<Epoch>) -> Option<Epoch> {
    is_ready.send(()).ok()?;
    // The receiver learns that no more come when all have dropped theirs.
    drop(is_ready);
    opened.recv().ok()
}

/// One loop on the calling thread.
fn one(
    plan: &Plan,
    part: Part,
    cpus: &[usize],
    mut observer: Watched,
    epoch: impl FnOnce() -> Option<Epoch>,
) -> Result<Turned, LoopError> {
    let allowed = allowed_cpus();
    pin::pin_this_thread(cpus).map_err(|errno| SessionError::Pin {
        cpus: cpus.to_vec(),
        allowed: allowed.clone(),
        source: errno.into(),
    })?;
    let prepared = Loop::new(plan, part, &mut observer).map_err(SessionError::Engine)?;
    let epoch = epoch().ok_or(LoopError::Cancelled)?;
    let watch = ThreadWatch::this_thread();
    let before = watch.read();
    let measured = prepared.run(epoch);
    let waited = watch.read().since(&before);
    // The rest is not the loop's work and may use every CPU again.
    let _ = pin::pin_this_thread(&allowed);
    let (dropped, stopped_ns) = observer.end();
    Ok(Turned {
        measured: measured.map_err(SessionError::Engine)?,
        waited,
        stopped_ns,
        dropped,
    })
}
