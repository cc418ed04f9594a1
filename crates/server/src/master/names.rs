//! Resolves the names of upstreams again and again, in a thread: it may wait for another machine. If
//! their addresses have changed, workers with the new ones replace the others, as in a reload.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use headway_config::{Config, Resolved, resolve};
use headway_os::exec::BlockedSignals;

use super::signals;

/// The thread, which ends when this is dropped.
pub(super) struct Resolver {
    /// Readable when the addresses have changed.
    pub(super) wake: UnixStream,
    changes: Receiver<Resolved>,
    _alive: Sender<()>,
}

impl Resolver {
    /// Starts the thread, if the configuration has names and they are to be resolved again.
    pub(super) fn start(config: &Config) -> io::Result<Option<Resolver>> {
        let names = config.upstream_names();
        if names.is_empty() || config.resolve_interval_ms == 0 {
            return Ok(None);
        }
        let interval = Duration::from_millis(config.resolve_interval_ms);
        let (wake, waker) = signals::pair()?;
        let (sender, changes) = channel();
        let (alive, is_over) = channel();
        // Signals are for the main thread, which blocks them while the program is replaced.
        let _blocked = BlockedSignals::all();
        std::thread::Builder::new()
            .name("resolver".into())
            .spawn(move || watch(&names, interval, &is_over, &sender, &waker))?;
        Ok(Some(Resolver {
            wake,
            changes,
            _alive: alive,
        }))
    }

    /// The addresses that have changed last.
    pub(super) fn take(&self) -> Option<Resolved> {
        signals::drain(&self.wake);
        self.changes.try_iter().last()
    }
}

fn watch(
    names: &BTreeSet<String>,
    interval: Duration,
    is_over: &Receiver<()>,
    changes: &Sender<Resolved>,
    mut waker: &UnixStream,
) {
    let (mut known, mut last) = (Resolved::new(), Resolved::new());
    while is_over.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
        // A name that cannot be resolved now keeps its addresses.
        let found = names
            .iter()
            .filter_map(|name| Some((name.clone(), resolve(name).ok()?)));
        let mut now = known.clone();
        now.extend(found);
        // A server that gives other addresses each time would replace the workers each time.
        let is_stable = now == last;
        last = now;
        if is_stable && last != known {
            known.clone_from(&last);
            if changes.send(last.clone()).is_err() {
                return;
            }
            // A full pipe wakes the master just as well.
            let _ = waker.write(&[0]);
        }
    }
}
