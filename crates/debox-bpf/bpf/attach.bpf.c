/*
 * System-call records of other processes, out of band: the kernel's part.
 *
 * Four events are observed, as in the paper's kernel: entry and exit of a call, sleep and wakeup. Each thread
 * of a traced process has one struct thread in a map. A call fills it, and the call's exit adds it to the
 * totals of the call site. Sleeps are added when they end, so a process that dies in mid-call loses nothing.
 * Page faults are the difference of the task's own counters, which getrusage(2) shows too, so no further
 * tracepoint is needed.
 *
 * It refuses to copy arguments and data: addresses, numbers, times, and the names of programs only.
 *
 * tp_btf programs run at each of these events of the whole system, so each begins with the cheapest check of
 * whether the event belongs to a traced process.
 *
 * Sources: Ruan's dissertation (2005), section 2.3.2; include/trace/events/{sched,syscalls,lock}.h (the
 * arguments of the tracepoints; sched_switch has its fourth since Linux 5.18).
 */
#include "locks.h"
#include "resource.h"
#include "site.h"

/* A zeroed thread state, which is too large for a program's stack. */
static const volatile struct thread zero_thread = {};

INLINE u64 process_key(u32 tgid, u64 execs) {
    return tgid | execs << 32;
}

INLINE struct thread *new_thread(u32 tid, u32 tgid, u64 execs) {
    map_update(&threads, &tid, (const void *)&zero_thread, UPDATE_NOEXIST);
    struct thread *thread = map_lookup(&threads, &tid);
    if (!thread) {
        count_lost(LOST_THREADS);
        return 0;
    }
    thread->key.process = process_key(tgid, execs);
    return thread;
}

/* ---- Adding up a sleep ---- */

INLINE void add_sleep(struct sleep *sum, const struct thread *thread, u64 length_ns, u64 wakeup_ns) {
    add(&sum->count, 1);
    add(&sum->blocked_ns, length_ns);
    raise_to(&sum->max_ns, length_ns);
    add(&sum->wakeup_ns, wakeup_ns);
    add(&sum->entry_sum, thread->waiters_entry);
    add(&sum->exit_sum, thread->waiters_exit);
    raise_to(&sum->entry_max, thread->waiters_entry);
    raise_to(&sum->exit_max, thread->waiters_exit);
}

/* The call's own list: one entry per kernel stack, as in the paper's kernel. */
INLINE void add_to_call(struct thread *thread, u64 length_ns, u64 wakeup_ns) {
    thread->slept += 1;
    thread->blocked_ns += length_ns;
    for (u32 index = 0; index < SLEEPS_MAX; index++) {
        struct call_sleep *sleep = &thread->sleeps[index];
        if (index >= thread->sleeps_used) {
            __builtin_memset(sleep, 0, sizeof(*sleep));
            sleep->stack = thread->off_key.stack;
            sleep->kind = thread->off_key.kind;
            thread->sleeps_used = index + 1;
        }
        if (sleep->stack == thread->off_key.stack && sleep->kind == thread->off_key.kind) {
            add_sleep(&sleep->sum, thread, length_ns, wakeup_ns);
            return;
        }
    }
    thread->sleeps_dropped += 1;
}

INLINE void end_sleep(struct thread *thread, u64 length_ns, u64 wakeup_ns) {
    struct sleep *sum = map_lookup(&sleeps, &thread->off_key);
    if (!sum) {
        struct sleep zero = {};
        map_update(&sleeps, &thread->off_key, &zero, UPDATE_NOEXIST);
        sum = map_lookup(&sleeps, &thread->off_key);
    }
    if (sum)
        add_sleep(sum, thread, length_ns, wakeup_ns);
    else
        count_lost(LOST_SLEEPS);
    if (thread->in_call) add_to_call(thread, length_ns, wakeup_ns);
}

/*
 * The thread runs, so if it is still off-CPU in our state, the kernel has not reported its return. It did
 * sleep, but its length is known only up to the wakeup, so only that much is counted.
 */
