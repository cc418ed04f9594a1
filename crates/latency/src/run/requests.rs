//! `requests.parquet`: one row per request, for every tool that reads Parquet.
//!
//! Times are signed, so that a difference of two columns is what it looks like in SQL and in
//! pandas. What did not happen is null: no first byte, no status, no error, no class. Rows are in
//! the order in which the requests ended, so times climb and packed deltas keep them small. Files of
//! earlier versions lack the columns behind [`COLUMNS`].

use super::directory::OpenError;
use super::parquet_file::{self, Writer, read_optional, read_required, write_optional};
use crate::row::{Outcome, Row};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_typed_column_reader};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use parquet::file::writer::SerializedRowGroupWriter;
use std::fs::File;
use std::path::{Path, PathBuf};

/// The value of the key `headway.format`.
const FORMAT: &str = "headway-requests";

const SCHEMA: &str = "message requests {
    required int64 intended_ns;
    required int64 start_ns;
    optional int64 first_byte_ns;
    required int64 end_ns;
    required int64 size_bytes;
    required int64 bytes;
    optional int32 status (INTEGER(16, false));
    optional binary error (STRING);
    required int32 connection (INTEGER(32, false));
    required int32 ordinal (INTEGER(32, false));
    optional int32 class (INTEGER(8, false));
    required int32 target (INTEGER(8, false));
    required boolean warmup;
    optional int64 handshake_ns;
}";

/// The columns that every version has.
const COLUMNS: [&str; 13] = [
    "intended_ns",
    "start_ns",
    "first_byte_ns",
    "end_ns",
    "size_bytes",
    "bytes",
    "status",
    "error",
    "connection",
    "ordinal",
    "class",
    "target",
    "warmup",
];

/// A column that files had not always.
const HANDSHAKE: &str = "handshake_ns";

/// Columns with many different numbers: a dictionary would be as large as the column.
const DELTA_COLUMNS: [&str; 6] = [
    "intended_ns",
    "start_ns",
    "first_byte_ns",
    "end_ns",
    "connection",
    "ordinal",
];

/// Rows of a row group. Large enough for good compression, small enough for memory: about 40 MB of
/// rows.
const GROUP_ROWS: usize = 1 << 19;

/// Rows that are handed out at a time.
const BATCH_ROWS: usize = 1 << 13;

/// Writes rows to `requests.parquet`.
pub(super) struct RequestsWriter {
    writer: Writer,
    rows: Vec<Row>,
}

impl RequestsWriter {
    pub(super) fn create(path: &Path) -> Result<RequestsWriter> {
        Ok(RequestsWriter {
            writer: Writer::create(path, FORMAT, SCHEMA, &DELTA_COLUMNS)?,
            rows: Vec::new(),
        })
    }

    pub(super) fn append(&mut self, rows: &[Row]) -> Result<()> {
        self.rows.extend_from_slice(rows);
        if self.rows.len() >= GROUP_ROWS {
            self.write_group()
        } else {
            Ok(())
        }
    }

    pub(super) fn finish(mut self) -> Result<()> {
        if !self.rows.is_empty() {
            self.write_group()?;
        }
        self.writer.finish()
    }

    fn write_group(&mut self) -> Result<()> {
        let rows = &self.rows;
        let mut group = self.writer.parquet.next_row_group()?;
        let some = |value: u64, none: u64| (value != none).then_some(value as i64);
        required::<Int64Type, _>(&mut group, rows.iter().map(|row| row.intended_ns as i64))?;
        required::<Int64Type, _>(&mut group, rows.iter().map(|row| row.start_ns as i64))?;
        optional::<Int64Type, _>(
            &mut group,
            rows.iter().map(|row| some(row.first_byte_ns, 0)),
        )?;
        required::<Int64Type, _>(&mut group, rows.iter().map(|row| row.end_ns as i64))?;
        required::<Int64Type, _>(&mut group, rows.iter().map(|row| row.size_bytes as i64))?;
        required::<Int64Type, _>(&mut group, rows.iter().map(|row| row.bytes as i64))?;
        optional::<Int32Type, _>(
            &mut group,
            rows.iter()
                .map(|row| (row.status != 0).then_some(row.status.into())),
        )?;
        optional::<ByteArrayType, _>(&mut group, rows.iter().map(|row| error(row.error)))?;
        required::<Int32Type, _>(&mut group, rows.iter().map(|row| row.connection as i32))?;
        required::<Int32Type, _>(&mut group, rows.iter().map(|row| row.ordinal as i32))?;
        optional::<Int32Type, _>(
            &mut group,
            rows.iter()
                .map(|row| (row.class != Row::NO_CLASS).then_some(row.class.into())),
        )?;
        required::<Int32Type, _>(&mut group, rows.iter().map(|row| row.target.into()))?;
        required::<BoolType, _>(&mut group, rows.iter().map(|row| row.warmup))?;
        optional::<Int64Type, _>(&mut group, rows.iter().map(|row| some(row.handshake_ns, 0)))?;
        group.close()?;
        self.rows.clear();
        Ok(())
    }
}

