/*
 * Waiters for in-band records: which sleeps the threads of traced processes had, and how many others slept on
 * the same.
 *
 * The threads record their calls themselves, with times, faults and sleeps. What they cannot see is others,
 * so that is all this part adds: one event a sleep, with the counts at its beginning and at its wake-up.
 * System calls are not watched, so a call that does not sleep costs what it cost without this; and the
 * switches, wake-ups and lock contentions of the whole system are, since whoever waits may be anybody.
 *
 * It refuses to copy arguments, data or names, and to wake its reader, who looks by the clock.
 *
 * Sources: Ruan's dissertation (2005), section 2.3.1 (the waiters of PerSleepInfo);
 * include/trace/events/{sched,lock}.h.
 */
#include "locks.h"
#include "resource.h"

/* Sleeps that are not over, by thread number. */
struct {
    VALUE(type, MAP_HASH);
    VALUE(max_entries, 4096);
    TYPE(key, u32);
    TYPE(value, struct waited);
} asleep SECTION(".maps");

/* What a task that leaves the processor waits for, and in which call. */
INLINE u64 find_resource(struct task_struct *task, struct resource *resource) {
    int locked = lock_of(task, resource);
    if (task->flags & PF_KTHREAD) return CALL_NONE;
    long regs = task_registers(task);
    if (!regs || !in_system_call(regs)) return CALL_NONE;
    u64 number = number_at(regs);
    if (!locked) resource_of_call(task, number, ARGUMENT_0(READ, regs), ARGUMENT_1(READ, regs), resource);
    return number | compat_flag(task);
}

INLINE int is_traced(u32 tgid) {
    u64 *target = map_lookup(&targets, &tgid);
    return target && *target == TRACED;
}

INLINE void go_to_sleep(u64 *context, struct task_struct *task) {
    u32 tid = task->pid;
    int traced = is_traced(task->tgid);
    struct resource resource = {};
    struct waited waited = {.kind = EVENT_WAITED};
    waited.number = find_resource(task, &resource);
    if (traced) {
        long stack = stack_id(context, &stacks, 0);
        if (stack < 0) count_lost(LOST_STACKS);
        waited.stack = stack < 0 ? STACK_UNKNOWN : stack;
        if (resource.kind == RESOURCE_NONE && stack >= 0) {
            resource.kind = RESOURCE_STACK;
            resource.address = stack;
        }
    }
    if (resource.kind != RESOURCE_NONE) waited.entry = begin_wait(tid, &resource);
    if (!traced) return;
    waited.task = (u64)task->tgid << 32 | tid;
    waited.resource = resource.kind;
    waited.start_ns = now_ns();
    if (map_update(&asleep, &tid, &waited, UPDATE_ANY)) count_lost(LOST_THREADS);
}

INLINE void come_back(u32 tid) {
    struct waited *waited = map_lookup(&asleep, &tid);
    if (!waited) return;
    waited->end_ns = now_ns();
    if (ringbuf_output(&events, waited, sizeof(*waited), NO_WAKEUP)) count_lost(LOST_RECORDS);
    map_delete(&asleep, &tid);
}

SECTION("tp_btf/sched_switch") int switched(u64 *context) {
    struct task_struct *out = (void *)context[1], *in = (void *)context[2];
    u32 state = context[3];
    /* Preempted, still runnable, or leaving for the last time: no sleep. */
    int sleeps = out->pid && !(context[0] & 1) && state && !(state & TASK_DEAD) && !is_runnable(out);
    if (sleeps) go_to_sleep(context, out);
    if (in->pid) {
        /* Who runs waits for nothing; as a rule the wake-up has seen to that. */
        end_wait(in->pid);
        come_back(in->pid);
    }
    return 0;
}

/* The wake-up and not the attempt (sched_waking), which may come before the sleep is seen. */
SECTION("tp_btf/sched_wakeup") int woken(u64 *context) {
    struct task_struct *task = (void *)context[0];
    u32 tid = task->pid;
    u64 remaining = end_wait(tid);
    struct waited *waited = map_lookup(&asleep, &tid);
    if (waited) waited->exit = remaining;
    return 0;
}

SECTION("tp_btf/sched_process_fork") int forked(u64 *context) {
    struct task_struct *parent = (void *)context[0], *child = (void *)context[1];
    u32 from = parent->tgid, to = child->tgid;
    u64 traced = TRACED;
    if (from == to || !map_lookup(&targets, &from)) return 0;
    if (map_update(&targets, &to, &traced, UPDATE_ANY)) count_lost(LOST_PROCESSES);
    return 0;
}

SECTION("tp_btf/sched_process_exit") int exited(u64 *context) {
    struct task_struct *task = (void *)context[0];
    u32 tid = task->pid, tgid = task->tgid;
    map_delete(&locks, &tid);
    map_delete(&asleep, &tid);
    end_wait(tid);
    /* The number will be given to a stranger, who must not be traced. */
    if (FIELD(FIELD(task, signal), live.counter) == 0) map_delete(&targets, &tgid);
    return 0;
}

char permission[] SECTION("license") = "Dual MIT/GPL";
