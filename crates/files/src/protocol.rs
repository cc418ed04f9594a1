//! What a worker and its helpers say to each other, as pure functions on bytes.
//!
//! One message is one `SOCK_SEQPACKET` packet; descriptors travel beside it (`headway_os::rights`).
//! Integers are little-endian. The worker speaks first: one Hello, one Root for each document root,
//! then requests. A helper works on one job at a time and answers with that job's number.
//!
//! | kind | message  | fields after the kind byte                     | descriptors   |
//! |------|----------|------------------------------------------------|---------------|
//! | 1    | Hello    | version u16, roots u32                         | 0             |
//! | 2    | Root     | root u32, siblings u8, dotfiles u8 (0, 1), Names | 1 (directory) |
//! | 3    | Resolve  | job u64, root u32, Want u8, path to the end    | 0             |
//! | 4    | ReadIn   | job u64, offset u64, length u64                | 1 (file)      |
//! | 5    | List     | job u64, root u32, path to the end             | 0, or 1 (the page known) |
//! | 6    | Read     | job u64, offset u64, length u64                | 1 (file)      |
//! | 7    | Retire   | job u64                                        | 1 or more     |
//! | 8    | Release  | job u64                                        | 0             |
//! | 9    | Spill    | job u64, offset u64, path of a directory to the end | 1 (piece), or 2 (piece, file) |
//! | 10   | Errand   | job u64, its words to the end                   | 0             |
//! | 11   | Fetch    | job u64, length u32                             | 1 (file)      |
//! | 129  | Resolved | job u64, Answer, contents u8 (0, 1), if 1 they follow to the end | one a Meta |
//! | 130  | ReadIn   | job u64, errno u32 (0: done)                   | 0             |
//! | 131  | Listed   | job u64, then 0 and Meta, 1 and failure u8, or 2 (as known) | one a Meta |
//! | 132  | Read     | job u64, errno u32, then Meta if errno is 0    | one a Meta    |
//! | 133  | Retired  | job u64                                        | 0             |
//! | 134  | Touched  | job u64                                        | 0             |
//! | 135  | Spilled  | job u64, a new file u8 (0, 1), errno u32 (0: done) | 1 if a new file |
//! | 136  | Errand   | job u64, then 0, length u16 and so many words, 1 and Meta, or 2 and failure u8 | one a Meta |
//! | 137  | Fetched  | job u64, errno u32 (0: done), then the contents to the end | 0  |
//!
//! - Names: count u16, then so many times length u16 and UTF-8.
//! - Want: 0 touch, 1 the file, 2 the file with its first bytes read in (then u64, how many at
//!   most), 3 the file with its contents if they are few.
//! - Meta: size u64, modified i64 + u32, changed i64 + u32, device u64, inode u64.
//! - Answer: a byte; after 0 (file): has an index name u8 (0, 1), its position u16, siblings u8
//!   (bits: br, zstd, gzip), Meta, one Meta a sibling; after 1 (redirect) and 2 (directory)
//!   nothing; after 3: failure u8.
//!
//! What it refuses: anything longer, shorter or other than the table, as [`Malformed`]; each
//! message has exactly one encoding. The two ends are one binary started by one master, so the
//! version is there to notice a mistake, not to negotiate.

mod reader;
mod writer;

use crate::answer::Failure;
use crate::file::Meta;
use crate::resolve::RawAnswer;
use crate::root::RootId;
use reader::Reader;
use std::borrow::Cow;
use std::rc::Rc;
use writer::{failure_code, put_job, put_meta, put_path, put_range, put_root, put_want};
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
/// What is said of an errand is not longer.
pub const ERRAND_BYTES_MAX: usize = 8192;
/// What an errand brings is told in the answer up to this length, and is a file beyond it.
pub const WORDS_BYTES_MAX: usize = 256;
/// Files retired in one message at most.
pub const RETIRE_MAX: usize = 64;

/// A message that is not one of the table's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("malformed message: {what}")]
pub struct Malformed {
    /// What is wrong with it.
    pub what: &'static str,
}

/// What a helper does with a name it has found.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Want {
    /// Looks it up, opens it, and forgets it: only the kernel's caches remember. The worker repeats
    /// the steps itself, as Flash did.
    Touch,
    /// Passes the open file.
    File,
    /// Passes the open file and has read its first bytes in, at most so many.
    FileReadIn(u64),
    /// Passes the open file and says what it holds, if that is at most [`FETCH_BYTES_MAX`] and it
    /// has no siblings, which may be wanted in its place. Others are read in.
    FileFetched,
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
        /// Its number.
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
        want: Want,
        /// Normalised and relative.
        path: &'a [u8],
    },
    /// Bring a piece of the attached file into memory.
    ReadIn {
        /// The worker's number for this job.
        job: u64,
        /// From here.
        offset: u64,
        /// So many bytes.
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
        /// So many bytes.
        length: u64,
    },
    /// Say what the attached file holds, in the answer itself.
    Fetch {
        /// The worker's number for this job.
        job: u64,
        /// So many bytes from its start, at most [`FETCH_BYTES_MAX`].
        length: u32,
    },
    /// Take the attached files, and keep them until Release: by then the worker has closed its
    /// copies, so that the helper's are the last.
    Retire {
        /// The worker's number for this job.
        job: u64,
    },
    /// Close the retired files.
    Release {
        /// The job of the Retire before.
        job: u64,
    },
    /// Write the attached piece into the attached file, or into a new one without a name.
    Spill {
        /// The worker's number for this job.
        job: u64,
        /// Where the piece goes.
        offset: u64,
        /// Where a new file is made: absolute.
        directory: &'a [u8],
    },
    /// Do something that neither end knows anything of.
    Errand {
        /// The worker's number for this job.
        job: u64,
        /// What it is.
        words: &'a [u8],
    },
}

