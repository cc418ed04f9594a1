/*
 * The maps of the objects which count waiters, beside those of observe.h.
 */
#ifndef HEADWAY_SHARED_H
#define HEADWAY_SHARED_H

#include "observe.h"

/* The slot of a sleeping task in `waiting`. */
struct location {
    u64 tag;
    u64 slot;
};

/* Thread id to the kernel lock it contends for, of every task of the system. */
struct {
    VALUE(type, MAP_LRU_HASH);
    VALUE(max_entries, 16384);
    TYPE(key, u32);
    TYPE(value, u64);
} locks SECTION(".maps");

/* Thread id to its slot in `waiting`, of every task asleep on a known resource. */
struct {
    VALUE(type, MAP_HASH);
    VALUE(max_entries, 16384);
    TYPE(key, u32);
    TYPE(value, struct location);
} places SECTION(".maps");

/* Counts of waiters; see waiters.h. */
struct {
    VALUE(type, MAP_ARRAY);
    VALUE(max_entries, 65536);
    TYPE(key, u32);
    TYPE(value, u64);
} waiting SECTION(".maps");

/* Set by the Rust code before loading. */
const volatile u32 waiting_mask = 65535;
const volatile u64 futex_number = 0;
/* By number of a call: 1 if its first argument is a descriptor it may wait for, 2 if its records are kept. */
const volatile u8 call_traits[CALLS_MAX] = {};

/* Keeps the maximum. After a few tries another CPU has stored a value that is about as large. */
INLINE void raise_to(u64 *largest, u64 value) {
    for (int attempt = 0; attempt < 4; attempt++) {
        u64 seen = *(volatile u64 *)largest;
        if (value <= seen || __sync_val_compare_and_swap(largest, seen, value) == seen) return;
    }
}

#endif
