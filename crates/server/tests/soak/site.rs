//! The files, how they change, and which contents a response may have.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use headway_base::random::{Draw, SplitMix64};
use headway_test_support::make_cold;

pub const SMALL: usize = 24;
pub const LARGE: usize = 3;
pub const REPLACED: usize = 8;
pub const RELEASE_FILES: usize = 4;
/// Releases that are kept: they last longer than a fault which delays a look at the link.
const RELEASES: u64 = 40;
const LINE_BYTES: usize = 64;
/// The largest that the file grows to which is appended to.
const APPENDED_BYTES_MAX: u64 = 24 << 20;

/// Bytes which follow from a seed.
pub fn contents(seed: u64, length: usize) -> Vec<u8> {
    let mut random = SplitMix64(seed);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&random.next_u64().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// The document roots, and what is in them.
pub struct Site {
    pub directory: PathBuf,
    pub small: Vec<Vec<u8>>,
    pub large: Vec<Vec<u8>>,
    /// The file that is truncated in place.
    pub mutable: Vec<u8>,
    /// The version of each replaced file which may be there now, as the highest that was begun.
    newest: [AtomicU64; REPLACED],
    /// When each version of them came, from the first on.
    came: [Mutex<Vec<Instant>>; REPLACED],
    pub replacements: AtomicU64,
    pub switches: AtomicU64,
    /// Bytes that are in the file which is appended to, at most.
    pub appended_most: AtomicU64,
}

impl Site {
    pub fn create(directory: &Path) -> Site {
        let site = Site {
            directory: directory.to_owned(),
            small: (0..SMALL)
                .map(|at| contents(at as u64, 200 + at * at * 150))
                .collect(),
            large: (0..LARGE)
                .map(|at| contents(100 + at as u64, (2 + 3 * at) << 20))
                .collect(),
            mutable: contents(200, 3 << 20),
            newest: Default::default(),
            came: Default::default(),
            replacements: AtomicU64::new(0),
            switches: AtomicU64::new(0),
            appended_most: AtomicU64::new(0),
        };
        for folder in ["root/f", "root/r", "root/d", "cgi", "releases"] {
            fs::create_dir_all(site.path(folder)).expect("a folder");
        }
        for (at, bytes) in site.small.iter().enumerate() {
            fs::write(site.path(&format!("root/f/s{at}")), bytes).expect("a file");
            fs::write(site.path(&format!("root/d/s{at}")), bytes).expect("a file");
        }
        for (at, bytes) in site.large.iter().enumerate() {
            fs::write(site.path(&format!("root/f/l{at}")), bytes).expect("a file");
        }
        fs::write(site.path("root/f/mutable"), &site.mutable).expect("a file");
        fs::write(site.path("root/f/appended"), "").expect("a file");
        for at in 0..REPLACED {
            site.replace(at);
        }
        site.switch();
        site.write_program();
        site
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// A CGI program which sends its query and its body back.
    fn write_program(&self) {
        use std::os::unix::fs::PermissionsExt;
        let path = self.path("cgi/echo.cgi");
        let text = "#!/bin/sh\nlength=$((${#QUERY_STRING} + 3 + ${CONTENT_LENGTH:-0}))\n\
             printf 'Content-Type: text/plain\\r\\nContent-Length: %s\\r\\n\\r\\nq=%s\\n' \
             $length \"$QUERY_STRING\"\n[ \"${CONTENT_LENGTH:-0}\" = 0 ] || exec cat\n";
        fs::write(&path, text).expect("a program");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("an executable");
    }

    /// Replaces a file by rename with its next version.
    fn replace(&self, at: usize) {
        let version = self.newest[at].fetch_add(1, Ordering::SeqCst) + 1;
        let name = self.path(&format!("root/r/{at}"));
        let new = self.path(&format!("root/new{at}"));
        fs::write(&new, version_of(at, version)).expect("a version");
        fs::rename(&new, &name).expect("a rename");
        self.came[at].lock().expect("times").push(Instant::now());
        self.replacements.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes a release and switches the link to it; old ones are removed.
    fn switch(&self) {
        let number = self.switches.fetch_add(1, Ordering::SeqCst) + 1;
        let release = self.path(&format!("releases/{number}"));
        fs::create_dir(&release).expect("a release");
        for at in 0..RELEASE_FILES {
            fs::write(release.join(at.to_string()), version_of(1000 + at, number)).expect("a file");
        }
        let link = self.path("current.new");
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(&release, &link).expect("a link");
        fs::rename(&link, self.path("current")).expect("a switch");
        if number > RELEASES {
            let _ = fs::remove_dir_all(self.path(&format!("releases/{}", number - RELEASES)));
        }
    }

    fn append(&self, lines: u64) {
        let from = self.appended_most.load(Ordering::SeqCst) / LINE_BYTES as u64;
        let mut text = String::new();
        for line in from..from + lines {
            text.push_str(&line_of(line));
        }
        self.appended_most
            .fetch_add(text.len() as u64, Ordering::SeqCst);
        let file = fs::File::options()
            .append(true)
            .open(self.path("root/f/appended"));
        file.and_then(|mut file| file.write_all(text.as_bytes()))
            .expect("an appended line");
    }

    /// Changes files, and evicts others from memory, until the run ends.
    pub fn keep_changing(&self, seed: u64, has_ended: &AtomicBool) {
        let mut random = SplitMix64(seed);
        for round in 0_u64.. {
            if has_ended.load(Ordering::Relaxed) {
                return;
            }
            self.replace(random.index(REPLACED));
            if round % 16 == 0 {
                self.switch();
            }
            if round % 8 == 0 {
                make_cold(&self.path(&format!("root/f/l{}", random.index(LARGE))));
            }
            if self.appended_most.load(Ordering::SeqCst) < APPENDED_BYTES_MAX {
                self.append(1 + random.below(20));
            }
            std::thread::sleep(Duration::from_millis(10 + random.below(40)));
        }
    }

    /// For how long a version had been replaced at a moment.
    pub fn staleness(&self, at: usize, version: u64, moment: Instant) -> Duration {
        let came = self.came[at].lock().expect("times");
        let next = came.get(version as usize);
        next.map_or(Duration::ZERO, |next| {
            moment.saturating_duration_since(*next)
        })
    }

    /// The version of a replaced file that was the newest at this moment.
    pub fn newest(&self, at: usize) -> u64 {
        self.newest[at].load(Ordering::SeqCst)
    }
}

/// A version of a file which tells its name and its number.
pub fn version_of(name: usize, version: u64) -> Vec<u8> {
    let seed = (name as u64) << 40 | version;
    let factor = if name.is_multiple_of(2) { 1 } else { 5 };
    let length = 500 + SplitMix64(seed).below(40_000) as usize * factor;
    let mut bytes = format!("{name} {version} {length}\n").into_bytes();
    bytes.extend_from_slice(&contents(seed, length));
    bytes
}

/// The version which a whole body is, if it is one.
pub fn version_in(name: usize, body: &[u8]) -> Option<u64> {
    let line = body.split(|byte| *byte == b'\n').next()?;
    let line = std::str::from_utf8(line).ok()?;
    let version = line.split(' ').nth(1)?.parse().ok()?;
    (version_of(name, version) == body).then_some(version)
}

/// Whether the bytes are the beginning of the file which is appended to.
pub fn is_appended(body: &[u8]) -> bool {
    let lines = body.chunks(LINE_BYTES).enumerate();
    lines
        .into_iter()
        .all(|(number, line)| line_of(number as u64).as_bytes().starts_with(line))
}

fn line_of(number: u64) -> String {
    let check = SplitMix64(number).next_u64();
    format!("{number:0>20} {check:0>20} {:0>21}\n", check / 3)
}

/// What a handler answers: bytes that the query asks for, or the query and the body.
pub fn answer(query: &str, body: &[u8]) -> Vec<u8> {
    let number = |name: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs
            .find(|(key, _)| *key == name)
            .and_then(|(_, value)| value.parse().ok())
    };
    match number("n") {
        Some(length) => contents(number("s").unwrap_or(0), length as usize),
        None => [b"q=", query.as_bytes(), b"\n", body].concat(),
    }
}
