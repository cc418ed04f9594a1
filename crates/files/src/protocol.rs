//! The protocol between a worker and its helpers, as pure functions on bytes.
//!
//! One message is one `SOCK_SEQPACKET` packet; descriptors are attached to it
//! (`headway_os::fd_passing`). [`headway_os::codec`] says how the tables below become bytes. The
//! worker sends one Hello, one Root for each document root, then requests. A helper works on one job
//! at a time and answers with the number of that job.
//!
//! | message | descriptors |
//! |---|---|
//! | Root | the directory |
//! | ReadIn, Copy, CopyChecked, Fetch | the file |
//! | List | the page known, if there is one |
//! | DeferClose | one or more files |
//! | Spool | the piece, and the file if there is one |
//! | replies | one for each [`Meta`], and the new file of Spooled |
//!
//! What it refuses: everything that differs from the tables, as [`Malformed`]; each message has
//! exactly one encoding. Both ends are one binary started by one master, so the version is there to
//! detect mistakes, not to negotiate.
//!
//! # Example
//! ```
//! use headway_files::RootId;
//! use headway_files::protocol::{OpenMode, Request, decode_request, encode_request};
//!
//! let request = Request::Lookup { job: 1, root: RootId(0), want: OpenMode::Open, path: b"index.html" };
//! let mut packet = Vec::new();
//! encode_request(&request, &mut packet);
//! assert_eq!(decode_request(&packet), Ok(request));
//! ```

mod fields;

use crate::answer::Failure;
use crate::file::Meta;
use crate::resolve::RawAnswer;
use crate::revalidate::AbsentSiblings;
use crate::root::{RootId, RuleKind, Symlinks};
use fields::{contents_if_any, contents_or_errno, fetched_length, inline_result, path, payload};
pub use headway_os::codec::Malformed;
use headway_os::codec::{Field, decode};
use headway_os::encoding;
use std::borrow::Cow;
use std::rc::Rc;

/// The version this build speaks.
pub const VERSION: u16 = 9;
/// No path is longer: `PATH_MAX`, so that this many bytes already fail with `ENAMETOOLONG`.
pub const PATH_BYTES_MAX: usize = 4096;
/// No request is longer.
pub const MESSAGE_BYTES_MAX: usize = 8192 + PATH_BYTES_MAX;
/// Contents fetched in one answer are not longer.
pub const FETCH_BYTES_MAX: usize = 64 * 1024;
/// No reply is longer: an answer with the file's contents.
pub const REPLY_BYTES_MAX: usize = 256 + FETCH_BYTES_MAX;
/// All index names of one root together, with four bytes of length each, are not longer.
pub const INDEX_BYTES_MAX: usize = 4096;
/// All rules of one root together, with five bytes for each, are not longer.
pub const RULE_BYTES_MAX: usize = 4096;
/// The payload of a custom job is not longer.
pub const CUSTOM_JOB_BYTES_MAX: usize = 8192;
/// The result of a custom job is in the answer up to this length, and in a memfd beyond it.
pub const INLINE_RESULT_BYTES_MAX: usize = 256;
/// Limit of descriptors in one DeferClose message.
pub const CLOSE_BATCH_MAX: usize = 64;

/// What a helper does with a file it has found.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OpenMode {
    /// Resolves and opens the file only to fill the kernel's caches, and closes it. The worker then
    /// repeats the steps itself, as Flash did.
    TouchOnly,
    /// Passes the open file.
    Open,
    /// Passes the open file after reading its first bytes into memory, at most this many.
    OpenAndPrefetch(u64),
    /// Passes the open file with its contents, if these are at most [`FETCH_BYTES_MAX`] and it has
    /// no precompressed siblings, which may be sent instead. Others are read into memory.
    OpenAndRead,
    /// As [`OpenMode::OpenAndRead`], but precompressed siblings are not looked for: on a remote file
    /// system each would be a round trip that the request waits for.
    OpenAndReadAlone,
}

