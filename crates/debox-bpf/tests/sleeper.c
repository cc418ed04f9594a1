/*
 * A process that sleeps in known places a known number of times, for the tests of the observer.
 *
 *     sleeper ROLE [COUNT]
 *
 * It writes "ready" and where two of its functions begin, waits for a line, does what its role says, writes
 * "done" and waits for the end of its input. Nothing depends on how fast anything is: before one thread wakes
 * another it looks into /proc/PID/task/TID/syscall until that one sleeps in the call in question.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define THREADS_MAX 16

static void check(int ok, const char *what) {
    if (!ok) {
        perror(what);
        exit(1);
    }
}

static void nap(void) {
    struct timespec time = {0, 200000};
    syscall(SYS_nanosleep, &time, NULL);
}

/* Returns once a thread sleeps in a call: the file holds "running" or the number of the call. */
static void wait_until_asleep(pid_t pid, pid_t tid, long number) {
    char path[64], text[64];
    snprintf(path, sizeof(path), "/proc/%d/task/%d/syscall", pid, tid);
    for (;;) {
        int file = open(path, O_RDONLY);
        check(file >= 0, path);
        ssize_t bytes = read(file, text, sizeof(text) - 1);
        close(file);
        check(bytes > 0, path);
        text[bytes] = 0;
        char *end;
        long found = strtol(text, &end, 10);
        if (end != text && found == number) return;
        nap();
    }
}

struct task {
    pthread_t thread;
    volatile pid_t tid;
    int file;
    int *word;
};

__attribute__((noinline)) static void *read_once(void *argument) {
    struct task *task = argument;
    char byte[8];
    struct iovec piece = {byte, sizeof(byte)};
    task->tid = gettid();
    check(readv(task->file, &piece, 1) > 0, "readv");
    return NULL;
}

static void *wait_on_word(void *argument) {
    struct task *task = argument;
    task->tid = gettid();
    syscall(SYS_futex, task->word, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, 0, NULL, NULL, 0);
    return NULL;
}

static void start(struct task *task, void *(*body)(void *), long number) {
    check(pthread_create(&task->thread, NULL, body, task) == 0, "pthread_create");
    while (!task->tid) nap();
    wait_until_asleep(getpid(), task->tid, number);
}

/* COUNT reads of an empty pipe, each by a thread of its own. */
static void sleep_on_pipe(int count) {
    int ends[2];
    check(pipe(ends) == 0, "pipe");
    for (int i = 0; i < count; i++) {
        struct task task = {.file = ends[0]};
        start(&task, read_once, SYS_readv);
        check(write(ends[1], "x", 1) == 1, "write");
        pthread_join(task.thread, NULL);
    }
}

/* COUNT threads, each asleep on the word before the next comes; then they are woken one by one. */
static void contend_for_futex(int count) {
    static int word;
    struct task tasks[THREADS_MAX] = {};
    for (int i = 0; i < count; i++) {
        tasks[i].word = &word;
        start(&tasks[i], wait_on_word, SYS_futex);
    }
    /* The kernel wakes the longest waiters first. */
    for (int i = 0; i < count; i++) {
        check(syscall(SYS_futex, &word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1, NULL, NULL, 0) == 1,
              "futex wake");
        pthread_join(tasks[i].thread, NULL);
    }
}

/* A terminal's reader holds a kernel lock while it waits for a line; the others wait for the lock. */
static void contend_for_terminal(int count) {
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    check(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0, "posix_openpt");
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    check(slave >= 0, "pts");
    struct task tasks[THREADS_MAX] = {};
    for (int i = 0; i < count; i++) {
        tasks[i].file = slave;
        start(&tasks[i], read_once, SYS_readv);
    }
    for (int i = 0; i < count; i++) check(write(master, "a\n", 2) == 2, "write");
    for (int i = 0; i < count; i++) pthread_join(tasks[i].thread, NULL);
}

