/*
 * A server that does what its clients ask, so that a test knows what their requests waited for.
 *
 *   server loop      one thread, which serves all connections in turn (poll)
 *   server prefork   one process for each connection at a time, of one process
 *   server threads   the loop reads, another thread answers
 *   server pool      the loop passes each connection on, unread, to a thread, which answers one request
 *   server many      eight processes, which serve very many connections (epoll)
 *   server late      the same, but the loop sleeps for 1.5 s before it passes a connection on
 *
 * `clients PORT NUMBER COUNT` is no server, but clients of `many`. `isolated` before these gives it
 * namespaces of its own, as in a container. A second argument is the backlog, the path of a Unix socket to
 * listen on instead of a TCP port, or `=N` for a listener that the program before has left. It prints its
 * port. A request is a line, `VERB ARGUMENT`, and the answer is a line:
 *
 *   hot X       at once
 *   open PATH   after opening a file and reading its first byte
 *   lock PATH   after taking the lock of a file, which it gives back
 *   spin MS     after that much CPU time; the answer is the wall-clock time in nanoseconds beyond it
 *   sleep MS    after a timer
 *   large N     with N bytes
 *   again X     at once, and then it executes itself again, with the same listener
 *
 * WRITE, WRITEV, SEND and SENDMSG with /STATUS answer as HTTP would, by that call.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CLIENTS_MAX 64
#define POOL 4
/* Of `many`: processes, and the connections of each. */
#define PROCESSES 8
#define SHARE 15000

static long long clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* The program again, in the same process, with nothing but the listener. */
static int listening;
static void execute_again(void) {
    char listener[16];
    snprintf(listener, sizeof(listener), "=%d", listening);
    for (int descriptor = 3; descriptor < CLIENTS_MAX; descriptor++)
        if (descriptor != listening) close(descriptor);
    execl("/proc/self/exe", "bed-server", "loop", listener, NULL);
    abort();
}

/* A status line, by a call. */
static void answer_http(int client, const char *call, const char *status) {
    char text[64];
    int length = snprintf(text, sizeof(text), "HTTP/1.1 %s Some Reason\n", status);
    struct iovec list = {text, length};
    struct msghdr message = {.msg_iov = &list, .msg_iovlen = 1};
    if (!strcmp(call, "WRITE") && write(client, text, length) == length) return;
    if (!strcmp(call, "WRITEV") && writev(client, &list, 1) == length) return;
    if (!strcmp(call, "SEND") && send(client, text, length, MSG_NOSIGNAL) == length) return;
    if (!strcmp(call, "SENDMSG")) sendmsg(client, &message, MSG_NOSIGNAL);
}

static void answer(int client, const char *verb, const char *argument) {
    char text[64] = "done\n", byte;
    long number = atol(argument);
    if (*argument == '/' && *verb < 'a') return answer_http(client, verb, argument + 1);
    if (!strcmp(verb, "open")) {
        int file = open(argument, O_RDONLY);
        if (file < 0 || read(file, &byte, 1) != 1) strcpy(text, "error\n");
        close(file);
    } else if (!strcmp(verb, "lock")) {
        int file = open(argument, O_RDONLY);
        if (flock(file, LOCK_EX)) strcpy(text, "error\n");
        close(file);
    } else if (!strcmp(verb, "spin")) {
        long long wall = clock_ns(CLOCK_MONOTONIC), cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        long long end = cpu + number * 1000000LL, now;
        while ((now = clock_ns(CLOCK_THREAD_CPUTIME_ID)) < end) {
        }
        snprintf(text, sizeof(text), "%lld\n", clock_ns(CLOCK_MONOTONIC) - wall - (now - cpu));
    } else if (!strcmp(verb, "sleep")) {
        usleep(number * 1000);
    } else if (!strcmp(verb, "large")) {
        char *bytes = calloc(1, number);
        for (long sent = 0, more; sent < number; sent += more)
            if ((more = send(client, bytes + sent, number - sent, MSG_NOSIGNAL)) <= 0) break;
        free(bytes);
    }
    send(client, text, strlen(text), MSG_NOSIGNAL);
    if (!strcmp(verb, "again")) execute_again();
}

