//! Requests, and what their responses must be.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use headway_base::random::{Draw, SplitMix64};

use crate::client::{Reply, wrong};
use crate::journal::{Failure, Route};
use crate::site::{self, RELEASE_FILES, REPLACED, Site, answer, contents};

/// Files of the disk which breaks.
pub const DISK_FILES: usize = 12;
/// `revalidate` and `stale-while-revalidate` together, and some patience with a busy machine.
const STALE_MAX: Duration = Duration::from_secs(65);

/// The longest time for which a response was older than its file, in milliseconds.
pub static STALEST_MS: AtomicU64 = AtomicU64::new(0);

pub fn disk_file(at: usize) -> Vec<u8> {
    contents(300 + at as u64, 200_000 + 20_000 * at)
}

/// A body which is known before.
#[derive(Clone)]
pub enum Body {
    Small(usize),
    Large(usize),
    Bytes(Vec<u8>),
}

impl Body {
    fn bytes<'a>(&'a self, site: &'a Site) -> &'a [u8] {
        match self {
            Body::Small(at) => &site.small[*at],
            Body::Large(at) => &site.large[*at],
            Body::Bytes(bytes) => bytes,
        }
    }
}

pub enum Expected {
    Whole(Body),
    Header(Body),
    Part(Body, usize, usize),
    NotModified,
    Missing,
    BeyondEnd(usize),
    Replaced(usize),
    Release(usize),
    Appended,
    Mutable,
}

/// A request, with its bytes.
pub struct Wanted {
    pub route: Route,
    pub method: &'static str,
    pub bytes: Vec<u8>,
    pub is_upload: bool,
    pub expected: Expected,
    pub path: String,
    begun: Instant,
}

impl Wanted {
    fn new(route: Route, method: &'static str, host: &str, path: &str, expected: Expected) -> Self {
        let bytes = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes();
        let path = path.to_owned();
        let begun = Instant::now();
        Wanted {
            route,
            method,
            bytes,
            is_upload: false,
            expected,
            path,
            begun,
        }
    }

    fn with(mut self, headers: &str) -> Self {
        self.bytes.truncate(self.bytes.len() - 2);
        self.bytes
            .extend_from_slice(format!("{headers}\r\n\r\n").as_bytes());
        self
    }

    /// A request for a file.
    pub fn file(random: &mut SplitMix64, site: &Site, etags: &[Option<String>]) -> Wanted {
        let small = random.index(site::SMALL);
        let (path, body) = (format!("/f/s{small}"), Body::Small(small));
        let length = site.small[small].len();
        match random.below(20) {
            0..6 => Wanted::new(Route::Files, "GET", "x", &path, Expected::Whole(body)),
            6 => Wanted::new(Route::Files, "HEAD", "x", &path, Expected::Header(body)),
            7 => Wanted::new(Route::Files, "GET", "x", "/f/none", Expected::Missing),
            8 => {
                let at = random.index(length);
                let last = at + random.index(length - at);
                let part = Expected::Part(body, at, last);
                Wanted::new(Route::Files, "GET", "x", &path, part)
                    .with(&format!("Range: bytes={at}-{last}"))
            }
            9 => Wanted::new(Route::Files, "GET", "x", &path, Expected::BeyondEnd(length))
                .with(&format!("Range: bytes={}-", length + random.index(9))),
            10 => match &etags[small] {
                Some(etag) => Wanted::new(Route::Files, "GET", "x", &path, Expected::NotModified)
                    .with(&format!("If-None-Match: {etag}")),
                None => Wanted::new(Route::Files, "GET", "x", &path, Expected::Whole(body)),
            },
            11..14 => {
                let at = random.index(REPLACED);
                let expected = Expected::Replaced(at);
                Wanted::new(Route::Files, "GET", "x", &format!("/r/{at}"), expected)
            }
            14 => {
                let at = random.index(RELEASE_FILES);
                let expected = Expected::Release(at);
                Wanted::new(Route::Files, "GET", "release", &format!("/{at}"), expected)
            }
            15 => Wanted::new(Route::Files, "GET", "x", "/f/appended", Expected::Appended),
            16 => Wanted::new(Route::Mutable, "GET", "x", "/f/mutable", Expected::Mutable),
            17 => {
                let path = format!("/d/s{small}");
                Wanted::new(Route::Moved, "GET", "x", &path, Expected::Whole(body))
            }
            18 => {
                let at = random.index(DISK_FILES);
                let body = Expected::Whole(Body::Bytes(disk_file(at)));
                Wanted::new(Route::Disk, "GET", "disk", &format!("/{at}"), body)
            }
            _ => Wanted::large(random, site),
        }
    }

    /// A request for a large file, or a part of it.
    pub fn large(random: &mut SplitMix64, site: &Site) -> Wanted {
        let at = random.index(site::LARGE);
        let (path, body) = (format!("/f/l{at}"), Body::Large(at));
        let length = site.large[at].len();
        if random.below(2) == 0 {
            return Wanted::new(Route::Files, "GET", "x", &path, Expected::Whole(body));
        }
        let from = random.index(length);
        let last = from + random.index(length - from).min(500_000);
        Wanted::new(
            Route::Files,
            "GET",
            "x",
            &path,
            Expected::Part(body, from, last),
        )
        .with(&format!("Range: bytes={from}-{last}"))
    }

    /// A request which a program or an upstream answers with bytes.
    pub fn generated(random: &mut SplitMix64, length: u64) -> Wanted {
        let query = format!("n={}&s={}", 1 + random.below(length), random.below(1000));
        let (route, path) = match random.below(4) {
            0 => (Route::Scgi, "/scgi/x"),
            _ => (Route::Proxy, "/proxy/x"),
        };
        let body = Expected::Whole(Body::Bytes(answer(&query, b"")));
        Wanted::new(route, "GET", "x", &format!("{path}?{query}"), body)
    }

