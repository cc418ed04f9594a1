/*
 * exercise.c: a program with libheadway_open, for the tests. Every file's contents are its own name,
 * repeated.
 *
 *   exercise SOCKET TIMEOUT_MS open PATH...          one line for each: its name from its contents, or errno
 *   exercise SOCKET TIMEOUT_MS strict PATH...        the same without fall-back
 *   exercise SOCKET TIMEOUT_MS load PATH...          the same by headway_load, with room for 8192 bytes
 *   exercise SOCKET TIMEOUT_MS as UID PATH...        the same as another user
 *   exercise SOCKET TIMEOUT_MS closed PATH...        the same twice, without its descriptors in between
 *   exercise SOCKET TIMEOUT_MS few N PATH...         the same with N descriptors left
 *   exercise SOCKET TIMEOUT_MS rounds N PATH...      a new client for each round; prints what open(2) says
 * otherwise exercise SOCKET TIMEOUT_MS threads N TIMES PATH... each thread opens all of them, out of memory
 *   exercise SOCKET TIMEOUT_MS fork N TIMES PATH...  the same in processes, after the parent has connected
 *   exercise SOCKET TIMEOUT_MS while N TIMES PATH... TIMES children open all of them, forked while N
 * threads do exercise SOCKET TIMEOUT_MS during N MS PATH...   N threads open all of them, whatever the
 * results are, for MS milliseconds
 *
 * The last line is what the client has counted. Exit code 1: a file was not what its name says, or
 * descriptors leaked.
 */
#define _GNU_SOURCE
#include "headway_open.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct headway_client *client;
static struct headway_options options = {.size = sizeof options};
static char **paths;
static int times;

static int descriptors(void) {
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

/* 0: the file begins with its own name. */
static int check(const char *path, struct headway_file *file) {
    const char *name = strrchr(path, '/') + 1;
    char begin[256] = {0};
    ssize_t length = read(file->fd, begin, strlen(name));
    return length < 0 || memcmp(begin, name, strlen(name)) != 0;
}

static void put_out_of_memory(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

static void *work(void *unused) {
    (void)unused;
    for (int i = 0; i < times; i++) {
        for (char **path = paths; *path; path++) {
            struct headway_file file;
            put_out_of_memory(*path);
            if (headway_open(client, *path, &file) < 0 || check(*path, &file)) {
                fprintf(stderr, "%s: %s\n", *path, strerror(errno));
                exit(1);
            }
            close(file.fd);
        }
    }
    return NULL;
}

static int in_threads(int count, void *(*work)(void *)) {
    pthread_t threads[count];
    for (int i = 0; i < count; i++) pthread_create(&threads[i], NULL, work, NULL);
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
    return 0;
}

static void *work_for_a_while(void *unused) {
    struct timespec now, end;
    (void)unused;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += times / 1000;
    do {
        for (char **path = paths; *path; path++) {
            struct headway_file file;
            if (headway_open(client, *path, &file) == 0) close(file.fd);
        }
        usleep(2000);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec < end.tv_sec || (now.tv_sec == end.tv_sec && now.tv_nsec < end.tv_nsec));
    return NULL;
}

static int in_processes(int count) {
    int failed = 0, status;
    work(NULL);
    for (int i = 0; i < count; i++) {
        if (fork() == 0) {
            in_threads(2, work);
            _exit(0);
        }
    }
    while (wait(&status) > 0) failed |= status != 0;
    return failed;
}

static int sockets(void) {
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        char target[64] = {0};
        count += readlinkat(dirfd(folder), entry->d_name, target, sizeof target - 1) > 0 &&
                 strncmp(target, "socket:", 7) == 0;
    }
    closedir(folder);
    return count;
}

static atomic_int over;

static void *work_until_over(void *unused) {
    while (!atomic_load(&over)) work(unused);
    return NULL;
}

/* A child has none of its parent's connections, whatever is under way on them, and gets answers of its own.
 */
static int while_others_ask(int count) {
    pthread_t threads[count];
    int failed = 0, status, forks = times;
    times = 1;
    for (int i = 0; i < count; i++) pthread_create(&threads[i], NULL, work_until_over, NULL);
    for (int i = 0; i < forks; i++) {
        pid_t child = fork();
        if (child == 0) {
            if (sockets() != 0) _exit(3);
            work(NULL);
            _exit(sockets() > 1 ? 4 : 0);
        }
        if (waitpid(child, &status, 0) != child || status != 0) {
            fprintf(stderr, "child %d: status %x\n", i, status);
            failed = 1;
        }
    }
    atomic_store(&over, 1);
    for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
    return failed;
}

/* 1: the contents of the length are the file's name, again and again. */
static int is_whole(const char *path, const char *content, size_t length) {
    const char *name = strrchr(path, '/') + 1;
    for (size_t at = 0; at < length; at++) {
        if (content[at] != name[at % strlen(name)]) return 0;
    }
    return 1;
}

static void *make_room(void *content, size_t size) {
    (void)size;
    return content;
}

static int one_by_one(int loads) {
    for (char **path = paths; *path; path++) {
        struct headway_file file;
        char content[8192];
        ssize_t length = loads ? headway_load(client, *path, sizeof content, make_room, content, &file)
                               : headway_open(client, *path, &file);
        if (length < 0) {
            printf("%s\n", strerrorname_np(errno));
            continue;
        }
        if (length > 0) {
            int whole = is_whole(*path, content, (size_t)length) && file.fd == -1;
            printf("%s %s %zd\n", whole ? "whole" : "wrong", file.validator, length);
            continue;
        }
        if (S_ISREG(file.status.stx_mode))
            printf("%s %s\n", check(*path, &file) ? "wrong" : "right", file.validator);
        else
            printf("special\n");
        close(file.fd);
    }
    return 0;
}

/* As a program does that closes all descriptors it does not know. Their numbers are sockets then, which must
 * get nothing. */
static int after_closing(void) {
    enum { PAIRS = 8 };
    int pairs[PAIRS][2], failed = one_by_one(0);
    char byte;
    close_range(STDERR_FILENO + 1, ~0U, 0);
    for (int i = 0; i < PAIRS; i++) failed |= socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[i]);
    for (char **path = paths; *path; path++) put_out_of_memory(*path);
    failed |= one_by_one(0);
    for (int i = 0; i < PAIRS; i++) {
        for (int end = 0; end < 2; end++)
            failed |= recv(pairs[i][end], &byte, 1, MSG_DONTWAIT) != -1 || errno != EAGAIN;
    }
    return failed;
}

