//! The search for the largest number of connections that a server holds.
//!
//! The search doubles the load until it is not held, then bisects down to a step. A trial is a
//! SPECweb99-like run of its own below `trials/`, with few iterations. The result is measured again
//! with all iterations; if it does not hold, it counts as not held and the search continues below.
//! The file set grows with the number of connections, by the rule, and a smaller number uses the
//! first part of it. Commands before and after each trial can start and stop the server, so that
//! each begins alike.
//!
//! `find.json` has the state after every trial; the same command continues from there. [`Search`]
//! decides, and is pure.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::{Listener, SpecWeb99Error, SpecWeb99Settings};
use headway_latency::Run;
use headway_latency::specweb99::SpecWeb99Info;
use headway_load::cli_types::{Endpoint, Url};
use headway_load::engine::Address;
use headway_load::fileset::{grow, specweb_bytes, specweb_directories};
use headway_load::profile::run_shell;
use headway_load::session::{RunContext, SessionError, status};

/// The name of what has been found so far, in the search's directory.
pub const FIND_JSON: &str = "find.json";

/// Where a search begins that was given no number.
pub const FIRST_CONNECTIONS: u32 = 100;

/// After a command that may have started the server.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
const READY_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A search as a user asks for it.
#[derive(Clone, Debug)]
pub struct FindSettings {
    /// What every trial has in common; its connections are replaced.
    pub run: SpecWeb99Settings,
    /// Where to begin, where to end, and how close to come.
    pub range: Range,
    /// Iterations of a trial; what was found is measured again with those of `run`.
    pub trial_iterations: u32,
    /// A shell command before each trial.
    pub before_trial: Option<String>,
    /// A shell command after each trial.
    pub after_trial: Option<String>,
}

/// Where a search looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// The first number that is tried.
    pub first: u32,
    /// No number above it is tried.
    pub most: u32,
    /// The search ends when what is held and what is not are no further apart.
    pub step: u32,
}

/// One trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Number of connections.
    pub connections: u32,
    /// Number of iterations.
    pub iterations: u32,
    /// The conforming connections, in the median.
    pub score: u64,
    /// Whether the load was held.
    pub held: bool,
    /// The trial's directory, relative to the search.
    pub directory: String,
}

/// What has been found so far: `find.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SearchResult {
    /// What the trials have in common, name and value.
    pub parameters: Vec<(String, String)>,
    /// In the order in which they were made.
    pub trials: Vec<Trial>,
    /// The largest number that is held by a run with all iterations; absent until the search is
    /// over, 0 when none is.
    pub connections: Option<u32>,
}

/// What a search does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Try this number.
    Try(u32),
    /// The search is over: the largest number that is held; `None` if not even one is.
    Ended(Option<u32>),
}

/// Numbers of connections, and whether they were held.
#[derive(Clone, Debug, Default)]
pub struct Search {
    tried: Vec<(u32, bool)>,
}

impl Search {
    /// A number was held, or was not; a later word on the same number counts.
    pub fn record(&mut self, connections: u32, held: bool) {
        self.tried.retain(|(known, _)| *known != connections);
        self.tried.push((connections, held));
    }

    /// What to do next. A number above one that was not held is never tried: more load does not
    /// make a server hold it.
    pub fn next(&self, range: &Range) -> Next {
        let step = range.step.max(1);
        let failed = self
            .tried
            .iter()
            .filter(|(_, held)| !held)
            .map(|(number, _)| *number)
            .min();
        let below = |number: u32| failed.is_none_or(|failed| number < failed);
        let held = self
            .tried
            .iter()
            .filter(|(number, held)| *held && below(*number));
        let held = held.map(|(number, _)| *number).max();
        match (held, failed) {
            (None, None) => Next::Try(range.first.clamp(1, range.most.max(1))),
            (Some(held), None) if held >= range.most => Next::Ended(Some(held)),
            (Some(held), None) => Next::Try(held.saturating_mul(2).min(range.most)),
            (None, Some(1)) => Next::Ended(None),
            (None, Some(failed)) => Next::Try(failed / 2),
            (Some(held), Some(failed)) if failed - held <= step => Next::Ended(Some(held)),
            (Some(held), Some(failed)) => {
                // In whole steps above what is held, so that the same numbers come again in another
                // search.
                let middle = (failed - held) / 2;
                Next::Try(held + (middle / step * step).max(step))
            }
        }
    }
}

