//! Fields that have limits, or that reach to the end of their message.

use std::rc::Rc;

use headway_os::codec::{Field, Malformed, take};

use super::{
    CUSTOM_JOB_BYTES_MAX, FETCH_BYTES_MAX, INLINE_RESULT_BYTES_MAX, PATH_BYTES_MAX, RootId,
};

impl<'b> Field<'b> for RootId {
    fn write(&self, bytes: &mut Vec<u8>) {
        self.0.write(bytes);
    }

    fn read(bytes: &mut &'b [u8]) -> Result<RootId, Malformed> {
        u32::read(bytes).map(RootId)
    }
}

/// A path, to the end.
pub(super) mod path {
    use super::*;

    pub(in super::super) fn write(path: &[u8], bytes: &mut Vec<u8>) {
        bytes.extend(&path[..path.len().min(PATH_BYTES_MAX)]);
    }

    pub(in super::super) fn read<'b>(bytes: &mut &'b [u8]) -> Result<&'b [u8], Malformed> {
        rest(bytes, PATH_BYTES_MAX, "path too long")
    }
}

/// What a custom job is, to the end.
pub(super) mod payload {
    use super::*;

    pub(in super::super) fn write(payload: &[u8], bytes: &mut Vec<u8>) {
        bytes.extend(&payload[..payload.len().min(CUSTOM_JOB_BYTES_MAX)]);
    }

    pub(in super::super) fn read<'b>(bytes: &mut &'b [u8]) -> Result<&'b [u8], Malformed> {
        rest(bytes, CUSTOM_JOB_BYTES_MAX, "custom job too long")
    }
}

/// How much is to be fetched.
pub(super) mod fetched_length {
    use super::*;

    pub(in super::super) fn write(length: &u32, bytes: &mut Vec<u8>) {
        length.write(bytes);
    }

    pub(in super::super) fn read(bytes: &mut &[u8]) -> Result<u32, Malformed> {
        let length = u32::read(bytes)?;
        match length as usize > FETCH_BYTES_MAX {
            true => Err(Malformed {
                what: "too much to fetch",
            }),
            false => Ok(length),
        }
    }
}

/// Whether there are contents, then these to the end.
pub(super) mod contents_if_any {
    use super::*;

    pub(in super::super) fn write(contents: &Option<Rc<[u8]>>, bytes: &mut Vec<u8>) {
        contents.is_some().write(bytes);
        bytes.extend(contents.as_deref().unwrap_or_default());
    }

    pub(in super::super) fn read(bytes: &mut &[u8]) -> Result<Option<Rc<[u8]>>, Malformed> {
        bool::read(bytes)?.then(|| contents(bytes)).transpose()
    }
}

/// 0 and contents to the end, or 1 and an errno.
pub(super) mod contents_or_errno {
    use super::*;

    pub(in super::super) fn write(found: &Result<Rc<[u8]>, u32>, bytes: &mut Vec<u8>) {
        found.is_err().write(bytes);
        match found {
            Ok(contents) => bytes.extend(&**contents),
            Err(errno) => errno.write(bytes),
        }
    }

    pub(in super::super) fn read(bytes: &mut &[u8]) -> Result<Result<Rc<[u8]>, u32>, Malformed> {
        Ok(match bool::read(bytes)? {
            false => Ok(contents(bytes)?),
            true => Err(u32::read(bytes)?),
        })
    }
}

/// What a custom job has brought, where it is short.
pub(super) mod inline_result {
    use super::*;

    pub(in super::super) fn write(result: &[u8], bytes: &mut Vec<u8>) {
        (result.len() as u32).write(bytes);
        bytes.extend(result);
    }

    pub(in super::super) fn read(bytes: &mut &[u8]) -> Result<Box<[u8]>, Malformed> {
        let length = u32::read(bytes)? as usize;
        match length > INLINE_RESULT_BYTES_MAX {
            true => Err(Malformed {
                what: "result too long",
            }),
            false => take(bytes, length).map(Box::from),
        }
    }
}

fn contents(bytes: &mut &[u8]) -> Result<Rc<[u8]>, Malformed> {
    rest(bytes, FETCH_BYTES_MAX, "contents too long").map(Rc::from)
}

fn rest<'b>(
    bytes: &mut &'b [u8],
    bytes_max: usize,
    what: &'static str,
) -> Result<&'b [u8], Malformed> {
    match bytes.len() > bytes_max {
        true => Err(Malformed { what }),
        false => take(bytes, bytes.len()),
    }
}
