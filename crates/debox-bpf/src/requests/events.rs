//! Reads the events of `bpf/requests.bpf.c`; their structures are in `bpf/layout.h`.

use std::sync::Arc;

use crate::layout::CALL_NONE;

const EVENT_REQUEST: u64 = 6;
const EVENT_RESPONSE: u64 = 7;
const EVENT_OFF_CPU: u64 = 8;
const EVENT_HEAD: u64 = 9;
const EVENT_STATUS: u64 = 10;
const REQUEST_WORDS: usize = 16;
const RESPONSE_WORDS: usize = 6;
pub(super) const OFF_CPU_WORDS: usize = 16;
const HEAD_WORDS: usize = 3;
const STATUS_WORDS: usize = 5;
/// Bytes of `struct head_event` for the text; the last one is a zero.
const HEAD_BYTES: usize = 256;
/// Bytes of a path of a request that are kept.
const REQUEST_PATH_MAX: usize = 120;
pub(super) const NAME_WORDS: usize = 256 / 8;

/// Of the longest event.
const WORDS_MAX: usize = OFF_CPU_WORDS + NAME_WORDS;

/// Flags of a connection.
const SEEN_LATE: u64 = 1;
const UNANSWERED: u64 = 2;

/// A thread and its process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Thread {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
}

impl Thread {
    fn of(word: u64) -> Option<Thread> {
        (word != 0).then_some(Thread {
            pid: (word >> 32) as u32,
            tid: word as u32,
        })
    }
}

/// A request up to the first bytes of its response. Times are those of `CLOCK_MONOTONIC`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenRequest {
    /// The connection; each has a number of its own.
    pub connection: u64,
    /// Its place among the requests of the connection, from 0.
    pub sequence: u64,
    /// The thread that accepted the connection.
    pub acceptor: Option<Thread>,
    /// The thread that read the last bytes of the request.
    pub reader: Option<Thread>,
    /// The thread that sent the first bytes of the response; `None` if there is no response.
    pub writer: Option<Thread>,
    /// When the connection was established; `None` if that was before the observation.
    pub established_ns: Option<u64>,
    /// When it was accepted.
    pub accepted_ns: Option<u64>,
    /// When the first bytes of the request were queued in the socket.
    pub arrived_ns: u64,
    /// When they had been read.
    pub read_ns: Option<u64>,
    /// When the bytes that were read last were queued.
    pub last_arrived_ns: Option<u64>,
    /// When those had been read.
    pub last_read_ns: Option<u64>,
    /// When the first bytes of the response had been given to the kernel, or the connection ended.
    pub written_ns: u64,
    /// Bytes of the request.
    pub read_bytes: u64,
    /// Whether the connection is older than the observation.
    pub seen_late: bool,
    /// Whether the connection ended without a response.
    pub unanswered: bool,
    /// The server's port.
    pub port: u16,
    /// The client's port.
    pub client_port: u16,
}

/// How a response ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeenResponse {
    /// The connection.
    pub connection: u64,
    /// The request on it.
    pub sequence: u64,
    /// When its last bytes had been given to the kernel.
    pub last_written_ns: u64,
    /// When the client had acknowledged all but two segments; `None` if that was not seen.
    pub drained_ns: Option<u64>,
    /// Bytes of the response.
    pub written_bytes: u64,
}

/// Method and path of an HTTP/1 request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenHead {
    /// The connection.
    pub connection: u64,
    /// The request on it.
    pub sequence: u64,
    /// `GET /index.html`, without the query.
    pub line: String,
}

/// Status of an HTTP/1 response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeenStatus {
    /// The connection.
    pub connection: u64,
    /// The request on it.
    pub sequence: u64,
    /// Such as 404.
    pub status: u16,
}

/// The task that woke a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Waker {
    /// Its name.
    pub name: String,
    /// The thread and its process.
    pub thread: Thread,
    /// The kernel functions in which it did so, the innermost first; empty if they are not known.
    pub functions: Arc<[String]>,
}

/// A file at which a thread slept.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SleepFile {
    /// The path that the call was given.
    Path(String),
    /// The file of the call's descriptor.
    Open {
        /// Major and minor number of the device of its file system.
        device: (u32, u32),
        /// Its path from the root of that file system, with a slash at its beginning; without one,
        /// the last parts of it.
        path: String,
    },
}

