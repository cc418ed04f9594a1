/* vfork in its ways: a child that ends, one that sleeps, one that makes a child itself, one that execs, one
 * in a thread, and one the kernel refuses. A child runs in its parent's memory and on its stack, so whatever
 * stands between the parent and libc has to be as it was when the parent continues. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Static, because a child that wrote over a register or the stack would otherwise change what the parent
 * reads. */
static int written;
static pid_t grandchild;
static int status;

/* The exit code of a child; -1 if it is none or was killed. */
static int end_of(pid_t child) {
    int how;
    if (child < 0 || waitpid(child, &how, 0) != child || !WIFEXITED(how)) return -1;
    return WEXITSTATUS(how);
}

static int ending(void) {
    errno = 77;
    pid_t child = vfork();
    if (child == 0) {
        getuid();
        written++;
        _exit(3);
    }
    return errno == 77 ? end_of(child) : -2;
}

static int sleeping(void) {
    pid_t child = vfork();
    if (child == 0) {
        struct timespec moment = {0, 20000000};
        nanosleep(&moment, NULL);
        written++;
        _exit(4);
    }
    return end_of(child);
}

static int nested(void) {
    pid_t child = vfork();
    if (child == 0) {
        grandchild = vfork();
        if (grandchild == 0) {
            getuid();
            written++;
            _exit(5);
        }
        waitpid(grandchild, &status, 0);
        getuid();
        _exit(WEXITSTATUS(status) + 1);
    }
    return end_of(child);
}

static int execing(char *program) {
    char *list[] = {program, "child", NULL};
    pid_t child = vfork();
    if (child == 0) {
        execv(program, list);
        _exit(99);
    }
    return end_of(child);
}

static void *threaded(void *nothing) {
    for (int i = 0; i < 10; i++) getppid();
    printf("thread: %d\n", ending());
    for (int i = 0; i < 10; i++) getppid();
    return nothing;
}

static int refused(void) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_vfork, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof steps / sizeof *steps, steps};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) return -2;
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0) return -3;
    errno = 0;
    pid_t child = vfork();
    if (child == 0) _exit(99);
    return child == -1 ? errno == EAGAIN : end_of(child);
}

int main(int count, char **arguments) {
    for (int i = 0; i < 10; i++) getppid();
    if (count > 1) return 7;
    setvbuf(stdout, NULL, _IONBF, 0);
    printf("ending: %d\n", ending());
    printf("sleeping: %d\n", sleeping());
    printf("nested: %d\n", nested());
    printf("execing: %d\n", execing(arguments[0]));
    pthread_t thread;
    if (pthread_create(&thread, NULL, threaded, NULL) != 0) return 10;
    pthread_join(thread, NULL);
    printf("refused: %d\n", refused());
    for (int i = 0; i < 10; i++) getppid();
    printf("written: %d\n", written);
    return 8;
}