/* COUNT processes that want a lock which this one holds. */
static void contend_for_file(int count) {
    char path[] = "/tmp/sleeper-XXXXXX";
    int file = mkstemp(path);
    check(file >= 0 && flock(file, LOCK_EX) == 0, path);
    for (int i = 0; i < count; i++) {
        pid_t child = fork();
        check(child >= 0, "fork");
        if (child == 0) {
            int own = open(path, O_RDONLY);
            check(own >= 0 && flock(own, LOCK_EX) == 0, path);
            _exit(0);
        }
        wait_until_asleep(child, child, SYS_flock);
    }
    flock(file, LOCK_UN);
    for (int i = 0; i < count; i++) wait(NULL);
    unlink(path);
}

static void sleep_on_timer(int count) {
    for (int i = 0; i < count; i++) {
        struct timespec time = {0, 1000000};
        clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
    }
}

/* Children that make a call which no other process makes, one of them after exec. */
static void make_children(int count, const char *self) {
    for (int i = 0; i < count; i++) {
        pid_t child = fork();
        check(child >= 0, "fork");
        if (child == 0) {
            if (i == 0) execl(self, self, "parents", "7", NULL);
            for (int call = 0; call < 7; call++) syscall(SYS_getpgid, 0);
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
}

/* A child that is killed while it sleeps in a read. */
static void die_in_call(void) {
    int ends[2];
    check(pipe(ends) == 0, "pipe");
    pid_t child = fork();
    check(child >= 0, "fork");
    if (child == 0) {
        struct task task = {.file = ends[0]};
        read_once(&task);
        _exit(0);
    }
    wait_until_asleep(child, child, SYS_readv);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

static void *become_another(void *self) {
    execl(self, self, "image", NULL);
    return NULL;
}

/* The process becomes another program by a thread that is not the main one. */
static void exec_in_thread(char *self) {
    pthread_t thread;
    check(pthread_create(&thread, NULL, become_another, self) == 0, "pthread_create");
    pthread_join(thread, NULL);
}

__attribute__((noinline)) static void make_calls(int count) {
    for (int i = 0; i < count; i++) syscall(SYS_getpgid, 0);
    syscall(SYS_getsid, 0);
    syscall(SYS_getuid);
    syscall(9999);
}

/* A child whose calls of getpgid are refused by a filter of its own. */
static void be_refused(int count) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getpgid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof(steps) / sizeof(steps[0]), steps};
    pid_t child = fork();
    check(child >= 0, "fork");
    if (child == 0) {
        check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");
        check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0, "seccomp");
        for (int call = 0; call < count; call++)
            check(syscall(SYS_getpgid, 0) == -1 && errno == EPERM, "a refused call");
        _exit(0);
    }
    waitpid(child, NULL, 0);
}

int main(int count, char **words) {
    check(count >= 2, "usage: sleeper ROLE [COUNT]");
    const char *role = words[1];
    int number = count > 2 ? atoi(words[2]) : 1;
    char line[16];
    if (!strcmp(role, "parents")) {
        for (int call = 0; call < number; call++) syscall(SYS_getpgid, 0);
        return 0;
    }
    if (!strcmp(role, "image")) {
        check(write(1, "done\n", 5) == 5, "write");
        return read(0, line, sizeof(line)) != 0;
    }
    dprintf(1, "ready %lx %lx\n", (unsigned long)make_calls, (unsigned long)read_once);
    if (read(0, line, sizeof(line)) <= 0) return 0;
    if (!strcmp(role, "pipe"))
        sleep_on_pipe(number);
    else if (!strcmp(role, "futex"))
        contend_for_futex(number);
    else if (!strcmp(role, "terminal"))
        contend_for_terminal(number);
    else if (!strcmp(role, "flock"))
        contend_for_file(number);
    else if (!strcmp(role, "timer"))
        sleep_on_timer(number);
    else if (!strcmp(role, "children"))
        make_children(number, words[0]);
    else if (!strcmp(role, "die"))
        die_in_call();
    else if (!strcmp(role, "exec"))
        exec_in_thread(words[0]);
    else if (!strcmp(role, "refused"))
        be_refused(number);
    else if (!strcmp(role, "calls"))
        make_calls(number);
    check(write(1, "done\n", 5) == 5, "write");
    while (read(0, line, sizeof(line)) > 0)
        ;
    return 0;
}