impl OpenMode {
    /// What becomes of precompressed siblings.
    pub fn absent_siblings(self) -> AbsentSiblings {
        match self {
            OpenMode::OpenAndReadAlone => AbsentSiblings::AssumeAbsent,
            _ => AbsentSiblings::Probe,
        }
    }
}

/// A message from a worker to a helper.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request<'a> {
    /// The first message.
    Hello {
        /// The sender's [`VERSION`].
        version: u16,
        /// How many Root messages follow.
        roots: u32,
    },
    /// One document root, in order; later again when it is another directory.
    Root {
        /// The root's number.
        root: RootId,
        /// Look for precompressed siblings.
        siblings: bool,
        /// List names that begin with a dot.
        dotfiles: bool,
        /// Which symbolic links are followed.
        symlinks: Symlinks,
        /// Index names.
        index: Vec<Cow<'a, str>>,
        /// Which names are not listed, in the order of [`PathRule`](crate::PathRule).
        rules: Vec<(RuleKind, Cow<'a, str>)>,
    },
    /// Look up a path.
    Lookup {
        /// The worker's number for this job.
        job: u64,
        /// Beneath this root.
        root: RootId,
        /// What to do with it.
        want: OpenMode,
        /// Normalised and relative.
        path: &'a [u8],
    },
    /// Bring a piece of the attached file into memory.
    ReadIn {
        /// The worker's number for this job.
        job: u64,
        /// Offset of the first byte.
        offset: u64,
        /// The number of bytes.
        length: u64,
    },
    /// Make a page that lists a directory. A page made before may be attached: if it still says the
    /// same, no second one is made.
    List {
        /// The worker's number for this job.
        job: u64,
        /// Beneath this root.
        root: RootId,
        /// Normalised and relative.
        path: &'a [u8],
    },
    /// Copy a piece of the attached file into a sealed memfd.
    Copy {
        /// The worker's number for this job.
        job: u64,
        /// Offset of the first byte.
        offset: u64,
        /// The number of bytes.
        length: u64,
    },
    /// Copy a piece of the attached file into a sealed memfd, if what was sent of the file before
    /// still is in it.
    CopyChecked {
        /// The worker's number for this job.
        job: u64,
        /// Offset of the first byte that was sent.
        sent: u64,
        /// The checksum of the bytes from there to `offset`.
        checksum: u64,
        /// Offset of the first byte of the copy.
        offset: u64,
        /// The number of bytes of the copy.
        length: u64,
    },
    /// Say what the attached file holds, in the answer itself.
    Fetch {
        /// The worker's number for this job.
        job: u64,
        /// The number of bytes from its start, at most [`FETCH_BYTES_MAX`].
        length: u32,
    },
    /// Take the attached files, and keep them until Release: by then the worker has closed its
    /// copies, so that the helper's are the last.
    DeferClose {
        /// The worker's number for this job.
        job: u64,
    },
    /// Close the files of the DeferClose before.
    Release {
        /// The job of the DeferClose before.
        job: u64,
    },
    /// Write the attached piece into the attached file, or into a new one without a name.
    Spool {
        /// The worker's number for this job.
        job: u64,
        /// Offset of the piece in the temporary file.
        offset: u64,
        /// Length of the piece. What its memory holds behind that is of no concern.
        length: u64,
        /// Where a new file is made: absolute.
        directory: &'a [u8],
    },
    /// Find out which directory a root's path leads to now.
    OpenRoot {
        /// The worker's number for this job.
        job: u64,
        /// Absolute.
        path: &'a [u8],
    },
    /// Do something that neither end knows anything of.
    Custom {
        /// The worker's number for this job.
        job: u64,
        /// The content of the job.
        payload: &'a [u8],
    },
}

/// The result of a custom job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CustomResult<F> {
    /// In the answer itself, at most [`INLINE_RESULT_BYTES_MAX`].
    Inline(Box<[u8]>),
    /// In a memfd.
    File(F),
}

