//! The protocol between a worker and its helpers, as pure functions on bytes.
//!
//! One message is one `SOCK_SEQPACKET` packet; descriptors are attached to it
//! (`headway_os::fd_passing`). Integers are little-endian. The worker sends one Hello, one Root for
//! each document root, then requests. A helper works on one job at a time and answers with the
//! number of that job.
//!
//! | kind | message  | fields after the kind byte                     | descriptors   |
//! |------|----------|------------------------------------------------|---------------|
//! | 1    | Hello    | version u16, roots u32                         | 0             |
//! | 2    | Root     | root u32, siblings u8, dotfiles u8 (0, 1), Names | 1 (directory) |
//! | 3    | Resolve  | job u64, root u32, OpenMode u8, path to the end    | 0             |
//! | 4    | ReadIn   | job u64, offset u64, length u64                | 1 (file)      |
//! | 5    | List     | job u64, root u32, path to the end             | 0, or 1 (the page known) |
//! | 6    | Read     | job u64, offset u64, length u64                | 1 (file)      |
//! | 7    | DeferClose | job u64                                      | 1 or more     |
//! | 8    | Release  | job u64                                        | 0             |
//! | 9    | Spool    | job u64, offset u64, path of a directory to the end | 1 (piece), or 2 (piece, file) |
//! | 10   | Custom   | job u64, payload to the end                    | 0             |
//! | 11   | Fetch    | job u64, length u32                             | 1 (file)      |
//! | 129  | Resolved | job u64, Answer, contents u8 (0, 1), if 1 they follow to the end | one a Meta |
//! | 130  | ReadIn   | job u64, errno u32 (0: done)                   | 0             |
//! | 131  | Listed   | job u64, then 0 and Meta, 1 and failure u8, or 2 (as known) | one a Meta |
//! | 132  | Read     | job u64, errno u32, then Meta if errno is 0    | one a Meta    |
//! | 133  | Closed   | job u64                                        | 0             |
//! | 134  | Touched  | job u64                                        | 0             |
//! | 135  | Spooled  | job u64, a new file u8 (0, 1), errno u32 (0: done) | 1 if a new file |
//! | 136  | Custom   | job u64, then 0, length u16 and the bytes, 1 and Meta, or 2 and failure u8 | one a Meta |
//! | 137  | Fetched  | job u64, errno u32 (0: done), then the contents to the end | 0  |
//!
//! - Names: count u16, then for each the length u16 and UTF-8.
//! - OpenMode: 0 warm only, 1 open, 2 open and prefetch (then u64, the limit of bytes), 3 open and
//!   read small contents.
//! - Meta: size u64, modified i64 + u32, changed i64 + u32, device u64, inode u64.
//! - Answer: a byte; after 0 (file): has an index name u8 (0, 1), its position u16, siblings u8
//!   (bits: br, zstd, gzip), Meta, one Meta per sibling; after 1 (redirect) and 2 (directory)
//!   nothing; after 3: failure u8.
//!
//! What it refuses: everything that differs from the table, as [`Malformed`]; each message has
//! exactly one encoding. Both ends are one binary started by one master, so the version is there to
//! detect mistakes, not to negotiate.

mod reader;
mod writer;

use crate::answer::Failure;
use crate::file::Meta;
use crate::resolve::RawAnswer;
use crate::root::RootId;
use reader::Reader;
use std::borrow::Cow;
use std::rc::Rc;
use writer::{failure_code, put_job, put_meta, put_open_mode, put_path, put_range, put_root};
pub(crate) use writer::{fetched_head, resolved_head};

/// The version this build speaks.
pub const VERSION: u16 = 7;
/// No path is longer: `PATH_MAX`, so that this many bytes already fail with `ENAMETOOLONG`.
pub const PATH_BYTES_MAX: usize = 4096;
/// No request is longer.
pub const MESSAGE_BYTES_MAX: usize = 8192 + PATH_BYTES_MAX;
/// Contents fetched in one answer are not longer.
pub const FETCH_BYTES_MAX: usize = 64 * 1024;
/// No reply is longer: an answer with the file's contents.
pub const REPLY_BYTES_MAX: usize = 256 + FETCH_BYTES_MAX;
/// What stands before fetched contents.
const FETCHED_HEAD_BYTES: usize = 1 + 8 + 4;
/// All index names of one root together, with two bytes of length each, are not longer.
pub const INDEX_BYTES_MAX: usize = 4096;
/// The payload of a custom job is not longer.
pub const CUSTOM_JOB_BYTES_MAX: usize = 8192;
/// The result of a custom job is in the answer up to this length, and in a memfd beyond it.
pub const INLINE_RESULT_BYTES_MAX: usize = 256;
/// Limit of descriptors in one DeferClose message.
pub const CLOSE_BATCH_MAX: usize = 64;

