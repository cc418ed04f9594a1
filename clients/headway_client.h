/*
 * headway_client.h: what the two parts of libheadway_open share. headway_request.c has the connections and
 * sends requests, headway_open.c opens files. Not installed; nothing of it leaves the
 * library.
 */
#ifndef HEADWAY_CLIENT_H
#define HEADWAY_CLIENT_H

#include "headway_open.h"

#include <stdatomic.h>
#include <sys/un.h>

enum { CONNECTIONS = 64 };

/* One connection; `busy` while a thread uses it. `socket` shows whether the descriptor is still ours. */
struct connection {
    atomic_int busy;
    int fd;
    uint64_t number, socket;
};

struct headway_client {
    struct sockaddr_un address;
    unsigned timeout_ms, retry_ms;
    uint64_t read_in;
    int no_fallback;
    struct headway_statistics *statistics, own;
    atomic_llong paused_until_ms; /* no request is sent before */
    atomic_int no_cachestat;      /* it refuses files of other users (Linux 6.13) */
    struct connection connections[CONNECTIONS];
    struct headway_client *next;
};

/* Result of a request: the service has done what it could, the path is outside its roots, or there was no
 * answer. */
enum request_result { ANSWERED, OUTSIDE_ROOTS, UNANSWERED };

static inline void count(uint64_t *counter, uint64_t by) {
    __atomic_fetch_add(counter, by, __ATOMIC_RELAXED);
}

#pragma GCC visibility push(hidden)

/* Has the service bring a path, and the first `read_in` bytes of its file, into memory. */
enum request_result headway_request(struct headway_client *client, int directory, const char *path,
                                    uint64_t read_in);

/* The status of a descriptor: by statx or, where a sandbox knows only older calls, fstat. */
int headway_stat_fd(int fd, struct statx *status);

#pragma GCC visibility pop

#endif
