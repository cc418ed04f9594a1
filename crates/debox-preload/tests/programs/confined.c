/* Gives up the calls a tracer would make, on pain of death, and then makes others: from a place it has not
 * called from, in a thread, in a child. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void *other(void *nothing) {
    getppid();
    return nothing;
}

int main(int count, char **arguments) {
    static const int forbidden[] = {SYS_openat, SYS_open, SYS_perf_event_open, SYS_gettid, SYS_readlink};
    enum { FORBIDDEN = sizeof forbidden / sizeof *forbidden };
    struct sock_filter steps[2 * FORBIDDEN + 2] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    };
    for (int i = 0; i < FORBIDDEN; i++) {
        steps[1 + 2 * i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, forbidden[i], 0, 1);
        steps[2 + 2 * i] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    }
    steps[2 * FORBIDDEN + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {2 * FORBIDDEN + 2, steps};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) return 10;
    if (count > 1 && strcmp(arguments[1], "syscall") == 0) {
        if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) < 0) return 11;
    } else if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0) {
        return 12;
    }
    for (int i = 0; i < 10; i++) getuid();
    struct timespec moment = {0, 2000000};
    nanosleep(&moment, NULL);
    pthread_t thread;
    if (pthread_create(&thread, NULL, other, NULL) != 0) return 13;
    pthread_join(thread, NULL);
    pid_t child = fork();
    if (child == 0) {
        getppid();
        _exit(5);
    }
    int status;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 5) return 14;
    puts("lives");
    return 3;
}