/// A message that is not one of the table's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("malformed message: {what}")]
pub struct Malformed {
    /// What is wrong with the message.
    pub what: &'static str,
}

/// What a helper does with a file it has found.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OpenMode {
    /// Resolves and opens the file only to fill the kernel's caches, and closes it. The worker then
    /// repeats the steps itself, as Flash did.
    WarmOnly,
    /// Passes the open file.
    Open,
    /// Passes the open file after reading its first bytes into memory, at most this many.
    OpenAndPrefetch(u64),
    /// Passes the open file with its contents, if these are at most [`FETCH_BYTES_MAX`] and it has
    /// no precompressed siblings, which may be sent instead. Others are read into memory.
    OpenAndRead,
}

/// From worker to helper.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request<'a> {
    /// The first message.
    Hello {
        /// The sender's [`VERSION`].
        version: u16,
        /// How many Root messages follow.
        roots: u32,
    },
    /// One document root, in order.
    Root {
        /// The root's number.
        root: RootId,
        /// Look for precompressed siblings.
        siblings: bool,
        /// List names that begin with a dot.
        dotfiles: bool,
        /// Index names.
        index: Vec<Cow<'a, str>>,
    },
    /// Resolve a path.
    Resolve {
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
        /// From here.
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
    Read {
        /// The worker's number for this job.
        job: u64,
        /// From here.
        offset: u64,
        /// The number of bytes.
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
        /// Where the piece goes.
        offset: u64,
        /// Where a new file is made: absolute.
        directory: &'a [u8],
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

/// From helper to worker.
#[derive(Debug, PartialEq, Eq)]
// There is one at a time, and it is consumed at once; a box would be an allocation.
#[allow(clippy::large_enum_variant)]
pub enum Reply {
    /// To Resolve.
    Resolved {
        /// The job answered.
        job: u64,
        /// The answer; its files are attached in the same order.
        answer: RawAnswer<Meta>,
        /// What its file holds, to [`OpenMode::OpenAndRead`]; fewer bytes than its size if it has
        /// become shorter.
        content: Option<Rc<[u8]>>,
    },
    /// To ReadIn.
    ReadIn {
        /// The job answered.
        job: u64,
        /// 0, or why the disk did not deliver.
        errno: u32,
    },
    /// To List.
    Listed {
        /// The job answered.
        job: u64,
        /// The attached page; `None` if it equals the page of the request; or why there is none.
        answer: Result<Option<Meta>, Failure>,
    },
    /// To Read.
    Read {
        /// The job answered.
        job: u64,
        /// The attached contents, or an errno other than 0.
        content: Result<Meta, u32>,
    },
    /// To Fetch.
    Fetched {
        /// The job answered.
        job: u64,
        /// The contents, shorter than requested if the file ends earlier; or an errno other than 0.
        content: Result<Rc<[u8]>, u32>,
    },
    /// To Release.
    Closed {
        /// The job answered.
        job: u64,
    },
    /// To Resolve with [`OpenMode::WarmOnly`].
    Touched {
        /// The job answered.
        job: u64,
    },
    /// To Spool.
    Spooled {
        /// The job answered.
        job: u64,
        /// The file was made, and is attached.
        made: bool,
        /// 0, or why the write failed.
        errno: u32,
    },
    /// To CustomJob.
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
            Reply::Resolved { job, .. }
            | Reply::ReadIn { job, .. }
            | Reply::Listed { job, .. }
            | Reply::Read { job, .. }
            | Reply::Fetched { job, .. }
            | Reply::Closed { job }
            | Reply::Touched { job }
            | Reply::Spooled { job, .. }
            | Reply::Custom { job, .. } => *job,
        }
    }

    /// How many descriptors come with it.
    pub fn descriptors(&self) -> usize {
        match self {
            Reply::Resolved {
                answer: RawAnswer::File { siblings, .. },
                ..
            } => 1 + siblings.iter().flatten().count(),
            Reply::Listed {
                answer: Ok(Some(_)),
                ..
            }
            | Reply::Read { content: Ok(_), .. }
            | Reply::Spooled { made: true, .. }
            | Reply::Custom {
                answer: Ok(CustomResult::File(_)),
                ..
            } => 1,
            _ => 0,
        }
    }
}

