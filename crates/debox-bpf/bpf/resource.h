/*
 * The resource that a task waits for, and the count of its waiters.
 */
#ifndef HEADWAY_RESOURCE_H
#define HEADWAY_RESOURCE_H

#include "registers.h"
#include "waiters.h"

/* A kernel lock has precedence, since the task sleeps on it. */
INLINE int lock_of(struct task_struct *task, struct resource *resource) {
    u32 tid = task->pid;
    u64 *lock = map_lookup(&locks, &tid);
    if (!lock) return 0;
    resource->kind = RESOURCE_LOCK;
    resource->address = *lock;
    return 1;
}

/* The inode of a descriptor, or the open file if all files of its kind share one inode. */
INLINE u64 file_of(struct task_struct *task, u64 descriptor) {
    struct file *file = open_file(task, descriptor);
    if (!file) return 0;
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

/* Adds a task to the waiters of its resource and returns how many there were before. */
INLINE u64 begin_wait(u32 tid, const struct resource *resource) {
    struct location location;
    u64 hash = hash_of(resource);
    u64 others = waiters_of(hash, hash >> COUNT_BITS);
    if (!take_slot(hash, &location)) {
        count_lost(LOST_WAITERS);
        return others;
    }
    if (map_update(&places, &tid, &location, UPDATE_NOEXIST) == 0) return others;
    /* No space, or the kernel has not reported the last wakeup: a count must not stay raised. */
    end_wait(tid);
    if (map_update(&places, &tid, &location, UPDATE_NOEXIST)) {
        release_slot(&location);
        count_lost(LOST_WAITERS);
    }
    return others;
}

#endif
