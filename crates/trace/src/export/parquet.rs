//! The history of kept calls as a Parquet file: the rows and names of the CSV form, with types, for
//! tools that query millions of calls.
//!
//! Source: the Parquet format, `github.com/apache/parquet-format`.

use std::sync::Arc;

use parquet::basic::Compression;
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::{ParquetError, Result};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::history::{Row, rows};
use crate::model::Trace;

/// `result` is null if it is unknown, `label` if the call did not sleep, the waiters if they were
/// not counted.
const SCHEMA: &str = "message history {
    required binary call (utf8);
    required int64 invocation;
    required int64 pid;
    required int64 thread;
    required int64 start_ns;
    required int64 wall_ns;
    required int64 in_band_ns;
    required int64 asleep_ns;
    required int64 preempted_ns;
    optional int64 result;
    optional binary label (utf8);
    required binary site (utf8);
    optional int64 waiters_entry_max;
    optional int64 waiters_exit_max;
}";

/// Rows that are compressed together.
const GROUP_ROWS: usize = 1 << 18;

/// A row a kept call, in the order they began.
///
/// # Errors
///
/// The library refused a row.
pub fn parquet(trace: &Trace) -> Result<Vec<u8>> {
    let properties = WriterProperties::builder()
        .set_created_by(concat!("headway ", env!("CARGO_PKG_VERSION")).into())
        .set_compression(Compression::SNAPPY)
        .build();
    let schema = Arc::new(parse_message_type(SCHEMA)?);
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties))?;
    let rows: Vec<Row<'_>> = rows(trace).collect();
    for part in rows.chunks(GROUP_ROWS) {
        let mut group = writer.next_row_group()?;
        let mut at = 0;
        while let Some(mut column) = group.next_column()? {
            write(column.untyped(), at, part)?;
            column.close()?;
            at += 1;
        }
        group.close()?;
    }
    writer.into_inner()
}

fn write(column: &mut ColumnWriter<'_>, at: usize, rows: &[Row<'_>]) -> Result<()> {
    match (column, at) {
        (ColumnWriter::Int64ColumnWriter(column), RESULT | WAITERS_ENTRY | WAITERS_EXIT) => {
            let known: Vec<Option<i64>> = rows.iter().map(|row| optional(row, at)).collect();
            let levels: Vec<i16> = known.iter().map(|value| value.is_some().into()).collect();
            let values: Vec<i64> = known.into_iter().flatten().collect();
            column.write_batch(&values, Some(&levels), None)?;
        }
        (ColumnWriter::Int64ColumnWriter(column), at) => {
            let values: Vec<i64> = rows.iter().map(|row| number(row, at) as i64).collect();
            column.write_batch(&values, None, None)?;
        }
        (ColumnWriter::ByteArrayColumnWriter(column), LABEL) => {
            let slept = |row: &&Row<'_>| !row.label.is_empty();
            let levels: Vec<i16> = rows.iter().map(|row| i16::from(slept(&row))).collect();
            let texts = rows.iter().filter(slept);
            let values: Vec<ByteArray> = texts.map(|row| row.label.as_str().into()).collect();
            column.write_batch(&values, Some(&levels), None)?;
        }
        (ColumnWriter::ByteArrayColumnWriter(column), at) => {
            let text = |row: &Row<'_>| match at {
                CALL => ByteArray::from(row.call),
                _ => ByteArray::from(row.site.as_str()),
            };
            let values: Vec<ByteArray> = rows.iter().map(text).collect();
            column.write_batch(&values, None, None)?;
        }
        _ => {
            return Err(ParquetError::General(
                "the schema has no such column".into(),
            ));
        }
    }
    Ok(())
}

const CALL: usize = 0;
const RESULT: usize = 9;
const LABEL: usize = 10;
const WAITERS_ENTRY: usize = 12;
const WAITERS_EXIT: usize = 13;

/// The columns of numbers that may be unknown.
fn optional(row: &Row<'_>, at: usize) -> Option<i64> {
    match at {
        RESULT => row.result,
        WAITERS_ENTRY => row.waiters_entry_max.map(|count| count as i64),
        _ => row.waiters_exit_max.map(|count| count as i64),
    }
}

/// The columns of numbers that are always known, by their location in the schema.
fn number(row: &Row<'_>, at: usize) -> u64 {
    match at {
        1 => row.invocation,
        2 => u64::from(row.pid),
        3 => u64::from(row.thread),
        4 => row.start_ns,
        5 => row.wall_ns,
        6 => row.in_band_ns,
        7 => row.asleep_ns,
        _ => row.preempted_ns,
    }
}

#[cfg(test)]
mod tests {
    use headway_debox::Label;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;

    use crate::export::tests::kept;
    use crate::model::{CodeLocation, SleepAt, Trace};

    #[test]
    fn rows_have_names_types_and_nulls_when_a_file_is_read_back() {
        let sleep = SleepAt {
            label: Label::Pipe,
            total_ns: 40,
            waiters_entry_max: Some(0),
            waiters_exit_max: Some(3),
            ..SleepAt::default()
        };
        let trace = Trace {
            started_ns: 1000,
            locations: vec![CodeLocation::default()],
            kept: vec![
                kept("read", 1010, Some(-1), vec![sleep]),
                kept("read", 1020, None, vec![]),
            ],
            ..Trace::default()
        };
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), super::parquet(&trace).expect("rows")).expect("written");
        let reader = SerializedFileReader::new(file.reopen().expect("it is there"));
        let rows: Vec<_> = reader
            .expect("a Parquet file")
            .get_row_iter(None)
            .expect("rows")
            .map(|row| row.expect("a row").into_columns())
            .collect();
        let field = |row: usize, name: &str| {
            let columns: &Vec<(String, Field)> = &rows[row];
            let found = columns.iter().find(|(column, _)| column == name);
            found.map(|(_, field)| field.clone())
        };
        assert_eq!(rows.len(), 2);
        assert_eq!(field(0, "call"), Some(Field::Str("read".into())));
        assert_eq!(field(1, "invocation"), Some(Field::Long(2)));
        assert_eq!(field(0, "start_ns"), Some(Field::Long(10)));
        assert_eq!(field(0, "asleep_ns"), Some(Field::Long(40)));
        assert_eq!(field(0, "result"), Some(Field::Long(-1)));
        assert_eq!(field(1, "result"), Some(Field::Null));
        assert_eq!(field(0, "label"), Some(Field::Str("pipe".into())));
        assert_eq!(field(1, "label"), Some(Field::Null));
        // A count of zero is a value; not counted is null.
        assert_eq!(field(0, "waiters_entry_max"), Some(Field::Long(0)));
        assert_eq!(field(0, "waiters_exit_max"), Some(Field::Long(3)));
        assert_eq!(field(1, "waiters_entry_max"), Some(Field::Null));
        assert_eq!(field(1, "waiters_exit_max"), Some(Field::Null));
    }
}
