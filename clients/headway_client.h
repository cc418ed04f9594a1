/*
 * headway_client.h: what the two parts of libheadway_open know of each other. headway_ask.c has the
 * connections and puts questions, headway_open.c opens files. Not installed; nothing of it leaves the
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
    atomic_llong rest_until_ms; /* nothing is asked before */
    atomic_int no_cachestat;    /* it refuses files of other users (Linux 6.13) */
    struct connection connections[CONNECTIONS];
    struct headway_client *next;
};

/* What an answer says. */
struct answer {
    int kind, pin;
    uint64_t device, inode;
};

/* What came of a question: the service has answered, it has nothing to do with the path, or it gave no
 * answer. */
enum asked { ANSWERED, NOT_ITS_OWN, UNANSWERED };

static inline void count(uint64_t *counter, uint64_t by) {
    __atomic_fetch_add(counter, by, __ATOMIC_RELAXED);
}

#pragma GCC visibility push(hidden)

/* Asks the service to have a path, and the beginning of its file, in memory. `pin` is a descriptor to close
 * later, or -1. */
enum asked headway_ask(struct headway_client *client, int directory, const char *path, uint64_t read_in,
                       struct answer *answer);

/* Looks at a descriptor: by statx or, where a sandbox knows only older calls, fstat. */
int headway_look(int fd, struct statx *status);

#pragma GCC visibility pop

#endif
