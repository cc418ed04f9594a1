/*
 * What both objects have: the maps, which are bounded and whose sizes the Rust side sets before they are
 * made; what finds no room is counted in `lost`. A map of one object is not that of the other.
 */
#ifndef HEADWAY_SHARED_H
#define HEADWAY_SHARED_H

#include "layout.h"

/* Where a sleeping task stands in `waiting`. */
struct place {
    u64 tag;
    u64 slot;
};

/* Who is traced: process number to count of execs; in waiters.bpf.c to TRACED or CHILDREN_ONLY. */
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

/* Thread number to the kernel lock it contends for, of every task of the system. */
struct {
    VALUE(type, MAP_LRU_HASH);
    VALUE(max_entries, 16384);
    TYPE(key, u32);
    TYPE(value, u64);
} locks SECTION(".maps");

/* Thread number to its place among the waiters, of every task asleep on something that has a name. */
struct {
    VALUE(type, MAP_HASH);
    VALUE(max_entries, 16384);
    TYPE(key, u32);
    TYPE(value, struct place);
} places SECTION(".maps");

/* Counts of waiters; see waiters.h. */
struct {
    VALUE(type, MAP_ARRAY);
    VALUE(max_entries, 65536);
    TYPE(key, u32);
    TYPE(value, u64);
} waiting SECTION(".maps");

/* What the Rust side decides before loading. */
const volatile u32 waiting_mask = 65535;
const volatile u64 futex_number = 0;
/* By number of a call: 1 if its first argument is a descriptor it may wait for, 2 if its records are kept. */
const volatile u8 call_traits[CALLS_MAX] = {};

INLINE void add(u64 *sum, u64 amount) {
    __sync_fetch_and_add(sum, amount);
}

INLINE void count_lost(u32 kind) {
    u64 *count = map_lookup(&lost, &kind);
    if (count) add(count, 1);
}

/* The larger one stays. A few tries: after that a neighbour has put in one that is about as large. */
INLINE void raise(u64 *largest, u64 value) {
    for (int attempt = 0; attempt < 4; attempt++) {
        u64 seen = *(volatile u64 *)largest;
        if (value <= seen || __sync_val_compare_and_swap(largest, seen, value) == seen) return;
    }
}

#endif
