/*
 * A server whose accepts, receives and sends are operations of io_uring, one after the other. It prints its
 * port, or "no" and the reason. A request is a line, `sleep MS`; it is answered after a timer.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static int ring;
static unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
static struct io_uring_sqe *entries;
static struct io_uring_cqe *results;

static int set_up(void) {
    struct io_uring_params given = {0};
    ring = syscall(__NR_io_uring_setup, 8, &given);
    if (ring < 0) return 0;
    size_t submissions = given.sq_off.array + given.sq_entries * sizeof(unsigned);
    size_t completions = given.cq_off.cqes + given.cq_entries * sizeof(*results);
    size_t bytes = submissions > completions ? submissions : completions;
    int access = PROT_READ | PROT_WRITE, kind = MAP_SHARED | MAP_POPULATE;
    char *map = mmap(0, bytes, access, kind, ring, IORING_OFF_SQ_RING);
    entries = mmap(0, given.sq_entries * sizeof(*entries), access, kind, ring, IORING_OFF_SQES);
    if (map == MAP_FAILED || entries == MAP_FAILED) return 0;
    sq_tail = (unsigned *)(map + given.sq_off.tail), sq_mask = (unsigned *)(map + given.sq_off.ring_mask);
    sq_array = (unsigned *)(map + given.sq_off.array);
    cq_head = (unsigned *)(map + given.cq_off.head), cq_tail = (unsigned *)(map + given.cq_off.tail);
    cq_mask = (unsigned *)(map + given.cq_off.ring_mask);
    results = (struct io_uring_cqe *)(map + given.cq_off.cqes);
    return 1;
}

/* An operation; waits for its result. */
static int run(int operation, int descriptor, void *buffer, unsigned bytes) {
    unsigned tail = *sq_tail, index = tail & *sq_mask, head = *cq_head;
    entries[index] = (struct io_uring_sqe){
        .opcode = operation, .fd = descriptor, .addr = (unsigned long)buffer, .len = bytes};
    sq_array[index] = index;
    __atomic_store_n(sq_tail, tail + 1, __ATOMIC_RELEASE);
    unsigned submitted = 1;
    while (head == __atomic_load_n(cq_tail, __ATOMIC_ACQUIRE)) {
        syscall(__NR_io_uring_enter, ring, submitted, 1, IORING_ENTER_GETEVENTS, 0, 0);
        submitted = 0;
    }
    int result = results[head & *cq_mask].res;
    __atomic_store_n(cq_head, head + 1, __ATOMIC_RELEASE);
    return result;
}

int main(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof(address);
    if (!set_up()) {
        printf("no %s\n", strerror(errno));
        return 0;
    }
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    bind(listener, (void *)&address, length);
    listen(listener, 64);
    getsockname(listener, (void *)&address, &length);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        int client = run(IORING_OP_ACCEPT, listener, 0, 0), bytes;
        char line[64];
        while ((bytes = run(IORING_OP_RECV, client, line, sizeof(line) - 1)) > 0) {
            line[bytes] = 0;
            usleep(atoi(strchr(line, ' ')) * 1000);
            run(IORING_OP_SEND, client, "done\n", 5);
        }
        close(client);
    }
}
