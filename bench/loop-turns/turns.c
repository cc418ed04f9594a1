/* Nanoseconds per turn of a loop: a wait for events that returns at once. With "watched", by
 * debox_watch_loop. */
#include <debox.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>

#define TURNS 1000000

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

int main(int count, char **arguments) {
    struct epoll_event event;
    int events = epoll_create1(0);
    const debox_loop *watch = count > 1 && !strcmp(arguments[1], "watched") ? debox_watch_loop() : NULL;
    double begun = now_ns();
    for (int turn = 0; turn < TURNS; turn++) {
        if (watch) debox_turn_end(watch);
        epoll_wait(events, &event, 1, 0);
        if (watch) debox_turn_begin(watch);
    }
    printf("%.1f\n", (now_ns() - begun) / TURNS);
    return 0;
}