/* Reads a line. 0 at the end of the connection. */
static int receive(int client, char *verb, char *argument) {
    char line[512];
    ssize_t bytes = recv(client, line, sizeof(line) - 1, 0);
    if (bytes <= 0) return 0;
    line[bytes] = 0;
    return sscanf(line, "%15s %499s", verb, argument) == 2;
}

static int serve_one(int client) {
    char verb[16], argument[500];
    if (!receive(client, verb, argument)) return 0;
    answer(client, verb, argument);
    return 1;
}

static struct job {
    int client;
    char verb[16], argument[500];
} job;
static int has_job;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t given = PTHREAD_COND_INITIALIZER, taken = PTHREAD_COND_INITIALIZER;

static void *work(void *unused) {
    for (;;) {
        pthread_mutex_lock(&mutex);
        while (!has_job) pthread_cond_wait(&given, &mutex);
        struct job mine = job;
        has_job = 0;
        pthread_mutex_unlock(&mutex);
        answer(mine.client, mine.verb, mine.argument);
    }
    return unused;
}

/* Reads and answers the one request of a connection. */
static void *work_unread(void *unused) {
    for (;;) {
        pthread_mutex_lock(&mutex);
        while (!has_job) pthread_cond_wait(&given, &mutex);
        int client = job.client;
        has_job = 0;
        pthread_cond_signal(&taken);
        pthread_mutex_unlock(&mutex);
        serve_one(client);
        close(client);
    }
    return unused;
}

static int pass_delay_us;
/* The thread reads from it, not this one. */
static int pass_unread(int client) {
    usleep(pass_delay_us);
    pthread_mutex_lock(&mutex);
    job.client = client;
    has_job = 1;
    pthread_cond_signal(&given);
    while (has_job) pthread_cond_wait(&taken, &mutex);
    pthread_mutex_unlock(&mutex);
    return 0;
}

static int pass_on(int client) {
    struct job next = {.client = client};
    if (!receive(client, next.verb, next.argument)) return 0;
    pthread_mutex_lock(&mutex);
    job = next;
    has_job = 1;
    pthread_cond_signal(&given);
    pthread_mutex_unlock(&mutex);
    return 1;
}

static void loop(int listener, int (*serve)(int)) {
    int passes = serve == pass_unread;
    struct pollfd ready[CLIENTS_MAX] = {{.fd = listener, .events = POLLIN}};
    int used = 1;
    for (;;) {
        poll(ready, used, -1);
        for (int at = used - 1; at > 0; at--) {
            if (!ready[at].revents || serve(ready[at].fd)) continue;
            if (!passes) close(ready[at].fd);
            ready[at] = ready[--used];
        }
        if ((ready[0].revents & POLLIN) && used < CLIENTS_MAX)
            ready[used++] = (struct pollfd){.fd = accept(listener, 0, 0), .events = POLLIN};
    }
}

/* All that a process may have. */
static void raise_files(void) {
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

/* Takes its share of the connections, and no more. */
static void serve_many(int listener) {
    int queue = epoll_create1(0), taken = 0;
    struct epoll_event ready[CLIENTS_MAX], wanted = {.events = EPOLLIN, .data.fd = listener};
    epoll_ctl(queue, EPOLL_CTL_ADD, listener, &wanted);
    for (;;) {
        int events = epoll_wait(queue, ready, CLIENTS_MAX, -1);
        for (int at = 0; at < events; at++) {
            int client = ready[at].data.fd;
            if (client != listener) {
                if (!serve_one(client)) close(client);
                continue;
            }
            wanted.data.fd = accept(listener, 0, 0);
            if (wanted.data.fd < 0) continue;
            epoll_ctl(queue, EPOLL_CTL_ADD, wanted.data.fd, &wanted);
            if (++taken == SHARE) epoll_ctl(queue, EPOLL_CTL_DEL, listener, 0);
        }
    }
}

static void many(int listener) {
    pid_t parent = getpid();
    raise_files();
    fcntl(listener, F_SETFL, O_NONBLOCK);
    for (int at = 0; at < PROCESSES; at++) {
        if (fork()) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == parent) serve_many(listener);
        exit(0);
    }
    pause();
}

