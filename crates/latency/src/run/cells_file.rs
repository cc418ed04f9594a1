//! `cells.parquet`: the joint size × latency histogram, a row a cell.
//!
//! The file is small, and the cells of several machines add up: sum `requests` over equal
//! (`size_bytes`, `bucket`, `complete`). The limits of each bucket are beside its number, so a
//! reader need not know how buckets are numbered.

use super::directory::OpenError;
use super::parquet_file::{self, Writer, read_required};
use crate::cells::{Cell, Cells};
use crate::histogram::Bucket;
use parquet::column::reader::get_typed_column_reader;
use parquet::column::writer::ColumnWriter;
use parquet::data_type::{BoolType, DataType, Int32Type, Int64Type};
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{FileReader, RowGroupReader};
use std::path::Path;

/// The value of the key `headway.format`.
const FORMAT: &str = "headway-cells";

const SCHEMA: &str = "message cells {
    required int64 size_bytes;
    required int32 bucket;
    required int64 low_ns;
    required int64 high_ns;
    required boolean complete;
    required int64 requests;
}";

const COLUMNS: [&str; 6] = [
    "size_bytes",
    "bucket",
    "low_ns",
    "high_ns",
    "complete",
    "requests",
];

const DELTA_COLUMNS: [&str; 4] = ["bucket", "low_ns", "high_ns", "requests"];

/// Cells that are encoded together.
const GROUP_ROWS: usize = 1 << 18;

/// Writes cells, sorted by size, then latency.
pub(super) fn write(path: &Path, cells: &Cells) -> Result<()> {
    let mut writer = Writer::create(path, FORMAT, SCHEMA, &DELTA_COLUMNS)?;
    let mut cells = cells.iter();
    loop {
        let part: Vec<(Cell, u64)> = cells.by_ref().take(GROUP_ROWS).collect();
        if part.is_empty() {
            return writer.finish();
        }
        let mut group = writer.parquet.next_row_group()?;
        let mut at = 0;
        while let Some(mut column) = group.next_column()? {
            write_column(column.untyped(), at, &part)?;
            column.close()?;
            at += 1;
        }
        group.close()?;
    }
}

fn write_column(column: &mut ColumnWriter<'_>, at: usize, cells: &[(Cell, u64)]) -> Result<()> {
    let longs = |value: fn(&(Cell, u64)) -> u64| {
        cells
            .iter()
            .map(|cell| value(cell) as i64)
            .collect::<Vec<_>>()
    };
    match column {
        ColumnWriter::BoolColumnWriter(column) => {
            let values: Vec<bool> = cells.iter().map(|(cell, _)| cell.complete).collect();
            column.write_batch(&values, None, None)?;
        }
        ColumnWriter::Int32ColumnWriter(column) => {
            let values: Vec<i32> = cells.iter().map(|(cell, _)| cell.bucket as i32).collect();
            column.write_batch(&values, None, None)?;
        }
        ColumnWriter::Int64ColumnWriter(column) => {
            let values = match COLUMNS[at] {
                "size_bytes" => longs(|(cell, _)| cell.size_bytes),
                "low_ns" => longs(|(cell, _)| Bucket::low(cell.bucket)),
                "high_ns" => longs(|(cell, _)| Bucket::high(cell.bucket)),
                _ => longs(|(_, requests)| *requests),
            };
            column.write_batch(&values, None, None)?;
        }
        _ => {
            return Err(ParquetError::General(
                "the schema of cells has no such column".into(),
            ));
        }
    }
    Ok(())
}

/// Reads cells back.
pub(super) fn read(path: &Path) -> std::result::Result<Cells, OpenError> {
    let file = parquet_file::open(path, FORMAT, &COLUMNS)?;
    parquet_file::check_types(&file, SCHEMA)
        .map_err(|error| parquet_file::damaged(path, &error))?;
    let mut cells = Cells::new();
    for group in 0..file.num_row_groups() {
        let group = file
            .get_row_group(group)
            .map_err(|error| parquet_file::damaged(path, &error))?;
        read_group(group.as_ref(), &mut cells)
            .map_err(|error| parquet_file::damaged(path, &error))?;
    }
    Ok(cells)
}

fn read_group(group: &dyn RowGroupReader, cells: &mut Cells) -> Result<()> {
    let count = usize::try_from(group.metadata().num_rows()).unwrap_or(0);
    let sizes = column::<Int64Type>(group, 0, count)?;
    let buckets = column::<Int32Type>(group, 1, count)?;
    let complete = column::<BoolType>(group, 4, count)?;
    let requests = column::<Int64Type>(group, 5, count)?;
    for (((size, bucket), complete), requests) in
        sizes.into_iter().zip(buckets).zip(complete).zip(requests)
    {
        let bucket = u32::try_from(bucket)
            .ok()
            .filter(|bucket| (*bucket as usize) < Bucket::COUNT);
        let bucket =
            bucket.ok_or_else(|| ParquetError::General("a bucket is out of range".into()))?;
        cells.add(
            Cell {
                size_bytes: size as u64,
                bucket,
                complete,
            },
            requests as u64,
        );
    }
    Ok(())
}

fn column<T: DataType>(group: &dyn RowGroupReader, at: usize, count: usize) -> Result<Vec<T::T>> {
    let mut values = Vec::with_capacity(count);
    let mut reader = get_typed_column_reader::<T>(group.get_column_reader(at)?);
    read_required(&mut reader, count, &mut values)?;
    Ok(values)
}