/// What an errand has brought.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Brought<F> {
    /// This, at most [`WORDS_BYTES_MAX`].
    Words(Box<[u8]>),
    /// This file in memory.
    File(F),
}

/// From helper to worker.
#[derive(Debug, PartialEq, Eq)]
// One at a time, taken apart at once; a box would be an allocation.
#[allow(clippy::large_enum_variant)]
pub enum Reply {
    /// To Resolve.
    Resolved {
        /// The job answered.
        job: u64,
        /// The answer; its files are attached in the same order.
        answer: RawAnswer<Meta>,
        /// What its file holds, to [`Want::FileFetched`]; fewer bytes than its size if it has
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
        /// The attached page; nothing if it is the same as the one that came with the request; or
        /// why there is none.
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
        /// The contents, fewer bytes than asked for where the file ends; or an errno other than 0.
        content: Result<Rc<[u8]>, u32>,
    },
    /// To Release.
    Retired {
        /// The job answered.
        job: u64,
    },
    /// To Resolve with [`Want::Touch`].
    Touched {
        /// The job answered.
        job: u64,
    },
    /// To Spill.
    Spilled {
        /// The job answered.
        job: u64,
        /// The file was made, and is attached.
        made: bool,
        /// 0, or why the disk did not take it.
        errno: u32,
    },
    /// To Errand.
    Errand {
        /// The job answered.
        job: u64,
        /// What it has brought; a file is attached.
        answer: Result<Brought<Meta>, Failure>,
    },
}

impl Reply {
    /// The job it answers.
    pub fn job(&self) -> u64 {
        match self {
            Reply::Resolved { job, .. }
            | Reply::ReadIn { job, .. }
            | Reply::Listed { job, .. }
            | Reply::Read { job, .. }
            | Reply::Fetched { job, .. }
            | Reply::Retired { job }
            | Reply::Touched { job }
            | Reply::Spilled { job, .. }
            | Reply::Errand { job, .. } => *job,
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
            | Reply::Spilled { made: true, .. }
            | Reply::Errand {
                answer: Ok(Brought::File(_)),
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
            put_want(bytes, *want);
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
        Request::Retire { job } => put_job(bytes, 7, *job),
        Request::Release { job } => put_job(bytes, 8, *job),
        Request::Spill {
            job,
            offset,
            directory,
        } => {
            put_job(bytes, 9, *job);
            bytes.extend(offset.to_le_bytes());
            put_path(bytes, directory);
        }
        Request::Errand { job, words } => {
            put_job(bytes, 10, *job);
            bytes.extend(&words[..words.len().min(ERRAND_BYTES_MAX)]);
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
        Reply::Retired { job } => put_job(bytes, 133, *job),
        Reply::Touched { job } => put_job(bytes, 134, *job),
        Reply::Spilled { job, made, errno } => {
            put_job(bytes, 135, *job);
            bytes.push(u8::from(*made));
            bytes.extend(errno.to_le_bytes());
        }
        Reply::Errand { job, answer } => {
            put_job(bytes, 136, *job);
            match answer {
                Ok(Brought::Words(words)) => {
                    bytes.push(0);
                    bytes.extend((words.len() as u16).to_le_bytes());
                    bytes.extend(&**words);
                }
                Ok(Brought::File(meta)) => {
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
        7 => Request::Retire { job: rest.u64()? },
        8 => Request::Release { job: rest.u64()? },
        9 => Request::Spill {
            job: rest.u64()?,
            offset: rest.u64()?,
            directory: rest.path()?,
        },
        10 => Request::Errand {
            job: rest.u64()?,
            words: rest.words()?,
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

/// Read a reply.
///
/// # Errors
/// [`Malformed`]; the sender is broken: give it up and ask another helper.
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
        133 => Reply::Retired { job: rest.u64()? },
        134 => Reply::Touched { job: rest.u64()? },
        135 => Reply::Spilled {
            job: rest.u64()?,
            made: rest.flag()?,
            errno: rest.u32()?,
        },
        136 => Reply::Errand {
            job: rest.u64()?,
            answer: match rest.u8()? {
                0 => Ok(Brought::Words(rest.short()?)),
                1 => Ok(Brought::File(rest.meta()?)),
                2 => Err(rest.failure()?),
                _ => {
                    return Err(Malformed {
                        what: "unknown errand",
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
