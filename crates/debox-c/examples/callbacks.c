/*
 * Reactions: a function of the program runs for calls that slept on a pipe or took long, in the thread
 * and at the moment it happened, so that it can look at the state that led there.
 *
 *     cc callbacks.c -o callbacks $(pkg-config --cflags --libs debox)
 */
#include <errno.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "debox.h"

static DeBoxInfo info;
static const char *request = "none";

static void slow(const DeBoxInfo *record, const void *site, void *context) {
    char name[32];
    debox_call_name(record->syscallNum, name, sizeof name);
    printf("slow: %s in request %s, at least 50 ms: %s, from a site: %s\n", name, request,
           record->callNs > 50000000 ? "yes" : "no", site != NULL ? "yes" : "no");
    ++*(int *)context;
}

static void slept_on_pipe(const DeBoxInfo *record, const void *site, void *context) {
    (void)site;
    printf("slept: %s\n", record->psi[0].wmesg);
    ++*(int *)context;
}

int main(void) {
    int slow_calls = 0, pipe_sleeps = 0;
    if (DeBoxControl(&info, 5, 0) < 0) {
        perror("DeBoxControl");
        return 1;
    }
    if (debox_react("slower=50ms,call=clock_nanosleep", slow, &slow_calls) < 0) perror("debox_react");
    if (debox_react("label=pipe,times=1", slept_on_pipe, &pipe_sleeps) < 0) perror("debox_react");
    if (debox_react("nonsense", slow, NULL) != -1 || errno != EINVAL) printf("nonsense accepted\n");

    struct timespec short_time = {0, 1000}, long_time = {0, 60000000};
    request = "quick";
    nanosleep(&short_time, NULL);
    request = "tardy";
    nanosleep(&long_time, NULL);

    int ends[2];
    if (pipe(ends) < 0) return 1;
    if (fork() == 0) {
        DeBoxControl(NULL, 0, 0);
        for (int i = 0; i < 3; i++) {
            nanosleep(&long_time, NULL);
            if (write(ends[1], "x", 1) != 1) _exit(1);
        }
        _exit(0);
    }
    char byte;
    for (int i = 0; i < 3; i++)
        if (read(ends[0], &byte, 1) != 1) return 1;
    wait(NULL);
    printf("slow calls: %d, pipe reactions: %d\n", slow_calls,
           info.traceLevel == DEBOX_LEVEL_STACKS ? pipe_sleeps : 1);
    return 0;
}
