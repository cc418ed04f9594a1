//! When a disk would be done with a request: pure arithmetic over nanoseconds, no clock and no I/O.
//!
//! A [`Device`] is given requests as they arrive, and says which it starts next and when
//! that ends. The caller owns time, so a test runs hours of a disk in milliseconds, and the same
//! seed and the same arrivals give the same ends on every machine (only exact floating-point
//! operations and the generator of `headway_base::random` are used).
//!
//! Sources: Ruemmler and Wilkes, "An introduction to disk drive modeling", IEEE Computer 27(3),
//! 1994: seek time by the square root of the distance, then linear; rotation; track buffer. FreeBSD
//! `sys/kern/subr_disk.c` for the order of the queue.

use std::collections::VecDeque;

use headway_base::random::{Draw, Random};

use super::spec::{Mechanics, Parallel, Queue, Spindle};

/// Beyond this wait a request goes first, whatever the elevator says: Linux's deadline for reads.
const ELEVATOR_DEADLINE_NS: u64 = 500_000_000;

/// Requests in elevator order before the oldest are checked for their deadline: Linux's
/// `fifo_batch`. Without it a long queue would be served by age alone, and the head would seek
/// for every request.
const ELEVATOR_BATCH: u32 = 16;

/// How much a seek varies around the curve, upwards and downwards.
const SEEK_NOISE: f64 = 0.1;

const NS_PER_S: f64 = 1e9;

/// A request of the block layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    /// Greater than that of any job before it.
    pub(crate) id: u64,
    pub(crate) arrived_ns: u64,
    pub(crate) offset_bytes: u64,
    pub(crate) length_bytes: u64,
    pub(crate) write: bool,
}

/// A job that the disk works on, or has worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Started {
    pub(crate) job: Job,
    pub(crate) start_ns: u64,
    pub(crate) finish_ns: u64,
}

/// A disk: what waits for it, and where its parts are.
#[derive(Clone, Debug)]
pub(crate) enum Device {
    Spindle(SpindleState),
    Parallel(ParallelState),
}

impl Device {
    pub(crate) fn new(mechanics: &Mechanics, seed: u64) -> Device {
        match mechanics {
            Mechanics::Spindle(spindle) => Device::Spindle(SpindleState::new(spindle, seed)),
            Mechanics::Parallel(parallel) => Device::Parallel(ParallelState::new(parallel, seed)),
        }
    }

    /// Puts a request into the queue.
    pub(crate) fn arrive(&mut self, job: Job) {
        match self {
            Device::Spindle(state) => state.queue.push(job),
            Device::Parallel(state) => state.queue.push_back(job),
        }
    }

    /// The first instant at which one of the waiting requests could be started; `None` when nothing
    /// waits.
    pub(crate) fn ready_ns(&self) -> Option<u64> {
        match self {
            Device::Spindle(state) => {
                let arrived_ns = state.queue.iter().map(|job| job.arrived_ns).min()?;
                Some(arrived_ns.max(state.free_ns))
            }
            Device::Parallel(state) => {
                let arrived_ns = state.queue.front()?.arrived_ns;
                let channel_ns = state.channels_free_ns.iter().copied().min().unwrap_or(0);
                Some(arrived_ns.max(channel_ns))
            }
        }
    }

    /// Starts one request at an instant that is not before [`Device::ready_ns`], `slower` times
    /// slower than usual. `None` when nothing waits.
    pub(crate) fn start(&mut self, at_ns: u64, slower: f64) -> Option<Started> {
        match self {
            Device::Spindle(state) => state.start(at_ns, slower),
            Device::Parallel(state) => state.start(at_ns, slower),
        }
    }

    /// Forgets and returns what waits.
    pub(crate) fn take_waiting(&mut self) -> Vec<Job> {
        match self {
            Device::Spindle(state) => std::mem::take(&mut state.queue),
            Device::Parallel(state) => std::mem::take(&mut state.queue).into(),
        }
    }
}

/// The arm, the platter and the drive's buffer.
#[derive(Clone, Debug)]
pub(crate) struct SpindleState {
    spindle: Spindle,
    random: Random,
    queue: Vec<Job>,
    /// Of the elevator's batch, how many are still to come.
    batch: u32,
    /// When the arm is free.
    free_ns: u64,
    /// Under the arm when it became free.
    head_bytes: u64,
    /// The platter's angle at time 0, in turns.
    phase: f64,
    buffer: Buffer,
}

/// What the drive has read, and goes on reading while the arm stays.
#[derive(Clone, Copy, Debug, Default)]
struct Buffer {
    /// Where the buffer begins; it is empty if nothing was read.
    start_bytes: u64,
    /// The backing had passed the head up to here ...
    media_bytes: u64,
    /// ... at this time.
    media_ns: u64,
    /// Where the drive stops to read ahead.
    limit_bytes: u64,
}

