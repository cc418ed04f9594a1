//! The interposed functions: name, arguments, the system call they make, and how to make it without
//! libc.
//!
//! The call is the one that glibc 2.36 makes; for a function that makes several, the one that may
//! block. The last column is the call with the same arguments, for the time when libc's function is
//! not known yet; `none` if there is no such call.

/// Hands the table to a macro: rows of `kind name arguments call raw`.
#[macro_export]
macro_rules! functions {
    ($callback:path, $($context:tt)*) => {
        $callback! { [$($context)*]
            // Files by name.
            five open 3 SYS_openat raw(SYS_open);
            five open64 3 SYS_openat raw(SYS_open);
            five __open_2 2 SYS_openat raw(SYS_open);
            five __open64_2 2 SYS_openat raw(SYS_open);
            five openat 4 SYS_openat raw(SYS_openat);
            five openat64 4 SYS_openat raw(SYS_openat);
            five __openat_2 3 SYS_openat raw(SYS_openat);
            five __openat64_2 3 SYS_openat raw(SYS_openat);
            five creat 2 SYS_creat raw(SYS_creat);
            five creat64 2 SYS_creat raw(SYS_creat);
            five stat 2 SYS_newfstatat raw(SYS_stat);
            five stat64 2 SYS_newfstatat raw(SYS_stat);
            five lstat 2 SYS_newfstatat raw(SYS_lstat);
            five lstat64 2 SYS_newfstatat raw(SYS_lstat);
            five fstat 2 SYS_newfstatat raw(SYS_fstat);
            five fstat64 2 SYS_newfstatat raw(SYS_fstat);
            five fstatat 4 SYS_newfstatat raw(SYS_newfstatat);
            five fstatat64 4 SYS_newfstatat raw(SYS_newfstatat);
            five __xstat 3 SYS_newfstatat none;
            five __xstat64 3 SYS_newfstatat none;
            five __lxstat 3 SYS_newfstatat none;
            five __lxstat64 3 SYS_newfstatat none;
            five __fxstat 3 SYS_newfstatat none;
            five __fxstat64 3 SYS_newfstatat none;
            five __fxstatat 5 SYS_newfstatat none;
            five __fxstatat64 5 SYS_newfstatat none;
            five statx 5 SYS_statx raw(SYS_statx);
            five access 2 SYS_access raw(SYS_access);
            five faccessat 4 SYS_faccessat2 raw(SYS_faccessat2);
            five euidaccess 2 SYS_faccessat2 none;
            five eaccess 2 SYS_faccessat2 none;
            five readlink 3 SYS_readlink raw(SYS_readlink);
            five readlinkat 4 SYS_readlinkat raw(SYS_readlinkat);
            five __readlink_chk 4 SYS_readlink none;
            five __readlinkat_chk 5 SYS_readlinkat none;
            five link 2 SYS_link raw(SYS_link);
            five linkat 5 SYS_linkat raw(SYS_linkat);
            five symlink 2 SYS_symlink raw(SYS_symlink);
            five symlinkat 3 SYS_symlinkat raw(SYS_symlinkat);
            five unlink 1 SYS_unlink raw(SYS_unlink);
            five unlinkat 3 SYS_unlinkat raw(SYS_unlinkat);
            five rename 2 SYS_rename raw(SYS_rename);
            five renameat 4 SYS_renameat raw(SYS_renameat);
            five renameat2 5 SYS_renameat2 raw(SYS_renameat2);
            five mkdir 2 SYS_mkdir raw(SYS_mkdir);
            five mkdirat 3 SYS_mkdirat raw(SYS_mkdirat);
            five rmdir 1 SYS_rmdir raw(SYS_rmdir);
            five mknod 3 SYS_mknod raw(SYS_mknod);
            five mknodat 4 SYS_mknodat raw(SYS_mknodat);
            five mkfifo 2 SYS_mknod none;
            five mkfifoat 3 SYS_mknodat none;
            five chdir 1 SYS_chdir raw(SYS_chdir);
            five fchdir 1 SYS_fchdir raw(SYS_fchdir);
            five chroot 1 SYS_chroot raw(SYS_chroot);
            five getcwd 2 SYS_getcwd none;
            five __getcwd_chk 3 SYS_getcwd none;
            five chmod 2 SYS_chmod raw(SYS_chmod);
            five fchmod 2 SYS_fchmod raw(SYS_fchmod);
            five fchmodat 4 SYS_fchmodat none;
            five chown 3 SYS_chown raw(SYS_chown);
            five lchown 3 SYS_lchown raw(SYS_lchown);
            five fchown 3 SYS_fchown raw(SYS_fchown);
            five fchownat 5 SYS_fchownat raw(SYS_fchownat);
            five utime 2 SYS_utime raw(SYS_utime);
            five utimes 2 SYS_utimes raw(SYS_utimes);
            five utimensat 4 SYS_utimensat raw(SYS_utimensat);
            five futimens 2 SYS_utimensat none;
            five truncate 2 SYS_truncate raw(SYS_truncate);
            five truncate64 2 SYS_truncate raw(SYS_truncate);
            five statfs 2 SYS_statfs raw(SYS_statfs);
            five statfs64 2 SYS_statfs raw(SYS_statfs);
            five fstatfs 2 SYS_fstatfs raw(SYS_fstatfs);
            five fstatfs64 2 SYS_fstatfs raw(SYS_fstatfs);
            five statvfs 2 SYS_statfs none;
            five fstatvfs 2 SYS_fstatfs none;
            five mount 5 SYS_mount raw(SYS_mount);
            five umount 1 SYS_umount2 raw(SYS_umount2);
            five umount2 2 SYS_umount2 raw(SYS_umount2);
            five getxattr 4 SYS_getxattr raw(SYS_getxattr);
            five lgetxattr 4 SYS_lgetxattr raw(SYS_lgetxattr);
            five fgetxattr 4 SYS_fgetxattr raw(SYS_fgetxattr);
            five setxattr 5 SYS_setxattr raw(SYS_setxattr);
            five fsetxattr 5 SYS_fsetxattr raw(SYS_fsetxattr);
            five listxattr 3 SYS_listxattr raw(SYS_listxattr);
            five llistxattr 3 SYS_llistxattr raw(SYS_llistxattr);
            five inotify_init 0 SYS_inotify_init raw(SYS_inotify_init);
            five inotify_init1 1 SYS_inotify_init1 raw(SYS_inotify_init1);
            five inotify_add_watch 3 SYS_inotify_add_watch raw(SYS_inotify_add_watch);
            five inotify_rm_watch 2 SYS_inotify_rm_watch raw(SYS_inotify_rm_watch);

            // Descriptors.
            five read 3 SYS_read raw(SYS_read);
            five __read_chk 4 SYS_read none;
            five write 3 SYS_write raw(SYS_write);
            five pread 4 SYS_pread64 raw(SYS_pread64);
            five pread64 4 SYS_pread64 raw(SYS_pread64);
            five __pread_chk 5 SYS_pread64 none;
            five __pread64_chk 5 SYS_pread64 none;
            five pwrite 4 SYS_pwrite64 raw(SYS_pwrite64);
            five pwrite64 4 SYS_pwrite64 raw(SYS_pwrite64);
            five readv 3 SYS_readv raw(SYS_readv);
            five writev 3 SYS_writev raw(SYS_writev);
            five preadv 4 SYS_preadv raw(SYS_preadv);
            five preadv64 4 SYS_preadv raw(SYS_preadv);
            five pwritev 4 SYS_pwritev raw(SYS_pwritev);
            five pwritev64 4 SYS_pwritev raw(SYS_pwritev);
            five preadv2 5 SYS_preadv2 none;
            five preadv64v2 5 SYS_preadv2 none;
            five pwritev2 5 SYS_pwritev2 none;
            five pwritev64v2 5 SYS_pwritev2 none;
            five close 1 SYS_close raw(SYS_close);
            five close_range 3 SYS_close_range raw(SYS_close_range);
            five closefrom 1 SYS_close_range none;
            five lseek 3 SYS_lseek raw(SYS_lseek);
            five lseek64 3 SYS_lseek raw(SYS_lseek);
            five dup 1 SYS_dup raw(SYS_dup);
            five dup2 2 SYS_dup2 raw(SYS_dup2);
            five dup3 3 SYS_dup3 raw(SYS_dup3);
            five pipe 1 SYS_pipe raw(SYS_pipe);
            five pipe2 2 SYS_pipe2 raw(SYS_pipe2);
            five fcntl 3 SYS_fcntl raw(SYS_fcntl);
            five fcntl64 3 SYS_fcntl raw(SYS_fcntl);
            five ioctl 3 SYS_ioctl raw(SYS_ioctl);
            five flock 2 SYS_flock raw(SYS_flock);
            five lockf 3 SYS_fcntl none;
            five lockf64 3 SYS_fcntl none;
            five fsync 1 SYS_fsync raw(SYS_fsync);
            five fdatasync 1 SYS_fdatasync raw(SYS_fdatasync);
            five sync 0 SYS_sync raw(SYS_sync);
            five syncfs 1 SYS_syncfs raw(SYS_syncfs);
            five sync_file_range 4 SYS_sync_file_range raw(SYS_sync_file_range);
            five ftruncate 2 SYS_ftruncate raw(SYS_ftruncate);
            five ftruncate64 2 SYS_ftruncate raw(SYS_ftruncate);
            five fallocate 4 SYS_fallocate raw(SYS_fallocate);
            five fallocate64 4 SYS_fallocate raw(SYS_fallocate);
            five posix_fallocate 3 SYS_fallocate none;
            five posix_fallocate64 3 SYS_fallocate none;
            five posix_fadvise 4 SYS_fadvise64 none;
            five posix_fadvise64 4 SYS_fadvise64 none;
            five readahead 3 SYS_readahead raw(SYS_readahead);
            five sendfile 4 SYS_sendfile raw(SYS_sendfile);
            five sendfile64 4 SYS_sendfile raw(SYS_sendfile);
            seven copy_file_range 6 SYS_copy_file_range raw(SYS_copy_file_range);
            seven splice 6 SYS_splice raw(SYS_splice);
            five tee 4 SYS_tee raw(SYS_tee);
            five vmsplice 4 SYS_vmsplice raw(SYS_vmsplice);
            five getdents64 3 SYS_getdents64 raw(SYS_getdents64);
            five memfd_create 2 SYS_memfd_create raw(SYS_memfd_create);

            // Sockets.
            five socket 3 SYS_socket raw(SYS_socket);
            five socketpair 4 SYS_socketpair raw(SYS_socketpair);
            five bind 3 SYS_bind raw(SYS_bind);
            five listen 2 SYS_listen raw(SYS_listen);
            five accept 3 SYS_accept raw(SYS_accept);
            five accept4 4 SYS_accept4 raw(SYS_accept4);
            five connect 3 SYS_connect raw(SYS_connect);
            five shutdown 2 SYS_shutdown raw(SYS_shutdown);
            five getsockname 3 SYS_getsockname raw(SYS_getsockname);
            five getpeername 3 SYS_getpeername raw(SYS_getpeername);
            five getsockopt 5 SYS_getsockopt raw(SYS_getsockopt);
            five setsockopt 5 SYS_setsockopt raw(SYS_setsockopt);
            five send 4 SYS_sendto raw(SYS_sendto);
            seven sendto 6 SYS_sendto raw(SYS_sendto);
            five sendmsg 3 SYS_sendmsg raw(SYS_sendmsg);
            five sendmmsg 4 SYS_sendmmsg raw(SYS_sendmmsg);
            five recv 4 SYS_recvfrom raw(SYS_recvfrom);
            five __recv_chk 5 SYS_recvfrom none;
            seven recvfrom 6 SYS_recvfrom raw(SYS_recvfrom);
            seven __recvfrom_chk 7 SYS_recvfrom none;
            five recvmsg 3 SYS_recvmsg raw(SYS_recvmsg);
            five recvmmsg 5 SYS_recvmmsg raw(SYS_recvmmsg);

            // Waiting.
            five poll 3 SYS_poll raw(SYS_poll);
            five __poll_chk 4 SYS_poll none;
            five ppoll 4 SYS_ppoll none;
            five __ppoll_chk 5 SYS_ppoll none;
            five select 5 SYS_select raw(SYS_select);
            seven pselect 6 SYS_pselect6 none;
            five epoll_create 1 SYS_epoll_create raw(SYS_epoll_create);
            five epoll_create1 1 SYS_epoll_create1 raw(SYS_epoll_create1);
            five epoll_ctl 4 SYS_epoll_ctl raw(SYS_epoll_ctl);
            five epoll_wait 4 SYS_epoll_wait raw(SYS_epoll_wait);
            five epoll_pwait 5 SYS_epoll_pwait none;
            five epoll_pwait2 5 SYS_epoll_pwait2 none;
            five eventfd 2 SYS_eventfd2 raw(SYS_eventfd2);
            five eventfd_read 2 SYS_read none;
            five eventfd_write 2 SYS_write none;
            five signalfd 3 SYS_signalfd4 none;
            five timerfd_create 2 SYS_timerfd_create raw(SYS_timerfd_create);
            five timerfd_settime 4 SYS_timerfd_settime raw(SYS_timerfd_settime);
            five timerfd_gettime 2 SYS_timerfd_gettime raw(SYS_timerfd_gettime);
            five pause 0 SYS_pause raw(SYS_pause);
            five sigsuspend 1 SYS_rt_sigsuspend none;
            five sigwait 2 SYS_rt_sigtimedwait none;
            five sigwaitinfo 2 SYS_rt_sigtimedwait none;
            five sigtimedwait 3 SYS_rt_sigtimedwait none;
            five nanosleep 2 SYS_clock_nanosleep raw(SYS_nanosleep);
            five clock_nanosleep 4 SYS_clock_nanosleep none;
            five usleep 1 SYS_clock_nanosleep none;
            five sleep 1 SYS_clock_nanosleep none;
            five wait 1 SYS_wait4 none;
            five waitpid 3 SYS_wait4 raw(SYS_wait4);
            five wait3 3 SYS_wait4 none;
            five wait4 4 SYS_wait4 raw(SYS_wait4);
            five waitid 4 SYS_waitid raw(SYS_waitid);
            five semop 3 SYS_semop raw(SYS_semop);
            five semtimedop 4 SYS_semtimedop raw(SYS_semtimedop);
            five msgsnd 4 SYS_msgsnd raw(SYS_msgsnd);
            five msgrcv 5 SYS_msgrcv raw(SYS_msgrcv);
            five mq_timedsend 5 SYS_mq_timedsend raw(SYS_mq_timedsend);
            five mq_timedreceive 5 SYS_mq_timedreceive raw(SYS_mq_timedreceive);

            // Memory.
            seven mmap 6 SYS_mmap raw(SYS_mmap);
            seven mmap64 6 SYS_mmap raw(SYS_mmap);
            five munmap 2 SYS_munmap raw(SYS_munmap);
            five mprotect 3 SYS_mprotect raw(SYS_mprotect);
            five mremap 5 SYS_mremap raw(SYS_mremap);
            five madvise 3 SYS_madvise raw(SYS_madvise);
            five posix_madvise 3 SYS_madvise none;
            five msync 3 SYS_msync raw(SYS_msync);
            five mincore 3 SYS_mincore raw(SYS_mincore);
            five mlock 2 SYS_mlock raw(SYS_mlock);
            five mlock2 3 SYS_mlock2 raw(SYS_mlock2);
            five munlock 2 SYS_munlock raw(SYS_munlock);
            five mlockall 1 SYS_mlockall raw(SYS_mlockall);
            five munlockall 0 SYS_munlockall raw(SYS_munlockall);
            five brk 1 SYS_brk none;
            five sbrk 1 SYS_brk none;
            five shmat 3 SYS_shmat raw(SYS_shmat);
            five shmdt 1 SYS_shmdt raw(SYS_shmdt);

            // The process.
            five getpid 0 SYS_getpid raw(SYS_getpid);
            five getppid 0 SYS_getppid raw(SYS_getppid);
            five gettid 0 SYS_gettid raw(SYS_gettid);
            five getuid 0 SYS_getuid raw(SYS_getuid);
            five geteuid 0 SYS_geteuid raw(SYS_geteuid);
            five getgid 0 SYS_getgid raw(SYS_getgid);
            five getegid 0 SYS_getegid raw(SYS_getegid);
            five setpgid 2 SYS_setpgid raw(SYS_setpgid);
            five getpgid 1 SYS_getpgid raw(SYS_getpgid);
            five setsid 0 SYS_setsid raw(SYS_setsid);
            five getpgrp 0 SYS_getpgrp raw(SYS_getpgrp);
            five getsid 1 SYS_getsid raw(SYS_getsid);
            five getgroups 2 SYS_getgroups raw(SYS_getgroups);
            five getresuid 3 SYS_getresuid raw(SYS_getresuid);
            five getresgid 3 SYS_getresgid raw(SYS_getresgid);
            five kill 2 SYS_kill raw(SYS_kill);
            five tgkill 3 SYS_tgkill raw(SYS_tgkill);
            five sigaction 3 SYS_rt_sigaction none;
            five sigprocmask 3 SYS_rt_sigprocmask none;
            five pthread_sigmask 3 SYS_rt_sigprocmask none;
            five sigpending 1 SYS_rt_sigpending none;
            five sigaltstack 2 SYS_sigaltstack raw(SYS_sigaltstack);
            five alarm 1 SYS_alarm raw(SYS_alarm);
            five getitimer 2 SYS_getitimer raw(SYS_getitimer);
            five setitimer 3 SYS_setitimer raw(SYS_setitimer);
            five sched_yield 0 SYS_sched_yield raw(SYS_sched_yield);
            five sched_getaffinity 3 SYS_sched_getaffinity none;
            five sched_setaffinity 3 SYS_sched_setaffinity raw(SYS_sched_setaffinity);
            five setpriority 3 SYS_setpriority raw(SYS_setpriority);
            five getrusage 2 SYS_getrusage raw(SYS_getrusage);
            five times 1 SYS_times raw(SYS_times);
            five uname 1 SYS_uname raw(SYS_uname);
            five sysinfo 1 SYS_sysinfo raw(SYS_sysinfo);
            five getrlimit 2 SYS_prlimit64 none;
            five getrlimit64 2 SYS_prlimit64 none;
            five setrlimit 2 SYS_prlimit64 none;
            five setrlimit64 2 SYS_prlimit64 none;
            five prlimit 4 SYS_prlimit64 raw(SYS_prlimit64);
            five prctl 5 SYS_prctl raw(SYS_prctl);
            five getrandom 3 SYS_getrandom raw(SYS_getrandom);
            five umask 1 SYS_umask raw(SYS_umask);
            five fork 0 SYS_clone none;
            five system 1 SYS_wait4 none;

            // What libc does inside itself, seen only when it sleeps.
            quiet fread 4 SYS_read none;
            quiet __fread_chk 5 SYS_read none;
            quiet fgets 3 SYS_read none;
            quiet __fgets_chk 4 SYS_read none;
            quiet getline 3 SYS_read none;
            quiet getdelim 4 SYS_read none;
            quiet fwrite 4 SYS_write none;
            quiet fputs 2 SYS_write none;
            quiet puts 1 SYS_write none;
            quiet fflush 1 SYS_write none;
            quiet fclose 1 SYS_close none;
            quiet fopen 2 SYS_openat none;
            quiet fopen64 2 SYS_openat none;
            quiet opendir 1 SYS_openat none;
            quiet fdopendir 1 SYS_fcntl none;
            quiet readdir 1 SYS_getdents64 none;
            quiet readdir64 1 SYS_getdents64 none;
            quiet closedir 1 SYS_close none;
            quiet realpath 2 SYS_readlink none;
            quiet __realpath_chk 3 SYS_readlink none;
            quiet getaddrinfo 4 SYS_poll none;
            quiet pthread_mutex_lock 1 SYS_futex none;
            quiet pthread_rwlock_rdlock 1 SYS_futex none;
            quiet pthread_rwlock_wrlock 1 SYS_futex none;
            quiet pthread_join 2 SYS_futex none;
            quiet pthread_barrier_wait 1 SYS_futex none;
            quiet sem_wait 1 SYS_futex none;
            quiet sem_timedwait 2 SYS_futex none;
        }
    };
}

