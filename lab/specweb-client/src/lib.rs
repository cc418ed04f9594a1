//! A SPECweb99-like run: simultaneous connections of 400 kbit/s each, for three iterations, and how
//! many of the connections conform.
//!
//! [`SpecWeb99Settings::run`] does everything: the application resets its files and serves a test
//! page, then each iteration is a run of its own below `iterations/`, with clients of [`client`]
//! that choose requests by the shares of [`mix`] and judge every response. At the end the log of
//! posts is compared with what was acknowledged. `headway_latency::specweb99` judges, and is pure.
//! [`find`] searches for the largest number of connections that a server holds.
//!
//! The file set has the size that the number of connections asks for: of a larger set only its
//! first directories are used, a smaller one is refused, unless the whole set was asked for.
//!
//! Refused: several servers, open loops, and the name SPECweb99 for a figure.
//! docs/research/src/specweb99.md says what follows the published descriptions and what is ours.
//!
//! Sources: Ruan's dissertation (2005) sections 1.1, 2.6 and 4.6; SPECweb99's public run rules and
//! white paper.

#![forbid(unsafe_code)]

pub mod client;
pub mod find;
mod housekeeping;
pub mod mix;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use client::{Clients, Posts, SharedClientState};
use headway_latency::run::description::Kind;
use headway_latency::run::write_description;
use headway_latency::specweb99::{RATE_MAX_BITS_PER_S, RATE_MIN_BITS_PER_S, SpecWeb99Info};
use headway_latency::{OpenError, Run, RunDescription, WriteError};
use headway_load::client::rfc3339;
use headway_load::fileset::{
    FilePopularity, Manifest, ManifestError, Profile, specweb_bytes, specweb_directories,
};
use headway_load::profile::CommandError;
use headway_load::session::{
    Demand, Finished, Prepared, RunContext, SessionError, Settings, WorkSource,
};
use headway_specweb::state_directory::now_s;
use headway_specweb::tables::{Ads, Reset, USERS_MAX};

/// Iterations of a run.
pub const ITERATIONS: u32 = 3;
/// Length of each.
pub const DURATION: Duration = Duration::from_secs(120);
/// Length of the warm-up before the first iteration.
pub const WARMUP: Duration = Duration::from_secs(30);
/// Over which connections begin, before each.
pub const RAMP: Duration = Duration::from_secs(10);
/// Path of dynamic requests.
pub const DYNAMIC_PATH: &str = "/specweb99";
/// Where those go that have a process each.
pub const CGI_PATH: &str = "/cgi-bin/specweb99";
/// A request that takes longer is an error: the largest file alone takes 18 s.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// How many of a hundred advertisements have run out.
const EXPIRED_PERCENT: u8 = 10;

/// A run as a user asks for it.
#[derive(Clone, Debug)]
pub struct SpecWeb99Settings {
    /// Server, file set, connections, warm-up, length, seed; the rest of it is replaced.
    pub session: Settings,
    /// Number of measurements.
    pub iterations: u32,
    /// Over how long connections begin.
    pub ramp: Duration,
    /// Where the application is: of dynamic requests, and of those with a process each.
    pub paths: [String; 2],
    /// Ask for all files of the set, whatever the rule of its size says.
    pub whole_set: bool,
    /// Ask for static files only, as the dissertation did beside the whole load (2.6.1).
    pub static_only: bool,
}

/// Why a run did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum SpecWeb99Error {
    /// The words are wrong.
    #[error("{0}")]
    Use(String),
    /// A measurement did not take place, or was not kept.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The application does not do what it should.
    #[error(
        "GET {target}: {why}; docs/research/src/specweb99.md says how a server runs the application"
    )]
    Application {
        /// Path and query.
        target: String,
        /// What the application sent.
        why: String,
    },
    /// The file set is not one for this load.
    #[error("{0}")]
    FileSet(String),
    /// A directory cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A run cannot be read.
    #[error(transparent)]
    Read(#[from] OpenError),
    /// A command between trials failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The directory holds another search, or one that cannot be continued.
    #[error("{0}")]
    Search(String),
    /// The run was interrupted.
    #[error("interrupted")]
    Interrupted,
}

