//! Document roots: directories that requests are resolved beneath.
//!
//! A root is held as an `O_PATH` descriptor, so renaming or replacing the directory's own name
//! while serving changes nothing: the tree that was configured is the tree that is served.

use crate::filesystem::NonBlockingFilesystems;
use crate::protocol::{INDEX_BYTES_MAX, RULE_BYTES_MAX};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use std::path::PathBuf;

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
    /// Which names listings leave out because clients may not request them. To refuse requests for
    /// them is the caller's part.
    pub rules: Vec<PathRule>,
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
    pub(crate) directory: OwnedFd,
    pub(crate) index: Vec<String>,
    pub(crate) siblings: bool,
    pub(crate) dotfiles: bool,
    pub(crate) rules: Vec<PathRule>,
}

impl Root {
    /// Whether clients may not request this relative path, which ends in a slash if it is one of a
    /// directory.
    pub(crate) fn is_internal(&self, path: &[u8]) -> bool {
        let rule = self.rules.iter().find(|rule| rule.matches(path));
        rule.is_some_and(|rule| {
            matches!(
                rule.kind,
                RuleKind::InternalBelow | RuleKind::InternalSuffix
            )
        })
    }
}

/// All open roots, by [`RootId`].
#[derive(Debug, Default)]
pub struct Roots {
    roots: Vec<Root>,
    harmless: NonBlockingFilesystems,
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
    /// let site = RootConfig { directory: "/usr".into(), index: vec![], siblings: false, dotfiles: false, rules: vec![] };
    /// assert_eq!(Roots::open(&[site])?.len(), 1);
    /// # Ok::<(), headway_files::RootError>(())
    /// ```
    pub fn open(configs: &[RootConfig]) -> Result<Roots, RootError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut roots = Vec::with_capacity(configs.len());
        let mut harmless = NonBlockingFilesystems::mounted();
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
            let directory = open(&config.directory, flags, Mode::empty()).map_err(error)?;
            harmless.add_root(&directory);
            let index = config.index.clone();
            roots.push(Root {
                directory,
                index,
                siblings: config.siblings,
                dotfiles: config.dotfiles,
                rules: config.rules.clone(),
            });
        }
        Ok(Roots { roots, harmless })
    }

    /// How many roots there are.
    pub fn len(&self) -> usize {
        self.roots.len()
    }

    /// Whether there are no roots.
    pub fn is_empty(&self) -> bool {
        self.roots.is_empty()
    }

    pub(crate) fn get(&self, root: RootId) -> Option<&Root> {
        self.roots.get(usize::try_from(root.0).ok()?)
    }

    /// Files on this device can be opened without waiting.
    pub(crate) fn opens_at_once(&self, device: u64) -> bool {
        self.harmless.contains(device)
    }

    /// Files on this device keep their pages in the layer below.
    pub(crate) fn is_overlay(&self, device: u64) -> bool {
        self.harmless.is_overlay(device)
    }

    pub(crate) fn all(&self) -> &[Root] {
        &self.roots
    }

    pub(crate) fn push(&mut self, root: Root) {
        self.roots.push(root);
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}
