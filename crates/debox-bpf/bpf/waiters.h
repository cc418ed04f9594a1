/*
 * How many tasks sleep on the same resource.
 *
 * A kernel lock, a futex word and a file have a key; a task that goes to sleep raises the key's count, and
 * its wakeup lowers it. A hash map would need a lock to remove a count that became zero without losing one
 * that is being raised, and such locks are not allowed here. So the counts live in an array of words, 40 bits
 * of the key's hash above 24 bits of count: a key has a first slot and a few after it, a slot with count
 * zero is free, and every change is one atomic operation. Two CPUs may take two slots for one key at the
 * same time, so a count is the sum over all slots of that key, which is right in any order.
 */
#ifndef HEADWAY_WAITERS_H
#define HEADWAY_WAITERS_H

#include "shared.h"

#define WINDOW 8
#define COUNT_BITS 24
#define COUNT_MASK ((1ULL << COUNT_BITS) - 1)

struct resource {
    u64 kind;
    u64 address;
    /* The address space of the address: 0 for the kernel, that of the process for a private futex. */
    u64 space;
};

/* A strong mixing of 64 bits (the finaliser of splitmix64), since addresses differ in few bits. */
INLINE u64 mix(u64 value) {
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
    return value ^ (value >> 31);
}

INLINE u64 hash_of(const struct resource *resource) {
    return mix(mix(mix(resource->kind) + resource->address) + resource->space);
}

INLINE u64 *slot_at(u64 first, u32 step) {
    u32 index = (first + step) & waiting_mask;
    return map_lookup(&waiting, &index);
}

/* Tasks asleep with this tag now. */
INLINE u64 waiters_of(u64 first, u64 tag) {
    u64 count = 0;
    for (u32 step = 0; step < WINDOW; step++) {
        u64 *slot = slot_at(first, step);
        u64 word = slot ? *(volatile u64 *)slot : 0;
        if (word >> COUNT_BITS == tag) count += word & COUNT_MASK;
    }
    return count;
}

/* Raises the count of a key; false if all its slots belong to other keys. */
INLINE int take_slot(u64 hash, struct location *location) {
    u64 tag = hash >> COUNT_BITS;
    location->tag = hash;
    for (u32 step = 0; step < 4 * WINDOW; step++) {
        /* Each round tries the key's own slot, then a free one; it repeats if other CPUs were faster. */
        int take_free = (step / WINDOW) & 1;
        u64 *slot = slot_at(hash, step % WINDOW);
        if (!slot) continue;
        u64 word = *(volatile u64 *)slot;
        int free = (word & COUNT_MASK) == 0;
        if (free ? !take_free : word >> COUNT_BITS != tag) continue;
        u64 next = free ? (tag << COUNT_BITS) | 1 : word + 1;
        if (__sync_val_compare_and_swap(slot, word, next) != word) continue;
        location->slot = (hash + step % WINDOW) & waiting_mask;
        return 1;
    }
    return 0;
}

/* Lowers the count; a slot that reaches zero is free whatever its tag says. */
INLINE void release_slot(const struct location *location) {
    u32 index = location->slot;
    u64 *slot = map_lookup(&waiting, &index);
    if (slot) __sync_fetch_and_add(slot, -1ULL);
}

/* Removes a task, once, and returns how many remain. */
INLINE u64 end_wait(u32 tid) {
    struct location *found = map_lookup(&places, &tid);
    if (!found) return 0;
    struct location location = *found;
    if (map_delete(&places, &tid)) return 0;
    release_slot(&location);
    return waiters_of(location.tag, location.tag >> COUNT_BITS);
}

#endif
