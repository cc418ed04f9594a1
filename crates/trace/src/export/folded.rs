//! Time asleep as folded stacks, which flame-graph programs draw:
//! `program;function;call;kernel…;label TIME_US`.
//!
//! If kept records have the program's stacks (`--stacks`), those are used, and only kept calls
//! count. Otherwise the sums of call sites are used, which are complete, with the call site as the
//! only frame of the program.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::model::{KeptCall, LocationTotals, SleepAt, Trace, file_name};

/// One line a stack, whole microseconds asleep at the end; stacks below a microsecond round up to
/// one.
pub fn folded(trace: &Trace) -> String {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    let stacks = trace.kept.iter().any(|kept| !kept.stack.is_empty());
    if stacks {
        for kept in &trace.kept {
            let below = of_kept(trace, kept);
            add(trace, &mut sums, &below, &kept.call, &kept.sleeps);
        }
    } else {
        for site in &trace.sites {
            let below = of_site(trace, site);
            add(trace, &mut sums, &below, &site.call, &site.sleeps);
        }
    }
    let mut out = String::new();
    for (stack, ns) in sums {
        let _ = writeln!(out, "{stack} {}", ns.div_ceil(1000));
    }
    out
}

fn add(
    trace: &Trace,
    sums: &mut BTreeMap<String, u64>,
    below: &str,
    call: &str,
    sleeps: &[SleepAt],
) {
    for sleep in sleeps.iter().filter(|sleep| sleep.total_ns > 0) {
        let mut stack = format!("{below};{call}");
        let kernel = sleep.stack.and_then(|index| trace.kernel_stacks.get(index));
        for function in kernel.into_iter().flatten() {
            let _ = write!(stack, ";{function}_[k]");
        }
        let _ = write!(stack, ";{}", sleep.label);
        *sums.entry(stack).or_default() += sleep.total_ns;
    }
}

fn of_site(trace: &Trace, site: &LocationTotals) -> String {
    let frame = trace
        .locations
        .get(site.location)
        .map(|location| location.frame())
        .unwrap_or_default();
    format!("{};{frame}", program(&site.exe))
}

/// The whole stack, outermost first.
fn of_kept(trace: &Trace, kept: &KeptCall) -> String {
    let exe = trace
        .programs
        .get(kept.program)
        .map_or("", |program| &program.exe);
    let mut stack = program(exe);
    let site = [kept.location];
    let locations = if kept.stack.is_empty() {
        &site[..]
    } else {
        &kept.stack[..]
    };
    for location in locations
        .iter()
        .rev()
        .filter_map(|location| trace.locations.get(*location))
    {
        stack.push(';');
        stack.push_str(&location.frame());
    }
    stack
}

fn program(exe: &str) -> String {
    file_name(exe).replace([';', ' '], "_")
}