impl SpindleState {
    fn new(spindle: &Spindle, seed: u64) -> SpindleState {
        let mut random = Random::for_stream(seed, u64::from_be_bytes(*b"spindle "));
        SpindleState {
            spindle: spindle.clone(),
            phase: random.fraction(),
            random,
            queue: Vec::new(),
            batch: 0,
            free_ns: 0,
            head_bytes: 0,
            buffer: Buffer::default(),
        }
    }

    fn start(&mut self, at_ns: u64, slower: f64) -> Option<Started> {
        let job = self.choose(at_ns)?;
        let usual_ns = if job.write {
            self.write_ns(at_ns, job)
        } else {
            self.read_ns(at_ns, job)
        };
        let service_ns = (usual_ns.saturating_sub(at_ns) as f64 * slower) as u64;
        self.free_ns = at_ns.saturating_add(service_ns);
        self.head_bytes = job.offset_bytes + job.length_bytes;
        Some(Started {
            job,
            start_ns: at_ns,
            finish_ns: self.free_ns,
        })
    }

    /// Removes the next request from the queue: by the elevator, which begins each batch with one
    /// that has waited too long.
    fn choose(&mut self, at_ns: u64) -> Option<Job> {
        let there = |job: &&Job| job.arrived_ns <= at_ns;
        let oldest = self.queue.iter().filter(there).min_by_key(|job| job.id)?;
        let patient = oldest.arrived_ns.saturating_add(ELEVATOR_DEADLINE_NS) > at_ns;
        let begins = self.batch == 0;
        self.batch = if begins { ELEVATOR_BATCH } else { self.batch } - 1;
        let chosen = match self.spindle.queue {
            Queue::Elevator if patient || !begins => self
                .queue
                .iter()
                .filter(there)
                // `false` comes first: what lies above the head, from the nearest on; then from the
                // bottom.
                .min_by_key(|job| (job.offset_bytes < self.head_bytes, job.offset_bytes, job.id))?,
            _ => oldest,
        };
        let id = chosen.id;
        let index = self.queue.iter().position(|job| job.id == id)?;
        Some(self.queue.swap_remove(index))
    }

    /// When a read that starts then ends.
    fn read_ns(&mut self, at_ns: u64, job: Job) -> u64 {
        let (from, to) = (job.offset_bytes, job.offset_bytes + job.length_bytes);
        let interface_ns = at_ns
            + self.overhead_ns()
            + duration_ns(job.length_bytes, self.spindle.interface_bytes_per_second);
        let reached = self.reached_bytes(at_ns);
        if from < self.buffer.start_bytes || from > reached || reached == 0 {
            let begin_ns = self.under_head_ns(at_ns + self.overhead_ns(), from);
            self.set_buffer(from, to, begin_ns + self.media_length_ns(job.length_bytes));
            return self.buffer.media_ns;
        }
        // The platter never stopped passing, or it has to come round again to where reading ahead
        // ended.
        if reached >= self.buffer.limit_bytes {
            self.buffer.media_ns = self.rotated_ns(at_ns, reached);
            self.buffer.media_bytes = reached;
        }
        let mut media_ns = self.buffer.media_ns;
        if to > self.buffer.media_bytes {
            media_ns += self.media_length_ns(to - self.buffer.media_bytes);
            self.set_buffer(from, to, media_ns);
        } else {
            self.buffer.start_bytes = from;
            self.buffer.limit_bytes = to + self.spindle.read_ahead_bytes;
        }
        if to <= reached {
            interface_ns
        } else {
            media_ns.max(interface_ns)
        }
    }

    /// When a write that starts then is on the backing. The buffer holds reads only and is given
    /// up.
    fn write_ns(&mut self, at_ns: u64, job: Job) -> u64 {
        let begin_ns = self.under_head_ns(at_ns + self.overhead_ns(), job.offset_bytes);
        self.buffer = Buffer::default();
        begin_ns + self.media_length_ns(job.length_bytes)
    }

    fn set_buffer(&mut self, start_bytes: u64, media_bytes: u64, media_ns: u64) {
        self.buffer = Buffer {
            start_bytes,
            media_bytes,
            media_ns,
            limit_bytes: media_bytes + self.spindle.read_ahead_bytes,
        };
    }

    /// How far the drive has read ahead by then.
    fn reached_bytes(&self, at_ns: u64) -> u64 {
        let passed_s = at_ns.saturating_sub(self.buffer.media_ns) as f64 / NS_PER_S;
        let passed = (passed_s * self.spindle.bytes_per_second as f64) as u64;
        let limit = self.buffer.limit_bytes.max(self.buffer.media_bytes);
        (self.buffer.media_bytes + passed).min(limit)
    }