/// Append the bytes of a request. A path beyond [`PATH_BYTES_MAX`] is cut: the rest of it cannot
/// change the answer, which is `ENAMETOOLONG` already.
pub fn encode_request(request: &Request<'_>, bytes: &mut Vec<u8>) {
    match request {
        Request::Hello { version, roots } => {
            bytes.push(1);
            bytes.extend(version.to_le_bytes());
            bytes.extend(roots.to_le_bytes());
        }
        Request::Root {
            root,
            siblings,
            dotfiles,
            index,
        } => {
            bytes.push(2);
            bytes.extend(root.0.to_le_bytes());
            bytes.extend([u8::from(*siblings), u8::from(*dotfiles)]);
            bytes.extend((index.len() as u16).to_le_bytes());
            for name in index {
                bytes.extend((name.len() as u16).to_le_bytes());
                bytes.extend(name.as_bytes());
            }
        }
        Request::Resolve {
            job,
            root,
            want,
            path,
        } => {
            put_root(bytes, 3, *job, *root);
            put_open_mode(bytes, *want);
            put_path(bytes, path);
        }
        Request::ReadIn {
            job,
            offset,
            length,
        } => put_range(bytes, 4, *job, *offset, *length),
        Request::List { job, root, path } => {
            put_root(bytes, 5, *job, *root);
            put_path(bytes, path);
        }
        Request::Read {
            job,
            offset,
            length,
        } => put_range(bytes, 6, *job, *offset, *length),
        Request::DeferClose { job } => put_job(bytes, 7, *job),
        Request::Release { job } => put_job(bytes, 8, *job),
        Request::Spool {
            job,
            offset,
            directory,
        } => {
            put_job(bytes, 9, *job);
            bytes.extend(offset.to_le_bytes());
            put_path(bytes, directory);
        }
        Request::Custom { job, payload } => {
            put_job(bytes, 10, *job);
            bytes.extend(&payload[..payload.len().min(CUSTOM_JOB_BYTES_MAX)]);
        }
        Request::Fetch { job, length } => {
            put_job(bytes, 11, *job);
            bytes.extend(length.to_le_bytes());
        }
    }
}

/// Append the bytes of a reply.
pub fn encode_reply(reply: &Reply, bytes: &mut Vec<u8>) {
    match reply {
        Reply::Resolved {
            job,
            answer,
            content,
        } => {
            resolved_head(*job, answer, content.is_some(), bytes);
            bytes.extend(content.as_deref().unwrap_or_default());
        }
        Reply::ReadIn { job, errno } => {
            put_job(bytes, 130, *job);
            bytes.extend(errno.to_le_bytes());
        }
        Reply::Listed { job, answer } => {
            put_job(bytes, 131, *job);
            match answer {
                Ok(Some(meta)) => {
                    bytes.push(0);
                    put_meta(bytes, meta);
                }
                Err(failure) => bytes.extend([1, failure_code(*failure)]),
                Ok(None) => bytes.push(2),
            }
        }
        Reply::Read { job, content } => {
            put_job(bytes, 132, *job);
            match content {
                Ok(meta) => {
                    bytes.extend(0_u32.to_le_bytes());
                    put_meta(bytes, meta);
                }
                Err(errno) => bytes.extend(errno.to_le_bytes()),
            }
        }
        Reply::Fetched { job, content } => match content {
            Ok(content) => {
                bytes.extend(fetched_head(*job, 0));
                bytes.extend(&**content);
            }
            Err(errno) => bytes.extend(fetched_head(*job, *errno)),
        },
        Reply::Closed { job } => put_job(bytes, 133, *job),
        Reply::Touched { job } => put_job(bytes, 134, *job),
        Reply::Spooled { job, made, errno } => {
            put_job(bytes, 135, *job);
            bytes.push(u8::from(*made));
            bytes.extend(errno.to_le_bytes());
        }
        Reply::Custom { job, answer } => {
            put_job(bytes, 136, *job);
            match answer {
                Ok(CustomResult::Inline(payload)) => {
                    bytes.push(0);
                    bytes.extend((payload.len() as u16).to_le_bytes());
                    bytes.extend(&**payload);
                }
                Ok(CustomResult::File(meta)) => {
                    bytes.push(1);
                    put_meta(bytes, meta);
                }
                Err(failure) => bytes.extend([2, failure_code(*failure)]),
            }
        }
    }
}

