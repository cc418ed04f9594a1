//! Document roots: directories that requests are resolved beneath.
//!
//! A root is held as an `O_PATH` descriptor. Its path is *followed*: it is looked up again as names are
//! revalidated, so that a deploy can switch a symbolic link to another release, or rename directories. Only a
//! path without a symbolic link on a file system that may ask a server is not, to save its questions.
//!
//! The loop compares where the path leads by a call which cannot wait (`RESOLVE_CACHED`), and has a
//! helper look where that would block: always when a link is new, since its access time is written then.
//! Meanwhile the loop answers what it has checked recently. A switch replaces the directory in one step: each walk takes
//! its root once, so its files are all of one release. While the path leads nowhere the last directory
//! stays.

use crate::deferred_close::DeferredCloses;
use crate::file::Meta;
use crate::filesystem::NonBlockingFilesystems;
use crate::protocol::{INDEX_BYTES_MAX, RULE_BYTES_MAX};
use headway_os::open::{Links, NameLookup, find_directory, has_symlink_cached, status};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::borrow::Cow;
use std::cell::{Cell, OnceCell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// How often a path without a symbolic link is looked up. A directory is renamed less often than a link is
/// switched, so most servers need not look at each name that is missing.
const PLAIN_INTERVAL_MS: u64 = 1_000;

/// The identity of a directory that is not known: no inode has this number.
const NOWHERE: (u64, u64) = (0, 0);

/// Which root a path is resolved beneath: its position in the configuration.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RootId(pub u32);

/// Which paths a [`PathRule`] is about, and whether clients may request them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RuleKind {
    /// This path and those below it, and clients may.
    PublicBelow,
    /// This path and those below it, and clients may not.
    InternalBelow,
    /// Names that end so, and clients may.
    PublicSuffix,
    /// Names that end so, and clients may not.
    InternalSuffix,
}

/// Whether clients may request some paths of a root. The first rule for a path decides; without one
/// they may.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathRule {
    /// What the text is.
    pub kind: RuleKind,
    /// A relative path, or the end of a name.
    pub text: String,
}

impl From<(RuleKind, Cow<'_, str>)> for PathRule {
    fn from((kind, text): (RuleKind, Cow<'_, str>)) -> PathRule {
        let text = text.into_owned();
        PathRule { kind, text }
    }
}

impl PathRule {
    /// Whether it is about this relative path, which ends in a slash if it is one of a directory.
    fn matches(&self, path: &[u8]) -> bool {
        let text = self.text.as_bytes();
        match self.kind {
            RuleKind::PublicBelow | RuleKind::InternalBelow => {
                path.strip_prefix(text).is_some_and(|rest| {
                    let whole = text.is_empty() || text.ends_with(b"/");
                    whole || rest.is_empty() || rest.starts_with(b"/")
                })
            }
            RuleKind::PublicSuffix | RuleKind::InternalSuffix => {
                path.strip_suffix(b"/").unwrap_or(path).ends_with(text)
            }
        }
    }
}

/// One document root as configured.
#[derive(Clone, Debug)]
pub struct RootConfig {
    /// The directory.
    pub directory: PathBuf,
    /// Index names, tried in this order when a directory is requested.
    pub index: Vec<String>,
    /// Whether to look for precompressed `.br`, `.zst` and `.gz` siblings of a file.
    pub siblings: bool,
    /// Show names that begin with a dot in listings. To refuse requests for them is the caller's
    /// part.
    pub dotfiles: bool,
    /// Which symbolic links beneath the directory are followed.
    pub symlinks: Symlinks,
    /// Which names listings leave out because clients may not request them. To refuse requests for
    /// them is the caller's part.
    pub rules: Vec<PathRule>,
}

/// Which symbolic links beneath a root are followed. Paths that need another one are forbidden.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Symlinks {
    /// Those that lead to something in the root.
    #[default]
    Inside,
    /// Those with the same owner as what they lead to, wherever that is.
    Owner,
    /// None.
    None,
    /// All.
    Any,
}

