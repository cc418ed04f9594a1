/* Waits for events: how many events they return, and how long a turn of the loop takes. Included by
 * requests.bpf.c. */

/* Ready events by call: how many calls returned 0, 1, 2 to 3, 4 to 7, … */
#define READY_BUCKETS 16
struct {
    VALUE(type, MAP_PERCPU_ARRAY);
    VALUE(max_entries, READY_BUCKETS);
    TYPE(key, u32);
    TYPE(value, u64);
} ready SECTION(".maps");

/* Turns of event loops by their length: from 2^N ns on. */
#define TURN_BUCKETS 64
struct {
    VALUE(type, MAP_PERCPU_ARRAY);
    VALUE(max_entries, TURN_BUCKETS);
    TYPE(key, u32);
    TYPE(value, u64);
} turns SECTION(".maps");

INLINE void count_ready(s64 events) {
    u32 bucket = 0;
    for (; bucket < READY_BUCKETS - 1 && events >> bucket; bucket++) {
    }
    u64 *count = map_lookup(&ready, &bucket);
    if (count) *count += 1;
}

INLINE u32 log2_of(u64 value) {
    u32 bits = 0;
    if (value >> 32) value >>= 32, bits += 32;
    if (value >> 16) value >>= 16, bits += 16;
    if (value >> 8) value >>= 8, bits += 8;
    if (value >> 4) value >>= 4, bits += 4;
    if (value >> 2) value >>= 2, bits += 2;
    return bits + (u32)(value >> 1);
}

/*
 * A wait for events returns. The turn before it took the time since the wait before, but for the sleep in
 * this one: what became ready meanwhile was late by up to that.
 */
INLINE void end_turn(u64 task) {
    struct activity *activity = activity_of(task);
    if (!activity) return;
    u64 now = now_ns();
    if (activity->turn_ns > control_of(CALLS_SINCE) && now > activity->turn_ns + activity->idle_ns) {
        u32 bucket = log2_of(now - activity->turn_ns - activity->idle_ns) & (TURN_BUCKETS - 1);
        u64 *count = map_lookup(&turns, &bucket);
        if (count) *count += 1;
    }
    activity->connection = 0;
    activity->turn_ns = now;
    activity->idle_ns = 0;
}
