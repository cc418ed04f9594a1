//! Rows leave the loops here: a thread of its own writes them, so that a loop never waits for a disk.
//!
//! Batches travel through a bounded channel to the writer and come back empty through another, so
//! a loop does not allocate. The limit is [`BUFFERS`] batches per loop. If the disk is so slow that all
//! are full, the next batch is dropped and counted, and the verdict is invalid: waiting would
//! falsify the latencies, and a growing queue would fill the memory. Memory that is not needed is
//! never touched.

use headway_latency::{Row, WriteError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;

/// Batches between a loop and the writer: a million rows with the engine's batches, many seconds of a
/// slow disk.
pub(super) const BUFFERS: usize = 256;

/// Rows a batch has room for: as many as the engine fills before it hands one over.
const BATCH_ROWS: usize = 4096;

/// What becomes of the rows.
pub(super) trait Sink: Send + 'static {
    /// Is shown each batch when it comes, before several loops' rows are put in order.
    fn see(&mut self, _rows: &[Row]) {}

    /// Writes a batch. It may wait for a disk; the loop does not.
    ///
    /// # Errors
    /// The batch could not be kept.
    fn take(&mut self, rows: &[Row]) -> Result<(), WriteError>;
}

/// One loop's end of the channels.
pub(super) struct Recorder {
    full: SyncSender<Batch>,
    empty: Receiver<Vec<Row>>,
    failed: Arc<AtomicBool>,
    /// The number of the loop.
    of: usize,
    dropped: u64,
}

/// Rows of one loop.
struct Batch {
    of: usize,
    rows: Vec<Row>,
}

/// The thread that writes the rows of all loops.
pub(super) struct Writer<S> {
    failed: Arc<AtomicBool>,
    thread: JoinHandle<Written<S>>,
}

/// What the writer hands back when it ends.
struct Written<S> {
    sink: S,
    error: Option<WriteError>,
}

impl<S: Sink> Writer<S> {
    /// Starts the writer, and makes a recorder for each of `loops` loops. `cpus` are the CPUs that it
    /// may use: not the loops', if there are others.
    pub(super) fn start(
        sink: S,
        cpus: Vec<usize>,
        loops: usize,
    ) -> std::io::Result<(Writer<S>, Vec<Recorder>)> {
        let (full, full_end) = sync_channel(BUFFERS * loops);
        let failed = Arc::new(AtomicBool::new(false));
        let (mut recorders, mut empty_ends) = (Vec::new(), Vec::new());
        for of in 0..loops {
            let (empty_end, empty) = sync_channel(BUFFERS);
            for _ in 0..BUFFERS {
                // The channel has room for all batches, so this cannot wait, and its other end is
                // alive.
                drop(empty_end.try_send(Vec::with_capacity(BATCH_ROWS)));
            }
            empty_ends.push(empty_end);
            recorders.push(Recorder {
                full: full.clone(),
                empty,
                failed: Arc::clone(&failed),
                of,
                dropped: 0,
            });
        }
        let failure = Arc::clone(&failed);
        let thread = std::thread::Builder::new()
            .name("rows".to_owned())
            .spawn(move || {
                super::pin::pin_this_thread(&cpus).ok();
                write(sink, &full_end, &empty_ends, &failure)
            })?;
        Ok((Writer { failed, thread }, recorders))
    }

    /// Whether the run shall end early: the writer met an error, or a loop did.
    pub(super) fn failed(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.failed)
    }

    /// Waits until everything handed over is written. All recorders are dropped by then.
    ///
    /// # Errors
    /// The writer's first error. Rows before it are in the run directory.
    pub(super) fn finish(self) -> Result<S, WriteError> {
        let written = match self.thread.join() {
            Ok(written) => written,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        match written.error {
            Some(error) => Err(error),
            None => Ok(written.sink),
        }
    }
}

