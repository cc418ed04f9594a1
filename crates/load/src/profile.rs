//! A latency profile: capacity by infinite demand, then open loops at shares of it (dissertation
//! 3.2.3).
//!
//! Relative load makes servers of different speed comparable. The capacity is the throughput of a
//! closed loop; each point is a run of its own below `points/`, and `run.json` above them lists the
//! points and which are done. A profile that was interrupted continues if it is started with the
//! same arguments. Repeats go round by round, so that a drift of the machine affects every load
//! alike. If the client was the bottleneck of the closed loop, the percentages are of the rate that
//! it can offer ([`client`]). With [`Knee`] there is no closed loop: open loops search for the highest rate
//! that is answered in time ([`search`]).

mod client;
mod commands;
mod error;
mod resume;
mod search;
mod table;

use std::path::Path;
use std::time::Duration;

use crate::checksum::Checksum;
use crate::cli_types::{RateSchedule, RateStep};
use crate::client::environment::{as_list, rfc3339};
use crate::engine::{Address, Arrivals, Work};
use crate::session::{Demand, Finished, RunContext, SessionError, Settings, WorkSource, status};
use headway_latency::format::{number, percent};
use headway_latency::run::description::{
    ClientBound, Kind, LoadInfo, Mode, Point, ProfileInfo, Verdict,
};
use headway_latency::run::write_description;
use headway_latency::{Run, RunDescription};

pub use client::{Limit, capacity_text};
pub use commands::{CommandError, run_shell};
pub use error::ProfileError;
pub use search::Knee;
pub use table::render;

/// Relative loads of a profile that was given none.
pub const RELATIVE_LOADS: [f64; 6] = [0.2, 0.4, 0.6, 0.8, 0.9, 0.95];

/// After a command that may have restarted the server.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
const READY_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A profile as a user asks for it.
#[derive(Clone, Debug)]
pub struct ProfileSettings {
    /// What all points have in common; its demand is replaced.
    pub session: Settings,
    /// Spacing of the starts.
    pub arrivals: Arrivals,
    /// Requests per second; `None` measures it.
    pub capacity_rps: Option<f64>,
    /// How the capacity is measured: by a search for the knee; `None` is by a closed loop.
    pub knee: Option<Knee>,
    /// Shares of the capacity.
    pub loads: Vec<f64>,
    /// How often each point is measured.
    pub repeats: u32,
    /// A shell command before each run.
    pub before_point: Option<String>,
    /// A shell command after each run.
    pub after_point: Option<String>,
    /// Stop at a capacity that is the client's rather than the server's.
    pub strict: bool,
    /// From where the capacity is the client's.
    pub client_limit: Limit,
}

/// What open loops before the points search for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// The highest rate that the client can offer.
    ClientLimit,
    /// The knee of the server.
    Knee,
}

/// Receives the progress of a profile.
pub trait Listener {
    /// Called before the first run: the number of runs that are left, and the length of each.
    fn planned(&mut self, runs: usize, each: Duration);
    /// A run begins: `name` is `point 2 of 6: 40 % of 5,000/s`.
    fn begins(&mut self, name: &str);
    /// A run has ended and is kept.
    fn ended(&mut self, point: &Point, finished: &Finished);
    /// Points that are done already and are not measured again.
    fn resumes(&mut self, done: usize, of: usize);
    /// A sentence about something that changes the rest of the profile.
    fn remarks(&mut self, text: &str);
}

impl ProfileSettings {
    /// Measures what is not measured yet, and returns the description as it stands in `run.json`.
    ///
    /// # Errors
    /// See [`ProfileError`]. Points that are done stay done.
    pub fn run(
        &self,
        directory: &Path,
        around: &RunContext,
        listener: &mut dyn Listener,
    ) -> Result<RunDescription, ProfileError> {
        self.check()?;
        let mut profile = RunningProfile {
            settings: self,
            directory,
            around,
            description: resume::begin(self, directory)?,
        };
        let (done, all) = profile.counts();
        if done > 0 {
            listener.resumes(done, all);
        }
        listener.planned(all - done, self.open(1.0, 1).length());
        profile.find_capacity(listener)?;
        profile.measure_points(listener)?;
        write_description(directory, &profile.description, true)?;
        profile.description.complete = true;
        Ok(profile.description)
    }

