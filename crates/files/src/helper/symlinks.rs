//! Symbolic links that the kernel does not follow by itself: a helper finds out where they lead.
//!
//! With `inside`, a link whose target is written absolutely is refused by `RESOLVE_BENEATH` even if the
//! target lies in the root. Then the kernel says where it lies (`/proc/self/fd`), and the name of that place
//! is opened beneath the root, which the kernel confines again. With `owner`, each link is compared with
//! what it leads to, by descriptors which cannot change in between.

use crate::root::{Root, Symlinks};
use headway_os::open::{Links, NameLookup, Status, open_to_read, stat_path, status};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, FileType, Mode, OFlags, openat, readlinkat};
use rustix::io::{Errno, Result};

/// As many links as path_resolution(7) allows.
const LINKS_MAX: usize = 40;

/// As [`stat_path`] in a helper, with the links that the root allows.
pub(crate) fn stat_followed(root: &Root, path: &[u8]) -> Result<(OwnedFd, Status)> {
    let stat = |directory: BorrowedFd<'_>, path: &[u8], links| {
        stat_path(directory, path, NameLookup::MayBlock, links)?.ok_or(Errno::AGAIN)
    };
    let rules = &root.rules;
    match (
        stat(root.as_fd(), path, rules.symlinks.links()),
        rules.symlinks,
    ) {
        (Err(Errno::XDEV), Symlinks::Inside) => {
            stat(root.as_fd(), &place_inside(root, path)?, Links::Beneath)
        }
        (Err(Errno::LOOP), Symlinks::Owner) => {
            let found = Walk::new(root)?.follow(path)?;
            Ok((found.object, found.status))
        }
        (other, _) => other,
    }
}

/// As [`open_to_read`] in a helper, with the links that the root allows.
pub(crate) fn open_followed(
    root: &Root,
    path: &[u8],
    no_access_time: bool,
) -> Result<(OwnedFd, Status)> {
    let open = |directory: BorrowedFd<'_>, path: &[u8], links| {
        let lookup = NameLookup::MayBlock;
        open_to_read(directory, path, lookup, links, no_access_time)?.ok_or(Errno::AGAIN)
    };
    let rules = &root.rules;
    match (
        open(root.as_fd(), path, rules.symlinks.links()),
        rules.symlinks,
    ) {
        (Err(Errno::XDEV), Symlinks::Inside) => {
            open(root.as_fd(), &place_inside(root, path)?, Links::Beneath)
        }
        (Err(Errno::LOOP), Symlinks::Owner) => {
            let found = Walk::new(root)?.follow(path)?;
            let opened = open(found.directory.as_fd(), &found.name, Links::Refused)?;
            // Another file has taken the name since its owner was seen.
            match (opened.1.device, opened.1.inode) == (found.status.device, found.status.inode) {
                true => Ok(opened),
                false => Err(Errno::AGAIN),
            }
        }
        (other, _) => other,
    }
}

/// The name beneath the root of what a path leads to, or would lead to if it existed. `EXDEV` if that is
/// elsewhere: what exists there is not for clients to know.
fn place_inside(root: &Root, path: &[u8]) -> Result<Vec<u8>> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let Ok(object) = openat(root, path, flags, Mode::empty()) else {
        // A name that is missing is where its directory is.
        let end = path.len() - usize::from(path.ends_with(b"/"));
        let slash = path[..end].iter().rposition(|byte| *byte == b'/');
        let (directory, name) = path.split_at(slash.ok_or(Errno::XDEV)?);
        return Ok([&place_inside(root, directory)?, name].concat());
    };
    let (object, root) = (place(object.as_fd())?, place(root.as_fd())?);
    let root = root.strip_suffix(b"/").unwrap_or(&root);
    match object.strip_prefix(root) {
        Some([]) => Ok(b".".to_vec()),
        Some([b'/', rest @ ..]) => Ok(rest.to_vec()),
        _ => Err(Errno::XDEV),
    }
}

/// The path of an open object, as the kernel has it.
fn place(object: BorrowedFd<'_>) -> Result<Vec<u8>> {
    let link = format!("/proc/self/fd/{}", object.as_raw_fd());
    let place = readlinkat(CWD, link, Vec::new()).map_err(|_| Errno::XDEV)?;
    Ok(place.into_bytes())
}

/// A walk that compares the owner of each link with that of what it leads to.
struct Walk {
    directory: OwnedFd,
    /// The name of the object in the directory, and the object, unless it is the directory itself.
    leaf: Option<(Vec<u8>, OwnedFd)>,
    links: usize,
}

enum Step {
    Name(Vec<u8>),
    /// What has been reached is what a link of this owner leads to.
    EndOfLink(u32),
}

struct Followed {
    directory: OwnedFd,
    name: Vec<u8>,
    object: OwnedFd,
    status: Status,
}

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl Walk {
    fn new(root: &Root) -> Result<Walk> {
        Ok(Walk {
            directory: openat(root, c".", DIRECTORY, Mode::empty())?,
            leaf: None,
            links: 0,
        })
    }

    fn follow(mut self, path: &[u8]) -> Result<Followed> {
        let mut steps = steps(path);
        while let Some(step) = steps.pop() {
            match step {
                Step::EndOfLink(owner) => {
                    if self.status()?.owner != owner {
                        return Err(Errno::ACCESS);
                    }
                }
                Step::Name(_) if self.leaf.is_some() => return Err(Errno::NOTDIR),
                Step::Name(name) if name == b"." => {}
                Step::Name(name) => self.enter(name, &mut steps)?,
            }
        }
        let status = self.status()?;
        let (name, object) = match self.leaf {
            Some((name, object)) => (name, object),
            None => (
                b".".to_vec(),
                self.directory.try_clone().map_err(|_| Errno::MFILE)?,
            ),
        };
        Ok(Followed {
            directory: self.directory,
            name,
            object,
            status,
        })
    }

    /// Goes to a name of the directory. If it is a link, its target is what comes next.
    fn enter(&mut self, name: Vec<u8>, steps_left: &mut Vec<Step>) -> Result<()> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let object = openat(&self.directory, name.as_slice(), flags, Mode::empty())?;
        let found = status(&object)?;
        match found.kind {
            FileType::Symlink => {
                self.links += 1;
                if self.links > LINKS_MAX {
                    return Err(Errno::LOOP);
                }
                let target = readlinkat(&object, c"", Vec::new())?;
                if target.as_bytes().starts_with(b"/") {
                    self.directory = openat(CWD, c"/", DIRECTORY, Mode::empty())?;
                }
                steps_left.push(Step::EndOfLink(found.owner));
                steps_left.extend(steps(target.as_bytes()));
            }
            FileType::Directory => self.directory = object,
            _ => self.leaf = Some((name, object)),
        }
        Ok(())
    }

    fn status(&self) -> Result<Status> {
        match &self.leaf {
            Some((_, object)) => status(object),
            None => status(&self.directory),
        }
    }
}

/// The components of a path, the last one first. A slash at the end asks for a directory.
fn steps(path: &[u8]) -> Vec<Step> {
    let names = path.split(|byte| *byte == b'/').rev();
    let names = names.enumerate().filter_map(|(at, name)| match (at, name) {
        (0, b"") => Some(b".".to_vec()),
        (_, b"") => None,
        (_, name) => Some(name.to_vec()),
    });
    names.map(Step::Name).collect()
}