INLINE void close_unfinished(u32 tid, struct thread *thread) {
    if (!thread->off_ns) return;
    count_lost(LOST_EVENTS);
    end_wait(tid);
    u64 length_ns = thread->woken_ns ? thread->woken_ns - thread->off_ns : 0;
    thread->off_ns = 0;
    if (thread->asleep)
        end_sleep(thread, length_ns, 0);
    else
        thread->preemptions += 1;
}

/* ---- Entry and exit of a call ---- */

/* Everything of a call but when it began. */
INLINE void prepare_call(struct thread *thread, struct task_struct *task, struct pt_regs *regs, u64 process,
                         u32 number) {
    thread->key.process = process;
    thread->key.number = number | compat_flag(task);
    thread->key.site = site_of(task, regs, process);
    thread->arguments[0] = ARGUMENT_0(LOAD, regs);
    thread->arguments[1] = ARGUMENT_1(LOAD, regs);
    thread->faults_minor = task->min_flt;
    thread->faults_major = task->maj_flt;
    thread->blocked_ns = 0;
    thread->preemptions = 0;
    thread->preempted_ns = 0;
    thread->wakeup_ns = 0;
    thread->sleeps_used = 0;
    thread->sleeps_dropped = 0;
    thread->slept = 0;
}

SECTION("tp_btf/sys_enter") int enter(u64 *context) {
    u64 id = current_pid_tgid();
    u32 tgid = id >> 32, tid = id;
    u64 *execs = map_lookup(&targets, &tgid);
    if (!execs) return 0;
    struct thread *thread = map_lookup(&threads, &tid);
    if (!thread) thread = new_thread(tid, tgid, *execs);
    if (!thread) return 0;
    close_unfinished(tid, thread);
    prepare_call(thread, current_task(), (void *)context[0], process_key(tgid, *execs), context[1]);
    /* Last, so that the time includes the call only; but before in_call, since a reader may copy meanwhile.
     */
    thread->start_ns = now_ns();
    BARRIER();
    thread->in_call = 1;
    return 0;
}

INLINE struct call_total *total_of(struct thread *thread) {
    struct call_total *total = map_lookup(&calls, &thread->key);
    if (total) return total;
    struct call_total zero = {};
    map_update(&calls, &thread->key, &zero, UPDATE_NOEXIST);
    total = map_lookup(&calls, &thread->key);
    if (!total) count_lost(LOST_CALLS);
    return total;
}

/* A result from -4095 to -1 is an error number (syscall(2)). */
INLINE int is_error(u64 result) {
    return result > -4096ULL;
}

INLINE void add_call(struct thread *thread, u64 wall_ns, u64 minor, u64 major, u64 result, int finished) {
    struct call_total *total = total_of(thread);
    if (!total) return;
    add(&total->count, 1);
    add(&total->wall_ns, wall_ns);
    raise_to(&total->max_ns, wall_ns);
    raise_to(&total->min_not_ns, ~wall_ns);
    raise_to(&total->in_band_max_ns, wall_ns - thread->preempted_ns);
    raise_to(&total->in_band_min_not_ns, ~(wall_ns - thread->preempted_ns));
    if (is_error(result)) add(&total->errors, 1);
    /* Most calls have none of these, and an atomic addition costs more than a comparison. */
    if (minor) add(&total->faults_minor, minor);
    if (major) add(&total->faults_major, major);
    if (thread->slept) {
        add(&total->slept, 1);
        add(&total->blocked_ns, thread->blocked_ns);
    }
    if (thread->preemptions) {
        add(&total->preemptions, thread->preemptions);
        add(&total->preempted_ns, thread->preempted_ns);
    }
    if (thread->wakeup_ns) add(&total->wakeup_ns, thread->wakeup_ns);
    if (!finished) add(&total->unfinished, 1);
}

/* Whether the policy keeps the record of a finished call. The cheapest conditions come first. */
INLINE int is_kept(const struct thread *thread, u64 wall_ns) {
    if (!keep_records || (keep_slower_ns && wall_ns <= keep_slower_ns) || (keep_only_slept && !thread->slept))
        return 0;
    if (!keep_calls_all) {
        u64 number = thread->key.number;
        if (number >= CALLS_MAX || !(call_traits[number] & 2)) return 0;
    }
    if (keep_one_in <= 1) return 1;
    u32 zero = 0;
    u64 *count = map_lookup(&met, &zero);
    return count && __sync_fetch_and_add(count, 1) % keep_one_in == 0;
}

