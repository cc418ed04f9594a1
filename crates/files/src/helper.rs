//! The helper process: does the file operations that may block, for a worker.
//!
//! What it does: receives one request at a time on a `SOCK_SEQPACKET` socket, executes it with
//! ordinary blocking calls, and answers with descriptors attached. It ends when the worker closes
//! the socket. What it refuses: to open anything but regular files and directories beneath its
//! roots (and an unnamed file for spooled data), and to grow: its memory is a message, a small
//! buffer (a longer one once it has spooled), a small file, and at most one listing. Custom jobs
//! ([`Tasks::custom_job`]) have no such limit.
//!
//! Sources: the Flash papers' helper processes (dissertation 2.3), `crate::protocol`.

pub(crate) mod bytes;
mod closed;
mod copy;
pub(crate) mod open;
pub(crate) mod symlinks;

pub use bytes::probe_memfd;
pub use open::resolve_blocking;

use crate::answer::Failure;
use crate::file::Meta;
use crate::filesystem::TMPFS_MAGIC;
use crate::listing::{Directory, read_directory};
use crate::protocol::{
    CLOSE_BATCH_MAX, CustomResult, FETCH_BYTES_MAX, INLINE_RESULT_BYTES_MAX, MESSAGE_BYTES_MAX,
    OpenMode, REPLY_BYTES_MAX, Reply, Request, VERSION, decode_request, encode_reply,
};
use crate::residency::{CHUNK_BYTES, PREFETCH_BYTES};
use crate::resolve::{RawAnswer, RawFile};
use crate::revalidate::AbsentSiblings;
use crate::root::{PathRule, Root, RootId, RootRules, Roots};
use bytes::{memfd, memory, nameless, read_at, send};
use headway_os::fd_passing::{Wait, receive_with_descriptors};
use headway_os::mapping::Mapping;
use headway_os::open::{NameLookup, find_directory};
use headway_os::residency::page_bytes;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Advice, fadvise, fstatfs};
use rustix::io::{Errno, IoSlice};
use rustix::net::sockopt::{set_socket_send_buffer_size, socket_send_buffer_size};
use std::ffi::OsStr;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;

/// A file that is found is also read in: whole up to this size, else so far as helpers read at a
/// time.
const SMALL_BYTES: u64 = FETCH_BYTES_MAX as u64;
/// What unix(7) keeps of a socket's buffer for itself.
const UNUSED_BYTES: usize = 32;
/// The size of the copy buffer. There are many helpers, and their memory is taken from the page
/// cache.
const SCRATCH_BYTES: usize = 32 * 1024;
/// Limit of bytes copied per job: the largest small file that can be configured.
pub const COPY_BYTES_MAX: u64 = 64 * CHUNK_BYTES;

/// Executes the payload of a custom job and returns its result.
pub type CustomTask = dyn Fn(&[u8]) -> Result<Vec<u8>, Failure>;

/// What a helper does besides opening and reading.
#[derive(Clone, Copy)]
pub struct Tasks<'t> {
    /// Makes listing pages.
    pub render: &'t dyn Fn(&Directory) -> Vec<u8>,
    /// Does custom_jobs.
    pub custom_job: &'t CustomTask,
    /// The process can open only what is beneath directories with these devices and inodes
    /// (`headway-sandbox`). It ends if it has to open what is beneath another root. Its replacement can.
    pub confined_to: Option<&'t [(u64, u64)]>,
}

/// Serves requests on `socket` until the worker closes it. `render` makes listing pages; custom
/// jobs fail.
///
/// # Errors
/// A broken socket, or a request that no worker sends. End the process; the worker uses another
/// helper.
///
/// # Example
/// ```
/// let (worker, helper) = headway_os::fd_passing::pair()?;
/// drop(worker);
/// headway_files::helper_main(helper, &|directory| directory.path.clone())?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn helper_main(socket: OwnedFd, render: &dyn Fn(&Directory) -> Vec<u8>) -> io::Result<()> {
    let custom_job = &|_: &[u8]| Err(Failure::Io);
    helper_main_with(
        socket,
        Tasks {
            render,
            custom_job,
            confined_to: None,
        },
    )
}

