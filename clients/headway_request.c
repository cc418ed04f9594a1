/*
 * headway_request.c: the connections of a client of `headway backend`, and the requests on them.
 *
 * What it does: connects before the first request, sends a request, and receives the answer in time or does
 * without. What it refuses: bytes that are no message of the protocol (the connection ends), and descriptors,
 * which the kernel closes. A child of a fork has connections of its own.
 *
 * Sources: unix(7), recvmsg(2), pthread_atfork(3); docs/research/src/open-file-protocol.md.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "headway_client.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

enum { VERSION = 1, REQUEST_HEAD = 24, ANSWER_BYTES = 16, PATH_BYTES = 4096 };
enum { DONE = 1, ELSEWHERE, BUSY, OTHER_VERSION };
enum { ATTEMPTS = 2, VERSION_PAUSE_MS = 60000 };
/* Beyond what a small program opens, and within the table of 64 that every process begins with. */
enum { HIGH_DESCRIPTOR = 40 };

static pthread_mutex_t clients_lock = PTHREAD_MUTEX_INITIALIZER;
static struct headway_client *clients;
static pthread_once_t at_fork = PTHREAD_ONCE_INIT;

static long long now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

static void put(unsigned char *bytes, uint64_t value, int length) {
    for (int i = 0; i < length; i++) bytes[i] = (unsigned char)(value >> (8 * i));
}

static uint64_t get(const unsigned char *bytes, int length) {
    uint64_t value = 0;
    for (int i = 0; i < length; i++) value |= (uint64_t)bytes[i] << (8 * i);
    return value;
}

/* ---------------------------------------------------------------- descriptors */

int headway_stat_fd(int fd, struct statx *status) {
    int how = AT_EMPTY_PATH | AT_STATX_DONT_SYNC;
    if (syscall(SYS_statx, fd, "", how, STATX_BASIC_STATS, status) == 0) return 0;
    struct stat old;
    if ((errno != EPERM && errno != ENOSYS) || syscall(SYS_fstat, fd, &old) != 0) return -1;
    *status = (struct statx){
        .stx_mask = STATX_BASIC_STATS,
        .stx_mode = (uint16_t)old.st_mode,
        .stx_nlink = (uint32_t)old.st_nlink,
        .stx_uid = old.st_uid,
        .stx_gid = old.st_gid,
        .stx_ino = old.st_ino,
        .stx_size = (uint64_t)old.st_size,
        .stx_blksize = (uint32_t)old.st_blksize,
        .stx_blocks = (uint64_t)old.st_blocks,
        .stx_dev_major = major(old.st_dev),
        .stx_dev_minor = minor(old.st_dev),
        .stx_rdev_major = major(old.st_rdev),
        .stx_rdev_minor = minor(old.st_rdev),
        .stx_atime = {.tv_sec = old.st_atim.tv_sec, .tv_nsec = (uint32_t)old.st_atim.tv_nsec},
        .stx_mtime = {.tv_sec = old.st_mtim.tv_sec, .tv_nsec = (uint32_t)old.st_mtim.tv_nsec},
        .stx_ctime = {.tv_sec = old.st_ctim.tv_sec, .tv_nsec = (uint32_t)old.st_ctim.tv_nsec},
    };
    return 0;
}

/* A number out of the way: open(2) gives a program the lowest that is free, and some count on it (a closed
 * standard error). Where there is none so high, as low as it came. */
static int move_high(int fd) {
    if (fd < 0) return fd;
    int high = fcntl(fd, F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR);
    if (high < 0) high = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (high < 0) return fd;
    close(fd);
    return high;
}

/* Which socket it is. The program may close descriptors that it does not know, and have the number for
 * another one. */
static uint64_t socket_of(int fd) {
    struct statx status;
    return headway_stat_fd(fd, &status) == 0 && S_ISSOCK(status.stx_mode) ? status.stx_ino : 0;
}

static void disconnect(struct connection *connection) {
    int fd = connection->fd;
    /* First: a child of a fork meanwhile must not close what has the number by then. */
    connection->fd = -1;
    if (fd >= 0 && socket_of(fd) == connection->socket) close(fd);
}

/* ---------------------------------------------------------------- life of a client */

static void before_fork(void) {
    pthread_mutex_lock(&clients_lock);
}
static void after_fork(void) {
    pthread_mutex_unlock(&clients_lock);
}

/* The child gives up its copies of all connections: answers on them are the parent's. Threads that had one
 * are not in the child. */
static void in_child(void) {
    for (struct headway_client *client = clients; client; client = client->next) {
        for (int i = 0; i < CONNECTIONS; i++) {
            disconnect(&client->connections[i]);
            atomic_store(&client->connections[i].busy, 0);
        }
    }
    pthread_mutex_unlock(&clients_lock);
}

