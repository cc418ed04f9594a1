/*
 * headway_preload.c: libheadway_preload.so gives an unchanged, dynamically linked program the open-file
 * service.
 *
 * It interposes libc's functions that open a file for reading or stat one. For paths below the prefixes
 * of the environment it opens by libheadway_open, with the program's own flags, or has the path's names
 * brought into memory and then calls the interposed function. Results, errors, flags and offsets are
 * the kernel's for this process: nothing is remembered, and nothing is shared.
 *
 * What goes through untouched: everything outside the prefixes; opening for writing, creating, O_PATH; calls
 * that libc makes inside itself (opendir, realpath, the loader); programs that make system calls on their own
 * (Go) or are linked statically; set-user-ID programs, for which the loader ignores LD_PRELOAD. A seccomp
 * filter that kills for openat2 kills here, too.
 *
 *   HEADWAY_OPEN_SOCKET       the service's socket
 *   HEADWAY_OPEN_PREFIXES     absolute directories, separated by colons
 *   HEADWAY_OPEN_TIMEOUT_MS   how long an answer is waited for (5000)
 *   HEADWAY_OPEN_READ_IN      bytes of a file to have in memory (1048576; 0: none)
 *
 * Sources: open(2), stat(2), dlsym(3), ld.so(8).
 */