/// Functions that create or replace processes, and the one that makes any call: each library has
/// its own way with some of them.
#[macro_export]
macro_rules! process_functions {
    ($callback:path, $($context:tt)*) => {
        $callback! { [$($context)*]
            five execve 3 SYS_execve raw(SYS_execve);
            five execv 2 SYS_execve none;
            five execvp 2 SYS_execve none;
            five execvpe 3 SYS_execve none;
            five fexecve 3 SYS_execveat none;
            five execveat 5 SYS_execveat raw(SYS_execveat);
            seven posix_spawn 6 SYS_clone none;
            seven posix_spawnp 6 SYS_clone none;
            five _exit 1 SYS_exit_group raw(SYS_exit_group);
            five _Exit 1 SYS_exit_group raw(SYS_exit_group);
        }
    };
}

/// Functions whose stubs are none of the usual kinds, and those with a list of arguments, which only some
/// libraries replace.
#[macro_export]
macro_rules! special_functions {
    ($callback:path, $($context:tt)*) => {
        $callback! { [$($context)*]
            seven syscall 7 SYS_getpid none;
            seven clone 7 SYS_clone none;
            list execl 2 SYS_execve none;
            list execlp 2 SYS_execve none;
            list execle 2 SYS_execve none;
        }
    };
}

