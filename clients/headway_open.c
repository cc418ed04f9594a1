/*
 * headway_open.c: the client of `headway backend`. See headway_open.h for what it promises.
 *
 * Order of a call: probe (a call that cannot wait), ask (only if the probe says so), probe again, and as the
 * last resort an ordinary call. A descriptor that comes with an answer is held until the file is open: it
 * keeps the file's inode and the names on the way to it in the kernel's memory. It is never handed out. It
 * shares its offset with every other client, and was opened with the service's rights; ours was not.
 *
 * Files are opened and looked at by system calls, not by libc's functions: headway_preload.c stands in for
 * those.
 *
 * Sources: openat2(2), preadv2(2), cachestat(2), unix(7), pthread_atfork(3).
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "headway_open.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#ifndef RESOLVE_CACHED
#define RESOLVE_CACHED 0x20
#endif
#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

enum { VERSION = 1, REQUEST_HEAD = 24, REPLY_BYTES = 72, PATH_BYTES = 4096 };
enum { FILE_FOUND = 1, DIRECTORY_FOUND, FAILED, ELSEWHERE, BUSY, OTHER_VERSION };
enum { CONNECTIONS = 64, ATTEMPTS = 2, VERSION_REST_MS = 60000 };
/* A piece of a file that is surely read in and evicted as one, so that one of its bytes speaks for it; and
 * how many bytes of the first piece are looked at, in rows of a scratch page that nobody reads. */
enum { PROBE_STRIDE = 64 * 1024, FRONT_BYTES = 64 * 1024, ROW_BYTES = 4096 };

/* One connection; `busy` says that a thread has it. `socket` tells whether the descriptor is still ours. */
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

/* Where the contents of a file of at most `most` bytes go; `got` is 0 until all of them are there. */
struct content {
    size_t most, got;
    headway_room *room;
    void *context, *bytes;
};

/* What an answer says. */
struct answer {
    int kind, pin;
    uint64_t device, inode;
};

static pthread_mutex_t clients_lock = PTHREAD_MUTEX_INITIALIZER;
static struct headway_client *clients;
static pthread_once_t at_fork = PTHREAD_ONCE_INIT;

static void count(uint64_t *counter, uint64_t by) {
    __atomic_fetch_add(counter, by, __ATOMIC_RELAXED);
}

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

/* ---------------------------------------------------------------- looking at descriptors */