impl SpecWeb99Error {
    /// Whether the error is a usage error, and not a failure of the machine.
    pub fn is_use(&self) -> bool {
        match self {
            SpecWeb99Error::Use(_) => true,
            SpecWeb99Error::Session(error) => error.is_use(),
            _ => false,
        }
    }
}

/// Receives the progress of a run.
pub trait Listener {
    /// A measurement begins: `iteration 2 of 3`.
    fn begins(&mut self, word: &str);
    /// A measurement has ended.
    fn ended(&mut self, finished: &Finished);
    /// A remark.
    fn remarks(&mut self, text: &str);
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Ran {
    /// The description as it stands in `run.json`.
    pub description: RunDescription,
    /// The measurements.
    pub iterations: Vec<Finished>,
}

impl Ran {
    /// Rules and score.
    pub fn info(&self) -> &SpecWeb99Info {
        static NONE: std::sync::LazyLock<SpecWeb99Info> =
            std::sync::LazyLock::new(SpecWeb99Info::default);
        self.description.specweb99.as_ref().unwrap_or(&NONE)
    }
}

impl SpecWeb99Settings {
    /// Carries the run out. Without a directory only the figures are kept.
    ///
    /// # Errors
    /// See [`SpecWeb99Error`]. Iterations that were measured stay below the directory, marked as
    /// part of a run that is not complete.
    pub fn run(
        &self,
        directory: Option<&Path>,
        around: &RunContext,
        listener: &mut dyn Listener,
    ) -> Result<Ran, SpecWeb99Error> {
        let connections = self.check()?;
        let (directories, data_rule) = self.directories(connections)?;
        if let Some(directory) = directory {
            check_directory(directory)?;
        }
        let mut run = Running {
            settings: self,
            directory,
            around,
            knowledge: Arc::new(self.client_state(connections, directories)?),
            directories,
            ran: Ran {
                description: RunDescription::default(),
                iterations: Vec::new(),
            },
        };
        run.ran.description = self.describe(connections, directories, data_rule)?;
        run.prepare_application()?;
        run.write(false)?;
        for number in 1..=self.iterations {
            run.iterate(number, listener)?;
        }
        run.conclude()
    }

    /// The number of connections, if everything else makes sense as well.
    fn check(&self) -> Result<u32, SpecWeb99Error> {
        let wrong = |text: &str| Err(SpecWeb99Error::Use(text.to_owned()));
        let connections = self.session.connections.unwrap_or(0);
        if !(1..=USERS_MAX).contains(&connections) {
            return wrong("a SPECweb99-like load needs --connections N, from 1 to 1000000");
        }
        if self.session.urls.len() != 1 {
            return wrong("a SPECweb99-like load has one server; give one address");
        }
        if !matches!(self.session.work, WorkSource::FileSet(_)) {
            return wrong(
                "a SPECweb99-like load needs --fileset DIR, made with `headway fileset create DIR --profile specweb99-dynamic --connections N`",
            );
        }
        if self.iterations == 0 {
            return wrong("--iterations 0 measures nothing; measure at least once");
        }
        let sendable = |path: &String| {
            path.starts_with('/')
                && !path.contains(['?', '#'])
                && path.bytes().all(|byte| byte.is_ascii_graphic())
        };
        match self.paths.iter().find(|path| !sendable(path)) {
            Some(path) => wrong(&format!("{path}: a path begins with / and has no query")),
            None => Ok(connections),
        }
    }

    fn root(&self) -> &Path {
        match &self.session.work {
            WorkSource::FileSet(root) => root,
            _ => Path::new(""),
        }
    }