macro_rules! raw_number {
    (raw($call:ident)) => {
        Some(libc::$call)
    };
    (none) => {
        None
    };
}

/// Seven registers' and stack places' worth of arguments: enough for every function here.
#[cfg(panic = "unwind")]
pub(crate) type Seven =
    unsafe extern "C-unwind" fn(usize, usize, usize, usize, usize, usize, usize) -> usize;

/// The C ABI in a library as it is shipped, where panics abort. A thread that is cancelled in the
/// call is unwound through our frames (pthread_cancel(3)). After a `C-unwind` call the compiler
/// would put an abort there. After a `C` call it puts nothing, so the unwinder passes, as it passes
/// C frames. There is nothing to drop in them.
#[cfg(not(panic = "unwind"))]
pub(crate) type Seven =
    unsafe extern "C" fn(usize, usize, usize, usize, usize, usize, usize) -> usize;

macro_rules! entry {
    ($name:ident) => {
        concat!(
            ".globl headway_hook_to_",
            stringify!($name),
            "\n",
            ".hidden headway_hook_to_",
            stringify!($name),
            "\n",
            ".type headway_hook_to_",
            stringify!($name),
            ",@function\n",
            "headway_hook_to_",
            stringify!($name),
            ":\n",
            "headway_hook_jump %headway_hook_place\n",
            ".set headway_hook_place, headway_hook_place + 8",
        )
    };
}