impl Symlinks {
    /// What the kernel is asked. With `Inside` and `Owner` a helper looks closer if that fails.
    pub(crate) fn links(self) -> Links {
        match self {
            Symlinks::Inside => Links::Beneath,
            Symlinks::Owner | Symlinks::None => Links::Refused,
            Symlinks::Any => Links::Anywhere,
        }
    }

    /// Whether a helper has to find out what this failure of the kernel means.
    pub(crate) fn needs_helper(self, errno: Errno) -> bool {
        matches!(
            (self, errno),
            (Symlinks::Inside, Errno::XDEV) | (Symlinks::Owner, Errno::LOOP)
        )
    }
}

/// A root that cannot be used. Nothing has been opened; correct the configuration.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the root {directory}: {why}", directory = .directory.display())]
pub struct RootError {
    /// The directory as configured.
    pub directory: PathBuf,
    /// What open(2) said: `ENOTDIR` when it is no directory. `E2BIG` when its index names or its
    /// rules together are longer than a helper's greeting can carry (4 KiB each).
    pub why: Errno,
}

/// One open root.
#[derive(Debug)]
pub(crate) struct Root {
    /// Present until dropped.
    directory: Option<OwnedFd>,
    pub(crate) rules: Rc<RootRules>,
    /// Set when another directory has taken its place: this one may have been deleted, and then closing
    /// it can wait.
    deferred: OnceCell<DeferredCloses>,
}

/// How paths beneath a root are resolved.
#[derive(Debug, Default)]
pub(crate) struct RootRules {
    pub(crate) index: Vec<String>,
    pub(crate) siblings: bool,
    pub(crate) dotfiles: bool,
    pub(crate) symlinks: Symlinks,
    /// Which names listings leave out.
    pub(crate) paths: Vec<PathRule>,
}

impl From<&RootConfig> for RootRules {
    fn from(config: &RootConfig) -> RootRules {
        RootRules {
            index: config.index.clone(),
            siblings: config.siblings,
            dotfiles: config.dotfiles,
            symlinks: config.symlinks,
            paths: config.rules.clone(),
        }
    }
}

impl Root {
    pub(crate) fn new(directory: OwnedFd, rules: impl Into<Rc<RootRules>>) -> Root {
        Root {
            directory: Some(directory),
            rules: rules.into(),
            deferred: OnceCell::new(),
        }
    }

    /// Whether clients may not request this relative path, which ends in a slash if it is one of a
    /// directory.
    pub(crate) fn is_internal(&self, path: &[u8]) -> bool {
        let rule = self.rules.paths.iter().find(|rule| rule.matches(path));
        rule.is_some_and(|rule| {
            matches!(
                rule.kind,
                RuleKind::InternalBelow | RuleKind::InternalSuffix
            )
        })
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        if let (Some(directory), Some(list)) = (self.directory.take(), self.deferred.get()) {
            list.push(directory);
        }
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.directory {
            Some(directory) => directory.as_fd(),
            None => unreachable!("the descriptor is taken only by drop"),
        }
    }
}

/// A root, and how it is kept up to date.
#[derive(Debug)]
struct RootSlot {
    current: RefCell<Rc<Root>>,
    /// How often the directory has been replaced.
    version: Cell<u32>,
    followed: Option<Followed>,
    /// The file system that the directory was on when it was opened.
    device: u64,
    /// An open below it may ask a server.
    remote: bool,
}

impl RootSlot {
    /// A root whose file system did not answer. Its place is taken by what has no names beneath it.
    fn silent(config: &RootConfig) -> Result<RootSlot, Errno> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let empty = rustix::fs::open("/dev/null", flags, Mode::empty())?;
        let root = Root::new(empty, RootRules::from(config));
        Ok(RootSlot {
            current: RefCell::new(Rc::new(root)),
            version: Cell::new(0),
            followed: Some(Followed {
                path: config.directory.clone(),
                interval_ms: PLAIN_INTERVAL_MS,
                identity: Cell::new(NOWHERE),
                checked_ms: Cell::new(0),
                helper: Cell::new(HelperCheck::Wanted),
                finds: Cell::new(0),
            }),
            device: 0,
            remote: true,
        })
    }
}

