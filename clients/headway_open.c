/*
 * headway_open.c: the client of `headway backend`. See headway_open.h for what it promises.
 *
 * Order of a call: probe (a call that cannot wait), request (only if the probe says so), probe again, and as
 * the last resort an ordinary call. The service has the file open meanwhile, so its inode and the names on
 * the way to it stay in the kernel's memory.
 *
 * headway_request.c sends the requests.
 *
 * Files are opened by system calls, not by libc's functions: headway_preload.c replaces
 * those.
 *
 * Sources: openat2(2), preadv2(2), cachestat(2).
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "headway_client.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef RESOLVE_CACHED
#define RESOLVE_CACHED 0x20
#endif
#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

/* A piece of a file that is surely read in and evicted as one, so that one of its bytes speaks for it; and
 * how many bytes of the first piece are probed, into rows of a scratch page that is never read. */
enum { PROBE_STRIDE = 64 * 1024, FRONT_BYTES = 64 * 1024, ROW_BYTES = 4096 };

/* Where the contents of a file of at most `most` bytes go; `got` is 0 until all of them are there. */
struct content {
    size_t most, got;
    headway_alloc *alloc;
    void *context, *bytes;
};

/* ---------------------------------------------------------------- probing the kernel */

static int open_cached(int directory, const char *path, int flags) {
    struct open_how how = {.flags = (unsigned)flags, .resolve = RESOLVE_CACHED};
    return (int)syscall(SYS_openat2, directory, path, &how, sizeof how);
}

/* The probe said that it would have to wait, or that it is not possible here: old kernels, some sandboxes
 * (which say EPERM), flags that openat ignores and openat2 does not know. Any other error is the answer. */
static int is_undecided(int error) {
    return error == EAGAIN || error == ENOSYS || error == EPERM || error == EINVAL || error == E2BIG;
}

static int has_byte(int fd, uint64_t offset) {
    char byte;
    struct iovec part = {&byte, 1};
    /* A file system without such calls cannot be probed: an ordinary read then. */
    return preadv2(fd, &part, 1, (off_t)offset, RWF_NOWAIT) >= 0 || errno != EAGAIN;
}

/* Probing what is missing makes the kernel read it, with a read-ahead by the length of the probe. After a
 * probe of one byte that is 16 KiB, and the service would have the disk read the rest as a second piece. */
static int has_front(int fd, uint64_t length) {
    char row[ROW_BYTES];
    struct iovec rows[FRONT_BYTES / ROW_BYTES];
    uint64_t missing = length < FRONT_BYTES ? length : FRONT_BYTES;
    ssize_t probed = (ssize_t)missing;
    int count = 0;
    for (; missing > 0; count++) {
        rows[count] = (struct iovec){row, missing < ROW_BYTES ? (size_t)missing : ROW_BYTES};
        missing -= rows[count].iov_len;
    }
    ssize_t there = preadv2(fd, rows, count, 0, RWF_NOWAIT);
    return there < 0 ? errno != EAGAIN : there == probed;
}

/* Whether the first `length` bytes are in memory, as far as known. */
static int is_resident(struct headway_client *client, int fd, uint64_t length) {
    if (length == 0) return 1;
    if (!atomic_load_explicit(&client->no_cachestat, memory_order_relaxed)) {
        uint64_t range[2] = {0, length}, counted[5] = {0};
        if (syscall(SYS_cachestat, fd, range, counted, 0) == 0) {
            uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
            /* Cached may still be on its way; pages arrive in order. */
            return counted[0] >= (length + page - 1) / page && has_byte(fd, length - 1);
        }
        if (errno == ENOSYS || errno == EPERM) atomic_store(&client->no_cachestat, 1);
    }
    /* From the front, since the kernel begins to read what is missing: there the service begins, too. Probing
     * the end first would move the disk's head there and back. */
    if (!has_front(fd, length)) return 0;
    for (uint64_t at = FRONT_BYTES; at + 1 < length; at += PROBE_STRIDE) {
        if (!has_byte(fd, at)) return 0;
    }
    return length <= FRONT_BYTES || has_byte(fd, length - 1);
}

static uint64_t wanted(const struct headway_client *client, const struct statx *status) {
    if (!S_ISREG(status->stx_mode)) return 0;
    return status->stx_size < client->read_in ? status->stx_size : client->read_in;
}

/* ---------------------------------------------------------------- opening */

/* With no_fallback an answer that does not come is an error, and nothing waits for the disk. */
static int give_up(int fd) {
    if (fd >= 0) close(fd);
    errno = ETIMEDOUT;
    return -1;
}

/* The kernel does not know the name: request it, then open again. */
static int request_and_open(struct headway_client *client, int directory, const char *path, int flags,
                            uint64_t read_in) {
    count(&client->statistics->name_requests, 1);
    enum request_result result = headway_request(client, directory, path, read_in);
    if (result == UNANSWERED && client->no_fallback) return give_up(-1);
    int fd = open_cached(directory, path, flags);
    if (fd >= 0 || !is_undecided(errno)) return fd;
    if (result == ANSWERED) count(&client->statistics->still_blocking, 1);
    return (int)syscall(SYS_openat, directory, path, flags, 0);
}

