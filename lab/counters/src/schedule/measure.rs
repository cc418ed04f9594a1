//! Measures a matrix: each program alone, then each pair side by side on two given CPUs.
//!
//! A program's time is wall-clock time from its start to its end, the median of several runs. Alone
//! it is measured on each of the two CPUs, after one run that only warms the caches, so that a pair
//! on unlike CPUs is compared with the right base. In a pair both start together, and a program
//! that ends is started again until each has ended often enough: every run that counts had a
//! co-runner from its beginning to its end. The last run of the other one is cut off and does not
//! count.
//!
//! Each program is a line for `sh -c`, bound to its CPU with all it starts, in a process group of
//! its own, without input. What it prints is discarded, or kept in a file for each program.
//! Whatever ends the measurement (an error, a run beyond its time limit, an interruption) ends
//! every process of those groups; one that leaves its group escapes that, and so does everything if
//! this process is itself killed by SIGKILL. No run is longer than the time limit, so the whole is
//! bounded: by limit × (runs + 1) for each program on each CPU, and limit × runs for each pair.
//!
//! Method: N. Tuck and D. Tullsen, "Initial observations of the simultaneous multithreading Pentium
//! 4 CPU", PACT 2003, from where the dissertation's matrix came, also restart programs until
//! all of a pair have run.

mod cpus;
mod co_run;

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

pub use cpus::{allowed, bind_thread, is_one_core};

use super::matrix::{MatrixError, SlowDowns, check_names};
use co_run::{PairRun, Slot};

/// A time alone below this is to a good part the start of a process.
pub const RUN_TIME_MIN: Duration = Duration::from_millis(100);

/// A program to be paired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The name in the matrix.
    pub name: String,
    /// The line for `sh -c`.
    pub command: String,
}

/// What to measure, and how.
#[derive(Clone, Debug)]
pub struct SlowDownPlan {
    /// Two or more, of different names.
    pub programs: Vec<Program>,
    /// Two CPUs that this process may use, in the kernel's numbering.
    pub cpus: [usize; 2],
    /// Whole runs of each program in each pair, and alone; 0 counts as 1.
    pub runs: u32,
    /// The longest that a run may take.
    pub time_limit: Duration,
    /// A directory for what the programs print: `NUMBER.out`, in the plan's order from 1. It is
    /// made if it is missing.
    pub keep: Option<PathBuf>,
}

/// Why there is no matrix.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeasureError {
    /// A CPU that is not there, or not for this process.
    #[error("CPU {cpu} is not one that this process may use; those are {}", list(.allowed))]
    Cpu {
        /// The CPU that was given.
        cpu: usize,
        /// The CPUs that this process may use.
        allowed: Vec<usize>,
    },
    /// Twice the same CPU.
    #[error("CPU {0} is named twice; programs beside one another need two")]
    SameCpu(usize),
    /// Programs that cannot be told apart, or too few.
    #[error(transparent)]
    Programs(#[from] MatrixError),
    /// The directory for what is printed.
    #[error("{}: {error}", .path.display())]
    Keep {
        /// The directory or a file in it.
        path: PathBuf,
        /// Why the directory or file cannot be used.
        error: io::Error,
    },
    /// A program did not start, or its thread was not bound.
    #[error("starting {program:?} on CPU {cpu}: {error}")]
    Start {
        /// The name of the program.
        program: String,
        /// CPU on which the program ran.
        cpu: usize,
        /// Why the program could not be run.
        error: io::Error,
    },
    /// A program ended, and not well.
    #[error(
        "{program:?} failed on CPU {cpu}, {how}; its time would say nothing. To see what it prints, keep it (--keep DIR)"
    )]
    Failed {
        /// The name of the program.
        program: String,
        /// CPU on which the program ran.
        cpu: usize,
        /// `exit status: 3` or `signal: 9 (SIGKILL)`.
        how: String,
    },
    /// A run was too long.
    #[error("{program:?} did not end within {} s on CPU {cpu}; it was ended. Programs have to end by themselves; --time-limit gives them longer", .limit.as_secs_f64())]
    TooLong {
        /// The name of the program.
        program: String,
        /// CPU on which the program ran.
        cpu: usize,
        /// The limit of a run's length.
        limit: Duration,
    },
    /// The measurement was interrupted.
    #[error("interrupted; all programs were ended, and nothing was written")]
    Interrupted,
}

fn list(cpus: &[usize]) -> String {
    let numbers: Vec<String> = cpus.iter().map(usize::to_string).collect();
    numbers.join(", ")
}

