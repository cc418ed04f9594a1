/*
 * Samples how many tasks of some processes are runnable. The kernel walks its own list of tasks, which takes
 * a fraction of a millisecond; reading a file of /proc for each task takes several.
 *
 * It refuses to observe anything between two samples, and to identify tasks.
 *
 * Sources: Documentation/bpf/bpf_iterators.rst; include/linux/sched.h (the states);
 * fs/proc/array.c (which of them are shown as R and D).
 */
#include "kernel.h"

/* The states that /proc shows; a task with none of them runs, or only waits for a CPU. */
#define STATE_REPORTED 0x7f
#define STATE_UNINTERRUPTIBLE 2
/* With the bit above: a kernel thread that is idle. */
#define STATE_NO_LOAD 0x400

struct task_counts {
    u32 tasks;
    u32 runnable;
    u32 blocked;
};

/* The watched processes, by process id. */
struct {
    VALUE(type, MAP_HASH);
    VALUE(max_entries, 4096);
    TYPE(key, u32);
    TYPE(value, u32);
} members SECTION(".maps");

/* The counts of the sample under way; there is one at a time. */
struct {
    VALUE(type, MAP_ARRAY);
    VALUE(max_entries, 1);
    TYPE(key, u32);
    TYPE(value, struct task_counts);
} counts SECTION(".maps");

SECTION("iter/task") int sample(u64 *context) {
    struct bpf_iter_meta *meta = (void *)context[0];
    struct task_struct *task = (void *)context[1];
    u32 only = 0;
    struct task_counts *all = map_lookup(&counts, &only);
    if (!all) return 0;
    /* After the last task. */
    if (!task) {
        seq_write(meta->seq, all, sizeof(*all));
        *all = (struct task_counts){};
        return 0;
    }
    u32 process = task->tgid;
    if (!map_lookup(&members, &process) || task->exit_state) return 0;
    u32 state = task->__state;
    all->tasks++;
    if (!(state & STATE_REPORTED)) all->runnable++;
    if (state & STATE_UNINTERRUPTIBLE && !(state & STATE_NO_LOAD)) all->blocked++;
    return 0;
}

char permission[] SECTION("license") = "Dual MIT/GPL";
