//! How many of a server's processes are runnable at an instant: the sampler of the study of
//! scheduler burstiness.
//!
//! The 2006 paper instruments the scheduler and shows which share of Apache's processes is runnable
//! at any time (Figures 2 and 14): where lookups block one another, it is none or nearly all. Here
//! the kernel walks its tasks for us by BPF ([`headway_debox_bpf::RunQueue`]), which is over in 0.1
//! to 0.3 ms whatever their number. Where it may not, the state of each task is read from
//! `/proc/PID/task/TID/stat`, through descriptors that stay open, so that a look at one costs a
//! single `pread` of some microseconds. `R` is runnable: on a CPU or in its run queue. `D` waits
//! for the disk or a lock of the kernel's and is counted beside it.
//!
//! A scan of /proc takes its time, so it is no instant: with 1024 processes it is some
//! milliseconds, in which the client on that CPU asks for nothing and the server runs out of
//! work, so that too few are found runnable. Each sample tells how long it took. The thread has the
//! highest priority where it may. Looks come at random intervals, since a regular one could fall in
//! step with the server, and take a tenth of one CPU at most, which should be the client's.
//!
//! Sources: 2006 paper sections 3.2 and 4.3; proc(5) (`stat`, field 3).

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use headway_base::random::{Draw, Random};
use headway_debox_bpf::RunQueue;
use headway_load::client::ClientLimits;
use serde::{Deserialize, Serialize};

use crate::servers::tree;

/// Scans take at most 1/SCAN_TIME_DIVISOR of the sampler's time.
const SCAN_TIME_DIVISOR: u32 = 10;

/// Between two listings of the tasks; a pool of a fixed size hardly changes.
const TASK_LIST_INTERVAL: Duration = Duration::from_secs(1);

/// Enough for the first words of `stat`: number, name of at most 15 bytes (64 for a kernel thread),
/// state.
const STAT_BYTES: usize = 128;

/// Settings of the sampler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Between two looks, on average; longer where a scan takes more than a tenth of it.
    pub interval: Duration,
    /// CPUs the sampler runs on; empty leaves it where it is.
    pub cpus: Vec<usize>,
    /// Seed of the random intervals.
    pub seed: u64,
}

impl Default for Settings {
    /// A look every 10 ms.
    fn default() -> Settings {
        Settings {
            interval: Duration::from_millis(10),
            cpus: Vec::new(),
            seed: 1,
        }
    }
}

/// One sample of all tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Since the sampler was started.
    pub at_us: u64,
    /// How long the look took.
    pub scan_us: u64,
    /// Tasks seen.
    pub tasks: u32,
    /// Of these, on a CPU or waiting for one.
    pub runnable: u32,
    /// Of these, in a wait that no signal ends: for the disk, or for a lock of the kernel's.
    pub blocked: u32,
}

impl Sample {
    /// Runnable tasks of all, from 0 to 1.
    pub fn share(&self) -> f64 {
        f64::from(self.runnable) / f64::from(self.tasks.max(1))
    }
}

/// All looks, and what they have cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Runnable {
    /// One after another. Looks that found no task at all are not here.
    pub samples: Vec<Sample>,
    /// From the first look to the last.
    pub elapsed_us: u64,
    /// CPU time of the sampler.
    pub cost_us: u64,
}

/// The figures of a distribution, for tables and claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Takes one sample.
    pub samples: usize,
    /// Tasks there were, on average.
    pub tasks_mean: f64,
    /// Runnable ones, on average.
    pub runnable_mean: f64,
    /// Blocked ones, on average.
    pub blocked_mean: f64,
    /// Mean of the runnable share, from 0 to 1.
    pub share_mean: f64,
    /// Median of the runnable share.
    pub share_median: f64,
    /// Standard deviation of the runnable share.
    pub share_deviation: f64,
    /// Share of samples that found no task runnable: the paper's "all processes are blocked".
    pub none: f64,
    /// Share of looks that found more than four fifths runnable: the paper's other mode.
    pub most: f64,
    /// Length of a look, median.
    pub scan_us_median: u64,
    /// Length of the longest look.
    pub scan_us_max: u64,
    /// CPU time of the sampler over the time it ran, from 0 to 1.
    pub cost: f64,
}

