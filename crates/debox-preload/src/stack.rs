//! The program's own stack at a call, by the unwinder that is loaded anyway.
//!
//! `_Unwind_Backtrace` finds its tables without a lock since glibc 2.35 and gcc 12
//! (`_dl_find_object`) and allocates nothing. It needs unwind tables, which programs have unless
//! they were stripped of them.

use std::ffi::{c_int, c_void};

/// Frames kept, innermost first.
pub const FRAMES_MAX: usize = 48;

/// Return addresses from the call site outwards.
#[repr(C)]
pub struct Frames {
    addresses: [u64; FRAMES_MAX],
    depth: usize,
    site: u64,
    seen: bool,
}

#[link(name = "gcc_s")]
unsafe extern "C" {
    fn _Unwind_Backtrace(
        add_frame: extern "C" fn(*mut c_void, *mut Frames) -> c_int,
        frames: *mut Frames,
    ) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

impl Frames {
    /// A stack without frames.
    pub fn none() -> Frames {
        Frames {
            addresses: [0; FRAMES_MAX],
            depth: 0,
            site: 0,
            seen: true,
        }
    }

    /// Collects the frames of the thread from the call site on; further in is this library.
    pub fn from(site: u64) -> Frames {
        let mut frames = Frames {
            site,
            seen: false,
            ..Frames::none()
        };
        // SAFETY: the callback matches, and the pointer is to a variable of this frame.
        unsafe { _Unwind_Backtrace(add_frame, &mut frames) };
        frames
    }

    /// The addresses.
    pub fn addresses(&self) -> &[u64] {
        &self.addresses[..self.depth]
    }
}

extern "C" fn add_frame(context: *mut c_void, frames: *mut Frames) -> c_int {
    const CONTINUE_UNWIND: c_int = 0;
    const END_OF_STACK: c_int = 5;
    // SAFETY: the unwinder passes its own context.
    let address = unsafe { _Unwind_GetIP(context) } as u64;
    // SAFETY: the pointer `from` passed, which lives until the unwinder returns.
    let frames = unsafe { &mut *frames };
    frames.seen |= address == frames.site;
    if frames.seen {
        frames.addresses[frames.depth] = address;
        frames.depth += 1;
    }
    if frames.depth == FRAMES_MAX {
        END_OF_STACK
    } else {
        CONTINUE_UNWIND
    }
}