/// A message from a helper to a worker.
#[derive(Debug, PartialEq, Eq)]
// There is one at a time, and it is consumed at once; a box would be an allocation.
#[allow(clippy::large_enum_variant)]
pub enum Reply {
    /// Answer to Lookup.
    LookedUp {
        /// The job answered.
        job: u64,
        /// The answer; its files are attached in the same order.
        answer: RawAnswer<Meta>,
        /// What its file holds, to [`OpenMode::OpenAndRead`]; fewer bytes than its size if it has
        /// become shorter.
        content: Option<Rc<[u8]>>,
    },
    /// Answer to ReadIn.
    ReadIn {
        /// The job answered.
        job: u64,
        /// 0, or why the disk did not deliver.
        errno: u32,
    },
    /// Answer to List.
    Listed {
        /// The job answered.
        job: u64,
        /// The attached page; `None` if it equals the page of the request; or why there is none.
        answer: Result<Option<Meta>, Failure>,
    },
    /// Answer to Copy and CopyChecked.
    Copy {
        /// The job answered.
        job: u64,
        /// The attached contents, or an errno other than 0: `ESTALE` if the file does not hold what
        /// was sent any more.
        content: Result<Meta, u32>,
    },
    /// Answer to Fetch.
    Fetched {
        /// The job answered.
        job: u64,
        /// The contents, shorter than requested if the file ends earlier; or an errno other than 0.
        content: Result<Rc<[u8]>, u32>,
    },
    /// Answer to Release.
    Closed {
        /// The job answered.
        job: u64,
    },
    /// Answer to Lookup with [`OpenMode::TouchOnly`].
    Touched {
        /// The job answered.
        job: u64,
    },
    /// Answer to Spool.
    Spooled {
        /// The job answered.
        job: u64,
        /// The file was made, and is attached.
        made: bool,
        /// 0, or why the write failed.
        errno: u32,
    },
    /// Answer to OpenRoot.
    RootOpened {
        /// The job answered.
        job: u64,
        /// The attached directory, or an errno other than 0.
        directory: Result<Meta, u32>,
    },
    /// Answer to Custom.
    Custom {
        /// The job answered.
        job: u64,
        /// What the job has brought; a file is attached.
        answer: Result<CustomResult<Meta>, Failure>,
    },
}

impl Reply {
    /// The job that the reply answers.
    pub fn job(&self) -> u64 {
        match self {
            Reply::LookedUp { job, .. }
            | Reply::ReadIn { job, .. }
            | Reply::Listed { job, .. }
            | Reply::Copy { job, .. }
            | Reply::Fetched { job, .. }
            | Reply::Closed { job }
            | Reply::Touched { job }
            | Reply::Spooled { job, .. }
            | Reply::RootOpened { job, .. }
            | Reply::Custom { job, .. } => *job,
        }
    }

    /// How many descriptors come with it.
    pub fn descriptors(&self) -> usize {
        match self {
            Reply::LookedUp {
                answer: RawAnswer::File { siblings, .. },
                ..
            } => 1 + siblings.iter().flatten().count(),
            Reply::Listed {
                answer: Ok(Some(_)),
                ..
            }
            | Reply::Copy { content: Ok(_), .. }
            | Reply::RootOpened {
                directory: Ok(_), ..
            }
            | Reply::Spooled { made: true, .. }
            | Reply::Custom {
                answer: Ok(CustomResult::File(_)),
                ..
            } => 1,
            _ => 0,
        }
    }
}

encoding! {
    enum<'b> Request {
        1 => Hello { version, roots },
        2 => Root { root, siblings, dotfiles, symlinks, index, rules },
        3 => Lookup { job, root, want, path: path },
        4 => ReadIn { job, offset, length },
        5 => List { job, root, path: path },
        6 => Copy { job, offset, length },
        7 => DeferClose { job },
        8 => Release { job },
        9 => Spool { job, offset, length, directory: path },
        10 => Custom { job, payload: payload },
        11 => Fetch { job, length: fetched_length },
        12 => OpenRoot { job, path: path },
        13 => CopyChecked { job, sent, checksum, offset, length },
    }
}

