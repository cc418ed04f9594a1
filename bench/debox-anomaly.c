/*
 * One rare anomaly, as in section 2.2 of the dissertation: a thousand calls of which one is late by a
 * millisecond. A mean over the calls does not show it and a sampling profiler is unlikely to be there.
 *
 * `take_a_turn` takes and gives back a lock on a file a thousand times. Before turn 617, and then alone,
 * another thread takes the lock, says so, and keeps it for a millisecond. Prints how many nanoseconds turn
 * 617 waited: on a busy machine the lock may be free again before it is asked for.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { TURNS = 1000, LATE = 617, DELAY_NS = 1000000 };

static char path[] = "/tmp/debox-anomaly.XXXXXX";
static int held[2];

static int opened(void) {
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) {
        perror(path);
        exit(1);
    }
    return file;
}

static void *hold_the_lock(void *unused) {
    int file = opened();
    const struct timespec delay = {0, DELAY_NS};
    (void)unused;
    flock(file, LOCK_EX);
    if (write(held[1], "h", 1) != 1) abort();
    nanosleep(&delay, NULL);
    close(file);
    return NULL;
}

static long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000L + now.tv_nsec;
}

__attribute__((noinline)) static void take_a_turn(int file, int turn) {
    pthread_t other;
    char byte;
    if (turn == LATE) {
        if (pthread_create(&other, NULL, hold_the_lock, NULL) != 0) abort();
        if (read(held[0], &byte, 1) != 1) abort();
    }
    long before_ns = turn == LATE ? now_ns() : 0;
    if (flock(file, LOCK_EX) != 0) abort();
    if (turn == LATE) printf("%ld\n", now_ns() - before_ns);
    flock(file, LOCK_UN);
    if (turn == LATE) pthread_join(other, NULL);
}

int main(void) {
    int made = mkstemp(path);
    if (made < 0 || pipe(held) != 0) {
        perror("debox-anomaly");
        return 1;
    }
    int file = opened();
    for (int turn = 0; turn < TURNS; turn++) take_a_turn(file, turn);
    unlink(path);
    return 0;
}
