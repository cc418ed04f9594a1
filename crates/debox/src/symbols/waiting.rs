//! Which functions of a stack say what was waited for, and which only carry the waiting out.

/// Machinery under every wait: it shows that the thread sleeps, not why. Matched by prefix, since
/// variants (`schedule_timeout_killable`, `preempt_schedule_irq`) come and go with kernel versions.
const MACHINERY: &[&str] = &[
    "__schedule",
    "schedule",
    "io_schedule",
    "preempt_schedule",
    "__cond_resched",
    "__wait_for_common",
    "do_wait_for_common",
    "__wait_on_bit",
    "bit_wait",
    "__perf_event",
    "perf_",
    "__traceiter",
    "bpf_prog_",
    "bpf_trace_run",
    "bpf_trampoline",
    "bpf_get_stack",
    "finish_task_switch",
    "context_switch",
    "__switch_to",
];

/// General ways of waiting: they show how a thread waits, and their caller shows for what.
const PRIMITIVES: &[&str] = &[
    "wait_for_completion",
    "__down",
    "down",
    "rwsem_",
    "__mutex_lock",
    "mutex_lock",
    "__rt_mutex",
    "rt_mutex",
    "rt_spin_lock",
    "percpu_rwsem",
    "__percpu_",
    "folio_wait",
    "__folio_lock",
    "folio_lock",
    "__lock_page",
    "wait_on_page",
    "out_of_line_wait_on_bit",
    "wait_on_bit",
    "__wait_on_buffer",
    "wait_woken",
    "__wait_rcu_gp",
    "synchronize_",
    "poll_schedule_timeout",
    "msleep",
    "usleep_range",
];

/// The primitives among them that are locks: their caller names what is locked.
const LOCKS: &[&str] = &[
    "__down",
    "down",
    "rwsem_",
    "__mutex_lock",
    "mutex_lock",
    "__rt_mutex",
    "rt_mutex",
    "percpu_rwsem",
    "__percpu_",
];

/// Whether a function only carries out the waiting.
pub(crate) fn is_machinery(name: &str) -> bool {
    starts_with_any(name, MACHINERY)
}

/// Whether a function is a general way of waiting.
pub(crate) fn is_primitive(name: &str) -> bool {
    starts_with_any(name, PRIMITIVES)
}

/// Whether a function belongs to a sleeping lock.
pub(crate) fn is_lock(name: &str) -> bool {
    starts_with_any(name, LOCKS)
}

/// The waiting site of a stack of names, innermost first; `None` if it holds nothing but machinery.
pub(super) fn describe<'a>(names: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut names = names
        .map(without_suffix)
        .filter(|name| !starts_with_any(name, MACHINERY));
    let innermost = names.next()?;
    if !starts_with_any(innermost, PRIMITIVES) {
        return Some(innermost.to_owned());
    }
    match names.find(|name| !starts_with_any(name, PRIMITIVES)) {
        Some(caller) => Some(format!("{innermost} < {caller}")),
        None => Some(innermost.to_owned()),
    }
}

fn starts_with_any(name: &str, prefixes: &[&str]) -> bool {
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}

/// Compilers mark copies of a function behind a dot (`lookup_slow.isra.0`), differently each build.
pub(crate) fn without_suffix(name: &str) -> &str {
    name.split_once('.').map_or(name, |(function, _)| function)
}

#[cfg(test)]
mod tests {
    use super::describe;

    fn site(names: &[&str]) -> Option<String> {
        describe(names.iter().copied())
    }

    #[test]
    fn first_function_outside_the_scheduler_is_the_site() {
        let names = ["__schedule", "schedule", "anon_pipe_read", "vfs_read"];
        assert_eq!(site(&names).as_deref(), Some("anon_pipe_read"));
    }

    #[test]
    fn innermost_primitive_and_first_real_caller_remain_when_primitives_nest() {
        let names = [
            "__schedule",
            "schedule_preempt_disabled",
            "rwsem_down_read_slowpath",
            "down_read",
            "lookup_slow.isra.0",
            "walk_component",
        ];
        assert_eq!(
            site(&names).as_deref(),
            Some("rwsem_down_read_slowpath < lookup_slow")
        );
    }

    #[test]
    fn primitive_has_no_caller_when_the_stack_ends_there() {
        let names = ["schedule", "folio_wait_bit_common"];
        assert_eq!(site(&names).as_deref(), Some("folio_wait_bit_common"));
    }

    #[test]
    fn site_is_unknown_when_all_functions_are_wait_machinery() {
        assert_eq!(site(&["__schedule", "schedule"]), None);
    }
}
