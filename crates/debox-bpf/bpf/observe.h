/*
 * The maps of all objects that observe processes. The Rust code sets their sizes before they are created;
 * entries for which there is no space are counted in `lost`. Each object has its own maps.
 */
#ifndef HEADWAY_OBSERVE_H
#define HEADWAY_OBSERVE_H

#include "layout.h"

/* Traced processes: process id to count of execs; in waiters.bpf.c to TRACED or CHILDREN_ONLY. */
struct {
    VALUE(type, MAP_HASH);
    VALUE(max_entries, 4096);
    TYPE(key, u32);
    TYPE(value, u64);
} targets SECTION(".maps");

struct {
    VALUE(type, MAP_STACK_TRACE);
    VALUE(max_entries, 8192);
    VALUE(key_size, sizeof(u32));
    VALUE(value_size, KERNEL_FRAMES_MAX * sizeof(u64));
} stacks SECTION(".maps");

struct {
    VALUE(type, MAP_RINGBUF);
    VALUE(max_entries, 1 << 20);
} events SECTION(".maps");

struct {
    VALUE(type, MAP_PERCPU_ARRAY);
    VALUE(max_entries, LOST_KINDS);
    TYPE(key, u32);
    TYPE(value, u64);
} lost SECTION(".maps");

INLINE void add(u64 *sum, u64 amount) {
    __sync_fetch_and_add(sum, amount);
}

INLINE void count_lost(u32 kind) {
    u64 *count = map_lookup(&lost, &kind);
    if (count) add(count, 1);
}

/*
 * A task that set its state but received a signal before it left the CPU stays on the run queue, and no
 * wakeup follows. Since 6.12 a sleeping task may also stay there until the scheduler would pick it.
 */
INLINE int is_runnable(struct task_struct *task) {
    int delayed = HAS_FIELD(task, se.sched_delayed) ? FIELD(task, se.sched_delayed) : 0;
    return task->on_rq && !delayed;
}

/* The file behind a descriptor of a task; null if there is none. */
INLINE struct file *open_file(struct task_struct *task, u64 descriptor) {
    struct fdtable *table = FIELD(FIELD(task, files), fdt);
    if (descriptor >= FIELD(table, max_fds)) return 0;
    struct file **slot = FIELD(table, fd) + descriptor, *file = 0;
    return read_kernel(&file, sizeof(file), slot) ? 0 : file;
}

#endif