fn error(outcome: Outcome) -> Option<ByteArray> {
    (outcome != Outcome::Ok).then(|| ByteArray::from(outcome.name()))
}

fn required<T: DataType, W: std::io::Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: impl Iterator<Item = T::T>,
) -> Result<()> {
    let mut column = group
        .next_column()?
        .expect("the schema has a column for each call");
    let values: Vec<T::T> = values.collect();
    column.typed::<T>().write_batch(&values, None, None)?;
    column.close()
}

fn optional<T: DataType, W: std::io::Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: impl Iterator<Item = Option<T::T>>,
) -> Result<()> {
    let mut column = group
        .next_column()?
        .expect("the schema has a column for each call");
    write_optional(column.typed::<T>(), values)?;
    column.close()
}

/// The rows of `requests.parquet`, a batch at a time.
pub(super) struct RequestsReader {
    path: PathBuf,
    file: SerializedFileReader<File>,
    group: usize,
    left: usize,
    columns: Option<Columns>,
    scratch: Scratch,
}

impl RequestsReader {
    pub(super) fn open(path: &Path) -> std::result::Result<RequestsReader, OpenError> {
        let file = parquet_file::open(path, FORMAT, &COLUMNS)?;
        parquet_file::check_types(&file, SCHEMA)
            .map_err(|error| parquet_file::damaged(path, &error))?;
        Ok(RequestsReader {
            path: path.into(),
            file,
            group: 0,
            left: 0,
            columns: None,
            scratch: Scratch::default(),
        })
    }

    fn batch(&mut self) -> Result<Option<Vec<Row>>> {
        while self.left == 0 {
            if self.group == self.file.num_row_groups() {
                return Ok(None);
            }
            let group = self.file.get_row_group(self.group)?;
            self.left = usize::try_from(group.metadata().num_rows()).unwrap_or(0);
            self.columns = Some(Columns::open(group.as_ref())?);
            self.group += 1;
        }
        let count = self.left.min(BATCH_ROWS);
        let columns = self
            .columns
            .as_mut()
            .expect("a group is open while rows are left");
        let rows = columns.read(count, &mut self.scratch)?;
        self.left -= count;
        Ok(Some(rows))
    }
}

impl Iterator for RequestsReader {
    type Item = std::result::Result<Vec<Row>, OpenError>;

    fn next(&mut self) -> Option<Self::Item> {
        let path = self.path.clone();
        self.batch()
            .map_err(|error| parquet_file::damaged(&path, &error))
            .transpose()
    }
}

/// The column readers of one row group.
struct Columns {
    intended_ns: ColumnReaderImpl<Int64Type>,
    start_ns: ColumnReaderImpl<Int64Type>,
    first_byte_ns: ColumnReaderImpl<Int64Type>,
    end_ns: ColumnReaderImpl<Int64Type>,
    size_bytes: ColumnReaderImpl<Int64Type>,
    bytes: ColumnReaderImpl<Int64Type>,
    status: ColumnReaderImpl<Int32Type>,
    error: ColumnReaderImpl<ByteArrayType>,
    connection: ColumnReaderImpl<Int32Type>,
    ordinal: ColumnReaderImpl<Int32Type>,
    class: ColumnReaderImpl<Int32Type>,
    target: ColumnReaderImpl<Int32Type>,
    warmup: ColumnReaderImpl<BoolType>,
    handshake_ns: Option<ColumnReaderImpl<Int64Type>>,
}

/// Values of one column of one batch, kept to be filled again.
#[derive(Default)]
struct Scratch {
    long: Vec<i64>,
    int: Vec<i32>,
    text: Vec<ByteArray>,
    bit: Vec<bool>,
}

