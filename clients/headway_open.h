/*
 * headway_open.h: open files without waiting for the disk, with the help of `headway backend`.
 *
 * A file is opened by this process itself, with its own rights, by a call that cannot wait (openat2 with
 * RESOLVE_CACHED, Linux 5.12). Only where the kernel says that it would have to wait, or where the file's
 * beginning is not in memory, a request goes to the service: its helpers look the name up and read the file,
 * once for all clients that wait for it. Then the file is opened again, the same way. The service passes no
 * file and no status: the file, the error and the permission are the kernel's own answer to this process.
 * Without the service, or when it does not answer in time, the file is opened by an ordinary call.
 *
 * Every function may be called from any thread and after fork. None is safe in a signal handler. The protocol
 * is in docs/research/src/open-file-protocol.md.
 */
#ifndef HEADWAY_OPEN_H
#define HEADWAY_OPEN_H

#include <linux/stat.h> /* struct statx, without _GNU_SOURCE, too */
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a client counts. It may lie in memory that processes share; all fields only grow. */
struct headway_statistics {
    uint64_t opened;         /* calls of headway_open and headway_openat */
    uint64_t answered;       /* requests that the service answered */
    uint64_t name_requests;  /* requests because a name was not in the kernel's cache */
    uint64_t page_requests;  /* requests because the beginning of a file was not in memory */
    uint64_t waited_us;      /* microseconds spent waiting for answers */
    uint64_t fallbacks;      /* calls made as if there were no service, because it gave no answer */
    uint64_t timeouts;       /* of these: no answer in time */
    uint64_t unreachable;    /* of these: no service listens, or it rejected this user */
    uint64_t rejected;       /* of these: it was busy, or speaks another version of the protocol */
    uint64_t elsewhere;      /* paths outside the service's roots */
    uint64_t still_blocking; /* answered, and the kernel would still have to wait: an ordinary call */
    uint64_t retries;        /* requests repeated because their connection ended */
};

/* How to reach the service. Zero, or a null pointer, stands for the default. */
struct headway_options {
    size_t size;         /* sizeof(struct headway_options): it may grow */
    const char *socket;  /* the service's socket; required */
    unsigned timeout_ms; /* how long an answer is waited for; 5000 */
    unsigned retry_ms;   /* after a timeout no request is sent for this long, and then by one thread until it
                            knows; 1000 */
    uint64_t read_in;    /* bytes of a file to have in memory; 1 MiB. UINT64_MAX: none */
    int no_fallback;     /* fail with ETIMEDOUT instead of waiting for the disk */
    struct headway_statistics *statistics; /* where to count; memory of its own */
};

struct headway_client;

/* An open file. */
struct headway_file {
    int fd;              /* opened for reading by this process, close-on-exec; its offset is not shared */
    struct statx status; /* STATX_BASIC_STATS of it */
    char validator[56];  /* changes with the file: inode, size and modification time; fit for an entity tag */
};

/* A client, which connects before its first request. NULL with errno: EINVAL (no socket, or a path too long
 * for one), ENOMEM. */
struct headway_client *headway_client_new(const struct headway_options *options);

/* Closes its connections. No other thread may use it any more. NULL is allowed. */
void headway_client_free(struct headway_client *client);

/* The numbers so far. */
const struct headway_statistics *headway_client_statistics(const struct headway_client *client);

/* Opens a file for reading. 0, or -1 with errno as open(2) would set it (ETIMEDOUT: see no_fallback). The
 * path may also name a directory. A FIFO or a device is not waited for (O_NONBLOCK). */
int headway_open(struct headway_client *client, const char *path, struct headway_file *file);

/* Returns memory for the contents of a file of this size, or NULL. Called once for a file at most. */
typedef void *headway_alloc(void *context, size_t size);

/* As headway_open, for a caller that wants the contents: a regular file of 1 to `most` bytes, all of which
 * are to be in memory (read_in), is read into what `alloc` returns for it and closed. Then the result is its
 * size, and file->fd is -1. 0: anything else, open as headway_open leaves it. -1 with errno as headway_open.
 */
ssize_t headway_load(struct headway_client *client, const char *path, size_t most, headway_alloc *alloc,
                     void *context, struct headway_file *file);

/* As openat(2) with these flags, for reading only: O_CREAT, O_TRUNC, O_TMPFILE and writing are EINVAL. */
int headway_openat(struct headway_client *client, int directory, const char *path, int flags);

/* Brings what openat(2), stat(2) and the like will need of a path into memory, and answers with the error
 * they will meet: 0, or -1 with errno. With AT_SYMLINK_NOFOLLOW a symbolic link at the end is not followed.
 */
int headway_touch(struct headway_client *client, int directory, const char *path, int flags);

#ifdef __cplusplus
}
#endif
#endif
