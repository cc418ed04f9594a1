//! Rows on their way to becoming a Parquet file: fixed records, appended as the run goes.
//!
//! A Parquet file has its index at the end and is unreadable without it, so a killed run would lose
//! everything. The spool has none: each record of 72 bytes checks itself, and what a kill left half
//! written at the end is ignored. The first record is a head that names the format. Version 1, which
//! is still read, has records of 64 bytes.
//!
//! Writing happens on a thread of its own. A `write` to a file waits when the kernel throttles
//! dirty pages or a journal commits, for seconds if the disk is busy, and the disk *is* busy when
//! servers are studied on it; the loop that paces requests must not share that wait.

use super::regular;
use crate::row::{Row, RowError};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// The beginning of the first record; zeroes to its end.
const MAGIC: &[u8; 18] = b"headway-spool v2\r\n";
const MAGIC_V1: &[u8; 18] = b"headway-spool v1\r\n";

/// Rows that are handed out at a time.
const BATCH_ROWS: usize = 8_192;

/// Buffers on their way to the thread. At the bound [`Spool::append`] waits: losing rows would be
/// worse.
const QUEUE_BUFFERS: usize = 256;

/// The head as a whole record.
fn head() -> [u8; Row::BYTES] {
    let mut record = [0; Row::BYTES];
    record[..MAGIC.len()].copy_from_slice(MAGIC);
    record
}

/// A spool that is being written.
pub(super) struct Spool {
    /// `None` once the thread was asked to end.
    full: Option<SyncSender<Vec<u8>>>,
    empty: Receiver<Vec<u8>>,
    thread: Option<JoinHandle<io::Result<File>>>,
}

impl Spool {
    /// Begins a spool. Fails with [`ErrorKind::WouldBlock`] while another process writes it.
    pub(super) fn create(path: &Path) -> io::Result<Spool> {
        // It is truncated under the lock, so that a second run cannot empty the spool of the first.
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)?;
        file.try_lock()?;
        file.set_len(0)?;
        file.write_all(&head())?;
        let (full, filled) = sync_channel::<Vec<u8>>(QUEUE_BUFFERS);
        let (emptied, empty) = sync_channel(QUEUE_BUFFERS);
        let thread = std::thread::Builder::new()
            .name("spool".into())
            .spawn(move || {
                for buffer in filled {
                    file.write_all(&buffer)?;
                    // If the channel of free buffers is full, this one is dropped.
                    drop(emptied.try_send(buffer));
                }
                Ok(file)
            })?;
        Ok(Spool {
            full: Some(full),
            empty,
            thread: Some(thread),
        })
    }

    /// Hands rows to the thread. Fails with the error of an earlier write, after which the thread
    /// has ended.
    pub(super) fn append(&mut self, rows: &[Row]) -> io::Result<()> {
        let mut buffer = self.empty.try_recv().unwrap_or_default();
        buffer.resize(rows.len() * Row::BYTES, 0);
        let (records, _) = buffer.as_chunks_mut::<{ Row::BYTES }>();
        rows.iter()
            .zip(records)
            .for_each(|(row, record)| row.encode(record));
        let sent = self
            .full
            .as_ref()
            .is_some_and(|full| full.send(buffer).is_ok());
        if sent { Ok(()) } else { self.end().map(drop) }
    }

    /// Waits until everything is in the file and the file on disk.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.end()?.sync_data()
    }

    /// Ends the thread and returns its file or its error. A second call returns an error.
    fn end(&mut self) -> io::Result<File> {
        self.full = None;
        let gone = || io::Error::other("the spool was given up after an error");
        let thread = self.thread.take().ok_or_else(gone)?;
        thread
            .join()
            .map_err(|_| io::Error::other("the spool's thread panicked"))?
    }
}

impl Drop for Spool {
    /// A program that gives up still keeps the rows that it had handed over.
    fn drop(&mut self) {
        drop(self.end());
    }
}

/// Whether a process is writing the spool: it holds the lock that [`Spool::create`] took.
pub(super) fn is_being_written(path: &Path) -> bool {
    let Ok(file) = regular::open(path) else {
        return false;
    };
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}

/// The rows of a spool, a batch at a time.
pub(super) struct SpoolReader {
    source: BufReader<File>,
    /// The size of a record, which follows from the version.
    record_bytes: usize,
    record: u64,
    done: bool,
}

/// Why a spool could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum SpoolError {
    /// Reading failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file does not begin as a spool does.
    #[error("not a spool of this version of headway")]
    Foreign,
    /// A record before the end is damaged, so it is not what a killed run leaves.
    #[error(
        "record {record} is damaged ({source}) and whole ones follow; restore the file from a copy or measure again"
    )]
    Damaged { record: u64, source: RowError },
}

impl SpoolReader {
    /// Opens a spool. One without a whole head, from a run killed in its first moment, is empty.
    pub(super) fn open(path: &Path) -> Result<SpoolReader, SpoolError> {
        let mut source = BufReader::with_capacity(1 << 18, regular::open(path)?);
        let mut first = [0; Row::BYTES];
        let mut record_bytes = Row::BYTES_V1;
        let mut done = !read_whole(&mut source, &mut first[..record_bytes])?;
        if !done && first[..MAGIC.len()] != MAGIC_V1[..] {
            record_bytes = Row::BYTES;
            done = !read_whole(&mut source, &mut first[Row::BYTES_V1..])?;
        }
        let magic = match record_bytes {
            Row::BYTES_V1 => MAGIC_V1,
            _ => MAGIC,
        };
        let is_head =
            first.starts_with(magic) && first[magic.len()..].iter().all(|&byte| byte == 0);
        if !done && !is_head {
            return Err(SpoolError::Foreign);
        }
        Ok(SpoolReader {
            source,
            record_bytes,
            record: 0,
            done,
        })
    }

    /// The next record, whole or damaged; `None` at the end of the file.
    fn next_record(&mut self) -> io::Result<Option<Result<Row, RowError>>> {
        let mut record = [0; Row::BYTES];
        let record = &mut record[..self.record_bytes];
        let whole = read_whole(&mut self.source, record)?;
        Ok(whole.then(|| Row::decode_any(record)))
    }

    /// The next whole record; `None` at the end, torn or not.
    fn row(&mut self) -> Result<Option<Row>, SpoolError> {
        let Some(decoded) = self.next_record()? else {
            return Ok(None);
        };
        self.record += 1;
        match decoded {
            Ok(row) => Ok(Some(row)),
            Err(source) => self.end_or_damage(source),
        }
    }

    /// After a damaged record: the end of what was written if nothing whole follows, else an error.
    fn end_or_damage(&mut self, source: RowError) -> Result<Option<Row>, SpoolError> {
        while let Some(decoded) = self.next_record()? {
            if decoded.is_ok() {
                return Err(SpoolError::Damaged {
                    record: self.record - 1,
                    source,
                });
            }
        }
        Ok(None)
    }
}

/// Fills the buffer; false if the file ends before.
fn read_whole(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match source.read_exact(buffer) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
        Ok(()) => Ok(true),
    }
}

impl Iterator for SpoolReader {
    type Item = Result<Vec<Row>, SpoolError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let mut rows = Vec::with_capacity(BATCH_ROWS);
        while rows.len() < BATCH_ROWS {
            match self.row() {
                Ok(Some(row)) => rows.push(row),
                Ok(None) => {
                    self.done = true;
                    break;
                }
                Err(error) => {
                    self.done = true;
                    return Some(Err(error));
                }
            }
        }
        (!rows.is_empty()).then_some(Ok(rows))
    }
}