impl Runnable {
    /// The figures; all 0 without a sample.
    pub fn summary(&self) -> Summary {
        let count = self.samples.len();
        if count == 0 {
            return Summary::default();
        }
        let mean = |value: &dyn Fn(&Sample) -> f64| {
            self.samples.iter().map(value).sum::<f64>() / count as f64
        };
        let part =
            |holds: &dyn Fn(&Sample) -> bool| mean(&|sample| f64::from(u8::from(holds(sample))));
        let share_mean = mean(&Sample::share);
        let shares = self.sorted_shares();
        let mut scans: Vec<u64> = self.samples.iter().map(|sample| sample.scan_us).collect();
        scans.sort_unstable();
        Summary {
            samples: count,
            tasks_mean: mean(&|sample| f64::from(sample.tasks)),
            runnable_mean: mean(&|sample| f64::from(sample.runnable)),
            blocked_mean: mean(&|sample| f64::from(sample.blocked)),
            share_mean,
            share_median: (shares[(count - 1) / 2] + shares[count / 2]) / 2.0,
            share_deviation: mean(&|sample| (sample.share() - share_mean).powi(2)).sqrt(),
            none: part(&|sample| sample.runnable == 0),
            most: part(&|sample| sample.share() > 0.8),
            scan_us_median: scans[count / 2],
            scan_us_max: scans[count - 1],
            cost: self.cost_us as f64 / self.elapsed_us.max(1) as f64,
        }
    }

    /// The distribution of Figure 2: for each share of runnable tasks that was seen, in rising
    /// order, the share of looks that found as many or fewer.
    pub fn cdf(&self) -> Vec<(f64, f64)> {
        let shares = self.sorted_shares();
        let count = shares.len() as f64;
        let mut points: Vec<(f64, f64)> = Vec::new();
        for (index, share) in shares.iter().enumerate() {
            let below = (index + 1) as f64 / count;
            match points.last_mut().filter(|point| point.0 == *share) {
                Some(point) => point.1 = below,
                None => points.push((*share, below)),
            }
        }
        points
    }

    fn sorted_shares(&self) -> Vec<f64> {
        let mut shares: Vec<f64> = self.samples.iter().map(Sample::share).collect();
        shares.sort_by(f64::total_cmp);
        shares
    }
}

/// A sampler at work, on a thread of its own.
#[derive(Debug)]
pub struct Sampler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Runnable>,
}

impl Sampler {
    /// Starts to look. `members` lists the processes that count ([`Server::members`]); it is asked
    /// once a second. All threads of a process count.
    ///
    /// The limit of open files of this process is raised: where files are looked at, each task
    /// takes a descriptor.
    ///
    /// # Errors
    ///
    /// The thread cannot be started, or may not run on the CPUs.
    ///
    /// [`Server::members`]: crate::servers::Server::members
    pub fn start(
        members: impl Fn() -> Vec<i32> + Send + 'static,
        settings: Settings,
    ) -> io::Result<Sampler> {
        ClientLimits::raise();
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("runnable".into()).spawn({
            let stop = Arc::clone(&stop);
            move || {
                let pinned = crate::cpu::pin(&settings.cpus).map_err(io::Error::other);
                raise_priority();
                let may = pinned.is_ok();
                let _ = sender.send(pinned);
                match may {
                    true => watch(&members, &settings, &stop),
                    false => Runnable::default(),
                }
            }
        })?;
        receiver.recv().map_err(io::Error::other)??;
        Ok(Sampler { stop, thread })
    }

