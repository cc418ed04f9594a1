//! The compiled kernel's part, or the reason why there is none.

use crate::error::AttachError;

/// Aligned as ELF wants it; empty if it could not be compiled.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/attach.bpf.o"));
static WHY: &str = include_str!(concat!(env!("OUT_DIR"), "/why"));

pub(crate) fn object() -> Result<&'static [u8], AttachError> {
    if OBJECT.is_empty() {
        return Err(AttachError::NotBuilt {
            why: WHY.to_owned(),
        });
    }
    Ok(OBJECT)
}