/// Serves requests like [`helper_main`], including custom jobs.
///
/// # Errors
/// As [`helper_main`].
pub fn helper_main_with(socket: OwnedFd, tasks: Tasks<'_>) -> io::Result<()> {
    let scratch = vec![0; SCRATCH_BYTES];
    let fetch_bytes_max = contents_that_fit(&socket)?;
    let roots = Roots::default();
    let mut helper = Helper {
        socket,
        tasks,
        roots,
        roots_expected: None,
        closed: closed::ClosedRoots::default(),
        to_close: Vec::new(),
        scratch,
        contents: Vec::new(),
        fetch_bytes_max,
        sink: None,
    };
    let mut message = vec![0; MESSAGE_BYTES_MAX];
    loop {
        let received =
            receive_with_descriptors(&helper.socket, &mut message, CLOSE_BATCH_MAX, Wait::Block);
        let received = match received {
            Ok(Some(received)) => received,
            // A blocking socket does not answer "would wait"; one made non-blocking by its other
            // owner would spin here.
            Ok(None) => return Err(Errno::AGAIN.into()),
            Err(headway_os::fd_passing::ReceiveError::Os(Errno::CONNRESET)) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if received.is_end() {
            return Ok(());
        }
        let request = decode_request(&message[..received.length])
            .map_err(|malformed| io::Error::new(io::ErrorKind::InvalidData, malformed))?;
        match helper.serve(request, received.descriptors) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            other => other?,
        }
    }
}

struct Helper<'t> {
    socket: OwnedFd,
    tasks: Tasks<'t>,
    roots: Roots,
    /// Number of roots that Hello announced.
    roots_expected: Option<u32>,
    closed: closed::ClosedRoots,
    /// Files to be closed when released.
    to_close: Vec<OwnedFd>,
    scratch: Vec<u8>,
    /// What a small file holds, once one was fetched.
    contents: Vec<u8>,
    /// The most that an answer can hold.
    fetch_bytes_max: u64,
    /// Where touched bytes go: a file in memory, a few hundred bytes of it.
    sink: Option<OwnedFd>,
}