INLINE void fill_record(struct record *record, struct thread *thread, u64 wall_ns, u64 minor, u64 major) {
    record->kind = EVENT_RECORD;
    record->key = thread->key;
    record->tid = (u32)current_pid_tgid();
    record->result = thread->result;
    record->start_ns = thread->start_ns;
    record->wall_ns = wall_ns;
    record->faults_minor = minor;
    record->faults_major = major;
    record->preemptions = thread->preemptions;
    record->preempted_ns = thread->preempted_ns;
    record->wakeup_ns = thread->wakeup_ns;
    record->sleeps_used = thread->sleeps_used;
    record->sleeps_dropped = thread->sleeps_dropped;
    record->user_frames = 0;
    current_comm(record->comm, sizeof(record->comm));
    __builtin_memcpy(record->sleeps, thread->sleeps, sizeof(record->sleeps));
}

INLINE void send_record(void *context, struct thread *thread, u64 wall_ns, u64 minor, u64 major) {
    struct record *record = ringbuf_reserve(&events, sizeof(*record), 0);
    if (!record) {
        count_lost(LOST_RECORDS);
        return;
    }
    fill_record(record, thread, wall_ns, minor, major);
    long bytes = read_stack(context, record->user_stack, sizeof(record->user_stack), STACK_OF_USER);
    if (bytes > 0) record->user_frames = bytes / sizeof(u64);
    ringbuf_submit(record, 0);
}

/* For the thread itself, which merges it into its in-band record. */
INLINE void store_last_record(struct thread *thread, u64 wall_ns, u64 minor, u64 major) {
    u32 zero = 0, tid = current_pid_tgid();
    struct record *record = map_lookup(&scratch, &zero);
    if (!record) return;
    fill_record(record, thread, wall_ns, minor, major);
    map_update(&last, &tid, record, UPDATE_ANY);
}

/*
 * The end of a call whose beginning was not reported. A thread that has begun no call since it is observed
 * ends the call it was in before, or the one that created it. Otherwise seccomp or a debugger refused the
 * call before the event sys_enter, so it took no time.
 */
INLINE void leave_unseen(u64 *context, u32 tid, u32 tgid, u64 execs, struct thread *thread, u64 end_ns) {
    if (thread && thread->start_ns) {
        struct pt_regs *regs = (void *)context[0];
        close_unfinished(tid, thread);
        prepare_call(thread, current_task(), regs, process_key(tgid, execs), LOAD(regs, orig_ax, syscallno));
        add_call(thread, 0, 0, 0, context[1], 1);
        return;
    }
    if (!thread || !thread->unborn) count_lost(LOST_BEGUN_BEFORE);
    if (!thread) thread = new_thread(tid, tgid, execs);
    if (!thread) return;
    thread->unborn = 0;
    thread->start_ns = end_ns;
}

SECTION("tp_btf/sys_exit") int leave(u64 *context) {
    u64 id = current_pid_tgid();
    u32 tgid = id >> 32, tid = id;
    /* First, so that the time includes the call only. */
    u64 *execs = map_lookup(&targets, &tgid);
    if (!execs) return 0;
    u64 end_ns = now_ns();
    struct thread *thread = map_lookup(&threads, &tid);
    if (!thread || !thread->in_call) {
        leave_unseen(context, tid, tgid, *execs, thread, end_ns);
        return 0;
    }
    close_unfinished(tid, thread);
    struct task_struct *task = current_task();
    u64 wall_ns = end_ns - thread->start_ns;
    u64 minor = task->min_flt - thread->faults_minor;
    u64 major = task->maj_flt - thread->faults_major;
    thread->in_call = 0;
    thread->result = context[1];
    add_call(thread, wall_ns, minor, major, thread->result, 1);
    if (is_kept(thread, wall_ns)) send_record(context, thread, wall_ns, minor, major);
    if (keep_last && thread->slept) store_last_record(thread, wall_ns, minor, major);
    return 0;
}