/* The same as open(2) says: the error, or a file that begins with its name. */
static int is_as_ever(const char *path, int loads) {
    struct headway_file file;
    char content[8192];
    int expected = open(path, O_RDONLY | O_CLOEXEC), error = errno;
    ssize_t length = loads ? headway_load(client, path, sizeof content, make_room, content, &file)
                           : headway_open(client, path, &file);
    if (expected < 0) return length < 0 && errno == error;
    close(expected);
    if (length < 0) return 0;
    if (length > 0) return is_whole(path, content, (size_t)length);
    int wrong = check(path, &file);
    close(file.fd);
    return !wrong;
}

/* Whatever the service answers; by clients that do not know the answers to the last one. */
static int in_rounds(int count) {
    int before = descriptors();
    alarm(120);
    for (int i = 0; i < count; i++) {
        headway_client_free(client);
        client = headway_client_new(&options);
        for (char **path = paths; *path; path++) {
            put_out_of_memory(*path);
            if (is_as_ever(*path, i & 1)) continue;
            printf("round %d: %s: %s\n", i, *path, strerror(errno));
            return 1;
        }
        headway_client_free(client);
        client = NULL;
        if (descriptors() != before) {
            printf("round %d: descriptors stay\n", i);
            return 1;
        }
    }
    return 0;
}

/* Without what was inherited: a number that is taken among those that are left would be one less. */
static void leave_few(int count) {
    close_range(STDERR_FILENO + 1, ~0U, 0);
    int top = open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct rlimit limit = {(rlim_t)(top + count), (rlim_t)(top + count)};
    close(top);
    setrlimit(RLIMIT_NOFILE, &limit);
}

int main(int argc, char **argv) {
    struct headway_statistics *counted =
        mmap(NULL, sizeof *counted, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const char *mode = argc > 3 ? argv[3] : "";
    int number = argc > 4 ? atoi(argv[4]) : 0, failed;
    options.socket = argv[1];
    options.timeout_ms = (unsigned)atoi(argv[2]);
    options.statistics = counted;
    options.no_fallback = strcmp(mode, "strict") == 0;
    client = headway_client_new(&options);
    int before = descriptors();
    paths = argv + 4;
    if (strcmp(mode, "threads") == 0 || strcmp(mode, "fork") == 0 || strcmp(mode, "while") == 0 ||
        strcmp(mode, "during") == 0) {
        times = atoi(argv[5]);
        paths = argv + 6;
        failed = mode[0] == 'f'   ? in_processes(number)
                 : mode[0] == 't' ? in_threads(number, work)
                 : mode[0] == 'w' ? while_others_ask(number)
                                  : in_threads(number, work_for_a_while);
    } else {
        if (strcmp(mode, "as") == 0) {
            paths++;
            if (setgroups(0, NULL) || setgid((gid_t)number) || setuid((uid_t)number)) return 2;
        }
        if (strcmp(mode, "few") == 0) {
            paths++;
            leave_few(number);
        }
        if (strcmp(mode, "rounds") == 0) paths++;
        failed = strcmp(mode, "rounds") == 0   ? in_rounds(number)
                 : strcmp(mode, "closed") == 0 ? after_closing()
                                               : one_by_one(strcmp(mode, "load") == 0);
    }
    headway_client_free(client);
    if (strcmp(mode, "few") != 0 && strcmp(mode, "closed") != 0 && descriptors() != before) failed = 1;
    printf(
        "opened %lu answered %lu names %lu pages %lu fallbacks %lu timeouts %lu unreachable %lu rejected %lu "
        "elsewhere %lu still_blocking %lu retries %lu\n",
        counted->opened, counted->answered, counted->name_requests, counted->page_requests,
        counted->fallbacks, counted->timeouts, counted->unreachable, counted->rejected, counted->elsewhere,
        counted->still_blocking, counted->retries);
    return failed;
}