impl Helper<'_> {
    fn serve(&mut self, request: Request<'_>, mut files: Vec<OwnedFd>) -> io::Result<()> {
        match request {
            Request::Hello { version, roots } => self.hello(version, roots),
            Request::Root {
                root,
                siblings,
                dotfiles,
                symlinks,
                index,
                rules,
            } => {
                let rules = RootRules {
                    index: index.into_iter().map(String::from).collect(),
                    siblings,
                    dotfiles,
                    symlinks,
                    paths: rules.into_iter().map(PathRule::from).collect(),
                };
                self.put_root(root, Root::new(exactly_one(&mut files)?, rules))
            }
            Request::Lookup {
                job,
                root,
                want,
                path,
            } => self.resolve(job, root, want, path),
            Request::ReadIn {
                job,
                offset,
                length,
            } => self.answer_read_in(job, &exactly_one(&mut files)?, offset, length),
            Request::List { job, root, path } => self.list(job, root, path, files.pop()),
            Request::Copy {
                job,
                offset,
                length,
            } => {
                let content = self.copy(&exactly_one(&mut files)?, offset, length);
                self.reply_copy(job, content)
            }
            Request::CopyChecked {
                job,
                sent,
                checksum,
                offset,
                length,
            } => {
                let file = exactly_one(&mut files)?;
                let next = offset..offset.saturating_add(length);
                let content = self.copy_checked(&file, sent..offset, checksum, next);
                self.reply_copy(job, content)
            }
            Request::Fetch { job, length } => self.fetch(job, &exactly_one(&mut files)?, length),
            Request::Spool {
                job,
                offset,
                length,
                directory,
            } => self.spool(job, (offset, length), directory, files),
            Request::OpenRoot { job, path } => self.open_root(job, path),
            Request::Custom { job, payload } => self.custom_job(job, payload),
            Request::DeferClose { .. } => {
                self.to_close.append(&mut files);
                Ok(())
            }
            Request::Release { job } => {
                self.to_close.clear();
                self.reply(&Reply::Closed { job }, &[])
            }
        }
    }

    fn answer_read_in(
        &mut self,
        job: u64,
        file: &OwnedFd,
        offset: u64,
        length: u64,
    ) -> io::Result<()> {
        let done = self.read_in(file, offset, length);
        let errno = done.map_or_else(errno_code, |()| 0);
        self.reply(&Reply::ReadIn { job, errno }, &[])
    }

    fn reply_copy(&self, job: u64, made: Result<(OwnedFd, Meta), Errno>) -> io::Result<()> {
        self.reply_opened(made, |content| Reply::Copy {
            job,
            content: content.map_err(errno_code),
        })
    }

    fn hello(&mut self, version: u16, roots: u32) -> io::Result<()> {
        if version != VERSION || self.roots_expected.is_some() {
            return Err(invalid("the worker speaks another version"));
        }
        self.roots_expected = Some(roots);
        Ok(())
    }

    fn put_root(&mut self, root: RootId, opened: Root) -> io::Result<()> {
        let next = self.roots.len() as u32;
        if root.0 > next
            || self
                .roots_expected
                .is_none_or(|expected| root.0 >= expected)
        {
            return Err(invalid("roots out of order"));
        }
        let confined_to = self.tasks.confined_to;
        self.closed.put(confined_to, root, &opened)?;
        self.roots.put(root, opened);
        Ok(())
    }

    fn open_root(&self, job: u64, path: &[u8]) -> io::Result<()> {
        let path = Path::new(OsStr::from_bytes(path));
        let found = open::retry(|| find_directory(path, NameLookup::MayBlock))
            .and_then(|found| found.ok_or(Errno::AGAIN))
            .map(|(directory, status)| (directory, status.into()));
        self.reply_opened(found, |directory| Reply::RootOpened {
            job,
            directory: directory.map_err(errno_code),
        })
    }

    fn resolve(&mut self, job: u64, root: RootId, want: OpenMode, path: &[u8]) -> io::Result<()> {
        self.closed.check(root)?;
        let answer = match want.absent_siblings() {
            AbsentSiblings::Probe => resolve_blocking(&self.roots, root, path),
            AbsentSiblings::AssumeAbsent => open::resolve_alone(&self.roots, root, path),
        };
        let (answer, files) = detach_descriptors(answer);
        let mut length = None;
        match want {
            // The result does not matter, even if it is a failure: the worker resolves the path
            // itself.
            OpenMode::TouchOnly => return self.reply(&Reply::Touched { job }, &[]),
            OpenMode::Open => {}
            OpenMode::OpenAndPrefetch(most) => self.read_in_beginnings(&files, most),
            OpenMode::OpenAndRead | OpenMode::OpenAndReadAlone => match &files[..] {
                // A disk error is found again, and reported, when the contents are to be sent.
                [one] if one.meta.size <= self.fetch_bytes_max => {
                    length = self.read_whole(&one.descriptor, one.meta.size).ok();
                }
                files => self.read_in_beginnings(files, PREFETCH_BYTES),
            },
        }
        // The contents are the last field; `reply_with_contents` appends them.
        let content = length.map(|_| Rc::from([]));
        let head = Reply::LookedUp {
            job,
            answer,
            content,
        };
        let files: Vec<_> = files.iter().map(|file| file.descriptor.as_fd()).collect();
        self.reply_with_contents(&head, length.unwrap_or(0), &files)
    }

    fn read_in_beginnings(&mut self, files: &[RawFile], most: u64) {
        for (position, file) in files.iter().enumerate() {
            let Some(length) = prefetch_length(file.meta.size, position, most) else {
                continue;
            };
            // A disk error is found again, and reported, when the contents are sent.
            let _ = self.read_in(&file.descriptor, 0, length);
        }
    }

    /// A page that says what the `known` one says is not made a second time: however many clients
    /// are being sent it, it is in memory once.
    fn list(
        &mut self,
        job: u64,
        root: RootId,
        path: &[u8],
        known: Option<OwnedFd>,
    ) -> io::Result<()> {
        self.closed.check(root)?;
        let page = match read_directory(&self.roots, root, path) {
            Ok(directory) => (self.tasks.render)(&directory),
            Err(failure) => {
                let answer = Err(failure);
                return self.reply(&Reply::Listed { job, answer }, &[]);
            }
        };
        if known.is_some_and(|known| self.content_equals(&known, &page)) {
            let answer = Ok(None);
            return self.reply(&Reply::Listed { job, answer }, &[]);
        }
        let made = memory(&page).map_err(Failure::of_read_errno);
        self.reply_opened(made, |answer| Reply::Listed {
            job,
            answer: answer.map(Some),
        })
    }

    /// Whether the file holds these bytes and no others.
    fn content_equals(&mut self, file: &OwnedFd, bytes: &[u8]) -> bool {
        let end = bytes.len() as u64;
        if headway_os::open::status(file).map_or(true, |status| status.size != end) {
            return false;
        }
        let mut at = 0;
        while at < bytes.len() {
            match read_at(file, &mut self.scratch, at as u64, end) {
                Ok(count) if count > 0 && self.scratch[..count] == bytes[at..at + count] => {
                    at += count;
                }
                _ => return false,
            }
        }
        true
    }

    /// Bring a piece of a file into memory. Advice starts the whole piece at once; touching it then
    /// waits until every page is up to date, so that after the answer a send does not wait. What
    /// cannot be touched is read. A file that ends early is no error.
    fn read_in(&mut self, file: &OwnedFd, offset: u64, length: u64) -> Result<(), Errno> {
        // Files that do not support advice refuse it; touching or reading then does the work.
        let _ = fadvise(file, offset, NonZeroU64::new(length), Advice::WillNeed);
        let end = offset.saturating_add(length);
        let mut at = offset + self.touch(file, offset, length).unwrap_or(0);
        while at < end {
            match read_at(file, &mut self.scratch, at, end)? {
                0 => break,
                count => at += count as u64,
            }
        }
        Ok(())
    }

    /// Waits until this much of the piece is in memory, without marking its pages as used. The
    /// client's read is the use, and it may be the only one.
    fn touch(&mut self, file: &OwnedFd, offset: u64, length: u64) -> Result<u64, Errno> {
        // Its holes would be filled, and everything else is in memory.
        if fstatfs(file)?.f_type == TMPFS_MAGIC {
            return Ok(0);
        }
        let sink = match self.sink.take() {
            Some(sink) => sink,
            None => memfd()?,
        };
        let start = offset - offset % page_bytes();
        let lead = (offset - start) as usize;
        let end = lead.saturating_add(length as usize);
        let touched =
            Mapping::new(file, start, end).and_then(|mapping| mapping.bring_in(lead..end, &sink));
        self.sink = Some(sink);
        Ok(touched? as u64)
    }

    fn fetch(&mut self, job: u64, file: &OwnedFd, length: u32) -> io::Result<()> {
        if u64::from(length) > self.fetch_bytes_max {
            let done = self.read_in(file, 0, length.into());
            let errno = done.map_or_else(errno_code, |()| 0);
            return self.reply(&Reply::ReadIn { job, errno }, &[]);
        }
        match self.read_whole(file, length.into()) {
            Ok(length) => {
                let content = Ok(Rc::from([]));
                self.reply_with_contents(&Reply::Fetched { job, content }, length, &[])
            }
            Err(errno) => {
                let content = Err(errno_code(errno));
                self.reply(&Reply::Fetched { job, content }, &[])
            }
        }
    }

    /// Reads a small file and returns its length. This read is the only use of its pages that the
    /// kernel sees, since the worker gets the contents and reads nothing.
    fn read_whole(&mut self, file: &OwnedFd, length: u64) -> Result<usize, Errno> {
        let most = FETCH_BYTES_MAX.min(length as usize);
        if self.contents.len() < most {
            self.contents.resize(most, 0);
        }
        let mut end = 0;
        while end < most {
            match read_at(file, &mut self.contents[end..most], end as u64, length)? {
                0 => break,
                count => end += count,
            }
        }
        Ok(end)
    }

    /// Sends a reply that has empty contents, and this many bytes of the contents read last.
    fn reply_with_contents(
        &self,
        reply: &Reply,
        length: usize,
        files: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let mut head = Vec::new();
        encode_reply(reply, &mut head);
        let parts = [IoSlice::new(&head), IoSlice::new(&self.contents[..length])];
        send(&self.socket, &parts, files)
    }

    /// Write a piece into the file it belongs to, which is made with the first of them.
    fn spool(
        &mut self,
        job: u64,
        (offset, length): (u64, u64),
        directory: &[u8],
        mut files: Vec<OwnedFd>,
    ) -> io::Result<()> {
        let (piece, given) = match files.len() {
            1 | 2 => (files.remove(0), files.pop()),
            _ => return Err(invalid("a piece to be spooled, and perhaps its file")),
        };
        let made = given.is_none();
        let written = given
            .map_or_else(|| nameless(directory), Ok)
            .and_then(|file| self.append(&piece, length, &file, offset).map(|()| file));
        match written {
            Ok(file) => {
                let attached = if made { vec![file] } else { Vec::new() };
                let errno = 0;
                self.reply(&Reply::Spooled { job, made, errno }, &attached)
            }
            Err(errno) => {
                let (made, errno) = (false, errno_code(errno));
                self.reply(&Reply::Spooled { job, made, errno }, &[])
            }
        }
    }

    fn custom_job(&mut self, job: u64, payload: &[u8]) -> io::Result<()> {
        let result = match (self.tasks.custom_job)(payload) {
            Ok(result) => result,
            Err(failure) => {
                let answer = Err(failure);
                return self.reply(&Reply::Custom { job, answer }, &[]);
            }
        };
        if result.len() <= INLINE_RESULT_BYTES_MAX {
            let answer = Ok(CustomResult::Inline(result.into()));
            return self.reply(&Reply::Custom { job, answer }, &[]);
        }
        let made = memory(&result).map_err(Failure::of_read_errno);
        self.reply_opened(made, |made| Reply::Custom {
            job,
            answer: made.map(CustomResult::File),
        })
    }

    fn reply_opened<E>(
        &self,
        made: Result<(OwnedFd, Meta), E>,
        reply: impl FnOnce(Result<Meta, E>) -> Reply,
    ) -> io::Result<()> {
        match made {
            Ok((descriptor, meta)) => self.reply(&reply(Ok(meta)), &[descriptor]),
            Err(error) => self.reply(&reply(Err(error)), &[]),
        }
    }

    fn reply(&self, reply: &Reply, files: &[OwnedFd]) -> io::Result<()> {
        let mut bytes = Vec::new();
        encode_reply(reply, &mut bytes);
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        send(&self.socket, &[IoSlice::new(&bytes)], &files)
    }
}

