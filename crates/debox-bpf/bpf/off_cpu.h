/* What threads did while they were not on a CPU. Included by requests.bpf.c, which has their maps. */

/* Counts a thread among those of the server that wait for the same, and returns how many did before. */
INLINE u64 wait_with_others(struct task_struct *task, struct off_cpu_event *event) {
    struct resource resource = {};
    if (!lock_of(task, &resource) && event->number != CALL_NONE) {
        long regs = task_registers(task);
        u64 first = ARGUMENT_0(READ, regs), second = ARGUMENT_1(READ, regs);
        resource_of_call(task, event->number, first, second, &resource);
    }
    if (resource.kind == RESOURCE_NONE && event->stack != STACK_UNKNOWN) {
        resource.kind = RESOURCE_STACK;
        resource.address = event->stack;
    }
    return resource.kind == RESOURCE_NONE ? 0 : begin_wait(task->pid, &resource);
}

INLINE u64 stack_now(u64 *context) {
    long stack = stack_id(context, &stacks, 0);
    if (stack >= 0) return stack;
    count_lost(LOST_STACKS);
    return STACK_UNKNOWN;
}

INLINE void switch_out(u64 *context, struct task_struct *task, int preempted, u32 state) {
    u32 tid = task->pid, tgid = task->tgid;
    if (!is_target(tgid)) return;
    if (state & TASK_DEAD) {
        /* It slept while exiting, which created its state again. */
        map_delete(&activities, &tid);
        return;
    }
    struct activity *activity = activity_of(tid);
    if (!activity) return;
    struct off_cpu_event *event = &activity->event;
    int sleeps = !preempted && state && !is_runnable(task);
    event->kind = EVENT_OFF_CPU;
    event->task = (u64)tgid << 32 | tid;
    event->woken_ns = 0;
    event->stack = STACK_UNKNOWN;
    event->number = CALL_NONE;
    event->descriptor = 0;
    event->device = 0;
    event->name[0] = 0;
    event->waiters_entry = 0;
    event->waiters_exit = 0;
    event->connection = activity->connection;
    activity->waits = 0;
    if (sleeps) {
        u8 trait = describe(task, event);
        activity->waits = trait & RETURNS_EVENTS;
        if (activity->waits) activity->connection = 0;
        if (!(trait & WAITS_FOR_EVENTS)) {
            event->stack = stack_now(context);
            event->waiters_entry = wait_with_others(task, event);
        }
    }
    activity->asleep = sleeps;
    event->start_ns = now_ns();
    activity->off_ns = event->start_ns;
}

/* A thread that is off the CPU since before the observation; null if it is none of the server's. */
INLINE struct activity *begin_activity(struct task_struct *task) {
    if (!is_target(task->tgid)) return 0;
    struct activity *activity = activity_of(task->pid);
    if (!activity) return 0;
    struct off_cpu_event *event = &activity->event;
    event->kind = EVENT_OFF_CPU;
    event->task = (u64)task->tgid << 32 | (u32)task->pid;
    event->number = CALL_NONE;
    event->stack = STACK_UNKNOWN;
    activity->off_ns = now_ns();
    activity->asleep = 1;
    return activity;
}

INLINE void switch_in(struct task_struct *task) {
    u32 tid = task->pid;
    struct activity *activity = map_lookup(&activities, &tid);
    if (!activity) activity = begin_activity(task);
    if (!activity || !activity->off_ns) return;
    struct off_cpu_event *event = &activity->event;
    event->end_ns = now_ns();
    activity->off_ns = 0;
    /* A wakeup that was not reported: it ran at once. */
    if (activity->asleep && !event->woken_ns) {
        event->woken_ns = event->end_ns;
        event->waiters_exit = end_wait(tid);
    }
    if (activity->waits && event->woken_ns > event->start_ns)
        activity->idle_ns += event->woken_ns - event->start_ns;
    u64 bytes = event->name[0] & 0xff ? sizeof(*event) : sizeof(*event) - NAME_BYTES;
    if (ringbuf_output(&events, event, bytes, NO_WAKEUP)) count_lost(LOST_RECORDS);
    event->waker = 0;
}

SECTION("tp_btf/sched_switch") int switched(u64 *context) {
    struct task_struct *out = (void *)context[1], *in = (void *)context[2];
    if (out->pid) switch_out(context, out, context[0] & 1, context[3]);
    if (in->pid) switch_in(in);
    return 0;
}

/*
 * Only here is the current task the one that wakes: the wakeup itself may be made by the CPU of the woken
 * task. This may come before the task is off its CPU.
 */
SECTION("tp_btf/sched_waking") int waking(u64 *context) {
    struct task_struct *task = (void *)context[0];
    u32 tid = task->pid;
    struct activity *activity = map_lookup(&activities, &tid);
    if (!activity && !is_runnable(task)) activity = begin_activity(task);
    if (!activity) return 0;
    struct off_cpu_event *event = &activity->event;
    event->waker = current_pid_tgid();
    current_comm(event->waker_comm, sizeof(event->waker_comm));
    /* That of a wait for events tells nothing, and there are many. */
    int tells = !activity->off_ns || !event->start_ns || event->stack != STACK_UNKNOWN;
    event->waker_stack = tells ? stack_now(context) : STACK_UNKNOWN;
    return 0;
}

SECTION("tp_btf/sched_wakeup") int woken(u64 *context) {
    struct task_struct *task = (void *)context[0];
    u32 tid = task->pid;
    struct activity *activity = map_lookup(&activities, &tid);
    if (!activity) activity = begin_activity(task);
    if (activity && activity->off_ns && activity->asleep && !activity->event.woken_ns) {
        activity->event.woken_ns = now_ns();
        activity->event.waiters_exit = end_wait(tid);
    }
    return 0;
}
