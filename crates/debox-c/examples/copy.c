/*
 * The paper's program (Figure 2.4): copies a mapped file with one write() and prints what the call did.
 *
 *     cc copy.c -o copy $(pkg-config --cflags --libs debox)
 *     ./copy FROM TO
 *
 * Drop the page cache first (as root: echo 1 > /proc/sys/vm/drop_caches) to see it sleep on page-io.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "debox.h"

static DeBoxInfo info;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void print_info(void) {
    printf("DeBoxInfo:\n");
    printf("    %d, /* system call # */\n", info.syscallNum);
    printf("    %ld, /* call time, microsecs */\n",
           info.CallTime.callTimeval.tv_sec * 1000000L + info.CallTime.callTimeval.tv_usec);
    printf("    %d, /* # of page faults */\n", info.numPGFaults);
    printf("    %d, /* # of PerSleepInfo used */\n", info.numPerSleepInfo);
    printf("    %d, /* # of CallTrace used */\n", info.traceDepth);
    for (int i = 0; i < info.numPerSleepInfo; i++) {
        const PerSleepInfo *sleep = &info.psi[i];
        printf("PerSleepInfo[%d]:\n", i);
        printf("    %d /* # occurrences */\n", sleep->numSleeps);
        printf("    %ld /* time blocked, microsecs */\n",
               sleep->blockedTime.tv_sec * 1000000L + sleep->blockedTime.tv_usec);
        printf("    %s /* resource label */\n", sleep->wmesg);
        printf("    %s+%lu /* function where blocked */\n", sleep->blockingFunction,
               (unsigned long)sleep->blockingOffset);
    }
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: copy FROM TO\n");
        return 2;
    }
    int from = open(argv[1], O_RDONLY);
    if (from < 0) fail(argv[1]);
    struct stat status;
    if (fstat(from, &status) < 0) fail(argv[1]);
    void *data = mmap(NULL, status.st_size, PROT_READ, MAP_PRIVATE, from, 0);
    if (data == MAP_FAILED) fail("mmap");
    int to = open(argv[2], O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (to < 0) fail(argv[2]);

    if (DeBoxControl(&info, 5, 0) < 0) fail("DeBoxControl");
    ssize_t written = write(to, data, status.st_size);
    DeBoxControl(NULL, 0, 0);

    if (written != status.st_size) fail("write");
    print_info();
    return 0;
}
