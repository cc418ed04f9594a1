//! Records of single calls that the policy kept.

use headway_debox::{Record, Sleep, Stack, Symbols, Wait};

use crate::layout;
use crate::totals::Resource;

/// One call of a traced thread.
#[derive(Debug)]
pub struct KeptRecord {
    /// The process.
    pub pid: u32,
    /// How often it had called exec since it was traced.
    pub execs: u32,
    /// The thread.
    pub tid: u32,
    /// The thread's name, at most 15 bytes.
    pub comm: String,
    /// What the call returned: from -4095 to -1 the negative error number.
    pub result: i64,
    /// The address behind the call in the program.
    pub site: u64,
    /// User addresses, innermost first, up to 16, as far as frame pointers lead.
    pub user_stack: Vec<u64>,
    /// The kind of resource by which the waiters of each sleep were counted, in the order of the
    /// sleeps.
    pub resources: Vec<Resource>,
    /// What the thread itself would have seen. Waiters are the largest counts at a location.
    pub record: Record,
}

impl KeptRecord {
    pub(crate) fn new(
        raw: &layout::Record,
        stack_of: impl Fn(u64) -> Vec<u64>,
        symbols: Option<&Symbols>,
    ) -> KeptRecord {
        let sleeps = (raw.sleeps.iter())
            .map(|(stack, resource, sleep)| {
                sleep_of(&stack_of(*stack), Resource::of(*resource), sleep, symbols)
            })
            .collect();
        // Only calls are kept, so there is a number.
        let mut record = Record::observed(raw.site.call.unwrap_or(u32::MAX), sleeps);
        record.start_ns = raw.start_ns;
        record.wall_ns = raw.wall_ns;
        record.faults_minor = Some(raw.faults_minor as u32);
        record.faults_major = Some(raw.faults_major as u32);
        record.wakeup_ns = Some(raw.wakeup_ns);
        record.sleeps_dropped = raw.sleeps_dropped as u32;
        record.preemptions = Wait {
            count: raw.preemptions,
            total_ns: raw.preempted_ns,
        };
        KeptRecord {
            pid: raw.site.process.pid,
            execs: raw.site.process.execs,
            tid: raw.tid,
            comm: raw.comm.clone(),
            result: raw.result,
            site: raw.site.address,
            user_stack: raw.user_stack.clone(),
            resources: raw
                .sleeps
                .iter()
                .map(|(_, kind, _)| Resource::of(*kind))
                .collect(),
            record,
        }
    }
}

fn sleep_of(
    stack: &[u64],
    resource: Resource,
    sleep: &layout::Sleep,
    symbols: Option<&Symbols>,
) -> Sleep {
    let counted = resource != Resource::None;
    Sleep {
        count: sleep.count as u32,
        blocked_ns: sleep.blocked_ns,
        max_ns: sleep.max_ns,
        label: symbols.map_or(headway_debox::Label::Unknown, |symbols| {
            symbols.label(stack)
        }),
        site: symbols.and_then(|symbols| symbols.site(stack)),
        stack: Stack::new(stack),
        waiters_entry: counted.then_some(sleep.entry_max as u32),
        waiters_exit: counted.then_some(sleep.exit_max as u32),
    }
}
