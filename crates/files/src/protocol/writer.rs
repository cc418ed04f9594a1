//! Putting messages together, field by field.

use super::{FETCHED_HEAD_BYTES, OpenMode, PATH_BYTES_MAX};
use crate::answer::Failure;
use crate::file::Meta;
use crate::resolve::RawAnswer;
use crate::root::RootId;

pub(super) fn put_job(bytes: &mut Vec<u8>, kind: u8, job: u64) {
    bytes.push(kind);
    bytes.extend(job.to_le_bytes());
}

/// Encodes a resolved answer up to its contents, which follow if `contents` is set.
pub(crate) fn resolved_head(
    job: u64,
    answer: &RawAnswer<Meta>,
    with_contents: bool,
    bytes: &mut Vec<u8>,
) {
    put_job(bytes, 129, job);
    put_answer(bytes, answer);
    bytes.push(u8::from(with_contents));
}

/// What stands before fetched contents: with `errno` 0 they follow, otherwise nothing does.
pub(crate) fn fetched_head(job: u64, errno: u32) -> [u8; FETCHED_HEAD_BYTES] {
    let mut head = [0; FETCHED_HEAD_BYTES];
    head[0] = 137;
    head[1..9].copy_from_slice(&job.to_le_bytes());
    head[9..].copy_from_slice(&errno.to_le_bytes());
    head
}

pub(super) fn put_root(bytes: &mut Vec<u8>, kind: u8, job: u64, root: RootId) {
    put_job(bytes, kind, job);
    bytes.extend(root.0.to_le_bytes());
}

pub(super) fn put_path(bytes: &mut Vec<u8>, path: &[u8]) {
    bytes.extend(&path[..path.len().min(PATH_BYTES_MAX)]);
}

pub(super) fn put_range(bytes: &mut Vec<u8>, kind: u8, job: u64, offset: u64, length: u64) {
    put_job(bytes, kind, job);
    bytes.extend(offset.to_le_bytes());
    bytes.extend(length.to_le_bytes());
}

fn put_answer(bytes: &mut Vec<u8>, answer: &RawAnswer<Meta>) {
    match answer {
        RawAnswer::File {
            file,
            index,
            siblings,
        } => {
            bytes.push(0);
            bytes.push(u8::from(index.is_some()));
            bytes.extend(index.unwrap_or(0).to_le_bytes());
            let present = (0..3).filter(|i| siblings[*i].is_some());
            bytes.push(present.fold(0, |mask, i| mask | 1 << i));
            put_meta(bytes, file);
            siblings
                .iter()
                .flatten()
                .for_each(|meta| put_meta(bytes, meta));
        }
        RawAnswer::Redirect => bytes.push(1),
        RawAnswer::Directory => bytes.push(2),
        RawAnswer::Failed(failure) => bytes.extend([3, failure_code(*failure)]),
    }
}

pub(super) fn put_meta(bytes: &mut Vec<u8>, meta: &Meta) {
    bytes.extend(meta.size.to_le_bytes());
    for (seconds, nanoseconds) in [meta.modified, meta.changed] {
        bytes.extend(seconds.to_le_bytes());
        bytes.extend(nanoseconds.to_le_bytes());
    }
    bytes.extend(meta.device.to_le_bytes());
    bytes.extend(meta.inode.to_le_bytes());
}

pub(super) fn put_open_mode(bytes: &mut Vec<u8>, want: OpenMode) {
    bytes.push(match want {
        OpenMode::WarmOnly => 0,
        OpenMode::Open => 1,
        OpenMode::OpenAndPrefetch(_) => 2,
        OpenMode::OpenAndRead => 3,
    });
    if let OpenMode::OpenAndPrefetch(most) = want {
        bytes.extend(most.to_le_bytes());
    }
}

pub(super) fn failure_code(failure: Failure) -> u8 {
    match failure {
        Failure::NotFound => 0,
        Failure::NameTooLong => 1,
        Failure::Forbidden => 2,
        Failure::NotRegular => 3,
        Failure::Exhausted => 4,
        Failure::Io => 5,
        Failure::Overloaded => 6,
        Failure::GivenUp => 7,
    }
}
