/* Handlers that interrupt blocked calls, make calls of their own, and leave by siglongjmp. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

static volatile sig_atomic_t handled;
static volatile sig_atomic_t jump;
static sigjmp_buf away;
static int out;

static void handler(int number) {
    int saved = errno;
    handled++;
    if (write(out, "h", 1) != 1) _exit(30);
    errno = saved;
    if (jump) siglongjmp(away, number);
}

static void alarm_in(int milliseconds) {
    struct itimerval timer = {{0, 0}, {0, milliseconds * 1000}};
    setitimer(ITIMER_REAL, &timer, NULL);
}

static void *blocked(void *reader) {
    char byte;
    ssize_t got = read(*(int *)reader, &byte, 1);
    return (void *)(long)got;
}

int main(void) {
    char byte;
    int silent[2], drain[2];
    if (pipe(silent) < 0 || pipe(drain) < 0) return 31;
    out = drain[1];
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    sigaction(SIGALRM, &action, NULL);

    for (int round = 0; round < 5; round++) {
        alarm_in(3);
        ssize_t got = read(silent[0], &byte, 1);
        if (got != -1 || errno != EINTR || handled != round + 1) return 32;
    }
    printf("interrupted: EINTR\n");

    jump = 1;
    for (int round = 0; round < 5; round++) {
        if (sigsetjmp(away, 1) == 0) {
            alarm_in(3);
            read(silent[0], &byte, 1);
            return 33;
        }
    }
    jump = 0;
    for (int i = 0; i < 100; i++) getppid();
    printf("left by longjmp: %d handled\n", (int)handled);

    /* On a stack of its own, which lies anywhere. */
    static char stack[65536];
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&alternate, NULL);
    action.sa_flags = SA_ONSTACK | SA_RESTART;
    sigaction(SIGALRM, &action, NULL);
    alarm_in(3);
    char two[2];
    pthread_t helper;
    pthread_create(&helper, NULL, blocked, &silent[0]);
    usleep(10000);
    pthread_cancel(helper);
    void *answer;
    pthread_join(helper, &answer);
    printf("cancelled: %s\n", answer == PTHREAD_CANCELED ? "yes" : "no");
    if (read(drain[0], two, 2) != 2 || memcmp(two, "hh", 2)) return 34;
    printf("end\n");
    return 7;
}