    /// A request with a body, which the handler sends back.
    pub fn upload(random: &mut SplitMix64) -> Wanted {
        let (route, path) = match random.below(4) {
            0 => (Route::Cgi, "/cgi/echo.cgi"),
            1 => (Route::Scgi, "/scgi/x"),
            _ => (Route::Proxy, "/proxy/x"),
        };
        let query = format!("u={}", random.next_u64());
        let most = if random.below(3) == 0 {
            900_000
        } else {
            20_000
        };
        let body = contents(random.next_u64(), 1 + random.index(most));
        let expected = Expected::Whole(Body::Bytes(answer(&query, &body)));
        let mut wanted = Wanted::new(route, "POST", "x", &format!("{path}?{query}"), expected);
        wanted.is_upload = true;
        if random.below(2) == 0 {
            let mut wanted = wanted.with(&format!("Content-Length: {}", body.len()));
            wanted.bytes.extend(body);
            return wanted;
        }
        wanted = wanted.with("Transfer-Encoding: chunked");
        for chunk in body.chunks(1 + random.index(60_000)) {
            wanted
                .bytes
                .extend(format!("{:x}\r\n", chunk.len()).bytes());
            wanted.bytes.extend_from_slice(chunk);
            wanted.bytes.extend(b"\r\n");
        }
        wanted.bytes.extend(b"0\r\n\r\n");
        wanted
    }

    /// A request which a CGI program answers.
    pub fn program(random: &mut SplitMix64) -> Wanted {
        let query = format!("g={}", random.next_u64());
        let body = Expected::Whole(Body::Bytes(answer(&query, b"")));
        Wanted::new(
            Route::Cgi,
            "GET",
            "x",
            &format!("/cgi/echo.cgi?{query}"),
            body,
        )
    }

    /// Checks the status, the headers and each byte of a response.
    pub fn check(&self, reply: &Reply, site: &Site) -> Result<(), Failure> {
        let status = match &self.expected {
            Expected::Part(..) => 206,
            Expected::NotModified => 304,
            Expected::Missing => 404,
            Expected::BeyondEnd(_) => 416,
            _ => 200,
        };
        if reply.status != status {
            return Err(Failure::Status(reply.status));
        }
        let length = |length: usize| {
            (reply.header("content-length") == Some(&length.to_string()))
                .then_some(())
                .ok_or_else(|| wrong(format!("length {:?}", reply.header("content-length"))))
        };
        match &self.expected {
            Expected::Whole(body) => same(&reply.body, body.bytes(site)),
            Expected::Header(body) => length(body.bytes(site).len()),
            Expected::Part(body, from, last) => {
                let whole = body.bytes(site);
                let range = format!("bytes {from}-{last}/{}", whole.len());
                if reply.header("content-range") != Some(&range) {
                    return Err(wrong(format!("range {:?}", reply.header("content-range"))));
                }
                same(&reply.body, &whole[*from..=*last])
            }
            Expected::BeyondEnd(length) => {
                let range = reply.header("content-range");
                let is_right = range == Some(&format!("bytes */{length}"));
                is_right
                    .then_some(())
                    .ok_or_else(|| wrong(format!("range {range:?}")))
            }
            Expected::NotModified | Expected::Missing => Ok(()),
            Expected::Replaced(at) => self.check_replaced(*at, &reply.body, site),
            Expected::Release(at) => {
                let version = site::version_in(1000 + at, &reply.body);
                let newest = site.switches.load(Ordering::SeqCst);
                let is_right = version.is_some_and(|version| version <= newest);
                is_right
                    .then_some(())
                    .ok_or_else(|| wrong("no release".into()))
            }
            Expected::Appended => {
                let most = site.appended_most.load(Ordering::SeqCst);
                let is_right = reply.body.len() as u64 <= most && site::is_appended(&reply.body);
                is_right
                    .then_some(())
                    .ok_or_else(|| wrong("not what was appended".into()))
            }
            Expected::Mutable => match site.mutable.starts_with(&reply.body) {
                true => Ok(()),
                false => Err(wrong("no state of the file".into())),
            },
        }
    }

    fn check_replaced(&self, at: usize, body: &[u8], site: &Site) -> Result<(), Failure> {
        let Some(version) = site::version_in(at, body) else {
            return Err(wrong(format!(
                "no version of the file: {} bytes",
                body.len()
            )));
        };
        if version > site.newest(at) {
            return Err(wrong("a version which was never there".into()));
        }
        let stale = site.staleness(at, version, self.begun);
        STALEST_MS.fetch_max(stale.as_millis() as u64, Ordering::Relaxed);
        if stale > STALE_MAX {
            return Err(wrong(format!("replaced {stale:?} ago")));
        }
        Ok(())
    }

    /// Whether these bytes may be the beginning of the body.
    pub fn may_begin_with(&self, bytes: &[u8], site: &Site) -> bool {
        match &self.expected {
            Expected::Whole(body) => body.bytes(site).starts_with(bytes),
            Expected::Part(body, from, last) => body.bytes(site)[*from..=*last].starts_with(bytes),
            Expected::Appended => site::is_appended(bytes),
            Expected::Mutable => site.mutable.starts_with(bytes),
            _ => true,
        }
    }
}

fn same(found: &[u8], expected: &[u8]) -> Result<(), Failure> {
    if found == expected {
        return Ok(());
    }
    let mut pairs = found.iter().zip(expected);
    let at = pairs.position(|(left, right)| left != right);
    let at = at.unwrap_or(found.len().min(expected.len()));
    Err(wrong(format!(
        "{} bytes instead of {}, the first difference at {at}",
        found.len(),
        expected.len()
    )))
}
