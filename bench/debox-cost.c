/*
 * What a system call costs, in nanoseconds: the fastest of many short slices for each case of the paper's
 * Table 2.2. Written in C against libc, so that the same program runs bare, linked to libdebox.so, and
 * under tracers that know nothing of it.
 *
 *     debox-cost base|off|on|trace SLICES
 *
 * base and off make no call to DeBox (they differ in what the program is linked to); on records with five
 * sleeps at most, trace with a call trace as well. Prints `case,ns` a line.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#ifdef HAVE_DEBOX
#include <debox.h>
static DeBoxInfo info;
#endif

/* Some 5 ms a slice for a call of half a microsecond; under strace a call takes tens of microseconds. */
enum { SLICE_NS_AIM = 5000000, CALLS_MIN = 20, CALLS_MAX = 20000 };

static int file;
static size_t read_bytes;
static char page[4096];

static void call_getpid(void) {
    syscall(SYS_getpid);
}
static void call_clock_vdso(void) {
    struct timeval now;
    gettimeofday(&now, NULL);
}
static void call_clock(void) {
    struct timeval now;
    syscall(SYS_gettimeofday, &now, NULL);
}
static void call_pread(void) {
    if (pread(file, page, read_bytes, 0) < 0) abort();
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static double slice_ns(void (*call)(void), int calls) {
    int64_t start = now_ns();
    for (int i = 0; i < calls; i++) call();
    return (double)(now_ns() - start) / calls;
}

static void measure(const char *name, void (*call)(void), int slices) {
    double once = slice_ns(call, CALLS_MIN);
    double aim = SLICE_NS_AIM / (once > 1 ? once : 1);
    int calls = aim < CALLS_MIN ? CALLS_MIN : aim > CALLS_MAX ? CALLS_MAX : (int)aim;
    double fastest = slice_ns(call, calls);
    for (int i = 1; i < slices; i++) {
        double ns = slice_ns(call, calls);
        if (ns < fastest) fastest = ns;
    }
    printf("%s,%.1f\n", name, fastest);
}

int main(int count, char **arguments) {
    if (count != 3) {
        fprintf(stderr, "usage: debox-cost base|off|on|trace SLICES\n");
        return 2;
    }
    int slices = atoi(arguments[2]);
    char path[] = "/tmp/debox-cost.XXXXXX";
    file = mkstemp(path);
    if (file < 0 || write(file, page, sizeof page) != sizeof page) {
        perror(path);
        return 1;
    }
    unlink(path);
#ifdef HAVE_DEBOX
    if (strcmp(arguments[1], "on") == 0) DeBoxControl(&info, 5, 0);
    if (strcmp(arguments[1], "trace") == 0) DeBoxControl(&info, 5, 200);
#endif
    measure("getpid", call_getpid, slices);
    measure("gettimeofday (vDSO)", call_clock_vdso, slices);
    measure("gettimeofday", call_clock, slices);
    for (read_bytes = 128; read_bytes <= sizeof page; read_bytes *= 2) {
        char name[32];
        snprintf(name, sizeof name, "pread %zu", read_bytes);
        measure(name, call_pread, slices);
    }
    return 0;
}