/// A root whose path is looked up again and again.
#[derive(Debug)]
struct Followed {
    path: PathBuf,
    /// Between two looks there is at least this time.
    interval_ms: u64,
    /// Device and inode of the directory.
    identity: Cell<(u64, u64)>,
    checked_ms: Cell<u64>,
    helper: Cell<HelperCheck>,
    /// Counts what has been found, so that an older answer of a helper is recognised.
    finds: Cell<u32>,
}

/// Whether a helper has to look up a path that the loop could not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HelperCheck {
    Unneeded,
    Wanted,
    Asked,
}

/// A root whose path a helper looks up, and what had been found before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AskedRoot {
    pub(crate) root: RootId,
    finds: u32,
}

/// All open roots, by [`RootId`].
#[derive(Debug, Default)]
pub struct Roots {
    roots: Vec<RootSlot>,
    harmless: NonBlockingFilesystems,
    switches: Cell<u64>,
    failures: Cell<u64>,
}

impl Roots {
    /// Open every configured directory (may wait: call it before serving).
    ///
    /// # Errors
    /// The first directory that cannot be opened, and why.
    ///
    /// # Example
    /// ```
    /// use headway_files::{RootConfig, Roots};
    /// let site = RootConfig { directory: "/usr".into(), index: vec![], siblings: false, dotfiles: false, symlinks: Default::default(), rules: vec![] };
    /// assert_eq!(Roots::open(&[site])?.len(), 1);
    /// # Ok::<(), headway_files::RootError>(())
    /// ```
    pub fn open(configs: &[RootConfig]) -> Result<Roots, RootError> {
        Roots::open_with(configs, &|_| None, &|_| false)
    }

    /// As [`Roots::open`], with the directories of paths that `given` has open. Their file systems are not asked,
    /// since they may not answer. A path that `is_silent` is not open yet: lookups wait until a helper has found it.
    ///
    /// # Errors
    /// As [`Roots::open`].
    pub fn open_with(
        configs: &[RootConfig],
        given: &dyn Fn(&Path) -> Option<OwnedFd>,
        is_silent: &dyn Fn(&Path) -> bool,
    ) -> Result<Roots, RootError> {
        let mut roots = Roots {
            harmless: NonBlockingFilesystems::mounted(),
            ..Roots::default()
        };
        for config in configs {
            let error = |why| RootError {
                directory: config.directory.clone(),
                why,
            };
            let index_bytes: usize = config.index.iter().map(|name| name.len() + 4).sum();
            let rule_bytes: usize = config.rules.iter().map(|rule| rule.text.len() + 5).sum();
            if index_bytes > INDEX_BYTES_MAX || rule_bytes > RULE_BYTES_MAX {
                return Err(error(Errno::TOOBIG));
            }
            let given = given(&config.directory);
            if given.is_none() && is_silent(&config.directory) {
                roots.roots.push(RootSlot::silent(config).map_err(error)?);
                continue;
            }
            let has_symlink = match given {
                Some(_) => has_symlink_cached(&config.directory),
                None => Some(has_symlink(&config.directory)),
            };
            // One of a server that has forgotten it has no status.
            let given = given.and_then(|open| Some((status(&open).ok()?, open)));
            let found = match given {
                Some((status, open)) => Ok(Some((open, status))),
                None => find_directory(&config.directory, NameLookup::MayBlock),
            };
            let (directory, status) = found.map_err(error)?.ok_or_else(|| error(Errno::AGAIN))?;
            roots.harmless.add_root(&directory, status.device);
            let remote = !roots.harmless.contains(status.device);
            let is_followed = !remote || has_symlink != Some(false);
            let followed = is_followed.then(|| Followed {
                path: config.directory.clone(),
                interval_ms: match has_symlink {
                    Some(true) => 0,
                    Some(false) | None => PLAIN_INTERVAL_MS,
                },
                identity: Cell::new((status.device, status.inode)),
                checked_ms: Cell::new(0),
                helper: Cell::new(HelperCheck::Unneeded),
                finds: Cell::new(0),
            });
            let root = Root::new(directory, RootRules::from(config));
            roots.roots.push(RootSlot {
                current: RefCell::new(Rc::new(root)),
                version: Cell::new(0),
                followed,
                device: status.device,
                remote,
            });
        }
        Ok(roots)
    }