    fn check(&self) -> Result<(), ProfileError> {
        let wrong = |text: &str| Err(ProfileError::Use(text.to_owned()));
        if self.repeats == 0 {
            return wrong("--repeats 0 measures nothing; use 1 or more");
        }
        if self.loads.is_empty() {
            return wrong("no loads; write --loads 20,40,60,80,90,95");
        }
        if self.session.requests.is_some() {
            return wrong("the points of a profile are measured for a time; use --duration");
        }
        if let (Some(_), Some(_)) = (self.knee, self.capacity_rps) {
            return wrong(
                "--knee looks for the capacity that --capacity gives; leave one of them out",
            );
        }
        // Names, limits and files are looked at before the first command is run.
        self.closed().prepare()?;
        self.open(1.0, 1).prepare()?;
        Ok(())
    }

    /// The closed loop that looks for the capacity. A pause would not be infinite demand.
    fn closed(&self) -> Settings {
        Settings {
            demand: Demand::Closed,
            think: Duration::ZERO,
            ..self.session.clone()
        }
    }

    /// The open loop of a point. Each repeat has another stream, and the same one whenever it is
    /// repeated.
    fn open(&self, rate: f64, repeat: u32) -> Settings {
        let step = RateStep {
            from: rate,
            to: rate,
            length: Duration::from_secs(1),
        };
        // The number of connections is that of the closed loop; an open one needs as many as there
        // are requests in flight.
        Settings {
            demand: Demand::Open {
                schedule: RateSchedule(vec![step]),
                arrivals: self.arrivals,
            },
            connections: None,
            seed: self.session.seed.wrapping_add(u64::from(repeat) - 1),
            ..self.session.clone()
        }
    }

    /// The points in the order in which they are measured; their rates come with the capacity.
    fn points(&self) -> Vec<Point> {
        let mut points = Vec::new();
        let searches = match (self.capacity_rps, self.knee) {
            (None, None) => self.repeats,
            _ => 0,
        };
        for repeat in 1..=searches {
            points.push(Point {
                repeat,
                directory: format!("points/capacity-{repeat}"),
                ..Point::default()
            });
        }
        for repeat in 1..=self.repeats {
            for &relative in &self.loads {
                points.push(Point {
                    relative,
                    repeat,
                    directory: format!("points/{}-{repeat}", relative_name(relative)),
                    ..Point::default()
                });
            }
        }
        points
    }

    /// Parameters that `run.json` has no field for. They are compared when a profile continues.
    fn extra_parameters(&self, work: &Work) -> [(&'static str, Option<String>); 6] {
        let session = &self.session;
        let sources: Vec<String> = session.sources.iter().map(ToString::to_string).collect();
        let paths = matches!(session.work, WorkSource::Paths(_)).then(|| {
            let mut lines = Checksum::new();
            for document in &work.documents {
                lines.update(document.path.as_bytes());
                lines.update(b"\n");
            }
            let number = work.documents.len();
            format!("{number} with the checksum {:016x}", lines.value())
        });
        [
            ("before_point", self.before_point.clone()),
            ("after_point", self.after_point.clone()),
            ("paths", paths),
            ("knee", self.knee.map(|knee| knee.to_string())),
            (
                "source",
                Some(sources.join(" ")).filter(|list| !list.is_empty()),
            ),
            (
                "cpu",
                Some(as_list(&session.cpus)).filter(|list| !list.is_empty()),
            ),
        ]
    }

    /// The description of the whole for `run.json`.
    fn describe(&self) -> Result<RunDescription, ProfileError> {
        let prepared = self.open(1.0, 1).prepare()?;
        let mut environment = prepared.description.environment.clone();
        for (name, word) in self.extra_parameters(&prepared.plan.work) {
            if let Some(word) = word {
                environment.extra.insert(name.to_owned(), word);
            }
        }
        let now = std::time::SystemTime::now();
        Ok(RunDescription {
            kind: Kind::Profile,
            started: rfc3339(now),
            environment,
            load: LoadInfo {
                mode: Mode::Open,
                rate_rps: None,
                schedule: Vec::new(),
                connections: self.session.connections.map(Into::into),
                ..prepared.description.load
            },
            profile: Some(ProfileInfo {
                capacity_rps: self.capacity_rps,
                client_bound: None,
                points: self.points(),
            }),
            ..prepared.description
        })
    }
}

/// Two places at least, and as many as it takes to tell loads apart: `0.20`, `0.955`.
fn relative_name(relative: f64) -> String {
    let short = format!("{relative:.2}");
    match short.parse::<f64>() {
        Ok(same) if same == relative => short,
        _ => format!("{relative}"),
    }
}

/// A profile on its way.
struct RunningProfile<'a> {
    settings: &'a ProfileSettings,
    directory: &'a Path,
    around: &'a RunContext,
    description: RunDescription,
}