impl SlowDownPlan {
    /// Measures it all. `say` gets a line before each step and about times that are too short;
    /// `interrupted` ends it within a tenth of a second.
    ///
    /// # Errors
    /// [`MeasureError`]; no program is running any more then.
    pub fn run(
        &self,
        interrupted: &AtomicBool,
        notify: &mut dyn FnMut(&str),
    ) -> Result<SlowDowns, MeasureError> {
        self.check()?;
        let alone = self.all_alone(interrupted, notify)?;
        let count = self.programs.len();
        let pairs: Vec<(usize, usize)> = (0..count)
            .flat_map(|a| (a + 1..count).map(move |b| (a, b)))
            .collect();
        let mut entries = vec![1.0; count * count];
        for (done, &(a, b)) in pairs.iter().enumerate() {
            let (left, right) = (&self.programs[a].name, &self.programs[b].name);
            notify(&format!(
                "pair {} of {}: {left} beside {right}",
                done + 1,
                pairs.len()
            ));
            let seats = [self.slot(a, 0)?, self.slot(b, 1)?];
            let times = PairRun::new(&seats, self.runs.max(1), self.time_limit).run(interrupted)?;
            entries[a * count + b] = median(&times[0]) / alone[a][0];
            entries[b * count + a] = median(&times[1]) / alone[b][1];
        }
        let names = self.programs.iter().map(|program| program.name.clone());
        let of = |row: usize, column: usize| entries[row * count + column];
        Ok(SlowDowns::new(names.collect(), of)?)
    }

    /// Whether the plan can be carried out as far as its words go.
    ///
    /// # Errors
    /// [`MeasureError::Cpu`], [`MeasureError::SameCpu`], [`MeasureError::Programs`].
    pub fn check(&self) -> Result<(), MeasureError> {
        let names: Vec<String> = self
            .programs
            .iter()
            .map(|program| program.name.clone())
            .collect();
        check_names(&names)?;
        if self.cpus[0] == self.cpus[1] {
            return Err(MeasureError::SameCpu(self.cpus[0]));
        }
        let allowed = allowed();
        if let Some(&cpu) = self.cpus.iter().find(|cpu| !allowed.contains(cpu)) {
            return Err(MeasureError::Cpu { cpu, allowed });
        }
        if let Some(path) = &self.keep {
            fs::create_dir_all(path).map_err(|error| MeasureError::Keep {
                path: path.clone(),
                error,
            })?;
        }
        Ok(())
    }

    /// Each program's time alone in seconds, on each CPU.
    fn all_alone(
        &self,
        interrupted: &AtomicBool,
        notify: &mut dyn FnMut(&str),
    ) -> Result<Vec<[f64; 2]>, MeasureError> {
        let mut all = Vec::new();
        for (number, program) in self.programs.iter().enumerate() {
            let (name, count) = (&program.name, self.programs.len());
            notify(&format!("alone {} of {count}: {name}", number + 1));
            let mut times = [0.0; 2];
            for (position, time) in times.iter_mut().enumerate() {
                let slots = [self.slot(number, position)?];
                let pair = PairRun::new(&slots, self.runs.max(1) + 1, self.time_limit);
                // The first run warms the caches.
                *time = median(&pair.run(interrupted)?[0][1..]);
            }
            let shortest = times[0].min(times[1]);
            if shortest < RUN_TIME_MIN.as_secs_f64() {
                let ms = shortest * 1e3;
                notify(&format!(
                    "{name} takes {ms:.1} ms alone: starting a process is a good part of that; give it more work"
                ));
            }
            all.push(times);
        }
        Ok(all)
    }

    fn slot(&self, number: usize, position: usize) -> Result<Slot, MeasureError> {
        let program = self.programs[number].clone();
        let cpu = self.cpus[position];
        let output = match &self.keep {
            None => None,
            Some(directory) => {
                let path = directory.join(format!("{}.out", number + 1));
                let opened = fs::OpenOptions::new().create(true).append(true).open(&path);
                Some(opened.map_err(|error| MeasureError::Keep { path, error })?)
            }
        };
        Ok(Slot {
            program,
            cpu,
            output,
        })
    }
}

/// The middle one, or the mean of both in the middle, in seconds. There is at least one.
fn median(times: &[Duration]) -> f64 {
    let mut sorted: Vec<f64> = times.iter().map(Duration::as_secs_f64).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        (sorted[middle - 1] + sorted[middle]) / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_in_the_middle_when_times_are_in_any_order() {
        let of = |ms: &[u64]| {
            let times: Vec<Duration> = ms.iter().map(|&ms| Duration::from_millis(ms)).collect();
            (median(&times) * 1e3).round()
        };
        assert_eq!(
            (of(&[5]), of(&[9, 1, 4]), of(&[4, 1, 2, 9])),
            (5.0, 4.0, 3.0)
        );
    }
}
