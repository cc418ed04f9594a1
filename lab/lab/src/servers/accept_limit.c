/*
 * Limits how many connections a program accepts after each wait for events, as Brecht and Ostrowski
 * did with TUX (section 7). Loaded by LD_PRELOAD:
 *
 *   HEADWAY_ACCEPT_LIMIT   connections per wakeup and thread; 0 counts only
 *   HEADWAY_ACCEPT_REPORT  file of four 64-bit counters, see `struct report`
 *
 * When the limit is reached, accept reports an empty queue (EAGAIN). Level-triggered events report the
 * listener again, so it is never registered for edges. A blocking accept is never limited: its
 * thread waits for one connection.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

struct report {
    _Atomic uint64_t accepted; /* connections that were accepted through this library */
    _Atomic uint64_t limited;  /* accept calls that were answered with an empty queue */
    _Atomic uint64_t largest;  /* the most connections after one wait */
    _Atomic uint64_t waits;    /* waits for events that returned */
};

static struct report own, *report = &own;
static uint64_t limit;
static _Thread_local uint64_t since_wait;

__attribute__((constructor)) static void begin(void) {
    const char *text = getenv("HEADWAY_ACCEPT_LIMIT"), *path = getenv("HEADWAY_ACCEPT_REPORT");
    limit = text ? strtoull(text, NULL, 10) : 0;
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return;
    /* Shared, so that the processes of a server add up, whatever rights they give up later. */
    void *memory = mmap(NULL, sizeof own, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory != MAP_FAILED) report = memory;
}

#define REAL(name)                                                                                           \
    static __typeof__(&name) real;                                                                           \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static int woken(int result) {
    since_wait = 0;
    atomic_fetch_add_explicit(&report->waits, 1, memory_order_relaxed);
    return result;
}

static int is_blocking(int fd) {
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && !(flags & O_NONBLOCK);
}

/* Whether accept may be called; otherwise errno says that nothing is there. */
static int may_accept(int fd) {
    if (!limit || since_wait < limit || is_blocking(fd)) return 1;
    atomic_fetch_add_explicit(&report->limited, 1, memory_order_relaxed);
    errno = EAGAIN;
    return 0;
}

static int accepted(int fd) {
    if (fd < 0) return fd;
    atomic_fetch_add_explicit(&report->accepted, 1, memory_order_relaxed);
    uint64_t now = ++since_wait, most = atomic_load_explicit(&report->largest, memory_order_relaxed);
    while (most < now && !atomic_compare_exchange_weak(&report->largest, &most, now))
        ;
    return fd;
}

int accept(int fd, struct sockaddr *address, socklen_t *length) {
    REAL(accept);
    return may_accept(fd) ? accepted(real(fd, address, length)) : -1;
}

int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags) {
    REAL(accept4);
    return may_accept(fd) ? accepted(real(fd, address, length, flags)) : -1;
}

int epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event) {
    REAL(epoll_ctl);
    int listens = 0;
    socklen_t length = sizeof listens;
    if (!limit || operation == EPOLL_CTL_DEL || !event || !(event->events & EPOLLET) ||
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) || !listens)
        return real(epoll, operation, fd, event);
    struct epoll_event level = *event;
    level.events &= ~(uint32_t)EPOLLET;
    return real(epoll, operation, fd, &level);
}

int epoll_wait(int epoll, struct epoll_event *events, int most, int timeout) {
    REAL(epoll_wait);
    return woken(real(epoll, events, most, timeout));
}

int epoll_pwait(int epoll, struct epoll_event *events, int most, int timeout, const sigset_t *signals) {
    REAL(epoll_pwait);
    return woken(real(epoll, events, most, timeout, signals));
}

int epoll_pwait2(int epoll, struct epoll_event *events, int most, const struct timespec *timeout,
                 const sigset_t *signals) {
    REAL(epoll_pwait2);
    return woken(real(epoll, events, most, timeout, signals));
}

int poll(struct pollfd *files, nfds_t count, int timeout) {
    REAL(poll);
    return woken(real(files, count, timeout));
}

int ppoll(struct pollfd *files, nfds_t count, const struct timespec *timeout, const sigset_t *signals) {
    REAL(ppoll);
    return woken(real(files, count, timeout, signals));
}

int select(int count, fd_set *reads, fd_set *writes, fd_set *errors, struct timeval *timeout) {
    REAL(select);
    return woken(real(count, reads, writes, errors, timeout));
}

int pselect(int count, fd_set *reads, fd_set *writes, fd_set *errors, const struct timespec *timeout,
            const sigset_t *signals) {
    REAL(pselect);
    return woken(real(count, reads, writes, errors, timeout, signals));
}
