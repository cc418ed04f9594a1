//! What the Parquet files of a run have in common: how they are named inside, checked, written and read.
//!
//! A file names its format, version and a checksum of its data pages in the key-value metadata of its
//! footer. The checksum is compared before a page is decoded: Parquet's own pages carry none here, and a
//! decoder that meets damaged pages may return wrong values instead of an error. A file without these keys
//! was not written by headway and is refused, however well its columns fit.
//!
//! Source: the Parquet format, `github.com/apache/parquet-format` (Encodings.md, parquet.thrift).

use super::directory::OpenError;
use parquet::basic::{Compression, Encoding, Repetition};
use parquet::column::reader::ColumnReaderImpl;
use parquet::column::writer::ColumnWriterImpl;
use parquet::data_type::DataType;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The version of the Parquet files that this program writes and the newest it reads.
pub(super) const VERSION: u32 = 1;

const KEY_FORMAT: &str = "headway.format";
const KEY_VERSION: &str = "headway.version";
const KEY_CHECKSUM: &str = "headway.checksum";

/// A Parquet file in the making; it gets its name when it is whole.
pub(super) struct Writer {
    pub(super) parquet: SerializedFileWriter<Summed>,
    temporary: PathBuf,
    path: PathBuf,
}

impl Writer {
    /// Begins `path` under a temporary name. `delta` names the columns of numbers that climb, the others get a dictionary.
    pub(super) fn create(
        path: &Path,
        format: &str,
        schema: &str,
        delta: &[&str],
    ) -> Result<Writer> {
        let mut properties = WriterProperties::builder()
            .set_created_by(concat!("headway ", env!("CARGO_PKG_VERSION")).into())
            .set_compression(Compression::SNAPPY)
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_offset_index_disabled(true)
            .set_data_page_row_count_limit(1 << 16)
            .set_write_batch_size(1 << 13)
            .set_key_value_metadata(Some(vec![
                KeyValue::new(KEY_FORMAT.into(), format.to_owned()),
                KeyValue::new(KEY_VERSION.into(), VERSION.to_string()),
            ]));
        for name in delta {
            // Packed deltas hardly compress, and snappy would cost the reader more than it saves.
            let column = || ColumnPath::from(*name);
            properties = properties
                .set_column_dictionary_enabled(column(), false)
                .set_column_encoding(column(), Encoding::DELTA_BINARY_PACKED)
                .set_column_compression(column(), Compression::UNCOMPRESSED);
        }
        let temporary = path.with_extension("parquet.part");
        let schema = Arc::new(parse_message_type(schema)?);
        let file = Summed {
            file: File::create(&temporary)?,
            sum: Sum::default(),
        };
        let parquet = SerializedFileWriter::new(file, schema, Arc::new(properties.build()))?;
        Ok(Writer {
            parquet,
            temporary,
            path: path.into(),
        })
    }

    /// Writes the footer, waits until everything is on disk, and gives the file its name.
    pub(super) fn finish(mut self) -> Result<()> {
        self.parquet.flush()?;
        let (bytes, sum) = (
            self.parquet.bytes_written(),
            self.parquet.inner().sum.value(),
        );
        let value = format!("{sum:016x}:{bytes}");
        self.parquet
            .append_key_value_metadata(KeyValue::new(KEY_CHECKSUM.into(), value));
        self.parquet.into_inner()?.file.sync_all()?;
        fs::rename(&self.temporary, &self.path)?;
        Ok(())
    }
}

/// A file that sums what is written to it.
pub(super) struct Summed {
    file: File,
    sum: Sum,
}

