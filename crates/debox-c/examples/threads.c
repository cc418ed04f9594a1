/*
 * Each thread has its own record: eight threads make a call of their own many times and look at their own
 * buffer after each; a forked child continues with its copy.
 *
 *     cc threads.c -o threads -pthread $(pkg-config --cflags --libs debox)
 */
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "debox.h"

enum { THREADS = 8, ROUNDS = 20000 };
static const int calls[THREADS] = {SYS_getpid,  SYS_getppid, SYS_gettid,  SYS_getuid,
                                   SYS_geteuid, SYS_getgid,  SYS_getegid, SYS_sched_yield};

static void *work(void *argument) {
    int call = *(const int *)argument;
    static _Thread_local DeBoxInfo info;
    if (DeBoxControl(&info, 5, 0) < 0) return "DeBoxControl failed";
    for (int round = 0; round < ROUNDS; round++) {
        syscall(call);
        if (info.syscallNum != call) return "a record of another call";
        if (info.callNs > 0 && info.cpuNs > info.callNs) return "more time on the processor than in all";
    }
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    int wrong = 0;
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)&calls[i]);
    for (int i = 0; i < THREADS; i++) {
        void *answer;
        pthread_join(threads[i], &answer);
        if (answer != NULL) {
            printf("thread %d: %s\n", i, (const char *)answer);
            wrong++;
        }
    }

    static DeBoxInfo info;
    DeBoxControl(&info, 5, 0);
    pid_t child = fork();
    if (child == 0) {
        getppid();
        _exit(info.syscallNum == SYS_getppid ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    printf("threads %s\n", wrong == 0 ? "right" : "wrong");
    printf("child %s\n", status == 0 ? "right" : "wrong");
    printf("parent %s\n", info.syscallNum == SYS_wait4 ? "right" : "wrong");
    return wrong != 0;
}
