//! `libdebox_preload.so`: records the system calls of a program that knows nothing of it.
//!
//! ```text
//! LD_PRELOAD=…/libdebox_preload.so HEADWAY_TRACE_DIR=/dev/shm/trace program
//! ```
//!
//! Each process leaves a file in that directory ([`headway_debox::collect`]): sums by call site, and single
//! records by a policy. What the program does, prints and returns stays as it is; `config` lists
//! the variables.
//!
//! ```text
//! debox_hook ──► thread (the tracer of one thread) ──► process (the file) ──► headway_debox::collect::write
//!                                                         ▲
//!                exec (programs to come) ─────────────────┘
//! ```
//!
//! After a thread's first call there is no allocation, no lock and no system call on the way of a
//! call that did not sleep at a known site. All memory comes from `memory`, never from the
//! program's `malloc`, which may be the very thing that was interrupted. It refuses to trace vfork
//! children, which live in their parent's memory, and to follow into programs the loader does not
//! load it into; it notes those.

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
    headway_debox_hook::thread::watch_ends::<Thread>();
    // The main thread begins now, so that its first call is not the one that pays.
    let traced = headway_debox_hook::thread::with_tracer::<Thread, ()>(|_| ()).is_some();
    if !traced {
        headway_debox_hook::shorten();
    }
}

/// Runs as the program ends by `exit` or by returning from `main`.
#[used]
#[unsafe(link_section = ".fini_array")]
static UNLOADED: extern "C" fn() = unloaded;

extern "C" fn unloaded() {
    if !headway_debox_hook::thread::in_vfork_child() {
        process::ends(headway_debox::collect::Ended::Exit);
    }
}
