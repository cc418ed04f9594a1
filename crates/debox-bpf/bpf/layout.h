/*
 * The data that the BPF programs share with the Rust code. Every structure is a row of 64-bit words, so that
 * no generator is needed; src/layout.rs reads them in the same order.
 */
#ifndef HEADWAY_LAYOUT_H
#define HEADWAY_LAYOUT_H

#include "kernel.h"

/* How many kernel stacks of one call's sleeps are kept apart; more are counted in sleeps_dropped. */
#define SLEEPS_MAX 8
/* Frames of a user stack in a kept record. */
#define USER_FRAMES_MAX 16
/* Frames of a kernel stack, as in the in-band records. */
#define KERNEL_FRAMES_MAX 32
/* Numbers of system calls that can be filtered or have a descriptor for their first argument. */
#define CALLS_MAX 512

/* Asleep outside any system call: a page fault of the program's own code. */
#define CALL_NONE 0x100000000ULL
/* Added to the number of a call that came through the 32-bit entry. */
#define CALL_COMPAT 0x40000000ULL
/* A stack that did not fit into the map of stacks. */
#define STACK_UNKNOWN 0xffffffffULL

/* By what two sleeping tasks wait for the same resource. */
enum resource_kind {
    RESOURCE_NONE = 0,
    /* A kernel lock, by its address in contention_begin. */
    RESOURCE_LOCK = 1,
    /* A futex word. */
    RESOURCE_FUTEX = 2,
    /* A file, pipe or socket, by the call's descriptor. */
    RESOURCE_FILE = 3,
    /* Only the kernel stack is known. */
    RESOURCE_STACK = 4,
};

/* What was lost. */
enum lost {
    LOST_THREADS = 0,
    LOST_CALLS = 1,
    LOST_SLEEPS = 2,
    LOST_STACKS = 3,
    LOST_RECORDS = 4,
    LOST_WAITERS = 5,
    LOST_PROCESSES = 6,
    LOST_BEGUN_BEFORE = 7,
    LOST_EVENTS = 8,
    LOST_CONNECTIONS = 9,
    LOST_KINDS = 10,
};

enum event_kind {
    EVENT_RECORD = 1,
    EVENT_FORK = 2,
    EVENT_EXEC = 3,
    EVENT_EXIT = 4,
    EVENT_WAITED = 5,
    /* Those of requests.bpf.c. */
    EVENT_REQUEST = 6,
    EVENT_RESPONSE = 7,
    EVENT_OFF_CPU = 8,
    EVENT_HEAD = 9,
    EVENT_STATUS = 10,
};

/* Which sleeps waiters.bpf.c reports: those of the process, or only those of its children. */
enum target { TRACED = 0, CHILDREN_ONLY = 1 };

/* A call site of a process: address space, number of the call, address behind the call. */
struct site_key {
    /* Process id, and the count of its execs in the upper half: an exec changes the meaning of addresses. */
    u64 process;
    u64 number;
    u64 site;
};

struct call_total {
    u64 count;
    u64 wall_ns;
    u64 max_ns;
    u64 faults_minor;
    u64 faults_major;
    u64 blocked_ns;
    u64 slept;
    u64 preemptions;
    u64 preempted_ns;
    u64 wakeup_ns;
    /* Calls in which the process ended. */
    u64 unfinished;
    /* Calls that returned an error. */
    u64 errors;
    /* The complement of the shortest, so that the maximum is kept here too, and zero means none. */
    u64 min_not_ns;
    /* Longest and shortest without the time the thread was preempted. */
    u64 in_band_max_ns;
    u64 in_band_min_not_ns;
};

struct sleep_key {
    struct site_key site;
    u64 stack;
    u64 kind;
};

/* Sleeps in one kernel stack: of one call in struct thread, of all calls of a site in the map. */
struct sleep {
    u64 count;
    u64 blocked_ns;
    u64 max_ns;
    u64 wakeup_ns;
    u64 entry_sum;
    u64 exit_sum;
    u64 entry_max;
    u64 exit_max;
};

struct call_sleep {
    u64 stack;
    u64 kind;
    struct sleep sum;
};

/* Bytes of a program's path in the news of an exec; a longer one is cut. */
#define PATH_BYTES 128

struct process_event {
    u64 kind;
    /* Process id and count of execs; after a fork those of the child. */
    u64 process;
    /* The same of the parent after a fork. */
    u64 parent;
    u64 time_ns;
    u64 comm[2];
    /* After an exec, as it was given to execve; a process may end before /proc is read. */
    u64 path[PATH_BYTES / 8];
};

