/* Gives up the CPU's counter in one of four ways, and goes on as far as it may. In two more ways, the call
 * fails or is a vfork child's. */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void *other(void *nothing) {
    getppid();
    return nothing;
}

/* A library's question whether there is seccomp, and strict mode after a filter. */
static int failing(void) {
    struct sock_filter step = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {1, &step};
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 1, NULL) != -1) return 21;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) return 22;
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0) return 23;
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != -1) return 24;
    return 0;
}

static int child_giving_up(void) {
    int status;
    pid_t child = vfork();
    if (!child) {
        if (prctl(PR_SET_TSC, PR_TSC_SIGSEGV)) _exit(25);
        _exit(5);
    }
    return waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 5;
}

int main(int count, char **arguments) {
    const char *way = count > 1 ? arguments[1] : "";
    pthread_t thread;
    int status;
    for (int i = 0; i < 10; i++) getuid();
    if (!strcmp(way, "prctl")) {
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)) return 10;
    } else if (!strcmp(way, "syscall")) {
        if (syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, NULL)) return 11;
    } else if (!strcmp(way, "syscall-prctl")) {
        if (syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0)) return 12;
    } else if (!strcmp(way, "failing") || !strcmp(way, "vfork")) {
        int failed = *way == 'f' ? failing() : child_giving_up();
        if (failed) return failed;
        for (int i = 0; i < 10; i++) getuid();
        puts("lives");
        return 3;
    } else {
        if (prctl(PR_SET_TSC, 99) != -1 || getppid() < 0) return 13;
        if (prctl(PR_SET_TSC, PR_TSC_SIGSEGV)) return 14;
        if (pthread_create(&thread, NULL, other, NULL) || pthread_join(thread, NULL)) return 15;
        pid_t child = fork();
        if (!child) {
            getppid();
            _exit(5);
        }
        if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 5) return 16;
        puts("lives");
        return 3;
    }
    if (write(1, "lives\n", 6) != 6) syscall(SYS_exit, 20);
    syscall(SYS_exit, 3);
}
