//! How many tasks of the server could run, several times per second.

use std::time::{Duration, Instant};

use headway_debox_bpf::{RequestObserver, RunQueue, RunQueueSample};
use headway_explain::RunQueueShare;

/// A sample walks all tasks of the system, which takes some tenths of a millisecond.
const PERIOD: Duration = Duration::from_millis(100);

/// The samples, and what takes them.
pub struct RunQueueSamples {
    /// Or why there is none.
    queue: Result<RunQueue, String>,
    samples: Vec<RunQueueSample>,
    taken: Option<Instant>,
}

impl RunQueueSamples {
    pub fn start() -> RunQueueSamples {
        RunQueueSamples {
            queue: RunQueue::start().map_err(|error| error.to_string()),
            samples: Vec::new(),
            taken: None,
        }
    }

    /// Takes a sample, if it is time.
    pub fn sample(&mut self, observer: &RequestObserver) {
        let Ok(queue) = &mut self.queue else { return };
        if self.taken.is_some_and(|taken| taken.elapsed() < PERIOD) {
            return;
        }
        self.taken = Some(Instant::now());
        // A process that starts is counted half a second later at most.
        let watched = match self.samples.len() % 5 {
            0 => queue.watch(&observer.processes()),
            _ => Ok(()),
        };
        let sample = watched.and_then(|()| queue.sample());
        match sample {
            Ok(sample) => self.samples.push(sample),
            Err(error) => self.queue = Err(error.to_string()),
        }
    }

    /// `None` without a sample.
    pub fn share(&self) -> Option<RunQueueShare> {
        RunQueueShare::of(&self.samples)
    }

    /// Why there are no samples, or no more.
    pub fn missing(&self) -> Option<String> {
        let why = self.queue.as_ref().err()?;
        Some(format!("How many tasks could run is not known: {why}."))
    }
}
