/*
 * Programs whose system calls are awkward to count, for bench/trace-counts; the first argument says which.
 *
 * `gate LOCK COMMAND...` waits in flock(2) for its observers and becomes the command. No other program here
 * calls flock, so its own call, which began before they came, is easy to leave out.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;
static volatile sig_atomic_t alarms;
static int ends[2];

static void expect(int ok, const char *what) {
    if (ok) return;
    perror(what);
    exit(1);
}

static int gate(char **arguments) {
    /* In the background of a shell these are ignored, and programs look. */
    signal(SIGINT, SIG_DFL);
    signal(SIGQUIT, SIG_DFL);
    int lock = open(arguments[0], O_RDONLY | O_CLOEXEC);
    expect(lock >= 0 && flock(lock, LOCK_EX) == 0, arguments[0]);
    execvp(arguments[1], arguments + 1);
    return 127;
}

/* Reads itself, past libc and through it. */
static int plain(const char *path) {
    char bytes[4096];
    int file = open(path, O_RDONLY);
    expect(file >= 0, path);
    while (read(file, bytes, sizeof(bytes)) > 0) continue;
    for (int call = 0; call < 50; call++) {
        syscall(SYS_getppid);
        pread(file, bytes, sizeof(bytes), 0);
    }
    printf("read\n");
    return close(file);
}

/* Children by fork, vfork and posix_spawn. */
static int children(void) {
    char *command[] = {"/bin/true", NULL};
    for (int round = 0; round < 3; round++) {
        pid_t forked = fork();
        if (forked == 0) _exit(execv(command[0], command));
        pid_t shared = vfork();
        if (shared == 0) _exit(execv(command[0], command));
        pid_t spawned = -1;
        posix_spawn(&spawned, command[0], NULL, NULL, command, environ);
        for (int child = 0; child < 3; child++) expect(wait(NULL) > 0, "child");
        expect(forked > 0 && shared > 0 && spawned > 0, "children");
    }
    return 0;
}

static void count_alarm(int signal) {
    (void)signal;
    alarms++;
}

/* Handlers that interrupt a call, that have it restarted, and a sleep that restart_syscall(2) resumes. */
static int signals(void) {
    struct sigaction action = {.sa_handler = count_alarm};
    struct itimerval every = {{0, 2000}, {0, 2000}};
    char byte;
    expect(pipe(ends) == 0, "pipe");
    for (int restart = 0; restart < 2; restart++) {
        action.sa_flags = restart ? SA_RESTART : 0;
        sigaction(SIGALRM, &action, NULL);
        setitimer(ITIMER_REAL, &every, NULL);
        while (alarms < 10 * (restart + 1)) {
            struct timespec moment = {0, 5000000};
            nanosleep(&moment, NULL);
            if (!restart) read(ends[0], &byte, 1);
        }
    }
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    pid_t self = getpid(), pid = fork();
    if (pid == 0) {
        usleep(20000);
        kill(self, SIGSTOP);
        usleep(20000);
        kill(self, SIGCONT);
        _exit(0);
    }
    struct timespec moment = {0, 100000000};
    nanosleep(&moment, NULL);
    return waitpid(pid, NULL, 0) == pid ? 0 : 1;
}

static void *read_for_ever(void *nothing) {
    char byte;
    read(ends[0], &byte, 1);
    return nothing;
}

/* Threads of which one is cancelled in a call, and the others are in one when the process ends. */
static int threads(void) {
    pthread_t made[8];
    expect(pipe(ends) == 0, "pipe");
    for (int index = 0; index < 8; index++) pthread_create(&made[index], NULL, read_for_ever, NULL);
    usleep(20000);
    pthread_cancel(made[0]);
    pthread_join(made[0], NULL);
    exit(0);
}

static void *become(void *command) {
    execv(((char **)command)[0], command);
    return NULL;
}

/* Another thread than the main one calls exec, while the main one and a third are in a call. */
static int thread_exec(void) {
    char *command[] = {"/bin/true", NULL};
    pthread_t made[2];
    expect(pipe(ends) == 0, "pipe");
    pthread_create(&made[0], NULL, read_for_ever, NULL);
    usleep(20000);
    pthread_create(&made[1], NULL, become, command);
    read_for_ever(NULL);
    return 1;
}

/* A child is killed in a call, and one in its own code. */
static int killed(void) {
    expect(pipe(ends) == 0, "pipe");
    for (int busy = 0; busy < 2; busy++) {
        pid_t pid = fork();
        if (pid == 0) {
            if (!busy) read_for_ever(NULL);
            for (;;) continue;
        }
        usleep(20000);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    return 0;
}

/* seccomp's strict mode allows read, write, exit and rt_sigreturn. The kernel ends a program for any other
 * call. */
static int strict(int forbidden) {
    int zero = open("/dev/zero", O_RDONLY);
    char byte;
    expect(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0, "seccomp");
    for (int call = 0; call < 20; call++) read(zero, &byte, 1);
    if (forbidden) syscall(SYS_getppid);
    return syscall(SYS_exit, 0);
}

/* A filter refuses one call and lets the others pass. */
static int refused(void) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof(steps) / sizeof(steps[0]), steps};
    expect(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");
    expect(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0, "seccomp");
    for (int call = 0; call < 20; call++) expect(syscall(SYS_getppid) == -1, "a refused call");
    return 0;
}

/* Calls of the 32-bit table out of a 64-bit program: getpid is 20 there, and 39 otherwise. */
static int compat(void) {
    long result = 0;
#if defined(__x86_64__)
    for (int call = 0; call < 20; call++) __asm__ volatile("int $0x80" : "=a"(result) : "a"(20L) : "memory");
#endif
    return result == getpid() ? 0 : 1;
}

int main(int count, char **arguments) {
    const char *which = count > 1 ? arguments[1] : "";
    if (!strcmp(which, "gate") && count > 3) return gate(arguments + 2);
    if (!strcmp(which, "plain")) return plain(arguments[0]);
    if (!strcmp(which, "children")) return children();
    if (!strcmp(which, "signals")) return signals();
    if (!strcmp(which, "threads")) return threads();
    if (!strcmp(which, "thread-exec")) return thread_exec();
    if (!strcmp(which, "killed")) return killed();
    if (!strcmp(which, "strict")) return strict(0);
    if (!strcmp(which, "strict-killed")) return strict(1);
    if (!strcmp(which, "refused")) return refused();
    if (!strcmp(which, "compat")) return compat();
    fprintf(stderr, "%s: no such program\n", which);
    return 2;
}