/* The file is read here: it is small, and all of it is to be in memory. */
static int is_small(const struct headway_client *client, const struct statx *status,
                    const struct content *content) {
    uint64_t length = wanted(client, status);
    return content && length > 0 && length == status->stx_size && length <= content->most;
}

/* Reads all of the file or nothing; errno is EAGAIN where `flags` forbid the wait for what is missing.
 * Without room for it the file stays open. */
static int read_whole(int fd, const struct statx *status, struct content *content, int flags) {
    size_t size = (size_t)status->stx_size;
    if (!content->bytes) content->bytes = content->alloc(content->context, size);
    if (!content->bytes) {
        content->most = 0;
        errno = ENOMEM;
        return 0;
    }
    struct iovec part = {content->bytes, size};
    ssize_t length = preadv2(fd, &part, 1, 0, flags);
    if (length == (ssize_t)part.iov_len) content->got = part.iov_len;
    /* Some of its pages, or it has been cut since. */
    if (length >= 0) errno = EAGAIN;
    return content->got > 0;
}

/* Nothing of it has to be waited for, as far as can be told. A small file is read: one system call,
 * which has to be made anyway, instead of two more. */
static int is_ready(struct headway_client *client, int fd, const struct statx *status,
                    struct content *content) {
    if (!is_small(client, status, content)) return is_resident(client, fd, wanted(client, status));
    return read_whole(fd, status, content, RWF_NOWAIT) || errno != EAGAIN;
}

/* Fills in the status of what was opened; closes it where that fails. */
static int stat_or_close(int fd, struct statx *status) {
    if (fd < 0 || headway_stat_fd(fd, status) == 0) return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

/* Opens, with the beginning of a regular file in memory; fills in the status, and the contents if there is a
 * place for them. */
static int open_ready(struct headway_client *client, int directory, const char *path, int flags,
                      struct statx *status, struct content *content) {
    count(&client->statistics->opened, 1);
    int fd = open_cached(directory, path, flags);
    int was_requested = fd < 0 && is_undecided(errno);
    if (was_requested) fd = request_and_open(client, directory, path, flags, client->read_in);
    fd = stat_or_close(fd, status);
    if (fd >= 0 && !was_requested && !is_ready(client, fd, status, content)) {
        count(&client->statistics->page_requests, 1);
        enum request_result result = headway_request(client, directory, path, client->read_in);
        if (result == UNANSWERED && client->no_fallback) fd = give_up(fd);
    }
    /* The ordinary open: the file is in memory by now, or the service could not help. */
    if (fd >= 0 && is_small(client, status, content) && !content->got) read_whole(fd, status, content, 0);
    return fd;
}

enum { READING = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_LARGEFILE };

/* Hexadecimal digits and what ends them; printf takes longer than the calls that open the file. */
static char *put_hex(char *to, uint64_t value, char end) {
    int digits = 1;
    while (digits < 16 && value >> (4 * digits)) digits++;
    for (int i = digits - 1; i >= 0; i--) *to++ = "0123456789abcdef"[(value >> (4 * i)) & 15];
    *to++ = end;
    return to;
}

static void name_version(struct headway_file *file) {
    const struct statx *status = &file->status;
    char name[3 * 17 + 9];
    char *to = put_hex(name, status->stx_ino, '-');
    to = put_hex(to, status->stx_size, '-');
    to = put_hex(to, (uint64_t)status->stx_mtime.tv_sec, '.');
    to = put_hex(to, status->stx_mtime.tv_nsec, '\0');
    /* Only a file of before 1970 with the largest of numbers has a longer one; its end is left out. */
    size_t room = sizeof file->validator - 1, length = (size_t)(to - name);
    memcpy(file->validator, name, length < room ? length : room);
    file->validator[room] = '\0';
}

int headway_open(struct headway_client *client, const char *path, struct headway_file *file) {
    file->fd = open_ready(client, AT_FDCWD, path, READING, &file->status, NULL);
    if (file->fd < 0) return -1;
    name_version(file);
    return 0;
}

ssize_t headway_load(struct headway_client *client, const char *path, size_t most, headway_alloc *alloc,
                     void *context, struct headway_file *file) {
    struct content whole = {.most = most, .alloc = alloc, .context = context};
    file->fd = open_ready(client, AT_FDCWD, path, READING, &file->status, &whole);
    if (file->fd < 0) return -1;
    name_version(file);
    if (whole.got > 0) {
        close(file->fd);
        file->fd = -1;
    }
    return (ssize_t)whole.got;
}

int headway_openat(struct headway_client *client, int directory, const char *path, int flags) {
    struct statx status;
    if ((flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC)) ||
        (flags & O_TMPFILE) == O_TMPFILE) {
        errno = EINVAL;
        return -1;
    }
    return open_ready(client, directory, path, flags, &status, NULL);
}

int headway_touch(struct headway_client *client, int directory, const char *path, int flags) {
    int how = O_PATH | O_CLOEXEC | (flags & AT_SYMLINK_NOFOLLOW ? O_NOFOLLOW : 0);
    int fd = open_cached(directory, path, how);
    if (fd < 0 && is_undecided(errno)) fd = request_and_open(client, directory, path, how, 0);
    if (fd < 0) return -1;
    close(fd);
    return 0;
}
