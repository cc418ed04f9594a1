//! From the kernel functions of a stack to a resource label: what the paper's kernel called
//! `wmesg`.
//!
//! FreeBSD's `tsleep()` takes a human-readable label from each of its callers. Linux has no such
//! labels, but the functions under the scheduler carry the same information. This table maps them
//! to labels that a user of any server knows. If nothing in it matches, the label is `other`, and
//! the kernel symbol, which is always shown with it, has to explain the sleep.
//!
//! There are two kinds of functions. A *wait* names its resource by itself (`pipe_read`). A *lock
//! taker* does so only directly above a lock's slow path. `lookup_slow` in
//! `rwsem_down_read_slowpath` waits for the directory's inode lock, while `lookup_slow` far above
//! `__wait_on_buffer` waits for a disk. Memory reclaim overrides both: a call that first has to
//! reclaim memory waits for memory, whatever the reclaim itself waits for.
//!
//! Source: kernel sources 5.10 to 6.18; Ruan's dissertation (2005), section 2.3.2 for the idea.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::symbols::waiting;

macro_rules! labels {
    ($($(#[doc = $doc:literal])* $variant:ident = $name:literal,)*) => {
        /// What a sleeping call waited for, in terms that do not change with the kernel version.
        ///
        /// ```
        /// use headway_debox::Label;
        ///
        /// let stack = ["schedule", "rwsem_down_read_slowpath", "down_read", "lookup_slow"];
        /// assert_eq!(Label::of(stack.into_iter()), Label::InodeLock);
        /// assert_eq!(Label::from_name("inode-lock"), Some(Label::InodeLock));
        /// ```
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum Label {
            $($(#[doc = $doc])* $variant,)*
            /// The stack is known, but the table has no label for it; see the symbol.
            Other,
            /// The stack is not known: no privilege, or its record was lost.
            #[default]
            Unknown,
        }

        impl Label {
            /// Every label, in the order of their values.
            pub const ALL: &'static [Label] = &[$(Label::$variant,)* Label::Other, Label::Unknown];

            /// The label as users see it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Label::$variant => $name,)*
                    Label::Other => "other",
                    Label::Unknown => "unknown",
                }
            }
        }
    };
}

labels! {
    /// A page of a file being read in.
    PageIo = "page-io",
    /// A page of a file being written back.
    PageWriteback = "page-writeback",
    /// Too many dirty pages: the writer is slowed down.
    DirtyThrottle = "dirty-throttle",
    /// A block of metadata being read from or written to the disk.
    BufferIo = "buffer-io",
    /// The lock of a block of metadata.
    BufferLock = "buffer-lock",
    /// Direct I/O, past the page cache.
    DirectIo = "direct-io",
    /// A slot in a disk's queue.
    DiskQueue = "disk-queue",
    /// The lock of an inode: a directory being changed, or a file being written.
    InodeLock = "inode-lock",
    /// Another task that looks up the same name.
    DentryLookup = "dentry-lookup",
    /// A filesystem's journal or log.
    Journal = "journal",
    /// A FUSE server's answer.
    Fuse = "fuse",
    /// A network filesystem's server.
    NetworkFs = "network-fs",
    /// A file lock: flock or fcntl.
    FileLock = "file-lock",
    /// Room in a socket's send buffer.
    SocketSend = "socket-send",
    /// Data on a socket.
    SocketRecv = "socket-recv",
    /// A client to accept.
    SocketAccept = "socket-accept",
    /// A connection being made or closed.
    SocketConnect = "socket-connect",
    /// The lock of a socket.
    SocketLock = "socket-lock",
    /// The other end of a pipe.
    Pipe = "pipe",
    /// select, poll, epoll or io_uring: waiting for events, which is no blocking.
    EventWait = "event-wait",
    /// A read of an eventfd, timerfd, signalfd or inotify descriptor.
    EventRead = "event-read",
    /// A lock of the program's own threads.
    Futex = "futex",
    /// System V or POSIX messages and semaphores.
    Ipc = "ipc",
    /// Memory had to be found first.
    MemoryReclaim = "memory-reclaim",
    /// Another thread of the process changing its memory map.
    MmapLock = "mmap-lock",
    /// A time to pass.
    Timer = "timer",
    /// A child to end or, after vfork, to exec.
    Child = "child",
    /// A signal.
    Signal = "signal",
    /// Stopped by a signal or a debugger.
    Stopped = "stopped",
    /// A terminal.
    Terminal = "terminal",
    /// A grace period of the kernel's read-copy-update.
    Rcu = "rcu",
    /// A frozen filesystem, or one being mounted.
    Freeze = "freeze",
    /// The kernel's random number generator.
    Random = "random",
    /// The lock of a descriptor's offset.
    FileOffset = "file-offset",
    /// The end of the process's own threads.
    Exit = "exit",
}

/// Functions that name the resource by themselves; the innermost one in the stack decides. A
/// trailing `*` matches every ending, since variants come and go with kernel versions.
const WAITS: &[(&str, Label)] = &[
    ("folio_wait_writeback*", Label::PageWriteback),
    ("wait_on_page_writeback*", Label::PageWriteback),
    ("__filemap_fdatawait_range", Label::PageWriteback),
    ("balance_dirty_pages*", Label::DirtyThrottle),
    ("filemap_update_page", Label::PageIo),
    ("filemap_fault", Label::PageIo),
    ("filemap_get_pages", Label::PageIo),
    ("filemap_read*", Label::PageIo),
    ("filemap_splice_read", Label::PageIo),
    ("filemap_read_folio", Label::PageIo),
    ("__folio_lock_or_retry", Label::PageIo),
    ("do_read_cache_folio", Label::PageIo),
    ("do_read_cache_page", Label::PageIo),
    ("migration_entry_wait*", Label::PageIo),
    ("do_swap_page", Label::PageIo),
    ("swap_read*", Label::PageIo),
    ("page_cache_ra_*", Label::PageIo),
    ("read_pages", Label::PageIo),
    ("generic_file_buffered_read*", Label::PageIo),
    ("__wait_on_buffer", Label::BufferIo),
    ("bh_read*", Label::BufferIo),
    ("__bread*", Label::BufferIo),
    ("__sync_dirty_buffer", Label::BufferIo),
    ("xfs_buf_iowait", Label::BufferIo),
    ("read_extent_buffer_pages*", Label::BufferIo),
    ("__lock_buffer", Label::BufferLock),
    ("xfs_buf_lock", Label::BufferLock),
    ("__iomap_dio_rw", Label::DirectIo),
    ("iomap_dio_rw", Label::DirectIo),
    ("__blockdev_direct_IO", Label::DirectIo),
    ("do_blockdev_direct_IO", Label::DirectIo),
    ("blkdev_direct_IO*", Label::DirectIo),
    ("inode_dio_wait*", Label::DirectIo),
    ("submit_bio_wait", Label::BufferIo),
    ("blk_mq_get_tag", Label::DiskQueue),
    ("blk_mq_freeze*", Label::DiskQueue),
    ("blk_queue_enter", Label::DiskQueue),
    ("__bio_queue_enter", Label::DiskQueue),
    ("rq_qos_wait", Label::DiskQueue),
    ("wbt_wait", Label::DiskQueue),
    ("blkcg_maybe_throttle*", Label::DiskQueue),
    ("blk_execute_rq", Label::DiskQueue),
    ("d_alloc_parallel", Label::DentryLookup),
    ("d_wait_lookup", Label::DentryLookup),
    ("__wait_on_freeing_inode", Label::InodeLock),
    ("wait_on_new_inode", Label::InodeLock),
    ("inode_wait_for_writeback*", Label::PageWriteback),
    ("jbd2_*", Label::Journal),
    ("__jbd2_*", Label::Journal),
    ("start_this_handle", Label::Journal),
    ("add_transaction_credits", Label::Journal),
    ("do_get_write_access", Label::Journal),
    ("wait_transaction_*", Label::Journal),
    ("xlog_*", Label::Journal),
    ("xfs_log_*", Label::Journal),
    ("btrfs_commit_transaction*", Label::Journal),
    ("btrfs_wait_for_commit", Label::Journal),
    ("wait_current_trans", Label::Journal),
    ("request_wait_answer", Label::Fuse),
    ("__fuse_request_send", Label::Fuse),
    ("fuse_wait_*", Label::Fuse),
    ("fuse_get_req", Label::Fuse),
    ("fuse_dev_do_read", Label::Fuse),
    ("rpc_wait_bit_killable", Label::NetworkFs),
    ("nfs_*", Label::NetworkFs),
    ("nfs4_*", Label::NetworkFs),
    ("p9_client_rpc", Label::NetworkFs),
    ("p9_virtio_*", Label::NetworkFs),
    ("smb2_*", Label::NetworkFs),
    ("cifs_*", Label::NetworkFs),
    ("ceph_*", Label::NetworkFs),
    ("flock_lock_inode_wait", Label::FileLock),
    ("posix_lock_inode_wait", Label::FileLock),
    ("locks_lock_inode_wait", Label::FileLock),
    ("do_lock_file_wait", Label::FileLock),
    ("fcntl_setlk*", Label::FileLock),
    ("__break_lease", Label::FileLock),
    ("sk_stream_wait_memory", Label::SocketSend),
    ("sock_alloc_send_pskb", Label::SocketSend),
    ("sock_wait_for_wmem", Label::SocketSend),
    ("unix_wait_for_peer", Label::SocketSend),
    ("sk_wait_data", Label::SocketRecv),
    ("__skb_wait_for_more_packets", Label::SocketRecv),
    ("unix_stream_data_wait", Label::SocketRecv),
    ("unix_stream_read_generic", Label::SocketRecv),
    ("tcp_recvmsg*", Label::SocketRecv),
    ("inet_csk_accept", Label::SocketAccept),
    ("inet_csk_wait_for_connect", Label::SocketAccept),
    ("unix_accept", Label::SocketAccept),
    ("inet_wait_for_connect", Label::SocketConnect),
    ("__inet_stream_connect", Label::SocketConnect),
    ("sk_stream_wait_connect", Label::SocketConnect),
    ("sk_stream_wait_close", Label::SocketConnect),
    ("__lock_sock*", Label::SocketLock),
    ("lock_sock_nested", Label::SocketLock),
    ("pipe_read", Label::Pipe),
    ("pipe_write", Label::Pipe),
    ("anon_pipe_read", Label::Pipe),
    ("anon_pipe_write", Label::Pipe),
    ("pipe_wait_*", Label::Pipe),
    ("wait_for_partner", Label::Pipe),
    ("fifo_open", Label::Pipe),
    ("splice_from_pipe_next*", Label::Pipe),
    ("wait_for_space", Label::Pipe),
    ("ipipe_prep*", Label::Pipe),
    ("opipe_prep*", Label::Pipe),
    ("ep_poll", Label::EventWait),
    ("do_epoll_wait", Label::EventWait),
    ("do_select", Label::EventWait),
    ("do_poll*", Label::EventWait),
    ("do_sys_poll", Label::EventWait),
    ("io_cqring_wait*", Label::EventWait),
    ("read_events", Label::EventWait),
    ("eventfd_read", Label::EventRead),
    ("eventfd_write", Label::EventRead),
    ("inotify_read", Label::EventRead),
    ("fanotify_read", Label::EventRead),
    ("timerfd_read*", Label::EventRead),
    ("signalfd_*", Label::EventRead),
    ("futex_*", Label::Futex),
    ("__futex_*", Label::Futex),
    ("do_futex", Label::Futex),
    ("do_semtimedop", Label::Ipc),
    ("__do_semtimedop", Label::Ipc),
    ("do_msgrcv", Label::Ipc),
    ("do_msgsnd", Label::Ipc),
    ("wq_sleep", Label::Ipc),
    ("do_mq_*", Label::Ipc),
    ("shrink_*", Label::MemoryReclaim),
    ("do_try_to_free_pages", Label::MemoryReclaim),
    ("try_to_free_*", Label::MemoryReclaim),
    ("reclaim_throttle", Label::MemoryReclaim),
    ("throttle_direct_reclaim", Label::MemoryReclaim),
    ("too_many_isolated", Label::MemoryReclaim),
    ("mem_cgroup_*", Label::MemoryReclaim),
    ("__mem_cgroup_*", Label::MemoryReclaim),
    ("compact_*", Label::MemoryReclaim),
    ("congestion_wait", Label::MemoryReclaim),
    ("wait_iff_congested", Label::MemoryReclaim),
    ("out_of_memory", Label::MemoryReclaim),
    ("do_nanosleep", Label::Timer),
    ("hrtimer_nanosleep", Label::Timer),
    ("common_nsleep*", Label::Timer),
    ("do_wait", Label::Child),
    ("kernel_wait4", Label::Child),
    ("kernel_waitid", Label::Child),
    ("wait_for_vfork_done", Label::Child),
    ("kernel_clone", Label::Child),
    ("do_sigtimedwait", Label::Signal),
    ("sigsuspend", Label::Signal),
    ("__do_sys_pause", Label::Signal),
    ("ptrace_stop", Label::Stopped),
    ("do_signal_stop", Label::Stopped),
    ("get_signal", Label::Stopped),
    ("do_freezer_trap", Label::Stopped),
    ("__refrigerator", Label::Stopped),
    ("n_tty_read", Label::Terminal),
    ("n_tty_write", Label::Terminal),
    ("tty_*", Label::Terminal),
    ("__wait_rcu_gp", Label::Rcu),
    ("synchronize_*", Label::Rcu),
    ("__synchronize_*", Label::Rcu),
    ("rcu_*", Label::Rcu),
    ("sb_start_*", Label::Freeze),
    ("__sb_start_write", Label::Freeze),
    ("mnt_want_write*", Label::Freeze),
    ("wait_for_random_bytes", Label::Random),
    ("exit_mm", Label::Exit),
    ("exit_group", Label::Exit),
    ("coredump_*", Label::Exit),
    ("do_coredump", Label::Exit),
    ("do_exit", Label::Exit),
];

/// Functions that take a lock, and the label of that lock. They count only directly above a lock's
/// slow path.
const LOCK_TAKERS: &[(&str, Label)] = &[
    ("lookup_slow", Label::InodeLock),
    ("__lookup_slow", Label::InodeLock),
    ("lookup_one*", Label::InodeLock),
    ("walk_component", Label::InodeLock),
    ("open_last_lookups", Label::InodeLock),
    ("path_openat", Label::InodeLock),
    ("filename_create", Label::InodeLock),
    ("filename_unlinkat", Label::InodeLock),
    ("filename_rmdir", Label::InodeLock),
    ("start_dirop*", Label::InodeLock),
    ("start_creating*", Label::InodeLock),
    ("start_removing*", Label::InodeLock),
    ("__start_dirop", Label::InodeLock),
    ("lock_rename*", Label::InodeLock),
    ("lock_two_*", Label::InodeLock),
    ("do_unlinkat", Label::InodeLock),
    ("do_rmdir", Label::InodeLock),
    ("do_mkdirat", Label::InodeLock),
    ("do_renameat2", Label::InodeLock),
    ("do_linkat", Label::InodeLock),
    ("vfs_*", Label::InodeLock),
    ("iterate_dir", Label::InodeLock),
    ("wrap_directory_iterator", Label::InodeLock),
    ("do_truncate", Label::InodeLock),
    ("chown_common", Label::InodeLock),
    ("chmod_common", Label::InodeLock),
    ("notify_change", Label::InodeLock),
    ("generic_file_write_iter", Label::InodeLock),
    ("ext4_*", Label::InodeLock),
    ("xfs_ilock*", Label::InodeLock),
    ("xfs_file_*", Label::InodeLock),
    ("btrfs_*", Label::InodeLock),
    ("fuse_*", Label::InodeLock),
    ("f2fs_*", Label::InodeLock),
    ("generic_file_llseek*", Label::InodeLock),
    ("lock_mm_and_find_vma", Label::MmapLock),
    ("do_user_addr_fault", Label::MmapLock),
    ("vm_mmap_pgoff", Label::MmapLock),
    ("__vm_munmap", Label::MmapLock),
    ("do_mprotect_pkey*", Label::MmapLock),
    ("do_madvise*", Label::MmapLock),
    ("madvise_lock", Label::MmapLock),
    ("__do_sys_brk", Label::MmapLock),
    ("__x64_sys_brk", Label::MmapLock),
    ("__x64_sys_munmap", Label::MmapLock),
    ("__x64_sys_mremap", Label::MmapLock),
    ("mmap_*", Label::MmapLock),
    ("dup_mm*", Label::MmapLock),
    ("exit_mmap", Label::MmapLock),
    ("__mm_populate", Label::MmapLock),
    ("__f_lock_pos", Label::FileOffset),
    ("fdget_pos", Label::FileOffset),
    ("__fdget_pos", Label::FileOffset),
    ("pipe_*", Label::Pipe),
    ("anon_pipe_*", Label::Pipe),
    ("splice_*", Label::Pipe),
    ("do_splice*", Label::Pipe),
    ("unix_*", Label::SocketLock),
    ("tcp_*", Label::SocketLock),
    ("inet_*", Label::SocketLock),
    ("ep_*", Label::EventWait),
    ("do_epoll_*", Label::EventWait),
    ("freeze_super", Label::Freeze),
    ("lock_mount*", Label::Freeze),
    ("do_lock_mount", Label::Freeze),
];

/// Entry points of memory reclaim. Everything below them in the stack happens because of the
/// reclaim.
const RECLAIM: &[&str] = &[
    "shrink_node*",
    "shrink_lruvec*",
    "shrink_slab*",
    "do_shrink_slab",
    "do_try_to_free_pages",
    "try_to_free_*",
];

impl Label {
    /// Returns the label of a stack of function names, innermost first.
    ///
    /// `Unknown` if there is no name at all, `Other` if none of them is in the table.
    pub fn of<'a>(names: impl Iterator<Item = &'a str>) -> Label {
        let mut label = Label::Unknown;
        let mut above_lock = false;
        let mut above_buffer = None;
        let mut waits_for_io = false;
        for name in names.map(waiting::without_suffix) {
            if RECLAIM.iter().any(|pattern| matches(pattern, name)) {
                return Label::MemoryReclaim;
            }
            if !matches!(label, Label::Unknown | Label::Other) {
                continue;
            }
            label = Label::Other;
            if name == "bit_wait_io" {
                waits_for_io = true;
            }
            if waiting::is_machinery(name) {
                continue;
            }
            let buffer = above_buffer.take();
            if let Some(found) = find(WAITS, name) {
                label = found;
            } else if let Some(buffer) = buffer {
                label = buffer;
            } else if name == "out_of_line_wait_on_bit_lock" {
                above_buffer = Some(Label::BufferLock);
            } else if name == "out_of_line_wait_on_bit" && waits_for_io {
                // The compiler may have merged `__wait_on_buffer` into the filesystem's function.
                above_buffer = Some(Label::BufferIo);
            } else if waiting::is_lock(name) {
                above_lock = true;
            } else if above_lock && !waiting::is_primitive(name) {
                above_lock = false;
                label = find(LOCK_TAKERS, name).unwrap_or(Label::Other);
            }
        }
        label
    }

    /// Returns the label with this number, for files that store only the number.
    pub fn from_code(code: u8) -> Option<Label> {
        Label::ALL.get(usize::from(code)).copied()
    }

    /// Returns the label with this name.
    pub fn from_name(name: &str) -> Option<Label> {
        Label::ALL
            .iter()
            .copied()
            .find(|label| label.name() == name)
    }

    /// Whether a sleep on it is normal: the thread waits for work.
    pub const fn is_idle(self) -> bool {
        matches!(self, Label::EventWait | Label::SocketAccept)
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == pattern,
    }
}

fn find(table: &[(&str, Label)], name: &str) -> Option<Label> {
    table
        .iter()
        .find(|(pattern, _)| matches(pattern, name))
        .map(|(_, label)| *label)
}

#[cfg(test)]
mod tests {
    use super::Label;

    fn of(names: &[&str]) -> Label {
        Label::of(names.iter().copied())
    }

    #[test]
    fn innermost_wait_decides_when_several_functions_are_in_the_table() {
        let stack = [
            "__schedule",
            "schedule",
            "io_schedule",
            "bit_wait_io",
            "__wait_on_bit",
        ];
        let disk = [
            &stack[..],
            &[
                "out_of_line_wait_on_bit",
                "__wait_on_buffer",
                "ext4_find_entry",
                "ext4_lookup",
                "lookup_slow",
                "walk_component",
            ],
        ]
        .concat();
        assert_eq!(of(&disk), Label::BufferIo);
    }

    #[test]
    fn lock_taker_counts_only_when_it_stands_above_a_lock() {
        let lock = [
            "__schedule",
            "schedule",
            "rwsem_down_read_slowpath",
            "down_read",
            "lookup_slow",
        ];
        assert_eq!(of(&lock), Label::InodeLock);
        assert_eq!(of(&["__schedule", "schedule", "lookup_slow"]), Label::Other);
        let far = ["rwsem_down_read_slowpath", "some_function", "lookup_slow"];
        assert_eq!(of(&far), Label::Other);
    }

    #[test]
    fn buffer_is_named_when_its_wait_is_merged_into_the_filesystem() {
        let io = ["schedule", "io_schedule", "bit_wait_io", "__wait_on_bit"];
        let read = [&io[..], &["out_of_line_wait_on_bit", "__ext4_find_entry"]].concat();
        assert_eq!(of(&read), Label::BufferIo);
        let lock = [
            &io[..],
            &[
                "out_of_line_wait_on_bit_lock",
                "ext4_read_block_bitmap_nowait",
            ],
        ];
        assert_eq!(of(&lock.concat()), Label::BufferLock);
        let named = [&io[..], &["out_of_line_wait_on_bit", "do_get_write_access"]].concat();
        assert_eq!(of(&named), Label::Journal);
        let flag = [
            "schedule",
            "bit_wait",
            "__wait_on_bit",
            "out_of_line_wait_on_bit",
            "odd",
        ];
        assert_eq!(of(&flag), Label::Other);
    }

    #[test]
    fn memory_decides_when_the_reclaim_waits_for_something_else() {
        let reclaim = [
            "schedule",
            "folio_wait_writeback",
            "shrink_folio_list",
            "shrink_lruvec",
            "try_to_free_mem_cgroup_pages",
            "ext4_da_write_begin",
        ];
        assert_eq!(of(&reclaim), Label::MemoryReclaim);
        assert_eq!(of(&reclaim[..2]), Label::PageWriteback);
    }

    #[test]
    fn compilers_suffix_does_not_hide_a_function() {
        assert_eq!(
            of(&["schedule", "do_poll.constprop.0", "do_sys_poll"]),
            Label::EventWait
        );
    }

    #[test]
    fn label_is_unknown_without_a_stack_and_other_when_no_function_is_in_the_table() {
        assert_eq!(of(&[]), Label::Unknown);
        assert_eq!(of(&["schedule", "some_driver_wait"]), Label::Other);
    }

    #[test]
    fn names_and_codes_lead_back_to_the_label() {
        for (code, label) in Label::ALL.iter().enumerate() {
            assert_eq!(Label::from_name(label.name()), Some(*label));
            assert_eq!(Label::from_code(code as u8), Some(*label));
            assert_eq!(*label as usize, code);
        }
        assert_eq!(Label::from_code(250), None);
    }
}