/* ---- Sleep and wakeup ---- */

/* What a task that leaves the CPU waits for. The current call of a traced thread is known from its entry. */
INLINE void find_resource(struct task_struct *task, struct thread *thread, struct resource *resource) {
    if (lock_of(task, resource) || (task->flags & PF_KTHREAD)) return;
    long regs = task_registers(task);
    if (!regs || !(thread ? thread->in_call : in_system_call(regs))) return;
    u64 first = thread ? thread->arguments[0] : ARGUMENT_0(READ, regs);
    u64 second = thread ? thread->arguments[1] : ARGUMENT_1(READ, regs);
    resource_of_call(task, number_at(regs), first, second, resource);
}

INLINE void begin_sleep(u64 *context, struct task_struct *task, struct thread *thread) {
    u32 tid = task->pid;
    struct resource resource = {};
    find_resource(task, thread, &resource);
    if (thread) {
        long stack = stack_id(context, &stacks, 0);
        if (stack < 0) count_lost(LOST_STACKS);
        thread->off_key.stack = stack < 0 ? STACK_UNKNOWN : stack;
        if (resource.kind == RESOURCE_NONE && stack >= 0) {
            resource.kind = RESOURCE_STACK;
            resource.address = stack;
        }
        thread->off_key.kind = resource.kind;
        thread->waiters_entry = 0;
        thread->waiters_exit = 0;
    }
    if (resource.kind == RESOURCE_NONE) return;
    u64 others = begin_wait(tid, &resource);
    if (thread) thread->waiters_entry = others;
}

/* The call and call site of a sleep. For a call that began before tracing, they come from the registers. */
INLINE void set_off_key(struct task_struct *task, struct thread *thread) {
    thread->off_key.site = thread->key;
    if (thread->in_call) return;
    long regs = task_registers(task);
    if (!regs) return;
    thread->off_key.site.number = in_system_call(regs) ? number_at(regs) : CALL_NONE;
    thread->off_key.site.site = INSTRUCTION(READ, regs);
}

INLINE void switch_out(u64 *context, struct task_struct *task, int preempted, u32 state) {
    u32 tid = task->pid, tgid = task->tgid;
    if (state & TASK_DEAD) {
        /* It slept while exiting, which created its state again. */
        map_delete(&threads, &tid);
        return;
    }
    struct thread *thread = map_lookup(&threads, &tid);
    int sleeps_now = !preempted && state && !is_runnable(task);
    if (!thread) {
        u64 *execs = map_lookup(&targets, &tgid);
        if (execs) thread = new_thread(tid, tgid, *execs);
    }
    if (thread) {
        close_unfinished(tid, thread);
        thread->asleep = sleeps_now;
        thread->woken_ns = 0;
        set_off_key(task, thread);
    }
    if (sleeps_now && (thread || waiters_everywhere)) begin_sleep(context, task, thread);
    if (thread) thread->off_ns = now_ns();
}

INLINE void switch_in(u32 tid) {
    struct thread *thread = map_lookup(&threads, &tid);
    if (!thread || !thread->off_ns) return;
    u64 now = now_ns(), length_ns = now - thread->off_ns;
    thread->off_ns = 0;
    if (!thread->asleep) {
        thread->preemptions += 1;
        thread->preempted_ns += length_ns;
        thread->wakeup_ns += length_ns;
        return;
    }
    u64 wakeup_ns = thread->woken_ns ? now - thread->woken_ns : 0;
    thread->wakeup_ns += wakeup_ns;
    end_sleep(thread, length_ns, wakeup_ns);
}

SECTION("tp_btf/sched_switch") int switched(u64 *context) {
    struct task_struct *out = (void *)context[1], *in = (void *)context[2];
    if (out->pid) switch_out(context, out, context[0] & 1, context[3]);
    if (in->pid) {
        /* A running task waits for nothing; usually the wakeup has already removed it. */
        end_wait(in->pid);
        switch_in(in->pid);
    }
    return 0;
}