/* By statx or, where a sandbox knows only older calls, fstat. */
static int look(int fd, struct statx *status) {
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

/* Which socket it is. The program may close descriptors that it does not know, and have the number for
 * another one. */
static uint64_t socket_of(int fd) {
    struct statx status;
    return look(fd, &status) == 0 && S_ISSOCK(status.stx_mode) ? status.stx_ino : 0;
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

/* ---------------------------------------------------------------- asking the service */

/* A full accept queue is EAGAIN here, and the service then is no help. */
static int connected(struct headway_client *client, struct connection *connection) {
    if (connection->fd >= 0 && socket_of(connection->fd) == connection->socket) return 1;
    connection->fd = -1;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return 0;
    if (connect(fd, (struct sockaddr *)&client->address, sizeof client->address) < 0) {
        close(fd);
        return 0;
    }
    connection->socket = socket_of(fd);
    connection->fd = fd;
    return 1;
}

/* Waits for the socket. 0: in time, ETIMEDOUT otherwise. */
static int await(int fd, short events, long long deadline_us) {
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
static int send_question(struct connection *connection, const unsigned char *message, size_t length,
                         long long deadline_us) {
    while (send(connection->fd, message, length, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
        int error = errno == EINTR    ? 0
                    : errno == EAGAIN ? await(connection->fd, POLLOUT, deadline_us)
                                      : ECONNRESET;
        if (error) return error;
    }
    return 0;
}

/* The descriptor that came with a message, or -1; there is never more than one. */
static int passed(struct msghdr *message) {
    int fd = -1;
    struct cmsghdr *part = CMSG_FIRSTHDR(message);
    if (part && part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS &&
        part->cmsg_len == CMSG_LEN(sizeof fd)) {
        memcpy(&fd, CMSG_DATA(part), sizeof fd);
    }
    return fd;
}

/* Takes messages until the answer to `number`. 0, ETIMEDOUT, or ECONNRESET, which is also the answer to bytes
 * that are no message of the protocol. */
static int receive_answer(struct connection *connection, struct answer *answer, long long deadline_us) {
    for (;;) {
        unsigned char bytes[REPLY_BYTES + 1];
        union {
            struct cmsghdr align;
            char room[CMSG_SPACE(sizeof(int))];
        } control;
        struct iovec part = {bytes, sizeof bytes};
        /* Room for one descriptor, and not for a second one in what would fill it up: the kernel closes
         * those. */
        struct msghdr message = {.msg_iov = &part,
                                 .msg_iovlen = 1,
                                 .msg_control = &control,
                                 .msg_controllen = CMSG_LEN(sizeof(int))};
        ssize_t length = recvmsg(connection->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (length < 0 && errno == EINTR) continue;
        if (length < 0 && errno == EAGAIN) {
            int error = await(connection->fd, POLLIN, deadline_us);
            if (error) return error;
            continue;
        }
        int pin = length > 0 ? passed(&message) : -1;
        answer->kind = length >= 16 ? bytes[6] : 0;
        int other = length >= 16 && get(bytes + 4, 2) != VERSION;
        if (length < 16 || memcmp(bytes, "HWOF", 4) != 0 || (!other && length != REPLY_BYTES)) {
            if (pin >= 0) close(pin);
            return ECONNRESET;
        }
        if (get(bytes + 8, 8) == connection->number) {
            if (other) answer->kind = OTHER_VERSION;
            answer->pin = pin;
            answer->device = answer->kind == FILE_FOUND ? get(bytes + 24, 8) : 0;
            answer->inode = answer->kind == FILE_FOUND ? get(bytes + 32, 8) : 0;
            return 0;
        }
        /* The answer to a question that was given up. */
        if (pin >= 0) close(pin);
    }
}

/* One question on one connection, put again on a new one if that ends: the service may have been restarted.
 */
static int converse(struct headway_client *client, struct connection *connection, unsigned char *message,
                    size_t length, struct answer *answer, long long deadline_us) {
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        if (!connected(client, connection)) return ENOTCONN;
        put(message + 8, ++connection->number, 8);
        int error = send_question(connection, message, length, deadline_us);
        if (!error) error = receive_answer(connection, answer, deadline_us);
        if (!error) return 0;
        disconnect(connection);
        if (error != ECONNRESET) return error;
        count(&client->statistics->retries, 1);
    }
    return ENOTCONN;
}

static void rest(struct headway_client *client, long long ms) {
    atomic_store(&client->rest_until_ms, now_us() / 1000 + ms);
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

/* A connection that nobody has; with more threads than connections, one of the caller's own. */
static struct connection *take(struct headway_client *client, struct connection *spare) {
    for (int i = 0; i < CONNECTIONS; i++) {
        struct connection *one = &client->connections[i];
        if (!atomic_load_explicit(&one->busy, memory_order_relaxed) && !atomic_exchange(&one->busy, 1))
            return one;
    }
    *spare = (struct connection){.fd = -1};
    return spare;
}

/* What came of a question: the service has answered, it has nothing to do with the path, or it gave no
 * answer. */
enum asked { ANSWERED, NOT_ITS_OWN, UNANSWERED };

/* Asks the service to have a path, and the beginning of its file, in memory. `pin` is a descriptor to close
 * later, or -1. */
static enum asked ask(struct headway_client *client, int directory, const char *path, uint64_t read_in,
                      struct answer *answer) {
    struct headway_statistics *to = client->statistics;
    long long start_us = now_us();
    answer->pin = -1;
    if (start_us / 1000 < atomic_load(&client->rest_until_ms)) {
        count(&to->fallbacks, 1);
        return UNANSWERED;
    }
    unsigned char message[REQUEST_HEAD + PATH_BYTES + 1] = {'H', 'W', 'O', 'F', VERSION, 0, 1, 1};
    put(message + 16, read_in, 8);
    int length = absolute(directory, path, (char *)message + REQUEST_HEAD);
    if (!length) {
        count(&to->elsewhere, 1);
        return NOT_ITS_OWN;
    }
    struct connection spare, *connection = take(client, &spare);
    long long deadline_us = start_us + client->timeout_ms * 1000LL;
    int error = converse(client, connection, message, REQUEST_HEAD + (size_t)length, answer, deadline_us);
    if (connection == &spare)
        disconnect(&spare);
    else
        atomic_store(&connection->busy, 0);
    count(&to->waited_us, (uint64_t)(now_us() - start_us));
    if (!error && answer->kind >= FILE_FOUND && answer->kind <= FAILED) {
        count(&to->asked, 1);
        return ANSWERED;
    }
    if (!error && answer->kind == ELSEWHERE) {
        count(&to->elsewhere, 1);
        return NOT_ITS_OWN;
    }
    if (error == ETIMEDOUT) rest(client, client->retry_ms);
    if (!error && answer->kind != BUSY) rest(client, VERSION_REST_MS);
    count(!error ? &to->refused : error == ETIMEDOUT ? &to->timeouts : &to->unreachable, 1);
    count(&to->fallbacks, 1);
    return UNANSWERED;
}

static void unpin(struct answer *answer) {
    int error = errno;
    if (answer->pin >= 0) close(answer->pin);
    answer->pin = -1;
    errno = error;
}

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
    /* A file system that does not answer without waiting cannot be asked: the ordinary way then. */
    return preadv2(fd, &part, 1, (off_t)offset, RWF_NOWAIT) >= 0 || errno != EAGAIN;
}

/* A look at what is missing makes the kernel read it, and as much of the file as the look is long suggests.
 * After a look at one byte that is 16 KiB, and the service would have the disk read the rest as a second
 * piece. */
static int has_front(int fd, uint64_t length) {
    char row[ROW_BYTES];
    struct iovec rows[FRONT_BYTES / ROW_BYTES];
    uint64_t missing = length < FRONT_BYTES ? length : FRONT_BYTES;
    ssize_t asked = (ssize_t)missing;
    int count = 0;
    for (; missing > 0; count++) {
        rows[count] = (struct iovec){row, missing < ROW_BYTES ? (size_t)missing : ROW_BYTES};
        missing -= rows[count].iov_len;
    }
    ssize_t there = preadv2(fd, rows, count, 0, RWF_NOWAIT);
    return there < 0 ? errno != EAGAIN : there == asked;
}

/* The first `length` bytes are in memory, as far as can be told. */
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
    /* From the front, since the kernel begins to read what is missing: there the service begins, too. A look
     * at the end first would take the disk's head there and back. */
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

/* The kernel does not know the name: ask, then open again. */
static int open_asking(struct headway_client *client, int directory, const char *path, int flags,
                       struct answer *answer, uint64_t read_in) {
    count(&client->statistics->asked_names, 1);
    enum asked asked = ask(client, directory, path, read_in, answer);
    if (asked == UNANSWERED && client->no_fallback) return give_up(-1);
    int fd = open_cached(directory, path, flags);
    if (fd >= 0 || !is_undecided(errno)) return fd;
    if (asked == ANSWERED) count(&client->statistics->unhelped, 1);
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
    if (!content->bytes) content->bytes = content->room(content->context, size);
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

/* Nothing of it has to be waited for, as far as can be told. For a small file the question is its reading: a
 * system call that has to be made anyway instead of two more. */
static int is_ready(struct headway_client *client, int fd, const struct statx *status,
                    struct content *content) {
    if (!is_small(client, status, content)) return is_resident(client, fd, wanted(client, status));
    return read_whole(fd, status, content, RWF_NOWAIT) || errno != EAGAIN;
}

/* Looks at what was opened; closes it where that fails. */
static int look_at(int fd, struct statx *status) {
    if (fd < 0 || look(fd, status) == 0) return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

/* Opens, with the beginning of a regular file in memory; fills in the status, and the contents if there is a
 * place for them. */
static int open_ready(struct headway_client *client, int directory, const char *path, int flags,
                      struct statx *status, struct content *content) {
    struct answer answer = {.pin = -1};
    count(&client->statistics->opened, 1);
    int fd = open_cached(directory, path, flags);
    int has_asked = fd < 0 && is_undecided(errno);
    if (has_asked) fd = open_asking(client, directory, path, flags, &answer, client->read_in);
    fd = look_at(fd, status);
    if (fd >= 0 && !has_asked && !is_ready(client, fd, status, content)) {
        count(&client->statistics->asked_pages, 1);
        enum asked asked = ask(client, directory, path, client->read_in, &answer);
        if (asked == UNANSWERED && client->no_fallback) fd = give_up(fd);
    }
    if (fd >= 0 && answer.pin >= 0 &&
        (answer.inode != status->stx_ino ||
         answer.device != makedev(status->stx_dev_major, status->stx_dev_minor))) {
        count(&client->statistics->replaced, 1);
    }
    /* The ordinary way: there by now, or nobody could have helped. */
    if (fd >= 0 && is_small(client, status, content) && !content->got) read_whole(fd, status, content, 0);
    unpin(&answer);
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

ssize_t headway_load(struct headway_client *client, const char *path, size_t most, headway_room *room,
                     void *context, struct headway_file *file) {
    struct content whole = {.most = most, .room = room, .context = context};
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
    struct answer answer = {.pin = -1};
    int how = O_PATH | O_CLOEXEC | (flags & AT_SYMLINK_NOFOLLOW ? O_NOFOLLOW : 0);
    int fd = open_cached(directory, path, how);
    if (fd < 0 && is_undecided(errno)) fd = open_asking(client, directory, path, how, &answer, 0);
    unpin(&answer);
    if (fd < 0) return -1;
    close(fd);
    return 0;
}
