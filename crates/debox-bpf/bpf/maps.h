/*
 * The maps that only attach.bpf.c has, in addition to those of shared.h. The Rust code sets their sizes.
 */
#ifndef HEADWAY_MAPS_H
#define HEADWAY_MAPS_H

#include "shared.h"

/* The state of a thread: its current call and its current sleep. */
struct thread {
    struct site_key key;
    u64 in_call;
    /* Not yet run: it will return from the call that created it, which it did not make. */
    u64 unborn;
    u64 arguments[2];
    u64 result;
    u64 start_ns;
    u64 faults_minor;
    u64 faults_major;
    u64 blocked_ns;
    u64 preemptions;
    u64 preempted_ns;
    u64 wakeup_ns;
    u64 sleeps_used;
    u64 sleeps_dropped;
    u64 slept;
    /* Off-CPU since this time; 0 while it runs. */
    u64 off_ns;
    u64 asleep;
    u64 woken_ns;
    struct sleep_key off_key;
    u64 waiters_entry;
    u64 waiters_exit;
    struct call_sleep sleeps[SLEEPS_MAX];
};

struct {
    VALUE(type, MAP_HASH);
    VALUE(max_entries, 4096);
    TYPE(key, u32);
    TYPE(value, struct thread);
} threads SECTION(".maps");

struct {
    VALUE(type, MAP_HASH);
    VALUE(max_entries, 8192);
    TYPE(key, struct site_key);
    TYPE(value, struct call_total);
} calls SECTION(".maps");

struct {
    VALUE(type, MAP_HASH);
    VALUE(max_entries, 8192);
    TYPE(key, struct sleep_key);
    TYPE(value, struct sleep);
} sleeps SECTION(".maps");

/* Records that met the conditions, for every Nth. */
struct {
    VALUE(type, MAP_ARRAY);
    VALUE(max_entries, 1);
    TYPE(key, u32);
    TYPE(value, u64);
} met SECTION(".maps");

/* The offset of the return address above the stack pointer, by process and address of the instruction. */
struct {
    VALUE(type, MAP_LRU_HASH);
    VALUE(max_entries, 8192);
    TYPE(key, struct site_key);
    TYPE(value, u64);
} frames SECTION(".maps");

/*
 * Process ids of traced processes that have ended, to their counts of execs: one that reuses the id counts on
 * from there, lest the two are taken for one.
 */
struct {
    VALUE(type, MAP_LRU_HASH);
    VALUE(max_entries, 32768);
    TYPE(key, u32);
    TYPE(value, u64);
} used_ids SECTION(".maps");

/* Thread id to the record of its last call that slept, for merging into in-band records. */
struct {
    VALUE(type, MAP_LRU_HASH);
    VALUE(max_entries, 4096);
    TYPE(key, u32);
    TYPE(value, struct record);
} last SECTION(".maps");

/* Buffer in which a record for `last` is built. */
struct {
    VALUE(type, MAP_PERCPU_ARRAY);
    VALUE(max_entries, 1);
    TYPE(key, u32);
    TYPE(value, struct record);
} scratch SECTION(".maps");

/* Set by the Rust code before loading. The verifier knows the values and removes dead code. */
const volatile u8 follow_children = 1;
const volatile u8 waiters_everywhere = 1;
const volatile u8 keep_last = 0;
const volatile u8 keep_records = 1;
const volatile u8 keep_only_slept = 0;
const volatile u8 keep_calls_all = 1;
const volatile u64 keep_slower_ns = 0;
const volatile u64 keep_one_in = 1;

#endif