/* The wakeup itself, not the attempt (sched_waking), which may precede the sleep. */
SECTION("tp_btf/sched_wakeup") int woken(u64 *context) {
    struct task_struct *task = (void *)context[0];
    u32 tid = task->pid;
    u64 remaining = end_wait(tid);
    struct thread *thread = map_lookup(&threads, &tid);
    if (thread && thread->off_ns && thread->asleep && !thread->woken_ns) {
        thread->waiters_exit = remaining;
        thread->woken_ns = now_ns();
    }
    return 0;
}

/* ---- Processes ---- */

INLINE void report_process(u64 kind, u64 process, u64 parent, struct linux_binprm *program) {
    struct process_event *event = ringbuf_reserve(&events, sizeof(*event), 0);
    if (!event) {
        count_lost(LOST_RECORDS);
        return;
    }
    event->kind = kind;
    event->process = process;
    event->parent = parent;
    event->time_ns = now_ns();
    /* The current task: the parent, whose name the child has, the new program, or the one that ends. */
    current_comm(event->comm, sizeof(event->comm));
    event->path[0] = 0;
    if (program) read_kernel_text(event->path, sizeof(event->path), FIELD(program, filename));
    ringbuf_submit(event, 0);
}

/* New threads too: the first thing they do is return from a call they did not make. */
SECTION("tp_btf/sched_process_fork") int forked(u64 *context) {
    struct task_struct *parent = (void *)context[0], *child = (void *)context[1];
    u32 from = parent->tgid, to = child->tgid;
    u64 *execs = map_lookup(&targets, &from);
    if (!execs || (from != to && !follow_children)) return 0;
    /* The child runs the parent's program, but its count of execs is its own. */
    u64 first = 0;
    if (from != to) {
        u64 *used = map_lookup(&used_ids, &to);
        if (used) first = *used + 1;
        if (map_update(&targets, &to, &first, UPDATE_ANY)) {
            count_lost(LOST_PROCESSES);
            return 0;
        }
        report_process(EVENT_FORK, process_key(to, first), process_key(from, *execs), 0);
    }
    struct thread *thread = new_thread(child->pid, to, from == to ? *execs : first);
    if (thread) thread->unborn = 1;
    return 0;
}

SECTION("tp_btf/sched_process_exec") int executed(u64 *context) {
    struct task_struct *task = (void *)context[0];
    u32 tgid = task->tgid;
    u64 *execs = map_lookup(&targets, &tgid);
    if (!execs) return 0;
    /* A thread that was not the main one has the number of the main one now, and its call goes on. */
    u32 tid = task->pid, old_tid = context[1];
    if (old_tid != tid) {
        struct thread *thread = map_lookup(&threads, &old_tid);
        if (thread) map_update(&threads, &tid, thread, UPDATE_ANY);
        map_delete(&threads, &old_tid);
    }
    *execs += 1;
    report_process(EVENT_EXEC, process_key(tgid, *execs), 0, (void *)context[2]);
    return 0;
}

SECTION("tp_btf/sched_process_exit") int exited(u64 *context) {
    struct task_struct *task = (void *)context[0];
    u32 tid = task->pid, tgid = task->tgid;
    map_delete(&locks, &tid);
    end_wait(tid);
    u64 *execs = map_lookup(&targets, &tgid);
    if (!execs) return 0;
    struct thread *thread = map_lookup(&threads, &tid);
    if (thread && thread->in_call) {
        u64 minor = task->min_flt - thread->faults_minor;
        u64 major = task->maj_flt - thread->faults_major;
        add_call(thread, now_ns() - thread->start_ns, minor, major, 0, 0);
    }
    map_delete(&threads, &tid);
    if (FIELD(FIELD(task, signal), live.counter) == 0) {
        u64 last = *execs, process = process_key(tgid, last);
        map_update(&used_ids, &tgid, &last, UPDATE_ANY);
        /* The process id will be reused by another process, which must not be traced. */
        map_delete(&targets, &tgid);
        report_process(EVENT_EXIT, process, 0, 0);
    }
    return 0;
}

char permission[] SECTION("license") = "Dual MIT/GPL";