/// Calls that failed with the same error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedCall {
    /// The number of the call.
    pub call: u32,
    /// As errno(3) numbers it.
    pub error: i32,
    /// How many.
    pub count: u64,
    /// The thread of the first.
    pub thread: Thread,
    /// The file of the first, if the call uses one.
    pub file: Option<SleepFile>,
}

impl FailedCall {
    /// An entry of the map: the call with the error in the lower half, and `struct failure`.
    pub(super) fn of<const N: usize>((key, words): (u64, [u64; N])) -> FailedCall {
        let first = RawOffCpu::of(&words[1..]);
        FailedCall {
            call: (key >> 32) as u32,
            error: key as u32 as i32,
            count: words[0],
            thread: first.thread,
            file: first.file,
        }
    }
}

/// A time that a thread was not on a CPU, without its reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RawOffCpu {
    pub thread: Thread,
    pub call: Option<u32>,
    pub start_ns: u64,
    pub woken_ns: Option<u64>,
    pub end_ns: u64,
    pub stack: u64,
    pub connection: Option<u64>,
    pub waker: Option<Waker>,
    pub waker_stack: u64,
    pub waiters: u64,
    pub file: Option<SleepFile>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RawEvent {
    Request(SeenRequest),
    Response(SeenResponse),
    OffCpu(RawOffCpu),
    Head(SeenHead),
    Status(SeenStatus),
}

impl RawEvent {
    /// `None` if the bytes are no event.
    pub fn of(bytes: &[u8]) -> Option<RawEvent> {
        // Not a vector: there are hundreds of thousands per second.
        let mut words = [0; WORDS_MAX];
        let length = (bytes.len() / 8).min(WORDS_MAX);
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
        }
        let words = &words[..length];
        match (*words.first()?, words.len()) {
            (EVENT_REQUEST, REQUEST_WORDS) => Some(RawEvent::Request(request(words))),
            (EVENT_RESPONSE, RESPONSE_WORDS) => Some(RawEvent::Response(SeenResponse {
                connection: words[1],
                sequence: words[2],
                last_written_ns: words[3],
                drained_ns: time(words[4]),
                written_bytes: words[5],
            })),
            (EVENT_HEAD, length) if length >= HEAD_WORDS => {
                let text = bytes.get(HEAD_WORDS * 8..)?;
                Some(RawEvent::Head(SeenHead {
                    connection: words[1],
                    sequence: words[2],
                    line: request_line(text)?,
                }))
            }
            (EVENT_STATUS, STATUS_WORDS) => Some(RawEvent::Status(SeenStatus {
                connection: words[1],
                sequence: words[2],
                status: status(bytes.get(HEAD_WORDS * 8..)?)?,
            })),
            (EVENT_OFF_CPU, length) if length >= OFF_CPU_WORDS => {
                Some(RawEvent::OffCpu(RawOffCpu::of(words)))
            }
            _ => None,
        }
    }
}

/// A time that is known.
fn time(word: u64) -> Option<u64> {
    (word != 0).then_some(word)
}

fn request(words: &[u64]) -> SeenRequest {
    SeenRequest {
        connection: words[1],
        sequence: words[2],
        acceptor: Thread::of(words[3]),
        reader: Thread::of(words[4]),
        writer: Thread::of(words[5]),
        established_ns: time(words[6]),
        accepted_ns: time(words[7]),
        arrived_ns: words[8],
        read_ns: time(words[9]),
        last_arrived_ns: time(words[10]),
        last_read_ns: time(words[11]),
        written_ns: words[12],
        read_bytes: words[13],
        seen_late: words[14] & SEEN_LATE != 0,
        unanswered: words[14] & UNANSWERED != 0,
        port: words[15] as u16,
        client_port: (words[15] >> 32) as u16,
    }
}

impl RawOffCpu {
    /// The words of `struct off_cpu_event`, with or without the name.
    pub fn of(words: &[u64]) -> RawOffCpu {
        let name: Vec<u8> = (words[OFF_CPU_WORDS..].iter().take(NAME_WORDS))
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        RawOffCpu {
            thread: Thread::of(words[1]).unwrap_or_default(),
            call: (words[2] != CALL_NONE).then_some(words[2] as u32),
            start_ns: words[3],
            woken_ns: time(words[4]),
            end_ns: words[5],
            stack: words[6],
            connection: time(words[7]),
            waker: Thread::of(words[10]).map(|thread| Waker {
                name: text_of(&[words[11], words[12]]),
                thread,
                functions: Arc::default(),
            }),
            waker_stack: words[13],
            waiters: words[14].max(words[15]),
            file: file(words[8] != 0, words[9], &name),
        }
    }
}