macro_rules! declare_entry {
    ($name:ident) => {
        #[link_name = concat!("headway_hook_to_", stringify!($name))]
        pub(super) fn $name(
            a: usize,
            b: usize,
            c: usize,
            d: usize,
            e: usize,
            f: usize,
            g: usize,
        ) -> usize;
    };
}

/// Makes one enumeration of the three tables. A macro cannot use the output of another one, so the
/// tables are chained.
macro_rules! with_process {
    ([] $($common:tt)*) => { process_functions! { with_special, $($common)* } };
}

macro_rules! with_special {
    ([$($common:tt)*] $($process:tt)*) => {
        special_functions! { table, $($common)* $($process)* }
    };
}

macro_rules! table {
    ([$($kind:ident $name:ident $arity:literal $call:ident $raw:ident $(($rawcall:ident))?;)*]
     $($kind2:ident $name2:ident $arity2:literal $call2:ident $raw2:ident $(($rawcall2:ident))?;)*) => {
        /// An interposed function, as its index in the tables.
        #[allow(non_camel_case_types, missing_docs)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Function { $($name,)* $($name2,)* }

        /// How many functions there are.
        pub const COUNT: usize = [$(stringify!($name),)* $(stringify!($name2),)*].len();

        /// Names of the functions, each ended by a zero byte.
        pub(crate) const NAMES: [&str; COUNT] =
            [$(concat!(stringify!($name), "\0"),)* $(concat!(stringify!($name2), "\0"),)*];

        /// The calls they make.
        pub(crate) const NUMBERS: [u32; COUNT] = [$(libc::$call as u32,)* $(libc::$call2 as u32,)*];

        /// The number of arguments of each function.
        pub(crate) const ARITIES: [usize; COUNT] = [$($arity,)* $($arity2,)*];

        /// The system call with the same arguments, for each function.
        pub(crate) const RAW: [Option<libc::c_long>; COUNT] =
            [$(raw_number!($raw $(($rawcall))?),)* $(raw_number!($raw2 $(($rawcall2))?),)*];

        // A page or more of entries of sixteen bytes, one for each function, in the order of the
        // tables.
        std::arch::global_asm!(
            ".pushsection .text.headway_hook_jumps,\"ax\",@progbits",
            ".balign 4096",
            ".globl headway_hook_jumps",
            ".hidden headway_hook_jumps",
            "headway_hook_jumps:",
            ".altmacro",
            ".macro headway_hook_jump place",
            "mov r11, qword ptr [rip + {next}@GOTPCREL]",
            "jmp qword ptr [r11 + \\place]",
            ".balign 16",
            ".endm",
            ".set headway_hook_place, 0",
            $(entry!($name),)*
            $(entry!($name2),)*
            ".noaltmacro",
            ".balign 4096",
            ".popsection",
            next = sym $crate::NEXT,
        );

        mod entries {
            #[cfg(panic = "unwind")]
            unsafe extern "C-unwind" {
                $(declare_entry! { $name })*
                $(declare_entry! { $name2 })*
            }
            #[cfg(not(panic = "unwind"))]
            unsafe extern "C" {
                $(declare_entry! { $name })*
                $(declare_entry! { $name2 })*
            }
        }

        /// The entries that lead to libc's functions.
        pub(crate) const ENTRIES: [Seven; COUNT] = [$(entries::$name,)* $(entries::$name2,)*];
    };
}

functions! { with_process, }
