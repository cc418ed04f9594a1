//! One late call among a thousand (section 2.2 of the dissertation), found in a program that knows
//! nothing of tracing.

use super::support::{Ran, compile, missing, run, sees_stacks, traced};

/// What `bench/debox-ground-truth` traces, too: a thousand turns at a lock, of which one is late by a
/// millisecond.
const PROGRAM: &str = include_str!("../../../../bench/debox-anomaly.c");

/// Needs: tracing with stacks and kernel symbols
#[test]
fn late_call_is_found_with_its_stack_when_it_is_one_of_a_thousand() {
    let test = "late_call_is_found_with_its_stack_when_it_is_one_of_a_thousand";
    if !sees_stacks(test) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = compile(folder.path(), PROGRAM, &["-pthread"]);
    let program = program.to_str().expect("a path in UTF-8");
    let options = "--slower-than 900us --call flock --label file-lock --stacks";
    let options: Vec<&str> = options.split(' ').collect();
    let (trace, late_ns) = until_late(|| {
        let (trace, ran) = traced(&options, &[program]);
        let late_ns = late_ns(&ran);
        (trace, late_ns)
    });
    let kept = trace["kept"].as_array().expect("a list");
    assert_eq!(kept.len(), 1, "{late_ns} ns late: {kept:#?}");
    // The program's own clock has the tracer's work in it.
    let wall_ns = kept[0]["wall_ns"].as_u64().expect("a number");
    assert!(
        (900_000..=late_ns).contains(&wall_ns),
        "{wall_ns} ns, {late_ns} ns by the program's clock"
    );
    let stack = kept[0]["stack"].as_array().expect("a stack");
    let names: Vec<&str> = stack
        .iter()
        .filter_map(|index| trace["locations"][index.as_u64()? as usize]["function"].as_str())
        .collect();
    assert_eq!(names.first(), Some(&"take_a_turn"), "{names:?}");
    assert!(names.contains(&"main"), "{names:?}");
    let flocks: u64 = (trace["sites"].as_array().expect("a list").iter())
        .filter(|site| site["call"] == "flock")
        .filter_map(|site| site["count"].as_u64())
        .sum();
    assert_eq!(flocks, 2001);
    // Naming the sleeps at once makes the library read the kernel's symbols: calls of its own,
    // which are none of these.
    let missing = missing(&trace);
    assert!(!missing.contains("inside the tracer"), "{missing}");
}

/// Needs: tracing with stacks and kernel symbols
#[test]
fn late_call_is_reported_at_once_when_a_reaction_waits_for_it() {
    let test = "late_call_is_reported_at_once_when_a_reaction_waits_for_it";
    if !sees_stacks(test) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = compile(folder.path(), PROGRAM, &["-pthread", "-rdynamic"]);
    let program = program.to_str().expect("a path in UTF-8");
    let when = "slower-than=900us,label=file-lock";
    let (ran, _) = until_late(|| {
        let ran = run(&[
            "--react",
            "stack",
            "--when",
            when,
            "-o",
            "/dev/null",
            "--",
            program,
        ]);
        let late_ns = late_ns(&ran);
        (ran, late_ns)
    });
    assert_eq!(
        ran.error.matches("debox: flock took").count(),
        1,
        "{}",
        ran.error
    );
    assert!(ran.error.contains("on file-lock"), "{}", ran.error);
    assert!(ran.error.contains("main"), "{}", ran.error);
}

/// How long the late call was, as the program itself measured it.
fn late_ns(ran: &Ran) -> u64 {
    assert_eq!(ran.code, Some(0), "{}", ran.error);
    ran.out.trim().parse().expect("a number")
}

/// Runs until the call was indeed late: on a busy machine the lock may be free again before the
/// request.
fn until_late<T>(mut run: impl FnMut() -> (T, u64)) -> (T, u64) {
    const ATTEMPTS_MAX: usize = 100;
    const SURELY_NS: u64 = 950_000;
    let mut attempts = (0..ATTEMPTS_MAX).map(|_| run());
    let late = attempts.find(|(_, late_ns)| *late_ns >= SURELY_NS);
    late.expect("the lock was never held when it was asked for")
}
