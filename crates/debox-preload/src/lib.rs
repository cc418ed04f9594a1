//! `libdebox_preload.so`: records the system calls of an unchanged program.
//!
//! ```text
//! LD_PRELOAD=…/libdebox_preload.so HEADWAY_TRACE_DIR=/dev/shm/trace program
//! ```
//!
//! Each process leaves a file in that directory ([`headway_debox::collect`]), with sums by call
//! site and the records that a policy selects. What the program does, prints and returns does not
//! change. `config` lists the variables.
//!
//! ```text
//! debox_hook ──► thread (the tracer of one thread) ──► process (the file) ──► headway_debox::collect::write
//!                                                         ▲
//!                exec (programs to come) ─────────────────┘
//! ```
//!
//! After a thread's first call, a call that does not sleep at a known call site costs no
//! allocation, no lock and no system call. All memory comes from `memory`, never from the program's
//! `malloc`, which may be what was interrupted. It refuses to trace vfork children, which share
//! their parent's memory, and to follow into programs into which the loader does not load it; it
//! notes those.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod config;
mod exec;
mod image;
mod memory;
mod modules;
mod process;
mod react;
mod stack;
mod symbols;
mod thread;

use thread::Thread;

headway_debox_hook::interpose!(Thread, without processes);

#[global_allocator]
static MEMORY: memory::Pages = memory::Pages;

/// Runs as the loader initialises the library, before `main` and most other libraries.
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

extern "C" fn loaded() {
    headway_debox_hook::prepare();
    headway_debox_hook::thread::create_thread_end_key::<Thread>();
    // The main thread begins now, so that its first call is not the one that pays. Calls before libc had
    // its environment left it off.
    if !headway_debox_hook::thread::switch_on::<Thread>() {
        headway_debox_hook::make_jumps_direct();
    }
}

/// Runs as the program ends by `exit` or by returning from `main`.
#[used]
#[unsafe(link_section = ".fini_array")]
static UNLOADED: extern "C" fn() = unloaded;

extern "C" fn unloaded() {
    if !headway_debox_hook::thread::in_vfork_child() {
        process::set_ended(headway_debox::collect::Ended::Exit);
    }
}
