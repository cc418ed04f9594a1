//! The compiled kernel's parts, or the reason why there are none.

use crate::error::AttachError;

/// The object, aligned as ELF requires; empty if it could not be compiled.
static ATTACH: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/attach.bpf.o"));
static REQUESTS: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/requests.bpf.o"));
static RUNNABLE: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/runnable.bpf.o"));
static WAITERS: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/waiters.bpf.o"));
static WHY: &str = include_str!(concat!(env!("OUT_DIR"), "/why"));

/// Records of calls and their sleeps.
pub(crate) fn attach() -> Result<&'static [u8], AttachError> {
    built(ATTACH)
}

/// Times of requests, and times off the CPU.
pub(crate) fn requests() -> Result<&'static [u8], AttachError> {
    built(REQUESTS)
}

/// The program that samples tasks.
pub(crate) fn runnable() -> Result<&'static [u8], AttachError> {
    built(RUNNABLE)
}

/// Waiters of sleeps alone.
pub(crate) fn waiters() -> Result<&'static [u8], AttachError> {
    built(WAITERS)
}

fn built(object: &'static [u8]) -> Result<&'static [u8], AttachError> {
    if object.is_empty() {
        return Err(AttachError::NotBuilt {
            why: WHY.to_owned(),
        });
    }
    Ok(object)
}