/// Up to the first zero.
fn text_of(words: &[u64]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let end = bytes.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned()
}

/// Method and path of a request line (RFC 9112, section 3); `None` if it is none. Nothing else is kept: the
/// query and the headers may hold secrets.
fn request_line(bytes: &[u8]) -> Option<String> {
    let bytes = &bytes[..bytes.len().min(HEAD_BYTES - 1)];
    let end = bytes
        .iter()
        .position(|byte| matches!(byte, b'\r' | b'\n' | 0));
    let line = std::str::from_utf8(&bytes[..end.unwrap_or(bytes.len())]).ok()?;
    let (method, target) = line.split_once(' ')?;
    let is_method =
        (1..=16).contains(&method.len()) && method.bytes().all(|byte| byte.is_ascii_uppercase());
    let target = target.split(' ').next()?;
    let path = target.split(['?', '#']).next()?;
    if !is_method || !path.starts_with(['/', '*']) && !path.contains(':') {
        return None;
    }
    Some(match path.char_indices().nth(REQUEST_PATH_MAX) {
        Some((at, _)) => format!("{method} {}…", &path[..at]),
        None => format!("{method} {path}"),
    })
}

/// The status of a final response (RFC 9112, section 4); `None` if the bytes are none.
fn status(bytes: &[u8]) -> Option<u16> {
    let line = std::str::from_utf8(bytes.get(..12)?).ok()?;
    let digits = (line.strip_prefix("HTTP/1.1 ")).or_else(|| line.strip_prefix("HTTP/1.0 "))?;
    let status = digits.parse().ok()?;
    (200..600).contains(&status).then_some(status)
}

/// The file that the name of a sleep means.
fn file(has_descriptor: bool, device: u64, name: &[u8]) -> Option<SleepFile> {
    let mut parts: Vec<_> = (name.split(|byte| *byte == 0))
        .take_while(|part| !part.is_empty())
        .map(String::from_utf8_lossy)
        .collect();
    if !has_descriptor {
        return Some(SleepFile::Path(parts.first()?.clone().into_owned()));
    }
    let is_whole = parts.last()? == "/";
    if is_whole {
        parts.pop();
    }
    parts.reverse();
    let path = parts.join("/");
    Some(SleepFile::Open {
        // The kernel's own dev_t (include/linux/kdev_t.h).
        device: ((device >> 20) as u32, device as u32 & 0xf_ffff),
        path: if is_whole { format!("/{path}") } else { path },
    })
}

#[cfg(test)]
mod tests {
    use super::{RawEvent, RawOffCpu, SleepFile, Thread};

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn request_is_decoded_field_by_field() {
        let mut words: Vec<u64> = (0..16).collect();
        (words[0], words[4], words[14]) = (6, 7 << 32 | 8, 3);
        words[15] = 80 | 4711 << 32;
        let Some(RawEvent::Request(request)) = RawEvent::of(&bytes(&words)) else {
            panic!("a request");
        };
        assert_eq!(request.reader, Some(Thread { pid: 7, tid: 8 }));
        assert_eq!((request.arrived_ns, request.read_ns), (8, Some(9)));
        assert_eq!((request.written_ns, request.read_bytes), (12, 13));
        assert!(request.seen_late && request.unanswered);
        assert_eq!((request.port, request.client_port), (80, 4711));
    }

    fn sleep(descriptor: u64, name: &[u8]) -> RawOffCpu {
        let mut words = vec![
            8,
            7 << 32 | 9,
            0x1_0000_0000,
            3,
            0,
            5,
            6,
            0,
            descriptor,
            8 << 20 | 1,
            11 << 32 | 12,
            u64::from_ne_bytes(*b"holder\0x"),
            0,
            13,
            2,
            3,
        ];
        words.extend(
            (name.chunks_exact(8))
                .map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes"))),
        );
        match RawEvent::of(&bytes(&words)) {
            Some(RawEvent::OffCpu(off)) => off,
            other => panic!("a sleep: {other:?}"),
        }
    }