/// Read a request.
///
/// # Errors
/// [`Malformed`]; the sender is broken, so stop.
pub fn decode_request(bytes: &[u8]) -> Result<Request<'_>, Malformed> {
    let mut rest = Reader::new(bytes, MESSAGE_BYTES_MAX)?;
    let request = match rest.u8()? {
        1 => Request::Hello {
            version: rest.u16()?,
            roots: rest.u32()?,
        },
        2 => rest.root()?,
        3 => Request::Resolve {
            job: rest.u64()?,
            root: rest.root_id()?,
            want: rest.want()?,
            path: rest.path()?,
        },
        4 => Request::ReadIn {
            job: rest.u64()?,
            offset: rest.u64()?,
            length: rest.u64()?,
        },
        5 => Request::List {
            job: rest.u64()?,
            root: rest.root_id()?,
            path: rest.path()?,
        },
        6 => Request::Read {
            job: rest.u64()?,
            offset: rest.u64()?,
            length: rest.u64()?,
        },
        7 => Request::DeferClose { job: rest.u64()? },
        8 => Request::Release { job: rest.u64()? },
        9 => Request::Spool {
            job: rest.u64()?,
            offset: rest.u64()?,
            directory: rest.path()?,
        },
        10 => Request::Custom {
            job: rest.u64()?,
            payload: rest.payload()?,
        },
        11 => Request::Fetch {
            job: rest.u64()?,
            length: rest.fetched_length()?,
        },
        _ => {
            return Err(Malformed {
                what: "unknown request",
            });
        }
    };
    rest.end()?;
    Ok(request)
}

/// Decodes a reply.
///
/// # Errors
/// [`Malformed`]: the helper is broken; drop it and use another one.
pub fn decode_reply(bytes: &[u8]) -> Result<Reply, Malformed> {
    let mut rest = Reader::new(bytes, REPLY_BYTES_MAX)?;
    let reply = match rest.u8()? {
        129 => {
            let (job, answer) = (rest.u64()?, rest.answer()?);
            let content = rest.contents_of(&answer)?;
            Reply::Resolved {
                job,
                answer,
                content,
            }
        }
        130 => Reply::ReadIn {
            job: rest.u64()?,
            errno: rest.u32()?,
        },
        131 => {
            let job = rest.u64()?;
            let answer = match rest.u8()? {
                0 => Ok(Some(rest.meta()?)),
                1 => Err(rest.failure()?),
                2 => Ok(None),
                _ => {
                    return Err(Malformed {
                        what: "unknown listing",
                    });
                }
            };
            Reply::Listed { job, answer }
        }
        132 => {
            let job = rest.u64()?;
            let errno = rest.u32()?;
            let content = if errno == 0 {
                Ok(rest.meta()?)
            } else {
                Err(errno)
            };
            Reply::Read { job, content }
        }
        133 => Reply::Closed { job: rest.u64()? },
        134 => Reply::Touched { job: rest.u64()? },
        135 => Reply::Spooled {
            job: rest.u64()?,
            made: rest.flag()?,
            errno: rest.u32()?,
        },
        136 => Reply::Custom {
            job: rest.u64()?,
            answer: match rest.u8()? {
                0 => Ok(CustomResult::Inline(rest.short()?)),
                1 => Ok(CustomResult::File(rest.meta()?)),
                2 => Err(rest.failure()?),
                _ => {
                    return Err(Malformed {
                        what: "unknown custom_job",
                    });
                }
            },
        },
        137 => Reply::Fetched {
            job: rest.u64()?,
            content: match rest.u32()? {
                0 => Ok(rest.contents()?),
                errno => Err(errno),
            },
        },
        _ => {
            return Err(Malformed {
                what: "unknown reply",
            });
        }
    };
    rest.end()?;
    Ok(reply)
}
