//! The C interface of DeBox: `DeBoxControl` and its structures, as in Figure 2.3 of the
//! dissertation, carried to 64 bits. `include/debox.h` is its documentation for users.
//!
//! A thread that called `DeBoxControl` has a tracer of its own ([`Thread`]), which after each call
//! writes the record into the buffer the thread gave. Which calls those are is decided elsewhere:
//! `libdebox.so` (crate `debox-so`) stands between the program and libc; in the static library only
//! the calls inside `DEBOX_CALL` are seen, because a library that redefined libc's functions could
//! not be linked to a static libc.
//!
//! It refuses to look at other threads, and to write more than the size of the structure the
//! program was compiled with.
//!
//! Source: Ruan's dissertation (2005), section 2.3.1 and Figure 2.3.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod control;
mod functions;
mod info;
mod lines;
mod thread;

pub use control::{
    DeBoxControl, debox_begin, debox_call_name, debox_control_sized, debox_end,
    debox_forget_reactions, debox_react, debox_rung, debox_version,
};
pub use functions::{debox_follow_functions, debox_functions};
pub use info::{CallTime, CallTrace, DeBoxInfo, PerSleepInfo, TimeVal};
pub use lines::debox_lines;
pub use thread::Thread;
