//! Lines of a file, which may be compressed.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

/// A longer line is skipped: memory is limited.
const LINE_BYTES_MAX: usize = 64 * 1024;

const BUFFER_BYTES: usize = 256 * 1024;

/// The first bytes of a compressed file (RFC 1952, RFC 8878).
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Lines without their ends.
pub(crate) struct Lines {
    input: Box<dyn BufRead>,
    line: Vec<u8>,
    too_long: u64,
}

impl Lines {
    /// Opens a file, or standard input for `-`.
    pub fn open(path: &Path) -> io::Result<Lines> {
        match path.as_os_str() == "-" {
            true => Lines::of(io::stdin()),
            false => Lines::of(File::open(path)?),
        }
    }

    pub fn of(file: impl Read + 'static) -> io::Result<Lines> {
        let mut file = BufReader::with_capacity(BUFFER_BYTES, file);
        let begins = file.fill_buf()?;
        let input: Box<dyn BufRead> = if begins.starts_with(&GZIP) {
            let file = MultiGzDecoder::new(file);
            Box::new(BufReader::with_capacity(BUFFER_BYTES, file))
        } else if begins.starts_with(&ZSTD) {
            Box::new(BufReader::with_capacity(BUFFER_BYTES, Frames::new(file)))
        } else {
            Box::new(file)
        };
        Ok(Lines {
            input,
            line: Vec::new(),
            too_long: 0,
        })
    }

    /// How many lines were skipped because they were too long.
    pub fn too_long(&self) -> u64 {
        self.too_long
    }

    /// The next line; `None` at the end.
    pub fn next(&mut self) -> io::Result<Option<&[u8]>> {
        loop {
            self.line.clear();
            let limit = LINE_BYTES_MAX as u64 + 1;
            let read = (&mut self.input)
                .take(limit)
                .read_until(b'\n', &mut self.line)?;
            if read == 0 {
                return Ok(None);
            }
            if self.line.last() == Some(&b'\n') {
                self.line.pop();
            } else if read as u64 == limit {
                self.too_long += 1;
                self.skip_line()?;
                continue;
            }
            return Ok(Some(self.line.trim_ascii_end()));
        }
    }

    fn skip_line(&mut self) -> io::Result<()> {
        loop {
            let bytes = self.input.fill_buf()?;
            let (used, is_end) = match memchr::memchr(b'\n', bytes) {
                Some(at) => (at + 1, true),
                None => (bytes.len(), bytes.is_empty()),
            };
            self.input.consume(used);
            if is_end {
                return Ok(());
            }
        }
    }
}

/// The content of all Zstandard frames of a file, one behind the other.
struct Frames<R: BufRead> {
    state: Option<Frame<R>>,
}

enum Frame<R: BufRead> {
    Between(R),
    In(Box<StreamingDecoder<R, ruzstd::decoding::FrameDecoder>>),
}

impl<R: BufRead> Frames<R> {
    fn new(input: R) -> Frames<R> {
        Frames {
            state: Some(Frame::Between(input)),
        }
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.state.take() {
                None => return Ok(0),
                Some(Frame::Between(mut input)) => {
                    if input.fill_buf()?.is_empty() {
                        return Ok(0);
                    }
                    let decoder = StreamingDecoder::new(input).map_err(io::Error::other)?;
                    self.state = Some(Frame::In(Box::new(decoder)));
                }
                Some(Frame::In(mut decoder)) => {
                    let read = decoder.read(buffer)?;
                    if read > 0 || buffer.is_empty() {
                        self.state = Some(Frame::In(decoder));
                        return Ok(read);
                    }
                    self.state = Some(Frame::Between(decoder.into_inner()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write};

    use super::{LINE_BYTES_MAX, Lines};

    fn all(bytes: Vec<u8>) -> Vec<String> {
        let mut lines = Lines::of(Cursor::new(bytes)).expect("it begins");
        let mut all = Vec::new();
        while let Some(line) = lines.next().expect("it is read") {
            all.push(String::from_utf8_lossy(line).into_owned());
        }
        if lines.too_long() > 0 {
            all.push(format!("{} too long", lines.too_long()));
        }
        all
    }

    #[test]
    fn lines_are_read_from_plain_and_compressed_files() {
        let text = b"one\r\n\ntwo";
        assert_eq!(all(text.to_vec()), ["one", "", "two"]);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(text).expect("memory");
        // Two of them, as logrotate's users put them together.
        let mut twice = gzip.finish().expect("memory");
        twice.extend_from_within(..);
        assert_eq!(all(twice), ["one", "", "twoone", "", "two"]);
        let mut frames = Vec::new();
        for _ in 0..2 {
            let level = ruzstd::encoding::CompressionLevel::Fastest;
            frames.extend(ruzstd::encoding::compress_to_vec(&text[..], level));
        }
        assert_eq!(all(frames), ["one", "", "twoone", "", "two"]);
    }

    #[test]
    fn line_beyond_the_limit_is_skipped_and_counted() {
        let mut text = vec![b'x'; 3 * LINE_BYTES_MAX];
        text.extend_from_slice(b"\nshort\n");
        assert_eq!(all(text), ["short", "1 too long"]);
        assert_eq!(all(vec![b'x'; LINE_BYTES_MAX + 1]), ["1 too long"]);
        assert_eq!(all(vec![b'x'; LINE_BYTES_MAX]).len(), 1);
    }

    #[test]
    fn damaged_file_is_an_error() {
        let mut lines = Lines::of(Cursor::new(vec![0x1f, 0x8b, 1, 2, 3])).expect("it begins");
        assert!(lines.next().is_err());
    }
}