impl RunningProfile<'_> {
    fn points(&mut self) -> &mut Vec<Point> {
        &mut self.description.profile.get_or_insert_default().points
    }

    fn counts(&mut self) -> (usize, usize) {
        let points = self.points();
        (
            points.iter().filter(|point| point.done).count(),
            points.len(),
        )
    }

    /// The capacity: given, found before, or the median of the closed loops; where that is the
    /// client's, what the client can offer.
    fn find_capacity(&mut self, listener: &mut dyn Listener) -> Result<(), ProfileError> {
        if let Some(knee) = self.settings.knee {
            let (capacity, bound) = self.find_knee(knee, listener)?;
            return self.set_capacity(capacity, bound, listener);
        }
        let searches = self.indices(|point| point.relative == 0.0 && !point.of_client);
        let mut failure = None;
        for &index in &searches {
            if !self.points()[index].done {
                let closed = self.settings.closed();
                let finished = self.measure(index, closed, "capacity, closed loop", listener)?;
                self.keep(index, finished.analysis.achieved_rps, &finished, listener)?;
                failure = finished.failure;
            }
        }
        let found = searches.iter().map(|&index| self.points()[index].rate_rps);
        let found = median(found.collect());
        let capacity = self.settings.capacity_rps.or(found).unwrap_or(0.0);
        if capacity <= 0.0 {
            let why = failure.map_or(String::new(), |failure| format!(" ({failure})"));
            return Err(ProfileError::NoCapacity { why });
        }
        let closed = self.descriptions(&searches)?;
        let bound = match client::client_bound(&closed, &self.settings.client_limit) {
            Some(bound) => Some(self.find_valid(bound, listener)?),
            None => None,
        };
        let capacity = match &bound {
            Some(bound) => bound.valid_rps.unwrap_or(capacity),
            None => capacity,
        };
        self.set_capacity(capacity, bound, listener)
    }

    /// Takes the capacity, of which the loads are shares.
    fn set_capacity(
        &mut self,
        capacity: f64,
        bound: Option<ClientBound>,
        listener: &mut dyn Listener,
    ) -> Result<(), ProfileError> {
        let info = self.description.profile.get_or_insert_default();
        info.capacity_rps = Some(capacity);
        info.client_bound = bound;
        let is_news = info.client_bound.is_some() || self.settings.knee.is_some();
        let remark = capacity_text(info).filter(|_| is_news);
        remark.inspect(|remark| listener.remarks(remark));
        for point in self.points() {
            if point.relative > 0.0 {
                point.rate_rps = capacity * point.relative;
            }
        }
        Ok(write_description(self.directory, &self.description, false)?)
    }

    /// Searches for the highest rate that the client offers with the verdict valid. Each trial is
    /// as long as a point, because a shorter one would be valid where a long one is not. Trials
    /// from before an interruption count.
    fn find_valid(
        &mut self,
        mut bound: ClientBound,
        listener: &mut dyn Listener,
    ) -> Result<ClientBound, ProfileError> {
        let (answered, why) = (number(bound.closed_rps), client::limit_text(&bound, false));
        let what = format!(
            "the client was the bottleneck ({why}): the server can answer at least {answered}/s"
        );
        if self.settings.strict {
            return Err(ProfileError::ClientBound(what));
        }
        if bound.busy_share < self.settings.client_limit.busy {
            return Ok(bound);
        }
        listener.remarks(&format!(
            "{what}; looking for the highest rate that it offers validly"
        ));
        loop {
            let tried = self.indices(|point| point.of_client && point.done);
            let mut trials = Vec::new();
            for (&index, run) in tried.iter().zip(self.descriptions(&tried)?) {
                let verdict = run.client.unwrap_or_default().verdict;
                trials.push(client::Trial {
                    rate_rps: self.points()[index].rate_rps,
                    valid: verdict == Verdict::Valid,
                });
            }
            match client::next(bound.closed_rps, &trials) {
                client::Next::Try(rate_rps) => {
                    self.search_at((rate_rps, tried.len() + 1), Wanted::ClientLimit, listener)?
                }
                client::Next::Found(valid_rps) => {
                    bound.valid_rps = valid_rps;
                    return Ok(bound);
                }
            }
        }
    }

    /// One open loop of a search, entered in the list of points before the loads.
    fn search_at(
        &mut self,
        (rate_rps, number_of): (f64, usize),
        wanted: Wanted,
        listener: &mut dyn Listener,
    ) -> Result<(), ProfileError> {
        let index = self.indices(|point| point.relative == 0.0).len();
        let (name, what) = match wanted {
            Wanted::ClientLimit => ("client", "what the client can offer"),
            Wanted::Knee => ("knee", "search for the knee"),
        };
        let point = Point {
            directory: format!("points/{name}-{number_of}"),
            of_client: wanted == Wanted::ClientLimit,
            of_knee: wanted == Wanted::Knee,
            rate_rps,
            repeat: number_of as u32,
            ..Point::default()
        };
        let what = format!("{what}, {}/s", number(rate_rps));
        self.points().insert(index, point);
        let settings = self.settings.open(rate_rps, 1);
        let finished = self.measure(index, settings, &what, listener)?;
        self.keep(index, rate_rps, &finished, listener)
    }

    /// The description of these points for `run.json`.
    fn descriptions(&mut self, indices: &[usize]) -> Result<Vec<RunDescription>, ProfileError> {
        let mut found = Vec::new();
        for &index in indices {
            let directory = self.directory.join(&self.points()[index].directory);
            found.push(Run::open(directory)?.description().clone());
        }
        Ok(found)
    }

    fn measure_points(&mut self, listener: &mut dyn Listener) -> Result<(), ProfileError> {
        let capacity = self
            .description
            .profile
            .as_ref()
            .and_then(|one| one.capacity_rps);
        let capacity = number(capacity.unwrap_or(0.0));
        for index in self.indices(|point| point.relative > 0.0 && !point.done) {
            let point = self.points()[index].clone();
            let settings = self.settings.open(point.rate_rps, point.repeat);
            let what = format!("{} of {capacity}/s", percent(point.relative));
            let finished = self.measure(index, settings, &what, listener)?;
            self.keep(index, point.rate_rps, &finished, listener)?;
        }
        Ok(())
    }

    fn indices(&mut self, wanted: impl Fn(&Point) -> bool) -> Vec<usize> {
        let points = self.points().iter().enumerate();
        points
            .filter(|(_, point)| wanted(point))
            .map(|(index, _)| index)
            .collect()
    }

    /// One run below `points/`, with the commands around it.
    fn measure(
        &mut self,
        index: usize,
        settings: Settings,
        what: &str,
        listener: &mut dyn Listener,
    ) -> Result<Finished, ProfileError> {
        let point = self.points()[index].clone();
        let word = format!("run {} of {}: {what}", index + 1, self.points().len());
        listener.begins(&word);
        if let Some(command) = &self.settings.before_point {
            commands::run("--before-point", command, &point)?;
        }
        self.interrupted()?;
        let prepared = settings.prepare()?;
        if self.settings.before_point.is_some() {
            let addresses = prepared.plan.targets.iter().map(|target| &target.address);
            addresses
                .into_iter()
                .try_for_each(|address| self.wait_until_ready(address))?;
        }
        let around = RunContext {
            progress: self.around.progress.as_ref().map(|_| word),
            whole_only: true,
            ..self.around.clone()
        };
        let directory = self.directory.join(&point.directory);
        let finished = match prepared.run(Some(&directory), &around) {
            Err(SessionError::Interrupted) => return Err(ProfileError::Interrupted),
            other => other?,
        };
        if let Some(command) = &self.settings.after_point {
            commands::run("--after-point", command, &point)?;
        }
        Ok(finished)
    }

    /// Marks a point as done, at once and on disk: it is not measured again.
    fn keep(
        &mut self,
        index: usize,
        rate_rps: f64,
        finished: &Finished,
        listener: &mut dyn Listener,
    ) -> Result<(), ProfileError> {
        let point = &mut self.points()[index];
        point.rate_rps = rate_rps;
        point.done = true;
        let point = point.clone();
        if self.description.server.is_none() {
            self.description.server = finished.description.server.clone();
        }
        write_description(self.directory, &self.description, false)?;
        listener.ended(&point, finished);
        self.interrupted()
    }

    fn interrupted(&self) -> Result<(), ProfileError> {
        match self
            .around
            .interrupt
            .load(std::sync::atomic::Ordering::Relaxed)
        {
            true => Err(ProfileError::Interrupted),
            false => Ok(()),
        }
    }

    /// A server that was restarted needs a moment before it listens.
    fn wait_until_ready(&self, address: &Address) -> Result<(), ProfileError> {
        let deadline = std::time::Instant::now() + READY_TIMEOUT;
        loop {
            match status::reach(address, READY_TIMEOUT) {
                Ok(()) => return Ok(()),
                Err(source) if std::time::Instant::now() >= deadline => {
                    return Err(ProfileError::NotBack {
                        target: address.to_string(),
                        seconds: READY_TIMEOUT.as_secs(),
                        source,
                    });
                }
                Err(_) => {
                    self.interrupted()?;
                    std::thread::sleep(READY_POLL_INTERVAL);
                }
            }
        }
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

#[cfg(test)]
mod tests;
