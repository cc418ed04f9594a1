//! `libdebox.so`: the C interface (`headway-debox-c`) together with stand-ins for libc's
//! system-call functions.
//!
//! A program linked to it calls `DeBoxControl` and needs no other change: after any system call the
//! buffer holds that call's record, as `errno` holds its error. A thread without a buffer pays for
//! the way through the stand-in, a load and a comparison.
//!
//! The library is a crate of its own because whatever links these functions gets them between
//! itself and libc: the static library and the tests must not.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use headway_debox_c::Thread;

// What C programs call, so that it is part of this library too.
pub use headway_debox_c::{
    DeBoxControl, debox_begin, debox_call_name, debox_control_sized, debox_end,
    debox_follow_functions, debox_forget_reactions, debox_functions, debox_lines, debox_loop_lag,
    debox_loop_metrics, debox_react, debox_trace_level, debox_turn_begin, debox_turn_end,
    debox_version, debox_watch_loop,
};

headway_debox_hook::interpose!(Thread);

/// Runs as the loader initialises the library.
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

extern "C" fn loaded() {
    headway_debox_hook::prepare();
    headway_debox_hook::make_jumps_direct();
}
