/*
 * Which kernel lock a task contends for, so that a sleep in between is one on that lock. Two programs of each
 * object.
 */
#ifndef HEADWAY_LOCKS_H
#define HEADWAY_LOCKS_H

#include "shared.h"

SECTION("tp_btf/contention_begin") int contend(u64 *context) {
    if (context[1] & LOCK_SPINS) return 0;
    u32 tid = current_pid_tgid();
    u64 lock = context[0];
    map_update(&locks, &tid, &lock, UPDATE_ANY);
    return 0;
}

SECTION("tp_btf/contention_end") int contended(u64 *context) {
    u32 tid = current_pid_tgid();
    u64 *lock = map_lookup(&locks, &tid);
    /* A spinning wait inside the sleeping one, for the queue's own lock, ends too. */
    if (lock && *lock == context[0]) map_delete(&locks, &tid);
    return 0;
}

#endif