    /// How many roots there are.
    pub fn len(&self) -> usize {
        self.roots.len()
    }

    /// Whether there are no roots.
    pub fn is_empty(&self) -> bool {
        self.roots.is_empty()
    }

    /// Whether the directory of a root has not been found yet.
    pub fn is_silent(&self, root: RootId) -> bool {
        let followed = self.slot(root).and_then(|slot| slot.followed.as_ref());
        followed.is_some_and(|followed| followed.identity.get() == NOWHERE)
    }

    /// A duplicate of the `O_PATH` descriptor of a root, as it is now.
    ///
    /// # Errors
    /// Those of fcntl(2): no descriptor is free. `ENOENT` if there is no such root.
    pub fn directory(&self, root: RootId) -> std::io::Result<OwnedFd> {
        let found = self.get(root).ok_or(Errno::NOENT)?;
        found.as_fd().try_clone_to_owned()
    }

    /// How often the directory of a root has been replaced by that of another release. What was found in
    /// an earlier version says nothing about this one.
    pub fn version(&self, root: RootId) -> u32 {
        self.slot(root).map_or(0, |slot| slot.version.get())
    }

    /// Whether the path of a root has to be looked up again, where it may be so old.
    pub fn is_due(&self, root: RootId, now_ms: u64, age_ms: u64) -> bool {
        let followed = self.slot(root).and_then(|slot| slot.followed.as_ref());
        followed.is_some_and(|followed| {
            now_ms >= followed.checked_ms.get() + age_ms.max(followed.interval_ms)
        })
    }

    /// Looks up the path of a followed root without waiting, and switches to the directory that it leads
    /// to now. If that would block, the pool has a helper look.
    pub fn follow(&self, root: RootId, now_ms: u64, deferred: &DeferredCloses) {
        let Some(followed) = self.slot(root).and_then(|slot| slot.followed.as_ref()) else {
            return;
        };
        followed.checked_ms.set(now_ms);
        match find_directory(&followed.path, NameLookup::CachedOnly) {
            Ok(Some((directory, status))) => {
                self.found(root, Ok((directory, status.into())), deferred);
            }
            Ok(None) if followed.helper.get() == HelperCheck::Asked => {}
            Ok(None) => followed.helper.set(HelperCheck::Wanted),
            Err(errno) => self.found(root, Err(errno), deferred),
        }
    }

    /// Whether a helper has to say first where the path of the root leads.
    pub fn awaits_helper(&self, root: RootId) -> bool {
        let followed = self.slot(root).and_then(|slot| slot.followed.as_ref());
        followed.is_some_and(|followed| followed.helper.get() != HelperCheck::Unneeded)
    }

    /// How often a root was switched to another directory.
    pub fn switches(&self) -> u64 {
        self.switches.get()
    }

    /// Whether files of a root may be closed to this process and not to a helper: it may be confined to the
    /// directories that the roots led to when it started.
    pub(crate) fn may_be_closed(&self) -> bool {
        self.switches() > 0
    }

    /// How often the path of a root could not be looked up, so that the last directory stayed.
    pub fn failures(&self) -> u64 {
        self.failures.get()
    }

