//! Taking messages apart: each field checked, what is left over an error.

use super::{
    CUSTOM_JOB_BYTES_MAX, FETCH_BYTES_MAX, INLINE_RESULT_BYTES_MAX, Malformed, OpenMode,
    PATH_BYTES_MAX, Request,
};
use crate::answer::Failure;
use crate::file::Meta;
use crate::resolve::RawAnswer;
use crate::root::RootId;
use std::borrow::Cow;
use std::rc::Rc;

/// Takes fields off the front of a message; running out is an error, never a panic.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8], bytes_max: usize) -> Result<Self, Malformed> {
        if bytes.len() > bytes_max {
            return Err(Malformed { what: "too long" });
        }
        Ok(Reader { bytes })
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self
            .bytes
            .split_first_chunk::<N>()
            .ok_or(Malformed { what: "too short" })?;
        self.bytes = rest;
        Ok(*head)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.take::<1>()?[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.take()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    pub(super) fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed {
                what: "flag is neither 0 nor 1",
            }),
        }
    }

    pub(super) fn root_id(&mut self) -> Result<RootId, Malformed> {
        Ok(RootId(self.u32()?))
    }

    pub(super) fn want(&mut self) -> Result<OpenMode, Malformed> {
        match self.u8()? {
            0 => Ok(OpenMode::WarmOnly),
            1 => Ok(OpenMode::Open),
            2 => Ok(OpenMode::OpenAndPrefetch(self.u64()?)),
            3 => Ok(OpenMode::OpenAndRead),
            _ => Err(Malformed {
                what: "unknown want",
            }),
        }
    }

    pub(super) fn path(&mut self) -> Result<&'a [u8], Malformed> {
        if self.bytes.len() > PATH_BYTES_MAX {
            return Err(Malformed {
                what: "path too long",
            });
        }
        Ok(std::mem::take(&mut self.bytes))
    }

    /// What an custom_job is, to the end.
    pub(super) fn payload(&mut self) -> Result<&'a [u8], Malformed> {
        match self.bytes.len() > CUSTOM_JOB_BYTES_MAX {
            true => Err(Malformed {
                what: "custom_job too long",
            }),
            false => Ok(std::mem::take(&mut self.bytes)),
        }
    }

    /// How much is to be fetched.
    pub(super) fn fetched_length(&mut self) -> Result<u32, Malformed> {
        let length = self.u32()?;
        match length as usize > FETCH_BYTES_MAX {
            true => Err(Malformed {
                what: "too much to fetch",
            }),
            false => Ok(length),
        }
    }

    /// Contents, to the end.
    pub(super) fn contents(&mut self) -> Result<Rc<[u8]>, Malformed> {
        match self.bytes.len() > FETCH_BYTES_MAX {
            true => Err(Malformed {
                what: "contents too long",
            }),
            false => Ok(std::mem::take(&mut self.bytes).into()),
        }
    }

    /// Contents of a resolved file; only one that stands alone comes with them.
    pub(super) fn contents_of(
        &mut self,
        answer: &RawAnswer<Meta>,
    ) -> Result<Option<Rc<[u8]>>, Malformed> {
        if !self.flag()? {
            return Ok(None);
        }
        match answer {
            RawAnswer::File {
                siblings: [None, None, None],
                ..
            } => self.contents().map(Some),
            _ => Err(Malformed {
                what: "contents of no file, or of several",
            }),
        }
    }

    /// What an custom_job has brought, where it is short.
    pub(super) fn short(&mut self) -> Result<Box<[u8]>, Malformed> {
        let length = usize::from(self.u16()?);
        let taken = self.bytes.split_at_checked(length);
        match taken.filter(|_| length <= INLINE_RESULT_BYTES_MAX) {
            Some((payload, rest)) => {
                self.bytes = rest;
                Ok(payload.into())
            }
            None => Err(Malformed {
                what: "too short, or not short",
            }),
        }
    }

    pub(super) fn root(&mut self) -> Result<Request<'a>, Malformed> {
        let root = self.root_id()?;
        let (siblings, dotfiles) = (self.flag()?, self.flag()?);
        let count = self.u16()?;
        // No reservation by `count`: it is not yet known to be true.
        let mut index = Vec::new();
        for _ in 0..count {
            let length = usize::from(self.u16()?);
            let (name, rest) = self
                .bytes
                .split_at_checked(length)
                .ok_or(Malformed { what: "too short" })?;
            self.bytes = rest;
            let name = std::str::from_utf8(name).map_err(|_| Malformed { what: "not UTF-8" })?;
            index.push(Cow::Borrowed(name));
        }
        Ok(Request::Root {
            root,
            siblings,
            dotfiles,
            index,
        })
    }

    pub(super) fn meta(&mut self) -> Result<Meta, Malformed> {
        let size = self.u64()?;
        let modified = (self.u64()?.cast_signed(), self.u32()?);
        let changed = (self.u64()?.cast_signed(), self.u32()?);
        Ok(Meta {
            size,
            modified,
            changed,
            device: self.u64()?,
            inode: self.u64()?,
        })
    }

    pub(super) fn failure(&mut self) -> Result<Failure, Malformed> {
        Ok(match self.u8()? {
            0 => Failure::NotFound,
            1 => Failure::NameTooLong,
            2 => Failure::Forbidden,
            3 => Failure::NotRegular,
            4 => Failure::Exhausted,
            5 => Failure::Io,
            6 => Failure::Overloaded,
            7 => Failure::GivenUp,
            _ => {
                return Err(Malformed {
                    what: "unknown failure",
                });
            }
        })
    }

    pub(super) fn answer(&mut self) -> Result<RawAnswer<Meta>, Malformed> {
        match self.u8()? {
            0 => self.file(),
            1 => Ok(RawAnswer::Redirect),
            2 => Ok(RawAnswer::Directory),
            3 => Ok(RawAnswer::Failed(self.failure()?)),
            _ => Err(Malformed {
                what: "unknown answer",
            }),
        }
    }

    fn file(&mut self) -> Result<RawAnswer<Meta>, Malformed> {
        let index = match (self.flag()?, self.u16()?) {
            (true, position) => Some(position),
            (false, 0) => None,
            (false, _) => {
                return Err(Malformed {
                    what: "index without its flag",
                });
            }
        };
        let mask = self.u8()?;
        if mask > 7 {
            return Err(Malformed {
                what: "unknown sibling",
            });
        }
        let file = self.meta()?;
        let mut siblings = [None; 3];
        for (position, sibling) in siblings.iter_mut().enumerate() {
            if mask & 1 << position != 0 {
                *sibling = Some(self.meta()?);
            }
        }
        Ok(RawAnswer::File {
            file,
            index,
            siblings,
        })
    }

    pub(super) fn end(&self) -> Result<(), Malformed> {
        if self.bytes.is_empty() {
            Ok(())
        } else {
            Err(Malformed { what: "too long" })
        }
    }
}
