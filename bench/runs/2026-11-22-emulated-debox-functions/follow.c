/*
 * follow sleep|pipe|file PATH|short|many|hold: one call, and the kernel functions that debox_functions tells
 * of it, with names from /proc/kallsyms, and whether they make sense. hold follows and waits to be killed.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <debox.h>

static DeBoxInfo info;
static struct symbol {
    unsigned long address;
    char name[64];
} * symbols;
static size_t count;

static int order(const void *one, const void *other) {
    unsigned long a = ((const struct symbol *)one)->address, b = ((const struct symbol *)other)->address;
    return (a > b) - (a < b);
}

static void load(void) {
    FILE *file = fopen("/proc/kallsyms", "r");
    symbols = calloc(400000, sizeof *symbols);
    char kind;
    while (count < 400000 &&
           fscanf(file, "%lx %c %63s%*[^\n]", &symbols[count].address, &kind, symbols[count].name) == 3)
        if (kind == 't' || kind == 'T' || kind == 'w' || kind == 'W') count++;
    fclose(file);
    qsort(symbols, count, sizeof *symbols, order);
}

static const char *name(unsigned long address) {
    size_t low = 0, high = count;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (symbols[middle].address <= address)
            low = middle;
        else
            high = middle;
    }
    return symbols[low].name;
}

static void show(const char *what, int found, int all) {
    char call[32];
    debox_call_name(info.syscallNum, call, sizeof call);
    printf("== %s: %s, %lld ns, functions %d, traceDepth %d, left out %d\n", what, call,
           (long long)info.callNs, found, info.traceDepth, info.numTraceDropped);
    if (found <= 0) return;
    long outer[DEBOX_TRACE + 1] = {0}, inside[DEBOX_TRACE + 1] = {0};
    int zero = 0, longer = 0, jumps = 0, over = 0, tops = 0, before = -1;
    for (int at = 0; at < info.traceDepth; at++) {
        struct CallTrace *entry = &info.ct[at];
        int depth = entry->depth;
        if (depth > DEBOX_TRACE) continue;
        zero += entry->deltaTime <= 0;
        jumps += depth > before + 1;
        tops += depth == 0;
        over += entry->deltaTime > (long)info.callNs;
        outer[depth] = entry->deltaTime;
        inside[depth] = 0;
        if (depth > 0 && depth <= before + 1) {
            longer += entry->deltaTime > outer[depth - 1];
            inside[depth - 1] += entry->deltaTime;
            /* Children together no longer than their caller. */
            longer += inside[depth - 1] > outer[depth - 1];
        }
        before = depth;
        if (all || at < 24)
            printf("%12ld ns %*s%s\n", (long)entry->deltaTime, 2 * depth, "", name(entry->callSite));
    }
    if (!all && info.traceDepth > 24) printf("             ... %d more\n", info.traceDepth - 24);
    printf("   outermost %d, of no time %d, longer than their caller %d, without their caller %d, longer "
           "than the call %d\n",
           tops, zero, longer, jumps, over);
}

int main(int many, char **words) {
    const char *what = many > 1 ? words[1] : "sleep";
    struct timespec moment = {0, 50000000};
    char byte[4096];
    int ends[2], file;
    load();
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (DeBoxControl(&info, 5, DEBOX_TRACE) < 0) return 1;
    if (debox_follow_functions(1) < 0) return perror("debox_follow_functions"), 2;
    if (!strcmp(what, "sleep")) {
        nanosleep(&moment, NULL);
        show(what, debox_functions(&info), 1);
    } else if (!strcmp(what, "pipe")) {
        if (pipe(ends) < 0) return 1;
        pid_t child = fork();
        if (child == 0) {
            nanosleep(&moment, NULL);
            _exit(write(ends[1], "x", 1) != 1);
        }
        if (read(ends[0], byte, 1) != 1) return 1;
        show(what, debox_functions(&info), 1);
        int status;
        waitpid(child, &status, 0);
        printf("   child %d\n", status);
    } else if (!strcmp(what, "file") && many > 2) {
        file = open(words[2], O_RDONLY);
        if (read(file, byte, sizeof byte) < 0) return 1;
        show(what, debox_functions(&info), 0);
    } else if (!strcmp(what, "short")) {
        for (int at = 0; at < 3; at++) {
            getppid();
            show(what, debox_functions(&info), 1);
        }
    } else if (!strcmp(what, "many")) {
        /* More functions than there is room for. */
        file = open("/tmp/many", O_CREAT | O_RDWR | O_TRUNC, 0600);
        static char data[1 << 20];
        if (write(file, data, sizeof data) < 0) return 1;
        show(what, debox_functions(&info), 0);
    } else {
        puts("holding");
        for (;;) nanosleep(&moment, NULL);
    }
    return debox_follow_functions(0);
}
