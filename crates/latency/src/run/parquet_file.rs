//! What the Parquet files of a run have in common: how they are named inside, checked, written and
//! read.
//!
//! A file names its format, version and a checksum in the key-value metadata of its footer. The
//! checksum is over the whole file, its own sixteen digits taken as zeroes, and it is found and
//! compared before anything is decoded: pages carry no check of their own and may decode to wrong
//! values when damaged, and the library panics on some damaged footers. So a file that was
//! truncated, damaged or not written by headway never reaches the decoder, however well its columns
//! fit.
//!
//! Source: the Parquet format, `github.com/apache/parquet-format` (Encodings.md, parquet.thrift).

use super::directory::OpenError;
use super::regular;
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
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The version of the Parquet files that this program writes and the newest it reads.
pub(super) const VERSION: u32 = 1;

const KEY_FORMAT: &str = "headway.format";
const KEY_VERSION: &str = "headway.version";
const KEY_CHECKSUM: &str = "headway.checksum";

/// The text before the digits of the checksum, by which they are found without decoding the footer.
const CHECKSUM_PREFIX: &[u8] = b"headway-sum:";

/// The digits of the checksum while it is computed.
const NO_DIGITS: &[u8; 16] = b"0000000000000000";

/// A footer ends with its own length and these.
const MAGIC: &[u8; 4] = b"PAR1";

/// A Parquet file in the making; it gets its name when it is whole.
pub(super) struct Writer {
    pub(super) parquet: SerializedFileWriter<Summed>,
    temporary: PathBuf,
    path: PathBuf,
}

impl Writer {
    /// Begins `path` under a temporary name. `delta` names the columns of numbers that climb, the
    /// others get a dictionary.
    pub(super) fn create(
        path: &Path,
        format: &str,
        schema: &str,
        delta: &[&str],
    ) -> Result<Writer> {
        Writer::create_version(VERSION, path, format, schema, delta)
    }

    fn create_version(
        version: u32,
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
                KeyValue::new(KEY_VERSION.into(), version.to_string()),
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
            file: File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(&temporary)?,
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
        let value = [CHECKSUM_PREFIX, NO_DIGITS].concat();
        let value = String::from_utf8_lossy(&value).into_owned();
        self.parquet
            .append_key_value_metadata(KeyValue::new(KEY_CHECKSUM.into(), value));
        let Summed { mut file, sum } = self.parquet.into_inner()?;
        let lost = || ParquetError::General("the footer has no checksum".into());
        let digits = Footer::read(&mut file)?
            .and_then(|footer| footer.digits())
            .ok_or_else(lost)?;
        file.seek(SeekFrom::Start(digits))?;
        file.write_all(format!("{:016x}", sum.value()).as_bytes())?;
        file.sync_all()?;
        fs::rename(&self.temporary, &self.path)?;
        Ok(())
    }
}

/// The end of a Parquet file, not decoded.
struct Footer {
    /// Where the footer begins.
    at: u64,
    bytes: Vec<u8>,
}

impl Footer {
    /// Reads the footer; `None` if the file does not end as a Parquet file does.
    fn read(file: &mut File) -> io::Result<Option<Footer>> {
        let length = file.seek(SeekFrom::End(0))?;
        let Some(end) = length.checked_sub(8) else {
            return Ok(None);
        };
        let mut tail = [0; 8];
        file.seek(SeekFrom::Start(end))?;
        file.read_exact(&mut tail)?;
        let footer = u64::from(u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]));
        let Some(at) = end.checked_sub(footer).filter(|_| tail[4..] == MAGIC[..]) else {
            return Ok(None);
        };
        let mut bytes = vec![0; (end - at) as usize];
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(&mut bytes)?;
        Ok(Some(Footer { at, bytes }))
    }

    /// Where in the file the digits of the checksum are; `None` if it has none.
    fn digits(&self) -> Option<u64> {
        let mark = self
            .bytes
            .windows(CHECKSUM_PREFIX.len())
            .rposition(|window| window == CHECKSUM_PREFIX)?;
        let digits = mark + CHECKSUM_PREFIX.len();
        (digits + NO_DIGITS.len() <= self.bytes.len()).then_some(self.at + digits as u64)
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

/// A checksum against damage, not against malice: FNV-1a over words of eight bytes, whatever the
/// pieces are.
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
    let mut file = regular::open(path).map_err(|source| OpenError::Io {
        path: path.into(),
        source,
    })?;
    let whole = check_sum(&mut file).map_err(|source| OpenError::Io {
        path: path.into(),
        source,
    })?;
    whole.map_err(|why| OpenError::Damaged {
        path: path.into(),
        why: why.into(),
    })?;
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
    Ok(reader)
}