impl Write for Summed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.sum.add(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A checksum against damage, not against malice: FNV-1a over words of eight bytes, whatever the pieces are.
#[derive(Default)]
struct Sum {
    state: u64,
    pending: [u8; 8],
    filled: usize,
}

impl Sum {
    fn add(&mut self, mut bytes: &[u8]) {
        while self.filled > 0 && !bytes.is_empty() {
            self.byte(bytes[0]);
            bytes = &bytes[1..];
        }
        let (words, rest) = bytes.as_chunks::<8>();
        words
            .iter()
            .for_each(|word| self.word(u64::from_le_bytes(*word)));
        rest.iter().for_each(|&byte| self.byte(byte));
    }

    fn byte(&mut self, byte: u8) {
        self.pending[self.filled] = byte;
        self.filled = (self.filled + 1) % 8;
        if self.filled == 0 {
            self.word(u64::from_le_bytes(self.pending));
        }
    }

    fn word(&mut self, word: u64) {
        self.state =
            (self.state ^ word ^ 0xcbf2_9ce4_8422_2325).wrapping_mul(0x0000_0100_0000_01b3);
        self.state ^= self.state >> 32;
    }

    fn value(&self) -> u64 {
        let mut rest = Sum {
            state: self.state,
            ..Sum::default()
        };
        rest.word(
            self.pending[..self.filled]
                .iter()
                .fold(self.filled as u64, |word, &byte| {
                    word << 8 | u64::from(byte)
                }),
        );
        rest.state
    }
}

/// Opens a Parquet file of a run and makes sure that it is whole and of the expected format.
pub(super) fn open(
    path: &Path,
    format: &str,
    columns: &[&str],
) -> std::result::Result<SerializedFileReader<File>, OpenError> {
    let io = |source| OpenError::Io {
        path: path.into(),
        source,
    };
    let file = File::open(path).map_err(io)?;
    let summed = file.try_clone().map_err(io)?;
    let reader = SerializedFileReader::new(file).map_err(|error| damaged(path, &error))?;
    check_format(&reader, format, columns).map_err(|found| match found {
        Mismatch::Newer(found) => OpenError::Newer {
            path: path.into(),
            found,
        },
        Mismatch::Foreign(why) => OpenError::Damaged {
            path: path.into(),
            why,
        },
    })?;
    check_sum(summed, metadata(&reader, KEY_CHECKSUM)).map_err(|why| OpenError::Damaged {
        path: path.into(),
        why,
    })?;
    Ok(reader)
}

enum Mismatch {
    Newer(u32),
    Foreign(String),
}

fn check_format(
    reader: &SerializedFileReader<File>,
    format: &str,
    columns: &[&str],
) -> std::result::Result<(), Mismatch> {
    let foreign = |why: String| Err(Mismatch::Foreign(why));
    match metadata(reader, KEY_FORMAT) {
        Some(found) if found == format => {}
        Some(found) => {
            return foreign(format!(
                "holds {found:?}, expected {format:?}; was it renamed?"
            ));
        }
        None => {
            return foreign(
                "a Parquet file that headway did not write; put the file of this run back".into(),
            );
        }
    }
    match metadata(reader, KEY_VERSION).and_then(|version| version.parse().ok()) {
        Some(version) if version > VERSION => return Err(Mismatch::Newer(version)),
        Some(_) => {}
        None => return foreign("has no version; measure again or restore the file".into()),
    }
    let schema = reader.metadata().file_metadata().schema_descr();
    let found: Vec<&str> = schema
        .columns()
        .iter()
        .map(|column| column.name())
        .collect();
    if found != columns {
        return foreign(format!("has the columns {found:?}, expected {columns:?}"));
    }
    Ok(())
}

fn metadata<'a>(reader: &'a SerializedFileReader<File>, key: &str) -> Option<&'a str> {
    let pairs = reader.metadata().file_metadata().key_value_metadata()?;
    pairs.iter().find(|pair| pair.key == key)?.value.as_deref()
}

/// Reads the data pages once and compares them with the sum that the footer promises.
fn check_sum(file: File, promised: Option<&str>) -> std::result::Result<(), String> {
    let damaged = || {
        "damaged: its data does not match its checksum; restore it from a copy or measure again"
            .to_owned()
    };
    let (sum, bytes) = promised
        .and_then(|text| text.split_once(':'))
        .ok_or_else(damaged)?;
    let bytes = bytes.parse().map_err(|_| damaged())?;
    let mut source = BufReader::with_capacity(1 << 18, file).take(bytes);
    io::Seek::rewind(source.get_mut()).map_err(|error| error.to_string())?;
    let mut found = Sum::default();
    let mut buffer = vec![0; 1 << 18];
    loop {
        match source
            .read(&mut buffer)
            .map_err(|error| error.to_string())?
        {
            0 => break,
            read => found.add(&buffer[..read]),
        }
    }
    if format!("{:016x}", found.value()) == sum {
        Ok(())
    } else {
        Err(damaged())
    }
}

