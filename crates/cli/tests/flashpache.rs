//! Flashpache: `headway backend` with its clients: Apache's module, the C library, the preload shim
//! under servers of Debian's.
//!
//! Whatever a test starts or mounts has a guard that takes it away again.

mod calls;
mod changing;
mod client;
mod command;
mod conversations;
mod descriptors;
mod faults;
mod hostile;
mod impostor;
mod installed;
mod pinned;
mod preload;
mod privilege;
mod secure;
mod servers;
mod streams;
mod support;
mod tree;