static void register_fork(void) {
    pthread_atfork(before_fork, after_fork, in_child);
}

struct headway_client *headway_client_new(const struct headway_options *given) {
    struct headway_options options = {0};
    memcpy(&options, given, given->size < sizeof options ? given->size : sizeof options);
    if (!options.socket || strlen(options.socket) >= sizeof(((struct sockaddr_un *)0)->sun_path)) {
        errno = EINVAL;
        return NULL;
    }
    struct headway_client *client = calloc(1, sizeof *client);
    if (!client) return NULL;
    client->address.sun_family = AF_UNIX;
    strcpy(client->address.sun_path, options.socket);
    client->timeout_ms = options.timeout_ms ? options.timeout_ms : 5000;
    client->retry_ms = options.retry_ms ? options.retry_ms : 1000;
    client->read_in = options.read_in == UINT64_MAX ? 0 : options.read_in ? options.read_in : 1024 * 1024;
    client->no_fallback = options.no_fallback;
    client->statistics = options.statistics ? options.statistics : &client->own;
    for (int i = 0; i < CONNECTIONS; i++) client->connections[i].fd = -1;
    pthread_once(&at_fork, register_fork);
    pthread_mutex_lock(&clients_lock);
    client->next = clients;
    clients = client;
    pthread_mutex_unlock(&clients_lock);
    return client;
}

void headway_client_free(struct headway_client *client) {
    if (!client) return;
    pthread_mutex_lock(&clients_lock);
    struct headway_client **at = &clients;
    while (*at != client) at = &(*at)->next;
    *at = client->next;
    pthread_mutex_unlock(&clients_lock);
    for (int i = 0; i < CONNECTIONS; i++) disconnect(&client->connections[i]);
    free(client);
}

const struct headway_statistics *headway_client_statistics(const struct headway_client *client) {
    return client->statistics;
}

/* ---------------------------------------------------------------- requests */

