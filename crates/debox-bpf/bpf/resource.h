/*
 * What a task that goes to sleep waits for, and putting it among those who wait for the same.
 */
#ifndef HEADWAY_RESOURCE_H
#define HEADWAY_RESOURCE_H

#include "registers.h"
#include "waiters.h"

/* A kernel lock comes first, since that is what the task sleeps on. */
INLINE int lock_of(struct task_struct *task, struct resource *resource) {
    u32 tid = task->pid;
    u64 *lock = map_lookup(&locks, &tid);
    if (!lock) return 0;
    resource->kind = RESOURCE_LOCK;
    resource->address = *lock;
    return 1;
}

/* The inode behind a descriptor, or the open file where all of its kind share one inode. */
INLINE u64 file_of(struct task_struct *task, u64 descriptor) {
    struct fdtable *table = FIELD(FIELD(task, files), fdt);
    if (descriptor >= FIELD(table, max_fds)) return 0;
    struct file **slot = FIELD(table, fd) + descriptor, *file = 0;
    if (read_kernel(&file, sizeof(file), slot) || !file) return 0;
    struct inode *inode = FIELD(file, f_inode);
    return FIELD(FIELD(inode, i_sb), s_magic) == ANON_INODE_MAGIC ? (u64)file : (u64)inode;
}

/* The futex word or the file of a call with these first two arguments; nothing if it has neither. */
INLINE void resource_of_call(struct task_struct *task, u64 number, u64 first, u64 second,
                             struct resource *resource) {
    if (number == futex_number) {
        resource->kind = RESOURCE_FUTEX;
        resource->address = first;
        resource->space = second & FUTEX_PRIVATE ? (u64)FIELD(task, mm) : 0;
    } else if (number < CALLS_MAX && (call_traits[number] & 1)) {
        resource->address = file_of(task, (u32)first);
        resource->kind = resource->address ? RESOURCE_FILE : RESOURCE_NONE;
    }
}

/* Puts a task that goes to sleep among the waiters of its resource; returns how many are there already. */
INLINE u64 begin_wait(u32 tid, const struct resource *resource) {
    struct place place;
    u64 hash = hash_of(resource);
    u64 others = waiters_of(hash, hash >> COUNT_BITS);
    if (!take_place(hash, &place)) {
        count_lost(LOST_WAITERS);
        return others;
    }
    if (map_update(&places, &tid, &place, UPDATE_NOEXIST) == 0) return others;
    /* No room, or the kernel has not shown the last wake-up: a count must never stay raised. */
    end_wait(tid);
    if (map_update(&places, &tid, &place, UPDATE_NOEXIST)) {
        leave_place(&place);
        count_lost(LOST_WAITERS);
    }
    return others;
}

/*
 * A task that set its state but was hit by a signal before it left stays on the run queue, and nobody will
 * wake it. Since 6.12 a sleeper may stay there, too, until it is its turn to leave.
 */
INLINE int is_runnable(struct task_struct *task) {
    int delayed = HAS_FIELD(task, se.sched_delayed) ? FIELD(task, se.sched_delayed) : 0;
    return task->on_rq && !delayed;
}

#endif
