//! Rows leave the loop here: a thread of its own writes them, so that the loop never waits for a
//! disk.
//!
//! Batches travel through a bounded channel to the writer and come back empty through another, so
//! the loop does not allocate. The limit is [`BUFFERS`] batches. If the disk is so slow that all
//! are full, the next batch is dropped and counted, and the verdict is invalid: waiting would
//! falsify the latencies, and a growing queue would fill the memory. Memory that is not needed is
//! never touched.

use headway_latency::{Row, WriteError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;

/// Batches between loop and writer: a million rows with the engine's batches, many seconds of a
/// slow disk.
pub(super) const BUFFERS: usize = 256;

/// Rows a batch has room for: as many as the engine fills before it hands one over.
const BATCH_ROWS: usize = 4096;

/// What becomes of the rows.
pub(super) trait Sink: Send + 'static {
    /// Writes a batch. It may wait for a disk; the loop does not.
    ///
    /// # Errors
    /// The batch could not be kept.
    fn take(&mut self, rows: &[Row]) -> Result<(), WriteError>;
}

/// The loop's end of the channel, and the writer behind it.
pub(super) struct Recorder<S> {
    full: SyncSender<Vec<Row>>,
    empty: Receiver<Vec<Row>>,
    failed: Arc<AtomicBool>,
    writer: JoinHandle<Written<S>>,
    dropped: u64,
}

/// What the writer hands back when it ends.
struct Written<S> {
    sink: S,
    error: Option<WriteError>,
}

/// The result of recording.
pub(super) struct Recorded<S> {
    /// The sink of the rows.
    pub sink: S,
    /// Rows that found no room.
    pub dropped: u64,
}

impl<S: Sink> Recorder<S> {
    /// Starts the writer. `cpus` are the CPUs that it may use: not the loop's, if there are others.
    pub(super) fn start(sink: S, cpus: Vec<usize>) -> std::io::Result<Recorder<S>> {
        let (full, full_end) = sync_channel(BUFFERS);
        let (empty_end, empty) = sync_channel(BUFFERS);
        for _ in 0..BUFFERS {
            // The channel has room for all batches, so this cannot wait, and its other end is
            // alive.
            drop(empty_end.try_send(Vec::with_capacity(BATCH_ROWS)));
        }
        let failed = Arc::new(AtomicBool::new(false));
        let failure = Arc::clone(&failed);
        let writer = std::thread::Builder::new()
            .name("rows".to_owned())
            .spawn(move || {
                super::pin::pin_this_thread(&cpus).ok();
                write(sink, &full_end, &empty_end, &failure)
            })?;
        Ok(Recorder {
            full,
            empty,
            failed,
            writer,
            dropped: 0,
        })
    }

    /// Queues a full batch and puts an empty one in its place. Never waits, never allocates.
    pub(super) fn take(&mut self, batch: &mut Vec<Row>) {
        match self.empty.try_recv() {
            Ok(fresh) => {
                let rows = std::mem::replace(batch, fresh);
                // There are no more batches than places, so only a writer that panicked can refuse.
                if let Err(refused) = self.full.try_send(rows) {
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

    /// Whether the writer met an error; there is no sense in measuring on.
    pub(super) fn failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Rows that found no room so far.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Waits until everything handed over is written.
    ///
    /// # Errors
    /// The writer's first error. Rows before it are in the run directory.
    pub(super) fn finish(self) -> Result<Recorded<S>, WriteError> {
        drop(self.full);
        drop(self.empty);
        let written = match self.writer.join() {
            Ok(written) => written,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        match written.error {
            Some(error) => Err(error),
            None => Ok(Recorded {
                sink: written.sink,
                dropped: self.dropped,
            }),
        }
    }
}

/// The writer's thread: runs until the loop closes its end of the channel. After an error it still
/// takes batches, so that the loop gets empty ones until it notices.
fn write<S: Sink>(
    mut sink: S,
    full: &Receiver<Vec<Row>>,
    empty: &SyncSender<Vec<Row>>,
    failed: &AtomicBool,
) -> Written<S> {
    let mut error = None;
    for mut batch in full {
        if error.is_none() {
            error = sink.take(&batch).err();
            failed.store(error.is_some(), Ordering::Relaxed);
        }
        batch.clear();
        // If the loop has ended already, the batch is dropped.
        drop(empty.try_send(batch));
    }
    Written { sink, error }
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
        let mut recorder = Recorder::start(counting(80), Vec::new()).expect("a thread");
        let mut batch = Vec::with_capacity(8);
        for index in 0..80 {
            batch.push(row(index));
            if batch.len() == 8 {
                recorder.take(&mut batch);
                assert!(batch.is_empty() && batch.capacity() >= 8);
            }
        }
        let recorded = recorder.finish().expect("nothing failed");
        assert_eq!(recorded.dropped, 0);
        assert_eq!(recorded.sink.rows, 80);
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
            writer: std::thread::spawn(|| Written {
                sink: counting(0),
                error: None,
            }),
            dropped: 0,
        };
        let mut batch = vec![row(1), row(2)];
        recorder.take(&mut batch);
        assert_eq!(recorder.dropped(), 0);
        batch.extend([row(3), row(4), row(5)]);
        recorder.take(&mut batch);
        assert_eq!((recorder.dropped(), batch.len()), (3, 0));
        let recorded = recorder.finish().expect("nothing failed");
        assert_eq!(recorded.dropped, 3);
        drop((full_end, empty_end));
    }

    #[test]
    fn recorder_returns_batches_and_the_error_when_a_write_fails() {
        let mut recorder = Recorder::start(counting(5), Vec::new()).expect("a thread");
        // More batches than there are, so that a writer that stopped taking them would be noticed.
        for round in 0..=BUFFERS * 2 {
            let mut batch = vec![row(1), row(2), row(3), row(4)];
            recorder.take(&mut batch);
            assert!(batch.is_empty(), "round {round}");
        }
        while !recorder.failed() {
            std::thread::yield_now();
        }
        let error = recorder.finish().err().expect("the disk was full");
        assert!(error.to_string().starts_with("spool: "), "{error}");
    }
}