    /// How many directories of the set are asked for, and whether that is what the rule says.
    fn directories(&self, connections: u32) -> Result<(u32, bool), SpecWeb99Error> {
        let unusable = |error: &dyn std::fmt::Display| SpecWeb99Error::FileSet(error.to_string());
        let root = self.root();
        let shown = root.display();
        let manifest = file_set(root, connections)?;
        if manifest.profile() != Profile::SpecWeb99Dynamic {
            return Err(SpecWeb99Error::FileSet(format!(
                "{shown} holds a set of the profile {}; dynamic content needs one of specweb99-dynamic",
                manifest.profile()
            )));
        }
        let has = manifest.shape().directories() as u32;
        let wanted = specweb_directories(specweb_bytes(connections.into()))
            .map_err(|error| unusable(&error))?;
        match (self.whole_set, wanted > has) {
            (true, _) => Ok((has, has == wanted)),
            (false, false) => Ok((wanted, true)),
            (false, true) => Err(SpecWeb99Error::FileSet(format!(
                "{shown} has {has} directories and {connections} connections need {wanted} (122 + 3.22 N MB); make a larger set, or add --whole-set \
                 to measure with this one, against the rule"
            ))),
        }
    }

    /// What the clients know; checksums are computed here, once.
    fn client_state(
        &self,
        connections: u32,
        directories: u32,
    ) -> Result<SharedClientState, SpecWeb99Error> {
        let prepared = self.session(connections, directories, 1, true).prepare()?;
        let part = Manifest::load(self.root())
            .ok()
            .and_then(|manifest| manifest.part(directories));
        let manifest =
            part.ok_or_else(|| SpecWeb99Error::FileSet("the file set has gone".to_owned()))?;
        let reset = Reset {
            users: connections,
            seed: self.session.seed,
            time_s: now_s(),
            expired_percent: EXPIRED_PERCENT,
        };
        Ok(SharedClientState {
            documents: prepared.plan.work.documents,
            popularity: FilePopularity::new(&manifest),
            ads: Ads::generate(&reset),
            reset,
            paths: self.paths.clone(),
            static_only: self.static_only,
            posts: Posts::new(connections),
        })
    }

    /// The settings of one iteration. Only the first has a warm-up; each opens new connections.
    fn session(
        &self,
        connections: u32,
        directories: u32,
        iteration: u32,
        verify: bool,
    ) -> Settings {
        let warmup = match iteration {
            1 => self.session.warmup.unwrap_or(WARMUP),
            _ => Duration::ZERO,
        };
        Settings {
            directories: Some(directories),
            demand: Demand::Closed,
            connections: Some(connections),
            requests_per_connection: None,
            timeout: Some(self.session.timeout.unwrap_or(TIMEOUT)),
            think: Duration::ZERO,
            first_pause: Duration::ZERO,
            bandwidth_bits_per_s: Some(RATE_MAX_BITS_PER_S),
            warmup: Some(self.ramp + warmup),
            duration: Some(self.session.duration.unwrap_or(DURATION)),
            requests: None,
            seed: self.session.seed.wrapping_add(u64::from(iteration) - 1),
            verify,
            ..self.session.clone()
        }
    }

    /// The description of the whole for `run.json`.
    fn describe(
        &self,
        connections: u32,
        directories: u32,
        data_rule: bool,
    ) -> Result<RunDescription, SpecWeb99Error> {
        let prepared = self.session(connections, directories, 1, false).prepare()?;
        let mut description = prepared.description;
        description.kind = Kind::SpecWeb99;
        description.started = rfc3339(SystemTime::now());
        description.load.verify = true;
        description.specweb99 = Some(SpecWeb99Info {
            connections: connections.into(),
            data_rule,
            static_only: self.static_only,
            rate_max_bits_per_s: RATE_MAX_BITS_PER_S,
            rate_min_bits_per_s: RATE_MIN_BITS_PER_S,
            ramp_s: self.ramp.as_secs_f64(),
            paths: self.paths.clone(),
            ..SpecWeb99Info::default()
        });
        Ok(description)
    }
}

/// A run on its way.
struct Running<'a> {
    settings: &'a SpecWeb99Settings,
    directory: Option<&'a Path>,
    around: &'a RunContext,
    knowledge: Arc<SharedClientState>,
    directories: u32,
    ran: Ran,
}