static int ask(int server) {
    char answer[8];
    return send(server, "hot 1\n", 6, MSG_NOSIGNAL) == 6 && recv(server, answer, 8, 0) == 5;
}

/*
 * Clients which keep their connections: each asks once, then says so, then every hundredth asks again when a
 * line comes. They have an address of their own, since an address has not enough ports.
 */
static int clients(int port, int number, int count) {
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK + 1 + number)}};
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    /* No rest stays in the kernel. */
    struct linger none = {.l_onoff = 1};
    int *servers = calloc(count, sizeof(int)), failed = 0;
    raise_files();
    for (int at = 0; at < count; at++) {
        int server = servers[at] = socket(AF_INET, SOCK_STREAM, 0);
        struct sockaddr_in own = from;
        socklen_t length = sizeof(own);
        setsockopt(server, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
        if (bind(server, (void *)&from, sizeof(from))) failed++;
        getsockname(server, (void *)&own, &length);
        /* The server's port, which is free at this address, would look like the server. */
        if (own.sin_port == to.sin_port) {
            at--;
            continue;
        }
        if (connect(server, (void *)&to, sizeof(to)) || !ask(server)) failed++;
    }
    for (int again = 0; again < 2; again++) {
        printf("%d failed\n", failed);
        fflush(stdout);
        if (getchar() < 0) break;
        for (int at = 0; at < count; at += 100) failed += !ask(servers[at]);
    }
    return 0;
}

/* Keeps a connection until its client closes it. */
static void prefork(int listener) {
    for (;;) {
        int client = accept(listener, 0, 0);
        struct pollfd ready = {.fd = client, .events = POLLIN};
        do poll(&ready, 1, -1);
        while (serve_one(client));
        close(client);
    }
}

static int listen_unix(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    bind(listener, (void *)&address, sizeof(address));
    listen(listener, 64);
    return listener;
}

static int listen_tcp(struct sockaddr_in *address, int backlog) {
    socklen_t length = sizeof(*address);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    bind(listener, (void *)address, length);
    listen(listener, backlog);
    getsockname(listener, (void *)address, &length);
    return listener;
}

/* Its parent waits for it, and takes it along. */
static void isolate(void) {
    struct ifreq loopback = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    if (unshare(CLONE_NEWPID | CLONE_NEWNET)) abort();
    pid_t child = fork();
    if (child) {
        waitpid(child, 0, 0);
        exit(0);
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int any = socket(AF_INET, SOCK_DGRAM, 0);
    if (ioctl(any, SIOCSIFFLAGS, &loopback)) abort();
    close(any);
}

int main(int count, char **arguments) {
    if (count > 1 && !strcmp(arguments[1], "isolated")) {
        isolate();
        count--, arguments++;
    }
    if (count == 5 && !strcmp(arguments[1], "clients"))
        return clients(atoi(arguments[2]), atoi(arguments[3]), atoi(arguments[4]));
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    const char *second = count > 2 ? arguments[2] : "64";
    int listener = *second == '/'   ? listen_unix(second)
                   : *second == '=' ? atoi(second + 1)
                                    : listen_tcp(&address, atoi(second));
    listening = listener;
    if (*second != '=') {
        printf("%d\n", ntohs(address.sin_port));
        fflush(stdout);
    }
    const char *kind = count > 1 ? arguments[1] : "loop";
    if (!strcmp(kind, "prefork")) {
        pid_t parent = getpid(), child = fork();
        if (!child) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() == parent) prefork(listener);
            return 0;
        }
        waitpid(child, 0, 0);
    } else if (!strcmp(kind, "threads")) {
        pthread_t thread;
        pthread_create(&thread, 0, work, 0);
        loop(listener, pass_on);
    } else if (!strcmp(kind, "many")) {
        many(listener);
    } else if (!strcmp(kind, "pool") || !strcmp(kind, "late")) {
        pthread_t threads[POOL];
        pass_delay_us = *kind == 'l' ? 1500000 : 0;
        for (int at = 0; at < POOL; at++) pthread_create(&threads[at], 0, work_unread, 0);
        loop(listener, pass_unread);
    } else {
        loop(listener, serve_one);
    }
    return 0;
}
