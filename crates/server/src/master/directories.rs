//! The directories that helpers may open, as descriptors for their rules.
//!
//! The first worker of a configuration has opened them. For each new helper the paths are looked up again,
//! without waiting: a deploy may have switched a root. Where the kernel would have to ask the file system, the
//! directory before stays, since the file system may not answer. If that directory is the wrong one, the helper
//! ends, and then its replacement looks itself.

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use headway_config::Config;
use headway_control::ToHelper;
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
        });
        OpenDirectories {
            all: RefCell::new(all.collect()),
            helper_looks: Cell::new(false),
            has_warned: Cell::new(false),
        }
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
        if let Some(missing) = all.iter().find(|directory| directory.open.is_none()) {
            let path = missing.path.display();
            let why = format!("sandbox: {path} is not open, so helpers cannot open its files");
            match demand {
                Demand::Required => return Err(MasterError::Sandbox(why)),
                Demand::Possible if self.has_warned.replace(true) => {}
                Demand::Possible => log_warn(why),
            }
        }
        let to_read = directories.read.as_ref().map_or(0, Vec::len);
        let (read, write) = all.split_at(to_read.min(all.len()));
        let known = read.iter().flat_map(Directory::all).map(|one| one.1);
        let known = known.collect();
        let rules = Rules {
            read: match directories.read {
                Some(_) => Some(places(read)?),
                None => None,
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