impl Running<'_> {
    /// Resets tables and log, and requests a page from each endpoint of the application.
    fn prepare_application(&self) -> Result<(), SpecWeb99Error> {
        let (url, knowledge) = (&self.settings.session.urls[0], &self.knowledge);
        housekeeping::reset(url, &knowledge.paths[0], &knowledge.reset)?;
        housekeeping::probe(url, knowledge)
    }

    fn iterate(&mut self, number: u32, listener: &mut dyn Listener) -> Result<(), SpecWeb99Error> {
        let word = format!("iteration {number} of {}", self.settings.iterations);
        listener.begins(&word);
        let name = format!("iterations/{number}");
        let path = self.directory.map(|directory| directory.join(&name));
        let around = RunContext {
            progress: self.around.progress.as_ref().map(|_| word),
            whole_only: true,
            ..self.around.clone()
        };
        let finished = match self.prepared(number)?.run(path.as_deref(), &around) {
            Err(SessionError::Interrupted) => return Err(SpecWeb99Error::Interrupted),
            other => other?,
        };
        listener.ended(&finished);
        let found = finished
            .description
            .specweb99
            .iter()
            .flat_map(|info| &info.iterations);
        let mut iterations: Vec<_> = found.cloned().collect();
        for one in &mut iterations {
            one.directory.clone_from(&name);
            let client = finished.description.client.clone().unwrap_or_default();
            (one.verdict, one.reasons) = (Some(client.verdict), client.reasons);
        }
        let description = &mut self.ran.description;
        description.server = description
            .server
            .take()
            .or(finished.description.server.clone());
        let info = description.specweb99.get_or_insert_default();
        info.iterations.append(&mut iterations);
        self.ran.iterations.push(finished);
        self.write(false)
    }

    fn prepared(&self, number: u32) -> Result<Prepared, SpecWeb99Error> {
        let info = self.ran.description.specweb99.clone().unwrap_or_default();
        let connections = info.connections as u32;
        let settings = self
            .settings
            .session(connections, self.directories, number, false);
        let mut prepared = settings.prepare()?;
        prepared.plan.ramp = self.settings.ramp;
        prepared.plan.conversation = Some(Box::new(Clients {
            knowledge: Arc::clone(&self.knowledge),
            seed: settings.seed,
        }));
        prepared.description.load.verify = true;
        prepared.description.specweb99 = Some(SpecWeb99Info {
            iterations: Vec::new(),
            ..info
        });
        Ok(prepared)
    }

    fn conclude(mut self) -> Result<Ran, SpecWeb99Error> {
        let (url, knowledge) = (&self.settings.session.urls[0], &self.knowledge);
        let log = housekeeping::log(url, &knowledge.paths[0], &knowledge.posts);
        let info = self.ran.description.specweb99.get_or_insert_default();
        info.log = Some(log);
        info.conclude(self.settings.iterations as usize);
        self.write(true)?;
        self.ran.description.complete = true;
        Ok(self.ran)
    }

    fn write(&self, complete: bool) -> Result<(), SpecWeb99Error> {
        let Some(directory) = self.directory else {
            return Ok(());
        };
        Ok(write_description(
            directory,
            &self.ran.description,
            complete,
        )?)
    }
}

/// An error if the directory holds anything else, or a complete run. An interrupted SPECweb99 run
/// is measured again.
fn check_directory(directory: &Path) -> Result<(), SpecWeb99Error> {
    let path = || -> PathBuf { directory.to_owned() };
    match Run::open(directory) {
        Ok(run) if run.description().kind != Kind::SpecWeb99 => {
            Err(WriteError::OtherKind(path()).into())
        }
        Ok(run) if run.description().complete => Err(WriteError::Finished(path()).into()),
        Ok(_) => Ok(()),
        Err(OpenError::Absent(_) | OpenError::NotARun(_)) => {
            let mut entries = std::fs::read_dir(directory).into_iter().flatten();
            match entries.next() {
                Some(_) => Err(WriteError::Foreign(path()).into()),
                None => Ok(()),
            }
        }
        Err(error) => Err(error.into()),
    }
}

/// The file set, or how one of the right kind is made.
fn file_set(root: &Path, connections: u32) -> Result<Manifest, SpecWeb99Error> {
    Manifest::load(root).map_err(|error| match error {
        ManifestError::Absent(_) => SpecWeb99Error::FileSet(format!(
            "{0} holds no file set; make one: headway fileset create {0} --connections {connections} --profile specweb99-dynamic",
            root.display()
        )),
        other => SpecWeb99Error::FileSet(other.to_string()),
    })
}
