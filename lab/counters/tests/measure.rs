//! Measuring pairs of real processes: what counts, what fails, and that nothing is left running.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use headway_counters::schedule::SlowDowns;
use headway_counters::schedule::measure::{MeasureError, Program, SlowDownPlan, allowed};
use headway_test_support::{is_running, skip, wait_until};

fn program(name: &str, command: &str) -> Program {
    Program {
        name: name.into(),
        command: command.into(),
    }
}

/// A plan on the first two CPUs; `None`, with the reason, where there is only one.
fn plan(test: &str, programs: &[Program]) -> Option<SlowDownPlan> {
    let &[first, second, ..] = &allowed()[..] else {
        skip(test, "pairs need two CPUs");
        return None;
    };
    Some(SlowDownPlan {
        programs: programs.to_vec(),
        cpus: [first, second],
        runs: 2,
        time_limit: Duration::from_secs(60),
        keep: None,
    })
}

fn run(plan: &SlowDownPlan) -> Result<SlowDowns, MeasureError> {
    plan.run(&AtomicBool::new(false), &mut |_| ())
}

/// Lines of a file, none when it is missing.
fn lines(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Needs: two CPUs
#[test]
fn every_program_runs_on_both_cpus_alone_and_on_its_own_in_a_pair() {
    let scratch = tempfile::tempdir().unwrap();
    let programs = [
        program("a", "grep Cpus_allowed_list /proc/self/status"),
        program(
            "b, too",
            "grep Cpus_allowed_list /proc/self/status; echo err >&2",
        ),
    ];
    let name = "every_program_runs_on_both_cpus_alone_and_on_its_own_in_a_pair";
    let Some(mut plan) = plan(name, &programs) else {
        return;
    };
    plan.keep = Some(scratch.path().join("kept"));
    let mut messages = Vec::new();
    let matrix = plan
        .run(&AtomicBool::new(false), &mut |line| {
            messages.push(line.to_owned())
        })
        .unwrap();
    assert_eq!(matrix.names(), ["a", "b, too"]);
    assert!(matrix.slow_down(0, 1) > 0.0 && matrix.slow_down(1, 0) > 0.0);
    assert!(
        messages.contains(&"pair 1 of 1: a beside b, too".to_owned()),
        "{messages:?}"
    );
    assert!(
        messages
            .iter()
            .any(|line| line.contains("give it more work")),
        "{messages:?}"
    );
    let on = |file: &str, cpu: usize| {
        let wanted = format!("Cpus_allowed_list:\t{cpu}");
        lines(&scratch.path().join("kept").join(file))
            .iter()
            .filter(|line| **line == wanted)
            .count()
    };
    // One to warm up and two that count; then at least two beside the other.
    let [first, second] = plan.cpus;
    assert!(on("1.out", first) >= 5 && on("1.out", second) == 3);
    assert!(on("2.out", first) == 3 && on("2.out", second) >= 5);
    assert!(lines(&scratch.path().join("kept/2.out")).contains(&"err".to_owned()));
}

/// Needs: two CPUs
#[test]
fn shorter_program_is_restarted_while_the_longer_one_runs() {
    let scratch = tempfile::tempdir().unwrap();
    let programs = [
        program("short", "echo x"),
        program("long", "sleep 0.2; echo x"),
    ];
    let name = "shorter_program_is_restarted_while_the_longer_one_runs";
    let Some(mut plan) = plan(name, &programs) else {
        return;
    };
    plan.keep = Some(scratch.path().into());
    run(&plan).unwrap();
    let (short, long) = (
        lines(&scratch.path().join("1.out")),
        lines(&scratch.path().join("2.out")),
    );
    assert!(long.len() >= 3 + 3 + 2, "{}", long.len());
    assert!(short.len() > 3 + 3 + 2, "{}", short.len());
}

/// Needs: two CPUs
#[test]
fn error_names_the_program_that_fails_or_does_not_end() {
    let name = "error_names_the_program_that_fails_or_does_not_end";
    let Some(mut failing) = plan(name, &[program("good", "true"), program("bad", "exit 3")]) else {
        return;
    };
    let error = run(&failing).unwrap_err().to_string();
    assert!(
        error.contains("\"bad\" failed") && error.contains("exit status: 3"),
        "{error}"
    );
    failing.programs[1].command = "sleep 1000".into();
    failing.time_limit = Duration::from_secs(1);
    let error = run(&failing).unwrap_err();
    assert!(
        matches!(&error, MeasureError::TooLong { program, .. } if program == "bad"),
        "{error}"
    );
    assert!(
        error.to_string().contains("did not end within 1 s"),
        "{error}"
    );
}

/// Needs: two CPUs
#[test]
fn programs_end_when_the_measurement_is_interrupted() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("pids");
    // A shell with a child in the background: the whole group has to go.
    let command = format!("sleep 1000 & echo $$ $! >>{}; wait", file.display());
    let name = "programs_end_when_the_measurement_is_interrupted";
    let Some(plan) = plan(name, &[program("a", &command), program("b", "true")]) else {
        return;
    };
    let interrupted = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        let measuring = scope.spawn(|| plan.run(&interrupted, &mut |_| ()));
        let begun = Instant::now();
        while lines(&file).is_empty() && begun.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(5));
        }
        interrupted.store(true, Ordering::Relaxed);
        measuring.join().unwrap()
    });
    assert!(
        matches!(result, Err(MeasureError::Interrupted)),
        "{result:?}"
    );
    let pids: Vec<u32> = lines(&file)
        .iter()
        .flat_map(|line| line.split(' '))
        .map(|pid| pid.parse().unwrap())
        .collect();
    assert_eq!(pids.len(), 2);
    // The child of the shell is waited for by init, or the process that replaces it.
    wait_until("both end", || !pids.iter().any(|&pid| is_running(pid)));
}

/// Needs: two CPUs
#[test]
fn plan_is_an_error_when_cpus_or_names_are_wrong() {
    let name = "plan_is_an_error_when_cpus_or_names_are_wrong";
    let Some(good) = plan(name, &[program("a", "true"), program("b", "true")]) else {
        return;
    };
    let with = |change: &dyn Fn(&mut SlowDownPlan)| {
        let mut plan = good.clone();
        change(&mut plan);
        run(&plan).unwrap_err().to_string()
    };
    assert!(with(&|plan| plan.cpus[1] = 99_999).contains("CPU 99999 is not one"));
    assert!(with(&|plan| plan.cpus[1] = plan.cpus[0]).contains("named twice"));
    assert!(with(&|plan| plan.programs[1].name = "a".into()).contains("two programs are named"));
    assert!(with(&|plan| plan.programs.truncate(1)).contains("names 1 program "));
    assert!(with(&|plan| plan.keep = Some("/dev/null/no".into())).contains("/dev/null/no"));
}