    /// The directory that a root's path leads to.
    pub(crate) fn found(
        &self,
        root: RootId,
        found: Result<(OwnedFd, Meta), Errno>,
        deferred: &DeferredCloses,
    ) {
        let Some(slot) = self.slot(root) else { return };
        let Some(followed) = &slot.followed else {
            return;
        };
        followed.helper.set(HelperCheck::Unneeded);
        followed.finds.set(followed.finds.get().wrapping_add(1));
        let Ok((directory, meta)) = found else {
            self.failures.set(self.failures.get() + 1);
            return;
        };
        let identity = (meta.device, meta.inode);
        if followed.identity.replace(identity) == identity {
            return;
        }
        let rules = slot.current.borrow().rules.clone();
        let old = slot.current.replace(Rc::new(Root::new(directory, rules)));
        // A walk in io_uring may still use it, and then drops it last.
        let _ = old.deferred.set(deferred.clone());
        slot.version.set(slot.version.get().wrapping_add(1));
        self.switches.set(self.switches.get() + 1);
    }

    /// What a helper has found. The loop may have found out something newer meanwhile.
    pub(crate) fn found_by_helper(
        &self,
        asked: AskedRoot,
        found: Result<(OwnedFd, Meta), Errno>,
        deferred: &DeferredCloses,
    ) {
        let followed = self
            .slot(asked.root)
            .and_then(|slot| slot.followed.as_ref());
        if followed.is_some_and(|followed| followed.finds.get() == asked.finds) {
            self.found(asked.root, found, deferred);
        }
    }

    /// A root that a helper has to look up, and its path.
    pub(crate) fn wanted(&self) -> Option<(AskedRoot, &Path)> {
        let mut slots = (0..).zip(&self.roots);
        slots.find_map(|(number, slot)| {
            let followed = slot.followed.as_ref()?;
            let wanted = followed.helper.get() == HelperCheck::Wanted;
            let asked = AskedRoot {
                root: RootId(number),
                finds: followed.finds.get(),
            };
            wanted.then_some((asked, followed.path.as_path()))
        })
    }

    /// A helper looks up this root.
    pub(crate) fn set_asked(&self, asked: AskedRoot) {
        self.set_helper(asked, HelperCheck::Asked);
    }

    /// The helper that looked up this root has died: another one is to look.
    pub(crate) fn ask_again(&self, asked: AskedRoot) {
        self.set_helper(asked, HelperCheck::Wanted);
    }

    fn set_helper(&self, asked: AskedRoot, check: HelperCheck) {
        let followed = self
            .slot(asked.root)
            .and_then(|slot| slot.followed.as_ref());
        if let Some(followed) = followed
            && followed.finds.get() == asked.finds
        {
            followed.helper.set(check);
        }
    }

    /// The root as it is now.
    pub(crate) fn get(&self, root: RootId) -> Option<Rc<Root>> {
        Some(self.slot(root)?.current.borrow().clone())
    }

    fn slot(&self, root: RootId) -> Option<&RootSlot> {
        self.roots.get(usize::try_from(root.0).ok()?)
    }

    /// The file system that this root was on when it was opened.
    pub(crate) fn device(&self, root: RootId) -> u64 {
        self.slot(root).map_or(0, |slot| slot.device)
    }

    /// Whether an open below this root may ask a server. Roots that a helper was given are not known.
    pub fn is_remote(&self, root: RootId) -> bool {
        self.slot(root).is_some_and(|slot| slot.remote)
    }

    /// Files on this device can be opened without waiting.
    pub(crate) fn opens_at_once(&self, device: u64) -> bool {
        self.harmless.contains(device)
    }

    /// Files on this device keep their pages in the layer below.
    pub(crate) fn is_overlay(&self, device: u64) -> bool {
        self.harmless.is_overlay(device)
    }

    /// Puts a root that another process has opened at its place: the next one, or a known one.
    pub(crate) fn put(&mut self, root: RootId, opened: Root) {
        match self.slot(root) {
            Some(slot) => drop(slot.current.replace(Rc::new(opened))),
            None => self.roots.push(RootSlot {
                current: RefCell::new(Rc::new(opened)),
                version: Cell::new(0),
                followed: None,
                device: 0,
                remote: false,
            }),
        }
    }
}

/// Whether the path leads through a symbolic link. A path which cannot be resolved does not matter,
/// since it cannot be opened either.
fn has_symlink(path: &Path) -> bool {
    path.canonicalize().is_ok_and(|real| real != path)
}