/// Reads the file once and compares it with the sum that its footer promises; what is wrong is
/// data.
fn check_sum(file: &mut File) -> io::Result<std::result::Result<(), &'static str>> {
    let Some(footer) = Footer::read(file)? else {
        return Ok(Err(
            "not a whole Parquet file; it may be truncated: restore it from a copy or measure again",
        ));
    };
    let Some(digits) = footer.digits() else {
        return Ok(Err(
            "a Parquet file that headway did not write; put the file of this run back",
        ));
    };
    let mut found = Sum::default();
    sum_span(file, 0, digits, &mut found)?;
    let mut promised = [0; NO_DIGITS.len()];
    file.read_exact(&mut promised)?;
    found.add(NO_DIGITS);
    sum_span(file, digits + NO_DIGITS.len() as u64, u64::MAX, &mut found)?;
    if format!("{:016x}", found.value()).as_bytes() == promised {
        return Ok(Ok(()));
    }
    Ok(Err(
        "damaged: its content does not match its checksum; restore it from a copy or measure again",
    ))
}

/// Adds the bytes from `start` to `end` or the end of the file, and stays behind them.
fn sum_span(file: &mut File, start: u64, end: u64, sum: &mut Sum) -> io::Result<()> {
    file.seek(SeekFrom::Start(start))?;
    let mut span = file.take(end.saturating_sub(start));
    let mut buffer = vec![0; 1 << 18];
    loop {
        match span.read(&mut buffer)? {
            0 => return Ok(()),
            read => sum.add(&buffer[..read]),
        }
    }
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
        None => return foreign("has no format; measure again or restore the file".into()),
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
    // A later version may have added columns at the end.
    if !found.starts_with(columns) {
        return foreign(format!("has the columns {found:?}, expected {columns:?}"));
    }
    Ok(())
}

fn metadata<'a>(reader: &'a SerializedFileReader<File>, key: &str) -> Option<&'a str> {
    let pairs = reader.metadata().file_metadata().key_value_metadata()?;
    pairs.iter().find(|pair| pair.key == key)?.value.as_deref()
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

/// Puts a remedy before the message of the Parquet library.
pub(super) fn damaged(path: &Path, error: &ParquetError) -> OpenError {
    let why = format!("cannot be decoded ({error}): restore it from a copy or measure again");
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

/// Reads up to `count` values of a column that may have nulls and hands each to `take`, with its
/// position.
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

    #[test]
    fn parquet_file_is_an_error_when_newer_or_with_other_columns() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("some.parquet");
        let write = |version, schema: &str| {
            let writer =
                Writer::create_version(version, &path, "some", schema, &[]).expect("a new file");
            writer.finish().expect("room on the disk");
            open(&path, "some", &["a"])
                .map(|file| check_types(&file, "message m { required int64 a; }"))
        };
        assert!(matches!(
            write(VERSION, "message m { required int64 a; }"),
            Ok(Ok(()))
        ));
        assert!(matches!(
            write(VERSION, "message m { required int32 a; }"),
            Ok(Err(_))
        ));
        assert!(matches!(
            write(VERSION, "message m { optional int64 a; }"),
            Ok(Err(_))
        ));
        assert!(matches!(
            write(VERSION, "message m { required int64 b; }"),
            Err(OpenError::Damaged { .. })
        ));
        let newer = write(VERSION + 1, "message m { required int32 future; }");
        assert!(matches!(newer, Err(OpenError::Newer { found: 2, .. })));
    }

    proptest! {
        #[test]
        fn checksum_does_not_depend_on_the_pieces(bytes in proptest::collection::vec(any::<u8>(), 0..100), cut in 0..100_usize) {
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