struct record {
    u64 kind;
    struct site_key key;
    u64 tid;
    u64 result;
    u64 start_ns;
    u64 wall_ns;
    u64 faults_minor;
    u64 faults_major;
    u64 preemptions;
    u64 preempted_ns;
    u64 wakeup_ns;
    u64 sleeps_used;
    u64 sleeps_dropped;
    u64 user_frames;
    u64 comm[2];
    struct call_sleep sleeps[SLEEPS_MAX];
    u64 user_stack[USER_FRAMES_MAX];
};

/* A sleep of a traced thread, with the number of other tasks asleep on the same resource. */
struct waited {
    u64 kind;
    /* Thread id, and the process id in the upper half. */
    u64 task;
    u64 number;
    u64 start_ns;
    u64 end_ns;
    u64 stack;
    u64 resource;
    u64 entry;
    u64 exit;
};

/* Bytes of a path in the news of a sleep; a longer one is cut. Two parts of it may take more than that. */
#define NAME_BYTES 256

/* How a connection came to be observed. The upper half is the number by which it is sampled. */
enum connection_flag {
    /* It was there before the observation, so its first times are not known. */
    SEEN_LATE = 1,
    /* It ended before the server wrote. */
    UNANSWERED = 2,
    /* Not seen before its first request, when it was not seen which connections are accepted. */
    FIRST_UNKNOWN = 4,
};

/* A request up to the first byte of its response. A time of zero is not known. */
struct request_event {
    u64 kind;
    u64 connection;
    /* Of the connection, from 0. */
    u64 sequence;
    /* Thread ids, with process ids in the upper halves; zero if there is none. */
    u64 acceptor;
    u64 reader;
    u64 writer;
    u64 established_ns;
    u64 accepted_ns;
    /* The first bytes of the request were queued, and read. */
    u64 arrived_ns;
    u64 read_ns;
    /* The same of its last bytes. */
    u64 last_arrived_ns;
    u64 last_read_ns;
    /* The first bytes of the response were sent; the end if UNANSWERED. */
    u64 written_ns;
    u64 read_bytes;
    u64 flags;
    /* Local port, and the client's in the upper half. */
    u64 ports;
};

/* The rest of a response, when the next request or the end of the connection comes. */
struct response_event {
    u64 kind;
    u64 connection;
    u64 sequence;
    u64 last_written_ns;
    /* All but two segments were acknowledged; zero if that was not seen. */
    u64 drained_ns;
    u64 written_bytes;
};

/* Bytes of the beginning of a request; a longer one is cut. */
#define HEAD_BYTES 256

/* The beginning of a request, if it is wanted. */
struct head_event {
    u64 kind;
    u64 connection;
    u64 sequence;
    /* With a zero behind it. */
    u64 text[HEAD_BYTES / 8];
};

/* Bytes of the beginning of a response: the status line up to the status, with zeroes behind it. */
#define STATUS_BYTES 16

/* The beginning of a response, if it is wanted. */
struct status_event {
    u64 kind;
    u64 connection;
    u64 sequence;
    u64 text[STATUS_BYTES / 8];
};

/* A thread was not on a CPU. */
struct off_cpu_event {
    u64 kind;
    u64 task;
    /* The call it slept in, or CALL_NONE. */
    u64 number;
    /* Zero if it was off the CPU when the observation began; nothing is known of why. */
    u64 start_ns;
    /* Zero if it was preempted. */
    u64 woken_ns;
    u64 end_ns;
    u64 stack;
    /* The connection which the thread used last; zero since its last wait for events. */
    u64 connection;
    /* The descriptor of the call plus one; zero if it has none. */
    u64 descriptor;
    /* The device of the file system (dev_t of the kernel) if the name is that of a descriptor. */
    u64 device;
    /* The task that woke it, if it slept; a wakeup by an interrupt has the task that was interrupted. */
    u64 waker;
    u64 waker_comm[2];
    /* Where in the kernel it was then. */
    u64 waker_stack;
    /* Other threads of the server that waited for the same, at the beginning and at the wakeup. */
    u64 waiters_entry;
    u64 waiters_exit;
    /*
     * A path. Of a descriptor: the parts of its path in its file system, the last one first, each with a zero
     * behind it; one that begins the path is the root of the file system. Not sent if empty.
     */
    u64 name[NAME_BYTES / 8];
};

#endif
