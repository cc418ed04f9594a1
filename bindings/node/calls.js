'use strict';
// Names of system calls on x86-64 by their numbers: those in which a thread sleeps (arch/x86/entry/syscalls).

const NAMES = {
  0: 'read', 1: 'write', 2: 'open', 3: 'close', 4: 'stat', 5: 'fstat', 6: 'lstat', 7: 'poll', 9: 'mmap',
  10: 'mprotect', 11: 'munmap', 12: 'brk', 16: 'ioctl', 17: 'pread64', 18: 'pwrite64', 19: 'readv',
  20: 'writev', 21: 'access', 23: 'select', 26: 'msync', 28: 'madvise', 34: 'pause', 35: 'nanosleep',
  40: 'sendfile', 42: 'connect', 43: 'accept', 44: 'sendto', 45: 'recvfrom', 46: 'sendmsg', 47: 'recvmsg',
  57: 'fork', 58: 'vfork', 59: 'execve', 61: 'wait4', 72: 'fcntl', 73: 'flock', 74: 'fsync', 75: 'fdatasync',
  76: 'truncate', 77: 'ftruncate', 78: 'getdents', 82: 'rename', 83: 'mkdir', 84: 'rmdir', 87: 'unlink',
  89: 'readlink', 162: 'sync', 165: 'mount', 202: 'futex', 217: 'getdents64', 230: 'clock_nanosleep',
  232: 'epoll_wait', 247: 'waitid', 257: 'openat', 258: 'mkdirat', 262: 'newfstatat', 263: 'unlinkat',
  264: 'renameat', 267: 'readlinkat', 269: 'faccessat', 270: 'pselect6', 271: 'ppoll', 275: 'splice',
  277: 'sync_file_range', 281: 'epoll_pwait', 285: 'fallocate', 288: 'accept4', 295: 'preadv', 296: 'pwritev',
  299: 'recvmmsg', 306: 'syncfs', 316: 'renameat2', 318: 'getrandom', 326: 'copy_file_range', 327: 'preadv2',
  328: 'pwritev2', 332: 'statx', 426: 'io_uring_enter', 437: 'openat2', 441: 'epoll_pwait2',
};

/** The name of a call; `call 999` for a number without one. */
function nameOf(number) {
  const known = process.arch === 'x64' ? NAMES[number] : undefined;
  return known ?? `call ${number}`;
}

module.exports = { nameOf };
