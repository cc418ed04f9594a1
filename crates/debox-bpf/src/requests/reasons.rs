//! What kernel stacks say: for what a thread slept, and how another one woke it.

use std::collections::HashMap;
use std::sync::Arc;

use aya::Ebpf;
use headway_debox::{Label, Symbols};
use serde::Serialize;

use crate::maps::stack_of;

/// What the kernel did when a thread fell asleep, if its call is not made for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Within {
    /// It updated the time of the last access to a file.
    AccessTime,
    /// It handled a page fault, such as that of a mapped file.
    PageFault,
}

/// Why a thread slept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reason {
    pub label: Label,
    pub symbol: Option<String>,
    pub within: Option<Within>,
}

/// How many functions of a waker are kept.
const WAKER_FUNCTIONS_MAX: usize = 3;

/// Functions that make any wakeup. Their callers tell more.
const WAKES: &[&str] = &[
    "try_to_wake_up",
    "ttwu_",
    "wake_up_",
    "__wake_up",
    "default_wake_function",
    "autoremove_wake_function",
    "swake_up",
    "complete_with_flags",
    "rwsem_wake",
];

/// Functions below which an interrupt runs, whatever task it interrupted.
const INTERRUPTS: &[&str] = &[
    "handle_softirqs",
    "__do_softirq",
    "irq_exit",
    "__irq_exit",
    "sysvec_",
    "__sysvec_",
    "common_interrupt",
    "__common_interrupt",
    "el1_interrupt",
    "el0_interrupt",
];

/// Resolves stacks, each once. The map of stacks does not grow, so neither does this.
pub(super) struct Reasons {
    symbols: Option<Symbols>,
    sleeps: HashMap<u64, Reason>,
    wakers: HashMap<u64, Option<Arc<[String]>>>,
}

impl Reasons {
    pub fn load() -> Reasons {
        Reasons {
            symbols: Symbols::load().ok().filter(|symbols| !symbols.hidden()),
            sleeps: HashMap::new(),
            wakers: HashMap::new(),
        }
    }

    /// Why a thread slept with this stack.
    pub fn of_sleep(&mut self, ebpf: &Ebpf, stack: u64) -> Reason {
        let symbols = &self.symbols;
        let resolved = || match symbols {
            Some(symbols) => of_sleep(symbols, &stack_of(ebpf, stack)),
            None => Reason::default(),
        };
        self.sleeps.entry(stack).or_insert_with(resolved).clone()
    }

    /// The functions in which a task woke a thread; `None` if it was an interrupt that did.
    pub fn of_waker(&mut self, ebpf: &Ebpf, stack: u64) -> Option<Arc<[String]>> {
        let symbols = &self.symbols;
        let resolved = || match symbols {
            Some(symbols) => of_waker(symbols.functions(&stack_of(ebpf, stack))),
            None => Some(Arc::default()),
        };
        self.wakers.entry(stack).or_insert_with(resolved).clone()
    }
}

fn of_sleep(symbols: &Symbols, stack: &[u64]) -> Reason {
    Reason {
        label: symbols.label(stack),
        symbol: symbols.waiting_site(stack),
        within: within(symbols.functions(stack)),
    }
}

fn within<'n>(mut functions: impl Iterator<Item = &'n str>) -> Option<Within> {
    functions.find_map(|name| match name {
        "touch_atime" => Some(Within::AccessTime),
        "handle_mm_fault" => Some(Within::PageFault),
        _ => None,
    })
}

fn of_waker<'n>(functions: impl Iterator<Item = &'n str>) -> Option<Arc<[String]>> {
    let any = |name: &str, beginnings: &[&str]| beginnings.iter().any(|one| name.starts_with(one));
    let names: Vec<&str> = functions.skip_while(|name| any(name, WAKES)).collect();
    if names.iter().any(|name| any(name, INTERRUPTS)) {
        return None;
    }
    let named = names.into_iter().take(WAKER_FUNCTIONS_MAX);
    Some(named.map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::{Within, of_waker, within};

    #[test]
    fn waker_is_named_by_the_functions_above_the_wakeup_and_an_interrupt_is_none() {
        let of = |names: &[&str]| of_waker(names.iter().copied());
        let release = [
            "try_to_wake_up",
            "__wake_up_common",
            "flock_lock_inode",
            "locks_remove_file",
            "__fput",
            "do_syscall_64",
        ];
        let functions = of(&release).expect("a task");
        assert_eq!(functions[..], release[2..5]);
        assert_eq!(of(&[]).expect("not known").len(), 0);
        let timer = [
            "hrtimer_wakeup",
            "__sysvec_apic_timer_interrupt",
            "futex_wait",
        ];
        assert_eq!(of(&timer), None);
    }

    #[test]
    fn stack_says_whether_an_access_time_or_a_page_fault_is_the_reason() {
        let of = |names: &[&str]| within(names.iter().copied());
        let atime = [
            "jbd2__journal_start",
            "ext4_dirty_inode",
            "touch_atime",
            "filemap_read",
        ];
        assert_eq!(of(&atime), Some(Within::AccessTime));
        let mapped = [
            "folio_wait_bit_common",
            "filemap_fault",
            "handle_mm_fault",
            "tcp_sendmsg",
        ];
        assert_eq!(of(&mapped), Some(Within::PageFault));
        assert_eq!(of(&["filemap_read", "vfs_read"]), None);
    }
}
