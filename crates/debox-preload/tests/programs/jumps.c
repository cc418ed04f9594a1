/* Children whose first call, which makes their record, is interrupted by a handler that leaves by
 * siglongjmp. A second thread then makes calls of its own. A child that hangs is ended and counted. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static sigjmp_buf away;

static void leave(int number) {
    siglongjmp(away, number);
}

static void *calls(void *unused) {
    for (int call = 0; call < 10; call++) getppid();
    return unused;
}

static void child(int microseconds) {
    struct sigaction action = {.sa_handler = leave};
    struct itimerval timer = {.it_value = {.tv_usec = microseconds}};
    pthread_t thread;
    /* System calls past the hook, so that the first traced one is the loop's. */
    if (!sigsetjmp(away, 1)) {
        sigaction(SIGALRM, &action, NULL);
        setitimer(ITIMER_REAL, &timer, NULL);
        for (;;) getppid();
    }
    if (pthread_create(&thread, NULL, calls, NULL)) _exit(2);
    pthread_join(thread, NULL);
    _exit(0);
}

int main(void) {
    int stuck = 0;
    for (int number = 0; number < 150; number++) {
        pid_t pid = fork();
        if (!pid) child(1 + number * 4);
        int status = -1;
        /* Ten seconds: only a child that waits for ever needs them. */
        for (int look = 0; look < 10000 && !waitpid(pid, &status, WNOHANG); look++) {
            struct timespec millisecond = {0, 1000000};
            nanosleep(&millisecond, NULL);
        }
        if (status) {
            stuck++;
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            break;
        }
    }
    printf("%d stuck\n", stuck);
    return stuck;
}
