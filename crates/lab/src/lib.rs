//! A controlled environment for a server under test, made of the kernel's own parts.
//!
//! [`disk`] is a disk with the delays of a model: a FUSE process exports one file, a loop device in direct-I/O
//! mode sits on it, a file system on that. The kernel's page, inode and dentry caches stay in play, which is
//! what the papers are about.
//!
//! Refused: anything that would change the machine outside the lab. What the lab makes it records first, so that it
//! can be undone after a crash.
//!
//! Sources: 2006 paper section 4.1 and dissertation sections 2.6 and 3.3 (the papers' machines).

#![forbid(unsafe_code)]

pub mod disk;