impl FindSettings {
    /// Tries what has not been tried yet, and returns what was found.
    ///
    /// # Errors
    /// See [`SpecWeb99Error`]. Trials that are done stay done.
    pub fn run(
        &self,
        directory: &Path,
        around: &RunContext,
        listener: &mut dyn Listener,
    ) -> Result<SearchResult, SpecWeb99Error> {
        self.check()?;
        let mut finding = Finding {
            settings: self,
            directory,
            around,
            found: self.begin(directory)?,
        };
        let done = finding.found.trials.len();
        if done > 0 {
            listener.remarks(&format!("continuing: {done} trials are done"));
        }
        loop {
            match finding.search().next(&self.range) {
                Next::Try(connections) => {
                    finding.attempt(connections, self.trial_iterations, listener)?
                }
                Next::Ended(Some(connections)) if !finding.is_confirmed(connections) => {
                    finding.attempt(connections, self.run.iterations, listener)?;
                }
                Next::Ended(connections) => {
                    finding.found.connections = Some(connections.unwrap_or(0));
                    finding.write()?;
                    return Ok(finding.found);
                }
            }
        }
    }

    fn check(&self) -> Result<(), SpecWeb99Error> {
        let wrong = |text: &str| Err(SpecWeb99Error::Use(text.to_owned()));
        if self.range.first == 0 || self.range.most == 0 || self.range.step == 0 {
            return wrong("--first, --most and --step are 1 or more");
        }
        if self.range.first > self.range.most {
            return wrong("--first is above --most, where no number is tried");
        }
        if self.trial_iterations == 0 || self.trial_iterations > self.run.iterations {
            return wrong("--trial-iterations is 1 or more, and not more than --iterations");
        }
        self.settings_for(self.range.first, self.run.iterations)
            .check()
            .map(drop)
    }

    fn settings_for(&self, connections: u32, iterations: u32) -> SpecWeb99Settings {
        let mut run = self.run.clone();
        run.session.connections = Some(connections);
        run.iterations = iterations;
        run
    }

    /// Parameters that have to be equal when a search continues.
    fn parameters(&self) -> Vec<(String, String)> {
        let (run, session) = (&self.run, &self.run.session);
        let urls: Vec<String> = session.urls.iter().map(ToString::to_string).collect();
        let seconds = |time: Option<Duration>, default: Duration| {
            time.unwrap_or(default).as_secs_f64().to_string()
        };
        let none = || "none".to_owned();
        let parameters = [
            ("the server", urls.join(" ")),
            ("the file set", run.root().display().to_string()),
            ("--whole-set", run.whole_set.to_string()),
            ("--static-only", run.static_only.to_string()),
            ("the places of the application", run.paths.join(" ")),
            ("iterations", run.iterations.to_string()),
            ("iterations of a trial", self.trial_iterations.to_string()),
            ("a ramp in seconds of", run.ramp.as_secs_f64().to_string()),
            (
                "a warm-up in seconds of",
                seconds(session.warmup, crate::WARMUP),
            ),
            (
                "a duration in seconds of",
                seconds(session.duration, crate::DURATION),
            ),
            ("the seed", session.seed.to_string()),
            ("--step", self.range.step.to_string()),
            (
                "--before-trial",
                self.before_trial.clone().unwrap_or_else(none),
            ),
            (
                "--after-trial",
                self.after_trial.clone().unwrap_or_else(none),
            ),
        ];
        parameters
            .map(|(name, value)| (name.to_owned(), value))
            .into()
    }