encoding! {
    enum Reply {
        129 => LookedUp { job, answer, content: contents_if_any },
        130 => ReadIn { job, errno },
        131 => Listed { job, answer },
        132 => Copy { job, content },
        133 => Closed { job },
        134 => Touched { job },
        135 => Spooled { job, made, errno },
        136 => Custom { job, answer },
        137 => Fetched { job, content: contents_or_errno },
        138 => RootOpened { job, directory },
    }
}

encoding! {
    enum Symlinks {
        0 => Inside,
        1 => Owner,
        2 => None,
        3 => Any,
    }
}

encoding! {
    enum RuleKind {
        0 => PublicBelow,
        1 => InternalBelow,
        2 => PublicSuffix,
        3 => InternalSuffix,
    }
}

encoding! {
    enum OpenMode {
        0 => TouchOnly,
        1 => Open,
        2 => OpenAndPrefetch(bytes_max),
        3 => OpenAndRead,
        4 => OpenAndReadAlone,
    }
}

encoding! {
    enum CustomResult for CustomResult<Meta> {
        0 => Inline(payload: inline_result),
        1 => File(file),
    }
}

encoding! {
    enum RawAnswer for RawAnswer<Meta> {
        0 => File { file, unusable, index, siblings },
        1 => Redirect,
        2 => Directory,
        3 => Failed(failure),
    }
}

encoding! {
    enum Failure {
        0 => NotFound,
        1 => NameTooLong,
        2 => Forbidden,
        3 => NotRegular,
        4 => Exhausted,
        5 => Io,
        6 => Overloaded,
        7 => GivenUp,
        8 => Changed,
        9 => Stale,
    }
}

encoding! {
    struct Meta { size, modified, changed, device, inode }
}

/// Append the bytes of a request. A path beyond [`PATH_BYTES_MAX`] is cut: the rest of it cannot
/// change the answer, which is `ENAMETOOLONG` already.
pub fn encode_request(request: &Request<'_>, bytes: &mut Vec<u8>) {
    request.write(bytes);
}

/// Append the bytes of a reply. Contents may be appended to those of an answer that has empty ones.
///
/// ```
/// use headway_files::protocol::{Reply, decode_reply, encode_reply};
///
/// let mut bytes = Vec::new();
/// encode_reply(&Reply::ReadIn { job: 7, errno: 0 }, &mut bytes);
/// assert!(matches!(decode_reply(&bytes), Ok(Reply::ReadIn { job: 7, errno: 0 })));
/// ```
pub fn encode_reply(reply: &Reply, bytes: &mut Vec<u8>) {
    reply.write(bytes);
}

/// Read a request.
///
/// # Errors
/// [`Malformed`]; the sender is broken, so stop.
pub fn decode_request(bytes: &[u8]) -> Result<Request<'_>, Malformed> {
    match bytes.len() > MESSAGE_BYTES_MAX {
        true => Err(Malformed { what: "too long" }),
        false => decode(bytes),
    }
}

/// Decodes a reply.
///
/// # Errors
/// [`Malformed`]: the helper is broken; drop it and use another one.
pub fn decode_reply(bytes: &[u8]) -> Result<Reply, Malformed> {
    let reply = match bytes.len() > REPLY_BYTES_MAX {
        true => return Err(Malformed { what: "too long" }),
        false => decode(bytes)?,
    };
    // Contents belong to one file.
    if let Reply::LookedUp {
        answer,
        content: Some(_),
        ..
    } = &reply
        && reply.descriptors() != 1
    {
        let what = match answer {
            RawAnswer::File { .. } => "contents of several files",
            _ => "contents of no file",
        };
        return Err(Malformed { what });
    }
    Ok(reply)
}