/// Enlarges the helper's send buffer so that the longest answer fits, as far as the system allows
/// (`net.core.wmem_max`).
pub fn enlarge_send_buffer(socket: &OwnedFd) {
    let enough = |room| room >= REPLY_BYTES_MAX + UNUSED_BYTES;
    if !socket_send_buffer_size(socket).is_ok_and(enough) {
        // The kernel doubles it. Where it refuses, less is fetched.
        let _ = set_socket_send_buffer_size(socket, REPLY_BYTES_MAX);
    }
}

/// The largest contents that fit into an answer: a longer message than the send buffer fails
/// (`EMSGSIZE`).
fn contents_that_fit(socket: &OwnedFd) -> io::Result<u64> {
    let room = socket_send_buffer_size(socket)?;
    let head = REPLY_BYTES_MAX - FETCH_BYTES_MAX + UNUSED_BYTES;
    Ok(room.saturating_sub(head).min(FETCH_BYTES_MAX) as u64)
}

/// How much of a file that was found is read into memory, at most `limit` bytes. The first file of
/// an answer is the requested one. Precompressed siblings may never be needed, so only small ones
/// are read.
pub(crate) fn prefetch_length(size: u64, position: usize, most: u64) -> Option<u64> {
    let length = match size {
        0..=SMALL_BYTES => size,
        _ if position == 0 => PREFETCH_BYTES,
        _ => return None,
    };
    Some(length.min(most)).filter(|length| *length > 0)
}

/// Splits an answer into the message and the attached descriptors.
fn detach_descriptors(answer: RawAnswer<RawFile>) -> (RawAnswer<Meta>, Vec<RawFile>) {
    match answer {
        RawAnswer::File {
            file,
            index,
            siblings,
            unusable,
        } => {
            let metas = siblings
                .each_ref()
                .map(|file| file.as_ref().map(|file| file.meta));
            let message = RawAnswer::File {
                file: file.meta,
                index,
                siblings: metas,
                unusable,
            };
            let files = std::iter::once(file).chain(siblings.into_iter().flatten());
            (message, files.collect())
        }
        RawAnswer::Redirect => (RawAnswer::Redirect, Vec::new()),
        RawAnswer::Directory => (RawAnswer::Directory, Vec::new()),
        RawAnswer::Failed(failure) => (RawAnswer::Failed(failure), Vec::new()),
    }
}

fn exactly_one(files: &mut Vec<OwnedFd>) -> io::Result<OwnedFd> {
    match files.pop() {
        Some(file) if files.is_empty() => Ok(file),
        _ => Err(invalid("a request needs exactly one descriptor")),
    }
}

fn errno_code(errno: Errno) -> u32 {
    errno.raw_os_error().unsigned_abs()
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
