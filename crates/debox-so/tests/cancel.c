/* Threads cancelled in a blocked call, one that keeps records and one that does not. */
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "debox.h"

static int silent[2];
static DeBoxInfo info, later;
static volatile int blocked, cleaned;

static void clean_up(void *unused) {
    (void)unused;
    cleaned = 1;
}

static void *block(void *records) {
    char byte;
    if (records != NULL && DeBoxControl(&info, 5, 0) < 0) return NULL;
    pthread_cleanup_push(clean_up, NULL);
    blocked = 1;
    if (read(silent[0], &byte, 1) != 1) printf("read has returned\n");
    pthread_cleanup_pop(0);
    return NULL;
}

static void cancel(const char *what, void *records) {
    pthread_t thread;
    void *answer;
    blocked = cleaned = 0;
    pthread_create(&thread, NULL, block, records);
    while (!blocked) usleep(1000);
    usleep(10000);
    pthread_cancel(thread);
    pthread_join(thread, &answer);
    printf("%s: %s, %s\n", what, answer == PTHREAD_CANCELED ? "cancelled" : "ended",
           cleaned ? "cleaned up" : "not cleaned up");
}

int main(void) {
    if (pipe(silent) < 0) return 1;
    cancel("with records", &info);
    cancel("without", NULL);
    DeBoxControl(&later, 5, 0);
    getppid();
    printf("afterwards: %s\n", later.syscallNum == SYS_getppid ? "right" : "wrong");
    return 0;
}
