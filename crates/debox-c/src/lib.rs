//! The C interface of DeBox: `DeBoxControl` and its structures, as in Figure 2.3 of the
//! dissertation, with 64-bit numbers. `include/debox.h` is the documentation for users.
//!
//! A thread that has called `DeBoxControl` has a recorder of its own ([`Thread`]). After each call
//! it writes the record into the buffer of the thread. Which calls are recorded is decided
//! elsewhere: `libdebox.so` (crate `debox-so`) interposes libc's functions. In the static library
//! only the calls inside `DEBOX_CALL` are recorded, because a library that redefines libc's
//! functions cannot be linked with a static libc.
//!
//! The crate refuses to observe other threads, and to write more than the size of the structure
//! that the program was compiled with.
//!
//! Source: Ruan's dissertation (2005), section 2.3.1 and Figure 2.3.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod control;
mod functions;
mod info;
mod lines;
mod loops;
mod thread;

pub use control::{
    DeBoxControl, debox_begin, debox_call_name, debox_control_sized, debox_end,
    debox_forget_reactions, debox_react, debox_trace_level, debox_version,
};
pub use functions::{debox_follow_functions, debox_functions};
pub use info::{CallTime, CallTrace, DeBoxInfo, PerSleepInfo, TimeVal};
pub use lines::debox_lines;
pub use loops::{
    debox_loop_lag, debox_loop_metrics, debox_turn_begin, debox_turn_end, debox_watch_loop,
};
pub use thread::Thread;