/// The library panics when a column is read as another type, so the types are compared first.
pub(super) fn check_types(file: &SerializedFileReader<File>, schema: &str) -> Result<()> {
    let expected = parse_message_type(schema)?;
    let found = file.metadata().file_metadata().schema_descr().columns();
    for (column, field) in found.iter().zip(expected.get_fields()) {
        let nullable = field.get_basic_info().repetition() == Repetition::OPTIONAL;
        let levels = (column.max_def_level(), column.max_rep_level());
        if column.physical_type() != field.get_physical_type() || levels != (i16::from(nullable), 0)
        {
            return Err(ParquetError::General(format!(
                "column {} has another type",
                column.name()
            )));
        }
    }
    Ok(())
}

/// Words a user can act on, in front of what the Parquet library says.
pub(super) fn damaged(path: &Path, error: &ParquetError) -> OpenError {
    let why = format!(
        "not a whole Parquet file ({error}); it may be truncated: restore it from a copy or measure again"
    );
    OpenError::Damaged {
        path: path.into(),
        why,
    }
}

/// Writes the next column of a row group from its values; `None` becomes null.
pub(super) fn write_optional<T: DataType>(
    column: &mut ColumnWriterImpl<'_, T>,
    values: impl Iterator<Item = Option<T::T>>,
) -> Result<()> {
    let mut levels = Vec::new();
    let present: Vec<T::T> = values
        .inspect(|value| levels.push(i16::from(value.is_some())))
        .flatten()
        .collect();
    column.write_batch(&present, Some(&levels), None).map(drop)
}

/// Reads up to `count` values of a column that has no nulls.
pub(super) fn read_required<T: DataType>(
    column: &mut ColumnReaderImpl<T>,
    count: usize,
    values: &mut Vec<T::T>,
) -> Result<()> {
    values.clear();
    while values.len() < count {
        if column
            .read_records(count - values.len(), None, None, values)?
            .0
            == 0
        {
            return Err(ParquetError::EOF(
                "a column is shorter than the others".into(),
            ));
        }
    }
    Ok(())
}

/// Reads up to `count` values of a column that may have nulls and hands each to `take`, with its position.
pub(super) fn read_optional<T: DataType>(
    column: &mut ColumnReaderImpl<T>,
    count: usize,
    values: &mut Vec<T::T>,
    mut take: impl FnMut(usize, &T::T),
) -> Result<()> {
    values.clear();
    let mut levels = Vec::with_capacity(count);
    while levels.len() < count {
        if column
            .read_records(count - levels.len(), Some(&mut levels), None, values)?
            .0
            == 0
        {
            return Err(ParquetError::EOF(
                "a column is shorter than the others".into(),
            ));
        }
    }
    let present = levels.iter().enumerate().filter(|(_, level)| **level == 1);
    present
        .zip(values.iter())
        .for_each(|((position, _), value)| take(position, value));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sum_is_the_same_when_bytes_come_in_other_pieces(bytes in proptest::collection::vec(any::<u8>(), 0..100), cut in 0..100_usize) {
            let cut = cut.min(bytes.len());
            let (mut whole, mut pieces) = (Sum::default(), Sum::default());
            whole.add(&bytes);
            pieces.add(&bytes[..cut]);
            pieces.add(&bytes[cut..]);
            prop_assert_eq!(whole.value(), pieces.value());
            if let Some(last) = bytes.last() {
                let mut changed = Sum::default();
                changed.add(&bytes[..bytes.len() - 1]);
                prop_assert_ne!(changed.value(), whole.value());
                changed.add(&[last ^ 1]);
                prop_assert_ne!(changed.value(), whole.value());
            }
        }
    }
}
