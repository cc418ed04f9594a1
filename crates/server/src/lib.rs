//! The web server: the worker, which composes the stages of a request, and the master.
//!
//! The stages are crates of their own, in the order in which a request meets them:
//! [`headway_accept`], [`headway_lookup`], [`headway_respond`], [`headway_send`]. What they share is
//! [`headway_request`]. The master binds, spawns, watches and reports; it never touches a request.
#![forbid(unsafe_code)]
// What uses nothing of a part must not look as if it did.
#![deny(clippy::unused_self)]
// A worker that writes to a stopped terminal waits, so its messages go to the master as notices.
// `clippy.toml` forbids standard error itself, except where a process may wait.
#![cfg_attr(
    not(test),
    deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)
)]

mod worker;
mod master;
mod child;
mod confinement;
mod extensions;
pub mod research;

// The entry points: of the master, of all its children, and of those that tests run as threads.
pub use child::{ChildError, child_main};
pub use extensions::{Extensions, Research};
// What an administrator asks for: the state of automatic certificates, and revocation.
pub use headway_acme::admin as acme;
// Settings and their checks, which the entry points take, and the numbers that a server reports.
pub use headway_config as config;
pub use headway_metrics as metrics;
pub use master::{
    Inherited, MasterError, Options, Programs, check_tls, rehearse_upgrade, run,
    unavailable_addresses,
};
pub use worker::{WorkerError, worker_main};

/// Runs a helper process on its socket until the worker lets it go. It runs jobs of the
/// applications in these extensions.
pub fn helper_main(socket: std::os::fd::OwnedFd, extensions: Extensions) -> std::io::Result<()> {
    run_helper(socket, extensions, None)
}

/// Runs a helper. One that is confined can open only what the master allows.
fn run_helper(
    socket: std::os::fd::OwnedFd,
    extensions: Extensions,
    confined_to: Option<&[(u64, u64)]>,
) -> std::io::Result<()> {
    let tasks = headway_files::Tasks {
        render: &headway_respond::listing::render,
        custom_job: &move |job| headway_embedded::run_job(*extensions.applications, job),
        confined_to,
    };
    headway_files::enlarge_send_buffer(&socket);
    headway_files::helper_main_with(socket, tasks)
}
