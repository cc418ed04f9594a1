/*
 * Waiters for in-band records: the sleeps of the threads of traced processes, and how many other tasks slept
 * on the same resource.
 *
 * The threads record their calls themselves, with times, faults and sleeps. They cannot see other tasks, so
 * this part adds one event per sleep, with the counts at its beginning and at its wakeup. System calls are
 * not observed, so a call that does not sleep costs nothing more. Context switches, wakeups and lock
 * contentions of the whole system are observed, since any task may be a waiter.
 *
 * It refuses to copy arguments, data or names, and to wake its reader, which polls.
 *
 * Sources: Ruan's dissertation (2005), section 2.3.1 (the waiters of PerSleepInfo);
 * include/trace/events/{sched,lock}.h.
 */
#include "locks.h"
#include "resource.h"

/* Sleeps under way, by thread id. */
struct {
    VALUE(type, MAP_HASH);
    VALUE(max_entries, 4096);
    TYPE(key, u32);
    TYPE(value, struct waited);
} asleep SECTION(".maps");

/* What a task that leaves the CPU waits for, and in which call. */
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

INLINE void begin_sleep(u64 *context, struct task_struct *task) {
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

INLINE void report_sleep(u32 tid, struct waited *waited) {
    if (ringbuf_output(&events, waited, sizeof(*waited), NO_WAKEUP)) count_lost(LOST_RECORDS);
    map_delete(&asleep, &tid);
}

INLINE void end_sleep(u32 tid) {
    struct waited *waited = map_lookup(&asleep, &tid);
    if (!waited) return;
    waited->end_ns = now_ns();
    report_sleep(tid, waited);
}

/*
 * The thread runs, so if it is still asleep in our state, the kernel has not reported its return. Its sleep
 * is known up to the wakeup.
 */
INLINE void close_unfinished(u32 tid) {
    struct waited *waited = map_lookup(&asleep, &tid);
    if (!waited) return;
    count_lost(LOST_EVENTS);
    if (!waited->end_ns) waited->end_ns = waited->start_ns;
    report_sleep(tid, waited);
}

SECTION("tp_btf/sched_switch") int switched(u64 *context) {
    struct task_struct *out = (void *)context[1], *in = (void *)context[2];
    u32 state = context[3];
    /* Preempted, still runnable, or exiting: not a sleep. */
    int sleeps = out->pid && !(context[0] & 1) && state && !(state & TASK_DEAD) && !is_runnable(out);
    if (out->pid) close_unfinished(out->pid);
    if (sleeps) begin_sleep(context, out);
    if (in->pid) {
        /* A running task waits for nothing; usually the wakeup has already removed it. */
        end_wait(in->pid);
        end_sleep(in->pid);
    }
    return 0;
}

/* The wakeup itself, not the attempt (sched_waking), which may precede the sleep. */
SECTION("tp_btf/sched_wakeup") int woken(u64 *context) {
    struct task_struct *task = (void *)context[0];
    u32 tid = task->pid;
    u64 remaining = end_wait(tid);
    struct waited *waited = map_lookup(&asleep, &tid);
    if (!waited) return 0;
    waited->exit = remaining;
    waited->end_ns = now_ns();
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
    close_unfinished(tid);
    end_wait(tid);
    /* The process id will be reused by another process, which must not be traced. */
    if (FIELD(FIELD(task, signal), live.counter) == 0) map_delete(&targets, &tgid);
    return 0;
}

char permission[] SECTION("license") = "Dual MIT/GPL";