impl Recorder {
    /// Queues a full batch and puts an empty one in its place. Never waits, never allocates.
    pub(super) fn take(&mut self, batch: &mut Vec<Row>) {
        match self.empty.try_recv() {
            Ok(fresh) => {
                let rows = std::mem::replace(batch, fresh);
                let batch = Batch { of: self.of, rows };
                // There are no more batches than places, so only a writer that panicked can refuse.
                if let Err(refused) = self.full.try_send(batch) {
                    drop(refused);
                    self.failed.store(true, Ordering::Relaxed);
                }
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => {
                self.dropped += batch.len() as u64;
                batch.clear();
            }
        }
    }

    /// Whether the writer met an error, or another loop did; there is no sense in measuring on.
    pub(super) fn failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Rows that found no room so far.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// The writer's thread: runs until all loops close their ends of the channel. After an error it still
/// takes batches, so that the loops get empty ones until they notice.
fn write<S: Sink>(
    mut sink: S,
    full: &Receiver<Batch>,
    empty: &[SyncSender<Vec<Row>>],
    failed: &AtomicBool,
) -> Written<S> {
    let mut error: Option<WriteError> = None;
    let mut merging = (empty.len() > 1).then(MergingRows::default);
    for Batch { of, mut rows } in full {
        if error.is_none() {
            sink.see(&rows);
            let taken = match &mut merging {
                None => sink.take(&rows),
                Some(merging) => merging.take(&rows, &mut sink),
            };
            error = taken.err();
            if error.is_some() {
                failed.store(true, Ordering::Relaxed);
            }
        }
        rows.clear();
        // If the loop has ended already, the batch is dropped.
        drop(empty[of].try_send(rows));
    }
    if let (Some(merging), None) = (&mut merging, &error) {
        error = merging.give(u64::MAX, &mut sink).err();
    }
    Written { sink, error }
}

/// How long the rows of several loops are held back to be put in order. A loop hands its rows over
/// ten times per second. One that is later than this is out of order in the file, and right otherwise.
const HELD_NS: u64 = 1_000_000_000;

/// Puts the rows of several loops in the order in which the requests ended.
#[derive(Default)]
struct MergingRows {
    held: Vec<Row>,
    newest_ns: u64,
    given_ns: u64,
}

impl MergingRows {
    fn take(&mut self, rows: &[Row], sink: &mut impl Sink) -> Result<(), WriteError> {
        self.held.extend_from_slice(rows);
        let newest_ns = rows.last().map_or(0, |row| row.end_ns);
        self.newest_ns = self.newest_ns.max(newest_ns);
        if self.newest_ns < self.given_ns + 2 * HELD_NS {
            return Ok(());
        }
        self.give(self.newest_ns - HELD_NS, sink)
    }

    /// Hands over what ended until then.
    fn give(&mut self, until_ns: u64, sink: &mut impl Sink) -> Result<(), WriteError> {
        self.held.sort_by_key(|row| row.end_ns);
        let ready = self.held.partition_point(|row| row.end_ns <= until_ns);
        for batch in self.held[..ready].chunks(BATCH_ROWS) {
            sink.take(batch)?;
        }
        self.held.drain(..ready);
        self.given_ns = until_ns;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headway_latency::Outcome;

    fn row(index: u64) -> Row {
        Row {
            intended_ns: index,
            start_ns: index,
            first_byte_ns: index + 1,
            end_ns: index + 2,
            size_bytes: 10,
            bytes: 10,
            status: 200,
            error: Outcome::Ok,
            connection: 0,
            ordinal: 0,
            class: 255,
            target: 0,
            warmup: false,
            handshake_ns: 0,
        }
    }

    /// Counts rows; those beyond its room are an error.
    struct CountingSink {
        rows: usize,
        room: usize,
    }

    impl Sink for CountingSink {
        fn take(&mut self, rows: &[Row]) -> Result<(), WriteError> {
            if self.rows + rows.len() > self.room {
                return Err(WriteError::Io {
                    path: "spool".into(),
                    source: std::io::ErrorKind::StorageFull.into(),
                });
            }
            self.rows += rows.len();
            Ok(())
        }
    }

    fn counting(room: usize) -> CountingSink {
        CountingSink { rows: 0, room }
    }

    #[test]
    fn every_row_is_recorded_when_the_writer_keeps_up() {
        let (writer, mut recorders) = Writer::start(counting(80), Vec::new(), 1).expect("a thread");
        let mut recorder = recorders.pop().expect("one loop");
        let mut batch = Vec::with_capacity(8);
        for index in 0..80 {
            batch.push(row(index));
            if batch.len() == 8 {
                recorder.take(&mut batch);
                assert!(batch.is_empty() && batch.capacity() >= 8);
            }
        }
        assert_eq!(recorder.dropped(), 0);
        drop(recorder);
        assert_eq!(writer.finish().expect("nothing failed").rows, 80);
    }

    #[test]
    fn rows_are_dropped_and_counted_when_the_writer_is_too_far_behind() {
        // A writer that never takes anything: its ends of the channels are held here.
        let (full, full_end) = sync_channel(1);
        let (empty_end, empty) = sync_channel(1);
        empty_end.try_send(Vec::with_capacity(4)).expect("room");
        let mut recorder = Recorder {
            full,
            empty,
            failed: Arc::default(),
            of: 0,
            dropped: 0,
        };
        let mut batch = vec![row(1), row(2)];
        recorder.take(&mut batch);
        assert_eq!(recorder.dropped(), 0);
        batch.extend([row(3), row(4), row(5)]);
        recorder.take(&mut batch);
        assert_eq!((recorder.dropped(), batch.len()), (3, 0));
        drop((full_end, empty_end));
    }

    #[test]
    fn recorder_returns_batches_and_the_error_when_a_write_fails() {
        let (writer, mut recorders) = Writer::start(counting(5), Vec::new(), 1).expect("a thread");
        let mut recorder = recorders.pop().expect("one loop");
        // More batches than there are, so that a writer that stopped taking them would be noticed.
        for round in 0..=BUFFERS * 2 {
            let mut batch = vec![row(1), row(2), row(3), row(4)];
            recorder.take(&mut batch);
            assert!(batch.is_empty(), "round {round}");
        }
        while !recorder.failed() {
            std::thread::yield_now();
        }
        drop(recorder);
        let error = writer.finish().err().expect("the disk was full");
        assert!(error.to_string().starts_with("spool: "), "{error}");
    }

    /// Keeps the ends of rows.
    struct Ends(Vec<u64>);

    impl Sink for Ends {
        fn take(&mut self, rows: &[Row]) -> Result<(), WriteError> {
            self.0.extend(rows.iter().map(|row| row.end_ns));
            Ok(())
        }
    }

    #[test]
    fn rows_of_several_loops_are_in_the_order_in_which_requests_ended() {
        let (writer, mut recorders) =
            Writer::start(Ends(Vec::new()), Vec::new(), 3).expect("a thread");
        let every_ns = 10_000_000;
        for step in 0..100 {
            for (at, recorder) in (0..).zip(&mut recorders) {
                let of = |number: u64| row((step * 40 + number * 4 + at) * every_ns / 4);
                let mut batch: Vec<Row> = (0..10).map(of).collect();
                recorder.take(&mut batch);
            }
        }
        drop(recorders);
        let ends = writer.finish().expect("nothing failed").0;
        assert_eq!(ends.len(), 3_000);
        assert!(ends.is_sorted());
    }
}