    /// What was found before in the directory, or nothing yet.
    fn begin(&self, directory: &Path) -> Result<SearchResult, SpecWeb99Error> {
        let path = directory.join(FIND_JSON);
        let fresh = SearchResult {
            parameters: self.parameters(),
            trials: Vec::new(),
            connections: None,
        };
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(_)
                if std::fs::read_dir(directory)
                    .is_ok_and(|mut entries| entries.next().is_some()) =>
            {
                return Err(headway_latency::WriteError::Foreign(directory.to_owned()).into());
            }
            Err(_) => return Ok(fresh),
        };
        let refused = |why: String| SpecWeb99Error::Search(format!("{}: {why}", path.display()));
        let found: SearchResult = serde_json::from_slice(&text)
            .map_err(|error| refused(format!("not what a search has written ({error})")))?;
        let mut pairs = found.parameters.iter().zip(&fresh.parameters);
        if let Some(((name, then), (_, now))) = pairs.find(|(then, now)| then != now) {
            let what = format!("a search was begun here with {name} {then}, not {now}");
            return Err(refused(format!(
                "{what}; ask for the same, or name another directory"
            )));
        }
        if found.connections.is_some() {
            return Err(refused(
                "the search is over; name another directory for another one".to_owned(),
            ));
        }
        Ok(found)
    }
}

/// A search on its way.
struct Finding<'a> {
    settings: &'a FindSettings,
    directory: &'a Path,
    around: &'a RunContext,
    found: SearchResult,
}

impl Finding<'_> {
    fn search(&self) -> Search {
        let mut search = Search::default();
        for trial in &self.found.trials {
            search.record(trial.connections, trial.held);
        }
        search
    }

    /// Whether a number has been measured with all iterations.
    fn is_confirmed(&self, connections: u32) -> bool {
        let all = self.settings.run.iterations;
        let mut trials = self.found.trials.iter();
        trials.any(|trial| trial.connections == connections && trial.iterations == all)
    }

    fn attempt(
        &mut self,
        connections: u32,
        iterations: u32,
        listener: &mut dyn Listener,
    ) -> Result<(), SpecWeb99Error> {
        let name = format!("trials/{connections:05}-{iterations}");
        let path = self.directory.join(&name);
        let info = match whole(&path) {
            // It ended just before the search was killed.
            Some(info) => info,
            None => self.measure(connections, iterations, &path, listener)?,
        };
        let trial = Trial {
            connections,
            iterations,
            score: info.score.unwrap_or(0),
            held: info.held.unwrap_or(false),
            directory: name,
        };
        listener.remarks(&trial_text(&trial));
        self.found.trials.push(trial);
        self.write()
    }

    fn measure(
        &self,
        connections: u32,
        iterations: u32,
        path: &Path,
        listener: &mut dyn Listener,
    ) -> Result<SpecWeb99Info, SpecWeb99Error> {
        let settings = self.settings.settings_for(connections, iterations);
        if !settings.whole_set {
            grow_to(settings.root(), connections)?;
        }
        let variables = [
            ("HEADWAY_CONNECTIONS", connections.to_string()),
            ("HEADWAY_FILESET", settings.root().display().to_string()),
            ("HEADWAY_TRIAL", path.display().to_string()),
        ];
        if let Some(command) = &self.settings.before_trial {
            run_shell("--before-trial", command, &variables)?;
            self.wait_until_ready(&settings.session.urls[0])?;
        }
        let ran = settings.run(Some(path), self.around, listener);
        // The server is stopped whatever became of the run: the next command starts another one.
        if let Some(command) = &self.settings.after_trial {
            run_shell("--after-trial", command, &variables)?;
        }
        Ok(ran?.info().clone())
    }

    /// A server that was started needs a moment before it listens.
    fn wait_until_ready(&self, url: &Url) -> Result<(), SpecWeb99Error> {
        let deadline = Instant::now() + READY_TIMEOUT;
        let address = match &url.endpoint {
            Endpoint::Unix(path) => Address::Unix(path.clone()),
            Endpoint::Inet { host, port, .. } => {
                let resolved = headway_load::client::resolve(host, *port);
                Address::Inet(resolved.map_err(SessionError::from)?)
            }
        };
        loop {
            match status::reach(&address, READY_TIMEOUT) {
                Ok(()) => return Ok(()),
                Err(source) if Instant::now() >= deadline => {
                    let seconds = READY_TIMEOUT.as_secs();
                    let why = format!(
                        "{address} does not answer {seconds} s after --before-trial: {source}"
                    );
                    return Err(SpecWeb99Error::Search(why));
                }
                Err(_)
                    if self
                        .around
                        .interrupt
                        .load(std::sync::atomic::Ordering::Relaxed) =>
                {
                    return Err(SpecWeb99Error::Interrupted);
                }
                Err(_) => std::thread::sleep(READY_POLL_INTERVAL),
            }
        }
    }

    /// Written under another name and renamed, so that a kill leaves the old one.
    fn write(&self) -> Result<(), SpecWeb99Error> {
        let path = self.directory.join(FIND_JSON);
        let unfinished: PathBuf = self.directory.join("find.json.part");
        let write = || -> std::io::Result<()> {
            std::fs::create_dir_all(self.directory)?;
            let text = serde_json::to_string_pretty(&self.found)?;
            std::fs::write(&unfinished, text + "\n")?;
            std::fs::rename(&unfinished, &path)
        };
        write()
            .map_err(|error| SpecWeb99Error::Search(format!("writing {}: {error}", path.display())))
    }
}

