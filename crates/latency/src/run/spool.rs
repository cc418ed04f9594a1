//! Rows on their way to becoming a Parquet file: fixed records, appended as the run goes.
//!
//! A Parquet file has its index at the end and is unreadable without it, so a killed run would lose
//! everything. The spool has none: each record of 64 bytes checks itself, and what a kill left half
//! written at the end is ignored. The first record is a head that names the format.

use crate::row::Row;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

/// The first record of a spool: format and version, zeroes to the end.
pub(super) const HEAD: &[u8; 18] = b"headway-spool v1\r\n";

/// Rows that are handed out at a time.
const BATCH: usize = 16_384;

/// The head as a whole record.
pub(super) fn head() -> [u8; Row::BYTES] {
    let mut record = [0; Row::BYTES];
    record[..HEAD.len()].copy_from_slice(HEAD);
    record
}

/// The rows of a run, a batch at a time.
pub struct RowBatches {
    source: BufReader<File>,
}

/// Why a spool could not be read.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// Reading failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file does not begin as a spool does.
    #[error("not a spool of this version of headway")]
    Foreign,
}

impl RowBatches {
    pub(super) fn open(path: &Path) -> Result<RowBatches, SpoolError> {
        let mut source = BufReader::with_capacity(1 << 20, File::open(path)?);
        let mut first = [0; Row::BYTES];
        match source.read_exact(&mut first) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(error) => return Err(error.into()),
            Ok(()) if first != head() => return Err(SpoolError::Foreign),
            Ok(()) => {}
        }
        Ok(RowBatches { source })
    }
}

impl Iterator for RowBatches {
    type Item = Result<Vec<Row>, SpoolError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut rows = Vec::with_capacity(BATCH);
        let mut record = [0; Row::BYTES];
        while rows.len() < BATCH {
            match self.source.read_exact(&mut record) {
                Ok(()) => match Row::decode(&record) {
                    Ok(row) => rows.push(row),
                    Err(_) => break,
                },
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                Err(error) => return Some(Err(error.into())),
            }
        }
        (!rows.is_empty()).then_some(Ok(rows))
    }
}
