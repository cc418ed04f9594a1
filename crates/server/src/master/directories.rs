//! The directories of a configuration as descriptors: for the rules of helpers, and for workers that replace
//! others.
//!
//! The first worker of a configuration has opened them. For each new process the paths are looked up again,
//! without waiting: a deploy may have switched a root. Where the kernel would have to ask the file system, the
//! directory before stays, since the file system may not answer. If that directory is the wrong one, the helper
//! ends, and then its replacement looks itself.

use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use headway_config::Config;
use headway_control::{Control, ControlError, DIRECTORIES_MAX, ToHelper, ToWorker};
use headway_os::open::{NameLookup, find_directory, status};
use headway_sandbox::{Demand, Kind, Place, Rules, Support, ruleset};

use super::{MasterError, log_warn, system};
use crate::confinement::{self, Directories};

/// Those of one configuration.
pub(super) struct OpenDirectories {
    all: RefCell<Vec<Directory>>,
    /// The next helper looks up the paths itself, if the kernel does not know all of them.
    helper_looks: Cell<bool>,
    has_warned: Cell<bool>,
}

struct Directory {
    path: PathBuf,
    open: Option<Opened>,
    /// What the path led to before: workers notice a switch up to a second later, and may still use it.
    before: Option<Opened>,
    /// Its file system did not answer at the start, of which the server has warned.
    is_silent: bool,
}

/// A descriptor, with its device and inode.
type Opened = (OwnedFd, (u64, u64));

impl OpenDirectories {
    /// None of them is open yet.
    pub(super) fn new(config: &Config) -> OpenDirectories {
        let directories = Directories::of(config);
        let all = directories.all().map(|path| Directory {
            path: path.to_owned(),
            open: None,
            before: None,
            is_silent: confinement::is_silent(config, path),
        });
        OpenDirectories {
            all: RefCell::new(all.collect()),
            helper_looks: Cell::new(false),
            has_warned: Cell::new(false),
        }
    }

    /// Takes those which another configuration has open and this one does not.
    pub(super) fn keep(&self, before: &OpenDirectories) {
        let before = before.all.borrow();
        for directory in self.all.borrow_mut().iter_mut() {
            let known = before.iter().find(|known| known.path == directory.path);
            let known = known.and_then(|known| known.open.as_ref());
            if let Some((open, identity)) = known.filter(|_| directory.open.is_none()) {
                directory.open = open.try_clone().ok().map(|open| (open, *identity));
            }
        }
    }

    /// Gives a new worker the directories that are open. The worker looks up the others.
    pub(super) fn give(&self, worker: &Control) -> Result<(), ControlError> {
        let mut all = self.all.borrow_mut();
        for directory in all.iter_mut().filter(|one| one.open.is_some()) {
            // Otherwise the one before is given.
            let _ = directory.look();
        }
        let open: Vec<(u32, &OwnedFd)> = (0..)
            .zip(all.iter())
            .filter_map(|(number, one)| Some((number, &one.open.as_ref()?.0)))
            .collect();
        for some in open.chunks(DIRECTORIES_MAX) {
            let message = ToWorker::Directories {
                numbers: some.iter().map(|(number, _)| *number).collect(),
            };
            let some: Vec<_> = some.iter().map(|(_, open)| open.as_fd()).collect();
            // It does not run yet, so a full socket stays full.
            if !worker.try_send(&message, &some)? {
                break;
            }
        }
        Ok(())
    }

    /// The paths of which the kernel does not know where they lead without asking a file system.
    pub(super) fn silent(config: &Config) -> Vec<PathBuf> {
        let directories = Directories::of(config);
        let is_silent =
            |path: &&Path| matches!(find_directory(path, NameLookup::CachedOnly), Ok(None));
        let silent = directories.all().filter(is_silent);
        silent.map(Path::to_path_buf).collect()
    }

    /// Keeps the directories with these numbers. They come from a worker which does not serve yet, so no client
    /// has had any influence on it.
    pub(super) fn put(&self, numbers: &[u32], opened: Vec<OwnedFd>) {
        let mut all = self.all.borrow_mut();
        for (number, opened) in numbers.iter().zip(opened) {
            let directory = usize::try_from(*number).ok();
            let directory = directory.and_then(|number| all.get_mut(number));
            if let (Some(directory), Ok(status)) = (directory, status(&opened)) {
                directory.replace((opened, confinement::identity(&status)));
            }
        }
    }

    /// A helper has ended with an error, perhaps because it could not open a root.
    pub(super) fn have_helper_look(&self) {
        self.helper_looks.set(true);
    }

    /// The order to a new helper, and the ruleset that goes with it, if there is one.
    pub(super) fn order(
        &self,
        config: &Config,
        demand: Demand,
    ) -> Result<(ToHelper, Option<OwnedFd>), MasterError> {
        let directories = Directories::of(config);
        let mut all = self.all.borrow_mut();
        let unknown = all.iter_mut().filter_map(|one| (!one.look()).then_some(()));
        let is_sure = unknown.count() == 0;
        if (self.helper_looks.take() && !is_sure) || Support::probe().landlock == 0 {
            return Ok((directories.order(Vec::new()), None));
        }
        let (read, write) = all.split_at(directories.read.len().min(all.len()));
        let to_read: &[Directory] = match directories.limits_reading {
            true => read,
            false => &[],
        };
        let mut needed = to_read.iter().chain(write);
        if let Some(missing) = needed.find(|one| one.open.is_none() && !one.is_silent) {
            let path = missing.path.display();
            let why = format!("sandbox: {path} is not open, so helpers cannot open its files");
            match demand {
                Demand::Required => return Err(MasterError::Sandbox(why)),
                Demand::Possible if self.has_warned.replace(true) => {}
                Demand::Possible => log_warn(why),
            }
        }
        let known = to_read.iter().flat_map(Directory::all).map(|one| one.1);
        let known = known.collect();
        let rules = Rules {
            read: match directories.limits_reading {
                true => Some(places(to_read)?),
                false => None,
            },
            write: places(write)?,
            ..Rules::of(Kind::Helper)
        };
        let ruleset = ruleset(&rules).map_err(|error| MasterError::Sandbox(error.to_string()))?;
        Ok((directories.order(known), ruleset))
    }
}

impl Directory {
    /// Keeps the directory to which the path leads now, if the kernel knows without asking. Returns whether it does.
    fn look(&mut self) -> bool {
        let found = find_directory(&self.path, NameLookup::CachedOnly);
        let Ok(Some((opened, status))) = found else {
            return false;
        };
        self.replace((opened, confinement::identity(&status)));
        true
    }

    fn replace(&mut self, opened: Opened) {
        let before = self.open.replace(opened);
        if let (Some(before), Some(open)) = (before, &self.open)
            && before.1 != open.1
        {
            self.before = Some(before);
        }
    }

    /// The directories to which the path leads and has led.
    fn all(&self) -> impl Iterator<Item = &Opened> {
        self.open.iter().chain(&self.before)
    }
}

fn places(directories: &[Directory]) -> Result<Vec<Place>, MasterError> {
    let open = directories.iter().flat_map(Directory::all);
    let copies = open.map(|(directory, _)| directory.try_clone().map(Place::Open));
    let copies: Result<_, _> = copies.collect();
    copies.map_err(system("duplicate the descriptor of a root"))
}