    #[test]
    fn sleep_is_decoded_with_and_without_a_file() {
        let off = sleep(0, b"");
        assert_eq!((off.call, off.woken_ns, off.connection), (None, None, None));
        assert_eq!(off.file, None);
        let waker = off.waker.expect("one");
        let thread = Thread { pid: 11, tid: 12 };
        assert_eq!((waker.name.as_str(), waker.thread), ("holder", thread));
        assert_eq!((off.waker_stack, off.waiters), (13, 3));
        let path = SleepFile::Path("/srv/a".to_owned());
        assert_eq!(sleep(0, b"/srv/a\0x").file, Some(path));
    }

    #[test]
    fn path_of_a_descriptor_is_put_together() {
        let open = |path: &str| {
            let (device, path) = ((8, 1), path.to_owned());
            Some(SleepFile::Open { device, path })
        };
        assert_eq!(sleep(4, b"a.html\0img\0/\0\0old").file, open("/img/a.html"));
        assert_eq!(
            sleep(4, b"a.html\0img\0\0\0\0\0\0").file,
            open("img/a.html")
        );
        assert_eq!(sleep(4, b"/\0\0\0\0\0\0\0").file, open("/"));
    }

    #[test]
    fn failure_is_decoded_with_the_file_of_the_first() {
        let mut words = [0; 1 + super::OFF_CPU_WORDS + super::NAME_WORDS];
        (words[0], words[2], words[9]) = (12, 7 << 32 | 9, 4);
        words[1 + super::OFF_CPU_WORDS] = u64::from_ne_bytes(*b"a.log\0/\0");
        let failed = super::FailedCall::of((1 << 32 | 28, words));
        assert_eq!((failed.call, failed.error, failed.count), (1, 28, 12));
        assert_eq!(failed.thread, Thread { pid: 7, tid: 9 });
        let (device, path) = ((0, 0), "/a.log".to_owned());
        assert_eq!(failed.file, Some(SleepFile::Open { device, path }));
    }

    #[test]
    fn bytes_are_ignored_when_they_are_no_event() {
        assert!(RawEvent::of(&[]).is_none());
        assert!(RawEvent::of(&bytes(&[6, 1])).is_none());
        assert!(RawEvent::of(&bytes(&[9; 16])).is_none());
    }

    #[test]
    fn status_is_that_of_a_final_response_and_of_nothing_else() {
        let status = |text: &str| super::status(text.as_bytes());
        assert_eq!(status("HTTP/1.1 404\0\0\0\0"), Some(404));
        assert_eq!(status("HTTP/1.0 200"), Some(200));
        for text in [
            "",
            "HTTP/1.1 20",
            "HTTP/1.1 100",
            "HTTP/2.0 200",
            "HTTP/1.1 +20",
            "HTTP/1.1 2x0",
            "\u{17}\u{3}\u{3}123456789",
        ] {
            assert_eq!(status(text), None, "{text}");
        }
        let mut words = vec![10, 4, 5];
        words.extend([
            u64::from_ne_bytes(*b"HTTP/1.1"),
            u64::from_ne_bytes(*b" 503\0\0\0\0"),
        ]);
        let Some(RawEvent::Status(seen)) = RawEvent::of(&bytes(&words)) else {
            panic!("a status");
        };
        assert_eq!((seen.connection, seen.sequence, seen.status), (4, 5, 503));
    }

    #[test]
    fn method_and_path_are_kept_of_a_request_and_nothing_else() {
        let line = |text: &str| super::request_line(text.as_bytes());
        let get = "GET /a/b?key=secret HTTP/1.1\r\nCookie: c\r\n\r\n";
        assert_eq!(line(get).as_deref(), Some("GET /a/b"));
        assert_eq!(line("OPTIONS * HTTP/1.1\r\n").as_deref(), Some("OPTIONS *"));
        let long = line(&format!("GET /{} HTTP/1.1", "x".repeat(240))).expect("a line");
        assert!(
            long.ends_with("x…") && long.chars().count() == 125,
            "{long}"
        );
        for text in [
            "",
            "GET",
            "get / HTTP/1.1",
            "\u{16}\u{3}\u{1} x",
            "HELLO WORLD",
        ] {
            assert_eq!(line(text), None, "{text}");
        }
        let mut words = vec![9, 4, 5];
        words.extend([
            u64::from_ne_bytes(*b"GET / HT"),
            u64::from_ne_bytes(*b"TP/1.1\r\n"),
        ]);
        let Some(RawEvent::Head(head)) = RawEvent::of(&bytes(&words)) else {
            panic!("a head");
        };
        assert_eq!(
            (head.connection, head.sequence, head.line.as_str()),
            (4, 5, "GET /")
        );
    }
}