/* A full accept queue is EAGAIN here, and the service then is no help. */
static int new_socket(const struct headway_client *client) {
    int fd = move_high(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd >= 0 && connect(fd, (struct sockaddr *)&client->address, sizeof client->address) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static int connected(struct headway_client *client, struct connection *connection) {
    if (connection->fd >= 0 && socket_of(connection->fd) == connection->socket) return 1;
    connection->fd = -1;
    /* No fork in between, or its child would have a socket that is in no list. None of these calls waits. */
    pthread_mutex_lock(&clients_lock);
    int fd = new_socket(client);
    if (fd >= 0) connection->socket = socket_of(fd);
    connection->fd = fd;
    pthread_mutex_unlock(&clients_lock);
    return fd >= 0;
}

/* Waits for the socket. 0: in time, ETIMEDOUT otherwise. */
static int wait_ready(int fd, short events, long long deadline_us) {
    for (;;) {
        long long left_us = deadline_us - now_us();
        if (left_us <= 0) return ETIMEDOUT;
        struct pollfd watched = {.fd = fd, .events = events};
        int ready = poll(&watched, 1, (int)((left_us + 999) / 1000));
        if (ready > 0) return 0;
        if (ready < 0 && errno != EINTR) return errno;
    }
}

/* 0, ETIMEDOUT, or ECONNRESET: another connection may do better. */
static int send_request(struct connection *connection, const unsigned char *message, size_t length,
                        long long deadline_us) {
    while (send(connection->fd, message, length, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
        int error = errno == EINTR    ? 0
                    : errno == EAGAIN ? wait_ready(connection->fd, POLLOUT, deadline_us)
                                      : ECONNRESET;
        if (error) return error;
    }
    return 0;
}

/* Receives messages until the answer to the last request; its kind goes to `kind`. 0, ETIMEDOUT, or
 * ECONNRESET, which is also the result for bytes that are no message of the protocol. Without room for
 * descriptors the kernel closes any that come. */
static int receive_answer(struct connection *connection, int *kind, long long deadline_us) {
    for (;;) {
        unsigned char bytes[ANSWER_BYTES + 1];
        ssize_t length = recv(connection->fd, bytes, sizeof bytes, MSG_DONTWAIT | MSG_TRUNC);
        if (length < 0 && errno == EINTR) continue;
        if (length < 0 && errno == EAGAIN) {
            int error = wait_ready(connection->fd, POLLIN, deadline_us);
            if (error) return error;
            continue;
        }
        if (length < ANSWER_BYTES || memcmp(bytes, "HWOF", 4) != 0) return ECONNRESET;
        int other = get(bytes + 4, 2) != VERSION;
        if (!other && length != ANSWER_BYTES) return ECONNRESET;
        if (get(bytes + 8, 8) == connection->number) {
            *kind = other ? OTHER_VERSION : bytes[6];
            return 0;
        }
        /* The answer to a request that timed out. A service that sends them without end runs into the
         * timeout. */
        if (now_us() >= deadline_us) return ETIMEDOUT;
    }
}

/* Sends a request on one connection, and again on a new one if that is closed: the service may have been
 * restarted. */
static int request_on(struct headway_client *client, struct connection *connection, unsigned char *message,
                      size_t length, int *kind, long long deadline_us) {
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        if (!connected(client, connection)) return ENOTCONN;
        put(message + 8, ++connection->number, 8);
        int error = send_request(connection, message, length, deadline_us);
        if (!error) error = receive_answer(connection, kind, deadline_us);
        if (!error) return 0;
        disconnect(connection);
        if (error != ECONNRESET) return error;
        count(&client->statistics->retries, 1);
    }
    return ENOTCONN;
}

static void pause_requests(struct headway_client *client, long long ms) {
    atomic_store(&client->paused_until_ms, now_us() / 1000 + ms);
}

/* During a pause no requests are sent. After it one thread tries, and the others wait for its result: a
 * hanging service costs one thread its timeout, not all of them. (If there is no result, in a child of a
 * fork, another thread tries later.) */
static int may_request(struct headway_client *client, long long now_ms) {
    long long until = atomic_load(&client->paused_until_ms);
    if (!until) return 1;
    long long known_ms = now_ms + client->timeout_ms + client->retry_ms;
    return now_ms >= until && atomic_compare_exchange_strong(&client->paused_until_ms, &until, known_ms);
}

/* The absolute form of a path; 0 if there is none that fits. */
static int absolute(int directory, const char *path, char *out) {
    size_t length = strlen(path), before = 0;
    if (path[0] != '/') {
        char link[40] = "/proc/self/cwd";
        if (directory != AT_FDCWD) snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
        ssize_t found = readlink(link, out, PATH_BYTES);
        if (found <= 0 || found >= PATH_BYTES || out[0] != '/') return 0;
        out[found] = '/';
        before = (size_t)found + 1;
    }
    if (before + length > PATH_BYTES) return 0;
    memcpy(out + before, path, length);
    return (int)(before + length);
}

/* A free connection; with more threads than connections, one of the caller's own. */
static struct connection *take_connection(struct headway_client *client, struct connection *spare) {
    for (int i = 0; i < CONNECTIONS; i++) {
        struct connection *one = &client->connections[i];
        if (!atomic_load_explicit(&one->busy, memory_order_relaxed) && !atomic_exchange(&one->busy, 1))
            return one;
    }
    *spare = (struct connection){.fd = -1};
    return spare;
}

enum request_result headway_request(struct headway_client *client, int directory, const char *path,
                                    uint64_t read_in) {
    struct headway_statistics *to = client->statistics;
    long long start_us = now_us();
    unsigned char message[REQUEST_HEAD + PATH_BYTES + 1] = {'H', 'W', 'O', 'F', VERSION, 0, 1, 0};
    put(message + 16, read_in, 8);
    int length = absolute(directory, path, (char *)message + REQUEST_HEAD);
    if (!length) {
        count(&to->elsewhere, 1);
        return OUTSIDE_ROOTS;
    }
    if (!may_request(client, start_us / 1000)) {
        count(&to->fallbacks, 1);
        return UNANSWERED;
    }
    struct connection spare, *connection = take_connection(client, &spare);
    long long deadline_us = start_us + client->timeout_ms * 1000LL;
    int kind = 0;
    int error = request_on(client, connection, message, REQUEST_HEAD + (size_t)length, &kind, deadline_us);
    if (connection == &spare)
        disconnect(&spare);
    else
        atomic_store(&connection->busy, 0);
    count(&to->waited_us, (uint64_t)(now_us() - start_us));
    /* It does not stand still: others send requests again, unless the pause below is needed. */
    if (error != ETIMEDOUT && atomic_load(&client->paused_until_ms))
        atomic_store(&client->paused_until_ms, 0);
    if (!error && kind == DONE) {
        count(&to->answered, 1);
        return ANSWERED;
    }
    if (!error && kind == ELSEWHERE) {
        count(&to->elsewhere, 1);
        return OUTSIDE_ROOTS;
    }
    if (error == ETIMEDOUT) pause_requests(client, client->retry_ms);
    if (!error && kind != BUSY) pause_requests(client, VERSION_PAUSE_MS);
    count(!error ? &to->rejected : error == ETIMEDOUT ? &to->timeouts : &to->unreachable, 1);
    count(&to->fallbacks, 1);
    return UNANSWERED;
}
