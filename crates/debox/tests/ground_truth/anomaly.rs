//! One late call among a thousand, which degraded the paper's server's latency eightfold and which
//! sampling would miss (section 2.2): found in band, with the user stack that led to it.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;
use std::rc::Rc;

use headway_debox::policy::{Filter, Reaction, Rule, Trigger};
use headway_debox::{Debox, Label, Record};

use crate::fuse::{LateFilesystem, Operation};
use crate::truth::{alone, debox_or_skip};
use headway_test_support::skip;

const CALLS: usize = 1000;
/// The call that is late, by a millisecond.
const LATE: usize = 617;
const SLOW_NS: u64 = 900_000;

/// The place in the program that has to be found: a name in the stack. As a program would, it looks
/// at the record where it made the call.
#[inline(never)]
fn probe_a_name(debox: &Debox, folder: &Path, rule: &mut Rule) {
    // Not there, and not remembered by the kernel: a request each time.
    let answer = debox.call(libc::SYS_openat as u32, || {
        File::open(folder.join("missing"))
    });
    assert_eq!(answer.expect_err("no name").kind(), ErrorKind::NotFound);
    let record = debox.last().expect("a record");
    rule.apply(&record, 0).expect("the reaction works");
}

/// Makes a thousand calls, one of which is late, and applies a rule to each of them.
fn run(debox: &Debox, late: &LateFilesystem, reaction: Reaction, turn: &Cell<usize>) -> u32 {
    let mut delays = [0; CALLS];
    delays[LATE] = 1;
    late.schedule(&[(Operation::Lookup, &delays)]);
    let trigger = Trigger {
        when: Filter {
            slower_than_ns: Some(SLOW_NS),
            labels: vec![Label::Fuse],
            ..Filter::default()
        },
        times_max: 0,
    };
    let mut rule = Rule::new(trigger, reaction);
    for call in 0..CALLS {
        turn.set(call);
        probe_a_name(debox, late.path(), &mut rule);
    }
    rule.fired()
}

/// Needs: root or fusermount: mounts a FUSE filesystem; stacks (perf_event_paranoid, CAP_PERFMON)
#[test]
fn callback_finds_the_late_call_and_its_user_stack_when_it_is_one_of_a_thousand() {
    let test = "callback_finds_the_late_call_and_its_user_stack_when_it_is_one_of_a_thousand";
    let _alone = alone();
    let Some(debox) = debox_or_skip(test) else {
        return;
    };
    let late = match LateFilesystem::mount(Vec::new()) {
        Ok(late) => late,
        Err(error) => return skip(test, &error),
    };
    let turn = Rc::new(Cell::new(0));
    let found = Rc::new(RefCell::new(Vec::new()));
    let callback = {
        let (turn, found) = (Rc::clone(&turn), Rc::clone(&found));
        move |record: &Record, _| {
            let stack = std::backtrace::Backtrace::force_capture().to_string();
            found
                .borrow_mut()
                .push((turn.get(), record.blocked_ns(), stack));
        }
    };
    let fired = run(&debox, &late, Reaction::Callback(Box::new(callback)), &turn);
    let found = found.borrow();
    assert_eq!(fired as usize, found.len());
    // A busy machine may make others late, too.
    let (_, blocked_ns, stack) = (found.iter())
        .find(|(turn, ..)| *turn == LATE)
        .unwrap_or_else(|| panic!("the late call is not among {found:?}"));
    assert!(*blocked_ns >= 1_000_000, "{blocked_ns} ns");
    assert!(stack.contains("probe_a_name"), "{stack}");
}

/// Runs in a process of its own, started by the test below.
#[test]
fn stack_is_written_in_the_child_when_a_call_is_late() {
    if std::env::var_os("HEADWAY_GROUND_TRUTH_CHILD").is_none() {
        return;
    }
    let debox = debox_or_skip("child").expect("the parent has looked");
    let late = LateFilesystem::mount(Vec::new()).expect("the parent has looked");
    run(&debox, &late, Reaction::Stack, &Cell::new(0));
}

/// Needs: root or fusermount: mounts a FUSE filesystem; stacks (perf_event_paranoid, CAP_PERFMON)
#[test]
fn user_stack_is_written_when_one_call_of_a_thousand_is_late() {
    let test = "user_stack_is_written_when_one_call_of_a_thousand_is_late";
    let _alone = alone();
    let Some(_debox) = debox_or_skip(test) else {
        return;
    };
    if let Err(error) = LateFilesystem::mount(Vec::new()) {
        return skip(test, &error);
    }
    let output = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "--nocapture"])
        .arg("anomaly::stack_is_written_in_the_child_when_a_call_is_late")
        .env("HEADWAY_GROUND_TRUTH_CHILD", "1")
        .output()
        .expect("this program runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("debox: openat took"), "{text}");
    assert!(text.contains("on fuse"), "{text}");
    assert!(text.contains("probe_a_name"), "{text}");
}