/// The line of a trial.
pub fn trial_text(trial: &Trial) -> String {
    let Trial {
        connections,
        iterations,
        score,
        held,
        ..
    } = trial;
    let word = if *held { "held" } else { "not held" };
    let times = if *iterations == 1 {
        "iteration"
    } else {
        "iterations"
    };
    format!("{connections} connections, {iterations} {times}: {score} conform, {word}")
}

/// What a run came to that is there and whole.
fn whole(path: &Path) -> Option<SpecWeb99Info> {
    let run = Run::open(path).ok()?;
    let description = run.description();
    description
        .specweb99
        .clone()
        .filter(|_| description.complete)
}

/// Grows the file set to the size of the rule.
fn grow_to(root: &Path, connections: u32) -> Result<(), SpecWeb99Error> {
    let wanted = specweb_directories(specweb_bytes(connections.into()));
    let wanted = wanted.map_err(|error| SpecWeb99Error::FileSet(error.to_string()))?;
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    crate::file_set(root, connections)?;
    let grown = grow(root, wanted, threads, &mut |_| ());
    grown
        .map(drop)
        .map_err(|error| SpecWeb99Error::FileSet(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches a server that holds this many connections, and returns the trials and the result.
    fn searched(capacity: u32, range: Range) -> (Vec<u32>, Option<u32>) {
        let (mut search, mut tried) = (Search::default(), Vec::new());
        loop {
            match search.next(&range) {
                Next::Try(connections) => {
                    assert!(
                        !tried.contains(&connections),
                        "{connections} is tried twice: {tried:?}"
                    );
                    tried.push(connections);
                    search.record(connections, connections <= capacity);
                }
                Next::Ended(found) => return (tried, found),
            }
        }
    }

    const RANGE: Range = Range {
        first: 100,
        most: 10_000,
        step: 10,
    };

    #[test]
    fn largest_number_of_connections_is_found_within_a_step() {
        for capacity in [1, 3, 7, 42, 99, 100, 101, 150, 199, 777, 5000, 9999] {
            let (tried, found) = searched(capacity, RANGE);
            let found = found.expect("one connection at least");
            assert!(
                found <= capacity && capacity - found < 10,
                "{capacity}: {found} {tried:?}"
            );
            assert!(tried.len() <= 18, "{capacity}: {tried:?}");
        }
        assert_eq!(searched(777, RANGE).0[..4], [100, 200, 400, 800]);
    }

    #[test]
    fn search_ends_at_its_limits_when_every_load_or_none_is_sustained() {
        assert_eq!(searched(u32::MAX, RANGE).1, Some(10_000));
        let (tried, found) = searched(0, RANGE);
        assert_eq!((tried.last(), found), (Some(&1), None));
        let narrow = Range {
            first: 5,
            most: 5,
            step: 1,
        };
        assert_eq!(searched(9, narrow), (vec![5], Some(5)));
    }

    #[test]
    fn search_continues_below_when_the_result_is_not_repeated() {
        let mut search = Search::default();
        for (connections, held) in [
            (100, true),
            (200, false),
            (150, true),
            (170, true),
            (180, true),
            (190, false),
        ] {
            search.record(connections, held);
        }
        assert_eq!(search.next(&RANGE), Next::Ended(Some(180)));
        search.record(180, false);
        assert_eq!(search.next(&RANGE), Next::Ended(Some(170)));
        search.record(150, false);
        assert_eq!(
            search.next(&RANGE),
            Next::Try(120),
            "what lies above a failure is not believed"
        );
    }
}
