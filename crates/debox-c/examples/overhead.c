/*
 * What a record costs: a call that returns at once, straight from libc and through the library.
 *
 *     cc -O2 overhead.c -o overhead $(pkg-config --cflags --libs debox)
 *     ./overhead
 *
 *     cc -O2 -DPRELOADED overhead.c -o overhead
 *     LD_PRELOAD=/usr/local/lib/libdebox_preload.so HEADWAY_TRACE_DIR=/dev/shm/trace ./overhead
 *
 * The variants take turns in short slices, and of each the median slice and the fastest one are printed, so
 * that a change of the machine's speed meets all of them. Run it on one processor (taskset -c 0).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#ifndef PRELOADED
#include "debox.h"
static DeBoxInfo info;
#endif

enum { SLICES = 301, CALLS = 10000 };

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

static double slice(pid_t (*volatile call)(void)) {
    double start = now_ns();
    for (int i = 0; i < CALLS; i++) call();
    return (now_ns() - start) / CALLS;
}

static int order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print(const char *name, double *slices, const double *base) {
    static double differences[SLICES];
    for (int i = 0; i < SLICES; i++) differences[i] = slices[i] - base[i];
    qsort(differences, SLICES, sizeof *differences, order);
    double *sorted = malloc(SLICES * sizeof *sorted);
    for (int i = 0; i < SLICES; i++) sorted[i] = slices[i];
    qsort(sorted, SLICES, sizeof *sorted, order);
    printf("%-12s median %7.1f ns, fastest %7.1f ns, median over base %+6.1f ns\n", name, sorted[SLICES / 2],
           sorted[0], differences[SLICES / 2]);
    free(sorted);
}

int main(void) {
    static double base[SLICES], off[SLICES], on[SLICES];
    void *libc = dlopen("libc.so.6", RTLD_NOW);
    pid_t (*straight)(void) = (pid_t(*)(void))dlsym(libc, "getppid");
    if (straight == NULL) return 1;
    for (int i = 0; i < SLICES; i++) {
        base[i] = slice(straight);
#ifndef PRELOADED
        off[i] = slice(getppid);
        if (DeBoxControl(&info, 5, 0) < 0) return 1;
        on[i] = slice(getppid);
        DeBoxControl(NULL, 0, 0);
#else
        on[i] = slice(getppid);
#endif
    }
    print("base", base, base);
#ifndef PRELOADED
    print("linked, off", off, base);
    print("linked, on", on, base);
#else
    (void)off;
    print("preloaded", on, base);
#endif
    return 0;
}
