//! Lines of a file, which may be compressed.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::Range;
use std::path::Path;

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

/// A longer line is skipped: memory is limited.
const LINE_BYTES_MAX: usize = 64 * 1024;

const BUFFER_BYTES: usize = 256 * 1024;

/// In front of it: the rest of the last buffer, which is a part of a line.
const REST_BYTES: usize = LINE_BYTES_MAX;

/// The first bytes of a compressed file (RFC 1952, RFC 8878).
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Lines without their ends, each a part of one buffer: nothing is copied but the rest of a buffer.
pub(crate) struct Lines {
    input: Box<dyn Read>,
    buffer: Vec<u8>,
    /// What of the buffer has been read and not given.
    unread: Range<usize>,
    at_end: bool,
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

    pub fn of(mut file: impl Read + 'static) -> io::Result<Lines> {
        let mut buffer = vec![0; REST_BYTES + BUFFER_BYTES];
        let mut read = 0;
        while read < ZSTD.len() {
            match read_some(&mut file, &mut buffer[REST_BYTES + read..])? {
                0 => break,
                more => read += more,
            }
        }
        let begins = &buffer[REST_BYTES..REST_BYTES + read];
        let (is_gzip, is_zstd) = (begins.starts_with(&GZIP), begins.starts_with(&ZSTD));
        if !is_gzip && !is_zstd {
            return Ok(Lines::with(Box::new(file), buffer, read));
        }
        let file = io::Cursor::new(begins.to_vec()).chain(file);
        let file = BufReader::with_capacity(BUFFER_BYTES, file);
        let input: Box<dyn Read> = match is_gzip {
            true => Box::new(MultiGzDecoder::new(file)),
            false => Box::new(Frames::new(file)),
        };
        Ok(Lines::with(input, buffer, 0))
    }

    fn with(input: Box<dyn Read>, buffer: Vec<u8>, read: usize) -> Lines {
        Lines {
            input,
            buffer,
            unread: REST_BYTES..REST_BYTES + read,
            at_end: false,
            too_long: 0,
        }
    }

    /// How many lines were skipped because they were too long.
    pub fn too_long(&self) -> u64 {
        self.too_long
    }

    /// The next line; `None` at the end.
    pub fn next(&mut self) -> io::Result<Option<&[u8]>> {
        let mut skips = false;
        let mut searched = 0;
        loop {
            let unread = &self.buffer[self.unread.clone()];
            if let Some(at) = memchr::memchr(b'\n', &unread[searched..]) {
                let line = self.unread.start..self.unread.start + searched + at;
                self.unread.start = line.end + 1;
                if skips || line.len() > LINE_BYTES_MAX {
                    self.too_long += 1;
                    (skips, searched) = (false, 0);
                    continue;
                }
                return Ok(Some(self.buffer[line].trim_ascii_end()));
            }
            searched = unread.len();
            if searched > LINE_BYTES_MAX {
                skips = true;
                self.unread.start = self.unread.end;
                searched = 0;
            }
            if self.at_end {
                let line = std::mem::replace(&mut self.unread, 0..0);
                if skips {
                    self.too_long += 1;
                    return Ok(None);
                }
                let line = &self.buffer[line];
                return Ok((!line.is_empty()).then(|| line.trim_ascii_end()));
            }
            self.fill()?;
        }
    }

    /// Moves what is unread in front of the part which is read into, and reads. So each read begins at the same
    /// address, and in a file at a multiple of its size: the kernel copies that much faster.
    fn fill(&mut self) -> io::Result<()> {
        let start = REST_BYTES - self.unread.len();
        self.buffer.copy_within(self.unread.clone(), start);
        let read = read_some(&mut self.input, &mut self.buffer[REST_BYTES..])?;
        self.at_end = read == 0;
        self.unread = start..REST_BYTES + read;
        Ok(())
    }
}

fn read_some(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match input.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
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
        let mut text = vec![b'x'; LINE_BYTES_MAX];
        text.extend_from_slice(b"\nshort\n");
        assert_eq!(all(text)[1..], ["short"]);
        let mut text = b"first\n".to_vec();
        text.extend(vec![b'x'; super::BUFFER_BYTES]);
        assert_eq!(all(text), ["first", "1 too long"]);
    }

    #[test]
    fn damaged_file_is_an_error() {
        let mut lines = Lines::of(Cursor::new(vec![0x1f, 0x8b, 1, 2, 3])).expect("it begins");
        assert!(lines.next().is_err());
    }
}