const EMPTY: Row = Row {
    intended_ns: 0,
    start_ns: 0,
    first_byte_ns: 0,
    end_ns: 0,
    size_bytes: 0,
    bytes: 0,
    status: 0,
    error: Outcome::Ok,
    connection: 0,
    ordinal: 0,
    class: Row::NO_CLASS,
    target: 0,
    warmup: false,
    handshake_ns: 0,
};

impl Columns {
    fn open(group: &dyn RowGroupReader) -> Result<Columns> {
        let mut next = 0..;
        let mut column =
            || -> Result<ColumnReader> { group.get_column_reader(next.next().unwrap_or(0)) };
        Ok(Columns {
            intended_ns: get_typed_column_reader(column()?),
            start_ns: get_typed_column_reader(column()?),
            first_byte_ns: get_typed_column_reader(column()?),
            end_ns: get_typed_column_reader(column()?),
            size_bytes: get_typed_column_reader(column()?),
            bytes: get_typed_column_reader(column()?),
            status: get_typed_column_reader(column()?),
            error: get_typed_column_reader(column()?),
            connection: get_typed_column_reader(column()?),
            ordinal: get_typed_column_reader(column()?),
            class: get_typed_column_reader(column()?),
            target: get_typed_column_reader(column()?),
            warmup: get_typed_column_reader(column()?),
            handshake_ns: match has_handshake(group) {
                true => Some(get_typed_column_reader(column()?)),
                false => None,
            },
        })
    }

    fn read(&mut self, count: usize, scratch: &mut Scratch) -> Result<Vec<Row>> {
        let mut rows = vec![EMPTY; count];
        let Scratch {
            long,
            int,
            text,
            bit,
        } = scratch;
        let mut longs =
            |column: &mut ColumnReaderImpl<Int64Type>, put: fn(&mut Row, u64)| -> Result<()> {
                read_required(column, count, long)?;
                rows.iter_mut()
                    .zip(long.iter())
                    .for_each(|(row, value)| put(row, *value as u64));
                Ok(())
            };
        longs(&mut self.intended_ns, |row, value| row.intended_ns = value)?;
        longs(&mut self.start_ns, |row, value| row.start_ns = value)?;
        longs(&mut self.end_ns, |row, value| row.end_ns = value)?;
        longs(&mut self.size_bytes, |row, value| row.size_bytes = value)?;
        longs(&mut self.bytes, |row, value| row.bytes = value)?;
        read_optional(&mut self.first_byte_ns, count, long, |at, value| {
            rows[at].first_byte_ns = *value as u64
        })?;
        if let Some(column) = &mut self.handshake_ns {
            read_optional(column, count, long, |at, value| {
                rows[at].handshake_ns = *value as u64
            })?;
        }
        let mut ints =
            |column: &mut ColumnReaderImpl<Int32Type>, put: fn(&mut Row, i32)| -> Result<()> {
                read_required(column, count, int)?;
                rows.iter_mut()
                    .zip(int.iter())
                    .for_each(|(row, value)| put(row, *value));
                Ok(())
            };
        ints(&mut self.connection, |row, value| {
            row.connection = value as u32
        })?;
        ints(&mut self.ordinal, |row, value| row.ordinal = value as u32)?;
        ints(&mut self.target, |row, value| row.target = value as u8)?;
        read_optional(&mut self.status, count, int, |at, value| {
            rows[at].status = *value as u16
        })?;
        read_optional(&mut self.class, count, int, |at, value| {
            rows[at].class = *value as u8
        })?;
        read_required(&mut self.warmup, count, bit)?;
        rows.iter_mut()
            .zip(bit.iter())
            .for_each(|(row, value)| row.warmup = *value);
        let mut unknown = None;
        read_optional(&mut self.error, count, text, |at, value| {
            match outcome(value) {
                Some(outcome) => rows[at].error = outcome,
                None => unknown = Some(value.clone()),
            }
        })?;
        match unknown {
            None => Ok(rows),
            Some(name) => Err(ParquetError::General(format!(
                "error {name:?} is not one that this headway knows"
            ))),
        }
    }
}

/// Whether the first column behind those that every version has is the handshake.
fn has_handshake(group: &dyn RowGroupReader) -> bool {
    let columns = group.metadata().columns();
    let next = columns.get(COLUMNS.len());
    next.is_some_and(|column| column.column_descr().name() == HANDSHAKE)
}

fn outcome(name: &ByteArray) -> Option<Outcome> {
    std::str::from_utf8(name.data()).ok()?.parse().ok()
}