    /// When the arm is there and the place passes under it.
    fn under_head_ns(&mut self, at_ns: u64, offset_bytes: u64) -> u64 {
        let arrived_ns = at_ns + self.seek_ns(offset_bytes);
        self.rotated_ns(arrived_ns, offset_bytes)
    }

    /// Nothing on the same track, else the curve of the distance with a little noise.
    fn seek_ns(&mut self, offset_bytes: u64) -> u64 {
        let track = |bytes: u64| (bytes as f64 / self.track_bytes()) as u64;
        if track(offset_bytes) == track(self.head_bytes) {
            return 0;
        }
        let distance_bytes = offset_bytes.abs_diff(self.head_bytes) as f64;
        let stroke = (distance_bytes / self.spindle.capacity_bytes as f64).min(1.0);
        let noise = 1.0 + SEEK_NOISE * (2.0 * self.random.fraction() - 1.0);
        (seek_ms(&self.spindle, stroke) * noise * 1e6) as u64
    }

    /// The next time at which that place passes under the head. Tracks are skewed so that the next
    /// one begins where the last one ends.
    fn rotated_ns(&self, at_ns: u64, offset_bytes: u64) -> u64 {
        let rotation_ns = self.rotation_ns();
        let now = (at_ns as f64 / rotation_ns + self.phase).fract();
        let angle = (offset_bytes as f64 / self.track_bytes()).fract();
        let wait = (angle - now).rem_euclid(1.0);
        at_ns + (wait * rotation_ns) as u64
    }

    fn rotation_ns(&self) -> f64 {
        60.0 * NS_PER_S / self.spindle.revolutions
    }

    fn track_bytes(&self) -> f64 {
        self.spindle.bytes_per_second as f64 * self.rotation_ns() / NS_PER_S
    }

    fn media_length_ns(&self, bytes: u64) -> u64 {
        duration_ns(bytes, self.spindle.bytes_per_second)
    }

    fn overhead_ns(&self) -> u64 {
        (self.spindle.overhead_us * 1000.0) as u64
    }
}

/// A seek over a share of the stroke: by the square root up to a third, where the average seek
/// lies, then linear.
pub(crate) fn seek_ms(spindle: &Spindle, stroke: f64) -> f64 {
    let (track, average, full) = (
        spindle.seek_track_ms,
        spindle.seek_average_ms,
        spindle.seek_full_ms,
    );
    if stroke < 1.0 / 3.0 {
        track + (average - track) * (3.0 * stroke).sqrt()
    } else {
        average + (full - average) * (stroke - 1.0 / 3.0) * 1.5
    }
}

/// The layout and the link.
#[derive(Clone, Debug)]
pub(crate) struct ParallelState {
    parallel: Parallel,
    random: Random,
    queue: VecDeque<Job>,
    /// When each place is free.
    channels_free_ns: Vec<u64>,
    link_ns: u64,
}

impl ParallelState {
    fn new(parallel: &Parallel, seed: u64) -> ParallelState {
        ParallelState {
            parallel: parallel.clone(),
            random: Random::for_stream(seed, u64::from_be_bytes(*b"parallel")),
            queue: VecDeque::new(),
            channels_free_ns: vec![0; parallel.parallelism.max(1) as usize],
            link_ns: 0,
        }
    }

    /// The link comes first and the latency after it: so the link is taken in the order of the
    /// starts, and a slow request does not hold up the faster ones behind it.
    fn start(&mut self, at_ns: u64, slower: f64) -> Option<Started> {
        let channel = (0..self.channels_free_ns.len())
            .min_by_key(|&channel| self.channels_free_ns[channel])?;
        let job = self.queue.pop_front()?;
        let link_ns = self.parallel.overhead_us * 1000.0
            + duration_ns(job.length_bytes, self.parallel.bytes_per_second) as f64;
        let begins_ns = self.link_ns.max(at_ns);
        self.link_ns = begins_ns.saturating_add((link_ns * slower) as u64);
        let delay_ns = (self.latency_ns() * slower) as u64;
        let finish_ns = self.link_ns.saturating_add(delay_ns);
        self.channels_free_ns[channel] = finish_ns;
        Some(Started {
            job,
            start_ns: at_ns,
            finish_ns,
        })
    }

    /// A fixed part and an exponential one: mean and deviation are those asked for.
    fn latency_ns(&mut self) -> f64 {
        let variation = self.parallel.variation.clamp(0.0, 1.0);
        let shape = 1.0 - variation + variation * self.random.exponential();
        self.parallel.latency_us * 1000.0 * shape
    }
}

fn duration_ns(bytes: u64, bytes_per_second: u64) -> u64 {
    (bytes as f64 * NS_PER_S / bytes_per_second.max(1) as f64) as u64
}

#[cfg(test)]
mod tests;
