//! Samples of the run queue.

use crate::common;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use headway_debox_bpf::{RunQueue, RunQueueSample};

/// Ended when dropped, also by a failing assertion.
struct Running(Vec<Child>);

impl Running {
    fn start(count: usize, script: &str) -> Running {
        let start = |_| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command.stdin(Stdio::piped()).stdout(Stdio::null());
            command.spawn().expect("a shell")
        };
        Running((0..count).map(start).collect())
    }

    fn pids(&self) -> Vec<u32> {
        self.0.iter().map(Child::id).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The first sample that is as wanted, or the last one after half a minute.
fn sample_until(queue: &mut RunQueue, wanted: RunQueueSample) -> RunQueueSample {
    let begun = Instant::now();
    loop {
        let sample = queue.sample().expect("a sample");
        if sample == wanted || begun.elapsed() > Duration::from_secs(30) {
            return sample;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn busy_and_sleeping_tasks_are_distinguished_when_processes_are_watched() {
    let test = "busy_and_sleeping_tasks_are_distinguished_when_processes_are_watched";
    let mut queue = match RunQueue::start() {
        Ok(queue) => queue,
        Err(error) if common::is_unsupported(&error) => {
            return headway_test_support::skip(test, &error.to_string());
        }
        Err(error) => panic!("{error}"),
    };
    assert_eq!(
        queue.sample().expect("a sample"),
        RunQueueSample::default(),
        "no process is watched"
    );
    let (busy, idle) = (
        Running::start(3, "while :; do :; done"),
        Running::start(5, "read nothing"),
    );
    let all = [busy.pids(), idle.pids()].concat();
    queue.watch(&all).expect("numbers");
    let wanted = |tasks, runnable| RunQueueSample {
        tasks,
        runnable,
        blocked: 0,
    };
    assert_eq!(sample_until(&mut queue, wanted(8, 3)), wanted(8, 3));
    // A busy task is runnable in every sample, not only in some.
    for _ in 0..100 {
        assert_eq!(queue.sample().expect("a sample").runnable, 3);
    }
    queue.watch(&idle.pids()).expect("numbers");
    assert_eq!(sample_until(&mut queue, wanted(5, 0)), wanted(5, 0));
    queue.watch(&[std::process::id()]).expect("numbers");
    let own = queue.sample().expect("a sample");
    assert!(own.runnable >= 1, "the sampling thread runs: {own:?}");
    drop(idle);
    queue.watch(&all).expect("numbers");
    assert_eq!(
        sample_until(&mut queue, wanted(3, 3)),
        wanted(3, 3),
        "ended"
    );
}