    /// Takes a last sample and returns all of them.
    ///
    /// # Panics
    ///
    /// With what `members` has panicked with.
    pub fn finish(self) -> Runnable {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        match self.thread.join() {
            Ok(runnable) => runnable,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// Raises the priority of the calling thread, so that a scan is not interrupted by the client on
/// the same CPU. Without the privilege a scan takes longer, which its figures show.
fn raise_priority() {
    // On Linux this is a property of the thread, setpriority(2).
    let _ = rustix::process::setpriority_process(None, -20);
}

fn watch(members: &impl Fn() -> Vec<i32>, settings: &Settings, stop: &AtomicBool) -> Runnable {
    let begun = Instant::now();
    let mut random = Random::new(settings.seed);
    let mut sampler = TaskSampler::open();
    let mut listed = None;
    let mut seen = Runnable::default();
    loop {
        let last = stop.load(Ordering::Relaxed);
        if listed.is_none_or(|at: Instant| at.elapsed() >= TASK_LIST_INTERVAL) {
            sampler.refresh(&members());
            listed = Some(Instant::now());
        }
        let at = Instant::now();
        let (count, runnable, blocked) = sampler.scan();
        let took = at.elapsed();
        if count > 0 {
            seen.samples.push(Sample {
                at_us: (at - begun).as_micros() as u64,
                scan_us: took.as_micros() as u64,
                tasks: count,
                runnable,
                blocked,
            });
        }
        if last {
            break;
        }
        let interval = settings.interval.max(took * SCAN_TIME_DIVISOR);
        // Between a half and one and a half of it; 2^53 numbers are enough.
        let jitter = 0.5 + (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let wait = interval.mul_f64(jitter);
        if !stop.load(Ordering::Relaxed) {
            std::thread::park_timeout(wait);
        }
    }
    seen.elapsed_us = begun.elapsed().as_micros() as u64;
    seen.cost_us = own_time_us();
    seen
}

/// CPU time of this thread, which does nothing but sample.
fn own_time_us() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text
        .split_ascii_whitespace()
        .next()
        .and_then(|word| word.parse::<u64>().ok());
    nanoseconds.unwrap_or(0) / 1000
}

/// The way in which tasks are sampled.
enum TaskSampler {
    Kernel(Box<RunQueue>),
    Files(Tasks),
}

impl TaskSampler {
    /// The kernel's run queue, if its privileges allow that, else files of /proc.
    fn open() -> TaskSampler {
        let kernel = RunQueue::start().map(Box::new);
        kernel.map_or_else(
            |_| TaskSampler::Files(Tasks::default()),
            TaskSampler::Kernel,
        )
    }

    fn refresh(&mut self, members: &[i32]) {
        match self {
            TaskSampler::Kernel(queue) => {
                let pids: Vec<u32> = members.iter().map(|pid| pid.unsigned_abs()).collect();
                // Processes which the kernel does not accept are missing in each sample.
                let _ = queue.watch(&pids);
            }
            TaskSampler::Files(tasks) => tasks.refresh(members),
        }
    }

    /// Tasks that live, runnable ones, blocked ones; none at all if nothing could be seen.
    fn scan(&mut self) -> (u32, u32, u32) {
        match self {
            TaskSampler::Kernel(queue) => {
                let sample = queue.sample().unwrap_or_default();
                (sample.tasks, sample.runnable, sample.blocked)
            }
            TaskSampler::Files(tasks) => tasks.scan(),
        }
    }
}

/// The open `stat` files of the tasks, by process and task.
#[derive(Debug, Default)]
struct Tasks(BTreeMap<(i32, i32), File>);

impl Tasks {
    fn refresh(&mut self, members: &[i32]) {
        let mut now = BTreeMap::new();
        for &pid in members {
            let folder = format!("/proc/{pid}/task");
            for task in tree::numbers(&folder) {
                let known = self.0.remove(&(pid, task)).map(Ok);
                // A task that has ended in the meantime is no error.
                if let Ok(file) =
                    known.unwrap_or_else(|| File::open(format!("{folder}/{task}/stat")))
                {
                    now.insert((pid, task), file);
                }
            }
        }
        self.0 = now;
    }

    /// Tasks that live, runnable ones, blocked ones.
    fn scan(&mut self) -> (u32, u32, u32) {
        let (mut count, mut runnable, mut blocked) = (0, 0, 0);
        let mut buffer = [0; STAT_BYTES];
        self.0.retain(|_, file| {
            // A file of a task that has ended says ESRCH for ever, even if the number is used
            // again.
            let Ok(length) = file.read_at(&mut buffer, 0) else {
                return false;
            };
            match state(&buffer[..length]) {
                Some(b'R') => runnable += 1,
                Some(b'D') => blocked += 1,
                Some(b'Z' | b'X') => return true,
                _ => {}
            }
            count += 1;
            true
        });
        (count, runnable, blocked)
    }
}

/// The state in the beginning of a line of `stat`. The name may hold parentheses; what follows it
/// are numbers.
fn state(line: &[u8]) -> Option<u8> {
    let end = line.windows(2).rposition(|two| two == b") ")?;
    line.get(end + 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    /// Ended when dropped, also by a failing assertion.
    struct Children(Vec<Child>);

    impl Children {
        fn start(count: usize, program: &str, arguments: &[&str]) -> Children {
            let start = |_| {
                let mut command = Command::new(program);
                command.args(arguments).stdout(Stdio::null());
                command.spawn().expect("a program")
            };
            Children((0..count).map(start).collect())
        }

        fn pids(&self) -> Vec<i32> {
            self.0.iter().map(|child| child.id() as i32).collect()
        }
    }

    impl Drop for Children {
        fn drop(&mut self) {
            for child in &mut self.0 {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }

    fn name_of(pid: i32) -> String {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default()
    }

    fn of(shares: &[(u32, u32)]) -> Runnable {
        let samples = shares.iter().map(|&(runnable, tasks)| Sample {
            at_us: 0,
            scan_us: 100,
            tasks,
            runnable,
            blocked: 1,
        });
        Runnable {
            samples: samples.collect(),
            elapsed_us: 1000,
            cost_us: 50,
        }
    }

    #[test]
    fn busy_processes_are_runnable_and_sleeping_ones_are_not() {
        let busy = Children::start(3, "sh", &["-c", "while :; do :; done"]);
        let idle = Children::start(5, "sleep", &["60"]);
        let pids: Vec<i32> = [busy.pids(), idle.pids()].concat();
        // A process that has just been started still reads its program, or is still ours.
        while idle.pids().iter().any(|pid| {
            name_of(*pid) != "sleep\n" || tree::Stat::of(*pid).is_none_or(|stat| stat.state != b'S')
        }) || busy
            .pids()
            .iter()
            .any(|pid| tree::Stat::of(*pid).is_none_or(|stat| stat.own_ticks < 2))
        {
            std::thread::sleep(Duration::from_millis(5));
        }
        let settings = Settings {
            interval: Duration::from_millis(2),
            ..Settings::default()
        };
        // On a busy machine the sampler may have no turn for a while, so look longer.
        let mut time = Duration::from_millis(100);
        let seen = loop {
            let pids = pids.clone();
            let sampler =
                Sampler::start(move || pids.clone(), settings.clone()).expect("a sampler");
            std::thread::sleep(time);
            let seen = sampler.finish();
            if seen.samples.len() >= 2 {
                break seen;
            }
            assert!(time < Duration::from_secs(20), "{:?}", seen.samples);
            time *= 2;
        };
        for sample in &seen.samples {
            assert_eq!(
                (sample.tasks, sample.runnable, sample.blocked),
                (8, 3, 0),
                "{sample:?}"
            );
        }
        assert!(seen.cost_us > 0 && seen.elapsed_us > 0);
    }

    #[test]
    fn threads_count_each_when_a_process_has_several() {
        let stop = Arc::new(AtomicBool::new(false));
        let sleepers: Vec<_> = (0..4)
            .map(|_| {
                let stop = Arc::clone(&stop);
                std::thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        std::thread::park();
                    }
                })
            })
            .collect();
        let mut tasks = Tasks::default();
        tasks.refresh(&[std::process::id() as i32]);
        let begun = Instant::now();
        loop {
            let (count, runnable, _) = tasks.scan();
            // This thread looks, so it runs; those four sleep as soon as each has had its first
            // turn.
            assert!(count >= 5 && runnable >= 1, "{count} {runnable}");
            if runnable + 4 <= count {
                break;
            }
            assert!(
                begun.elapsed() < Duration::from_secs(30),
                "{count} {runnable}"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, Ordering::Relaxed);
        for sleeper in sleepers {
            sleeper.thread().unpark();
            sleeper.join().expect("no panic");
        }
    }

    #[test]
    fn ended_tasks_are_removed_from_the_sampler() {
        let idle = Children::start(2, "sleep", &["60"]);
        let mut tasks = Tasks::default();
        tasks.refresh(&idle.pids());
        assert_eq!(tasks.scan().0, 2);
        drop(idle);
        assert_eq!(tasks.scan(), (0, 0, 0));
        assert!(tasks.0.is_empty());
    }

    #[test]
    fn distribution_rises_to_one_when_shares_repeat() {
        let seen = of(&[(0, 4), (0, 4), (2, 4), (4, 4)]);
        assert_eq!(seen.cdf(), [(0.0, 0.5), (0.5, 0.75), (1.0, 1.0)]);
        let summary = seen.summary();
        assert_eq!(
            (summary.samples, summary.none, summary.most),
            (4, 0.5, 0.25)
        );
        assert_eq!((summary.share_mean, summary.share_median), (0.375, 0.25));
        assert_eq!((summary.runnable_mean, summary.blocked_mean), (1.5, 1.0));
        // Distances of 0.375, 0.375, 0.125 and 0.625.
        assert!((summary.share_deviation - 0.171_875_f64.sqrt()).abs() < 1e-12);
        assert_eq!((summary.scan_us_median, summary.cost), (100, 0.05));
        assert_eq!(of(&[]).summary(), Summary::default());
        assert!(of(&[]).cdf().is_empty());
    }

    #[test]
    fn state_is_found_when_the_name_is_strange() {
        assert_eq!(state(b"12 (a) D (x) R 1 12"), Some(b'R'));
        assert_eq!(state(b"12 (cut"), None);
    }

    #[test]
    fn cpus_are_an_error_when_they_do_not_exist() {
        let settings = Settings {
            cpus: vec![rustix::thread::CpuSet::MAX_CPU - 1],
            ..Settings::default()
        };
        let error = Sampler::start(Vec::new, settings).expect_err("no such CPU");
        assert!(error.to_string().contains("CPUs"), "{error}");
    }
}