#define _GNU_SOURCE
#include "headway_open.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
/* The function of this name in the next library, looked up once. */
#define NEXT(name)                                                                                           \
    ({                                                                                                       \
        static __typeof__(&name) next_;                                                                      \
        if (!next_) next_ = (__typeof__(&name))dlsym(RTLD_NEXT, #name);                                      \
        next_;                                                                                               \
    })

static struct headway_client *client;
static const char *prefixes;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void start(void) {
    const char *timeout = getenv("HEADWAY_OPEN_TIMEOUT_MS"), *read_in = getenv("HEADWAY_OPEN_READ_IN");
    struct headway_options options = {.size = sizeof options, .socket = getenv("HEADWAY_OPEN_SOCKET")};
    const char *wanted = getenv("HEADWAY_OPEN_PREFIXES");
    if (!options.socket || !wanted) return;
    if (timeout) options.timeout_ms = (unsigned)strtoul(timeout, NULL, 10);
    if (read_in) options.read_in = strtoull(read_in, NULL, 10);
    if (read_in && options.read_in == 0) options.read_in = UINT64_MAX;
    /* The program may change its environment later. */
    prefixes = strdup(wanted);
    if (prefixes) client = headway_client_new(&options);
}

static int is_below(const char *path) {
    for (const char *at = prefixes; *at;) {
        size_t length = strcspn(at, ":"), bare = length;
        while (bare > 0 && at[bare - 1] == '/') bare--;
        if (length > 0 && strncmp(path, at, bare) == 0 && (path[bare] == '/' || path[bare] == '\0')) return 1;
        at += length + (at[length] == ':');
    }
    return 0;
}

/* The path is below a prefix. A relative one counts when its directory does and it does not go up. */
static int is_ours(int directory, const char *path) {
    int error = errno;
    char link[40] = "/proc/self/cwd", base[PATH_MAX];
    pthread_once(&once, start);
    errno = error;
    if (!client || !path || !*path) return 0;
    if (*path == '/') return is_below(path);
    if (strstr(path, "..")) return 0;
    if (directory != AT_FDCWD) snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    ssize_t length = readlink(link, base, sizeof base - 1);
    errno = error;
    if (length <= 0) return 0;
    base[length] = '\0';
    return is_below(base);
}

static int only_reads(int flags) {
    return (flags & O_ACCMODE) == O_RDONLY && !(flags & (O_CREAT | O_TRUNC | O_PATH)) &&
           (flags & O_TMPFILE) != O_TMPFILE;
}

static int open_ours(int directory, const char *path, int flags) {
    int error = errno;
    int fd = headway_openat(client, directory, path, flags);
    if (fd >= 0) errno = error;
    return fd;
}

/* What it answers, the function itself finds out. */
static void touch(int directory, const char *path, int flags) {
    int error = errno;
    if (is_ours(directory, path)) headway_touch(client, directory, path, flags & AT_SYMLINK_NOFOLLOW);
    errno = error;
}

static mode_t mode_of(int flags, va_list more) {
    return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(more, mode_t) : 0;
}

#define OPEN(name, large)                                                                                    \
    EXPORT int name(const char *path, int flags, ...) {                                                      \
        va_list more;                                                                                        \
        va_start(more, flags);                                                                               \
        mode_t mode = mode_of(flags, more);                                                                  \
        va_end(more);                                                                                        \
        if (only_reads(flags) && is_ours(AT_FDCWD, path)) return open_ours(AT_FDCWD, path, flags | (large)); \
        return NEXT(name)(path, flags, mode);                                                                \
    }
#define OPENAT(name, large)                                                                                  \
    EXPORT int name(int directory, const char *path, int flags, ...) {                                       \
        va_list more;                                                                                        \
        va_start(more, flags);                                                                               \
        mode_t mode = mode_of(flags, more);                                                                  \
        va_end(more);                                                                                        \
        if (only_reads(flags) && is_ours(directory, path))                                                   \
            return open_ours(directory, path, flags | (large));                                              \
        return NEXT(name)(directory, path, flags, mode);                                                     \
    }
OPEN(open, 0)
OPEN(open64, O_LARGEFILE)
OPENAT(openat, 0)
OPENAT(openat64, O_LARGEFILE)

/* What open and openat become with _FORTIFY_SOURCE. */
#define OPEN_2(name)                                                                                         \
    int name(const char *path, int flags);                                                                   \
    EXPORT int name(const char *path, int flags) {                                                           \
        if (only_reads(flags) && is_ours(AT_FDCWD, path)) return open_ours(AT_FDCWD, path, flags);           \
        return NEXT(name)(path, flags);                                                                      \
    }
#define OPENAT_2(name)                                                                                       \
    int name(int directory, const char *path, int flags);                                                    \
    EXPORT int name(int directory, const char *path, int flags) {                                            \
        if (only_reads(flags) && is_ours(directory, path)) return open_ours(directory, path, flags);         \
        return NEXT(name)(directory, path, flags);                                                           \
    }
OPEN_2(__open_2)
OPEN_2(__open64_2)
OPENAT_2(__openat_2)
OPENAT_2(__openat64_2)

/* Modes that say no more than how to open: `m`, `c` and `ccs=` are for fopen's eyes alone. */
static int only_opens(const char *mode) {
    return mode && mode[0] == 'r' && mode[1 + strspn(mode + 1, "be")] == '\0';
}

/* fopen in two steps, so that the file is opened once: opening a FIFO wakes a writer that waits for it.
 */
static FILE *fopen_ours(const char *path, const char *mode) {
    int error = errno, fd = open_ours(AT_FDCWD, path, O_RDONLY | (strchr(mode, 'e') ? O_CLOEXEC : 0));
    FILE *file = fd < 0 ? NULL : NEXT(fdopen)(fd, mode);
    if (file)
        errno = error;
    else if (fd >= 0)
        close(fd);
    return file;
}

/* With any other mode libc opens inside itself, and the names alone are made ready. */
#define FOPEN(name)                                                                                          \
    EXPORT FILE *name(const char *path, const char *mode) {                                                  \
        if (only_opens(mode) && is_ours(AT_FDCWD, path)) return fopen_ours(path, mode);                      \
        if (mode && mode[0] == 'r' && !strchr(mode, '+')) touch(AT_FDCWD, path, 0);                          \
        return NEXT(name)(path, mode);                                                                       \
    }
FOPEN(fopen)
FOPEN(fopen64)

#define STAT(name, type, flags)                                                                              \
    EXPORT int name(const char *restrict path, struct type *restrict status) {                               \
        touch(AT_FDCWD, path, flags);                                                                        \
        return NEXT(name)(path, status);                                                                     \
    }
STAT(stat, stat, 0)
STAT(stat64, stat64, 0)
STAT(lstat, stat, AT_SYMLINK_NOFOLLOW)
STAT(lstat64, stat64, AT_SYMLINK_NOFOLLOW)

#define FSTATAT(name, type)                                                                                  \
    EXPORT int name(int directory, const char *restrict path, struct type *restrict status, int flags) {     \
        touch(directory, path, flags);                                                                       \
        return NEXT(name)(directory, path, status, flags);                                                   \
    }
FSTATAT(fstatat, stat)
FSTATAT(fstatat64, stat64)

/* What stat became before glibc 2.33, in programs built then. */
#define XSTAT(name, type, flags)                                                                             \
    int name(int version, const char *path, struct type *status);                                            \
    EXPORT int name(int version, const char *path, struct type *status) {                                    \
        touch(AT_FDCWD, path, flags);                                                                        \
        return NEXT(name)(version, path, status);                                                            \
    }
XSTAT(__xstat, stat, 0)
XSTAT(__xstat64, stat64, 0)
XSTAT(__lxstat, stat, AT_SYMLINK_NOFOLLOW)
XSTAT(__lxstat64, stat64, AT_SYMLINK_NOFOLLOW)

#define FXSTATAT(name, type)                                                                                 \
    int name(int version, int directory, const char *path, struct type *status, int flags);                  \
    EXPORT int name(int version, int directory, const char *path, struct type *status, int flags) {          \
        touch(directory, path, flags);                                                                       \
        return NEXT(name)(version, directory, path, status, flags);                                          \
    }
FXSTATAT(__fxstatat, stat)
FXSTATAT(__fxstatat64, stat64)

EXPORT int statx(int directory, const char *restrict path, int flags, unsigned mask,
                 struct statx *restrict status) {
    touch(directory, path, flags);
    return NEXT(statx)(directory, path, flags, mask, status);
}

EXPORT int access(const char *path, int mode) {
    touch(AT_FDCWD, path, 0);
    return NEXT(access)(path, mode);
}

EXPORT int faccessat(int directory, const char *path, int mode, int flags) {
    touch(directory, path, flags);
    return NEXT(faccessat)(directory, path, mode, flags);
}
