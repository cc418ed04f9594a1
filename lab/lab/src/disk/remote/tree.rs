//! The files of a remote file system's server: a tree in memory.
//!
//! Pure: the caller says what time it is. A node lives as long as a name leads to it or the kernel
//! knows it, as on a server that keeps deleted files for those who have them open.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::time::SystemTime;

use fuser::{Errno, FileAttr, FileType, Generation, INodeNo};

/// The number of the top directory, which never changes.
pub(crate) const ROOT: u64 = 1;

/// After a restart of the server numbers differ in the bits above these.
const RESTART_SHIFT: u32 = 48;

/// All files, and what the kernel knows of them.
#[derive(Debug)]
pub(crate) struct Tree {
    nodes: HashMap<u64, Node>,
    next: u64,
    /// How often the server has been restarted.
    restarts: u64,
    used_bytes: u64,
    capacity_bytes: u64,
}

#[derive(Debug)]
struct Node {
    kind: NodeKind,
    permissions: u16,
    user: u32,
    group: u32,
    modified: SystemTime,
    changed: SystemTime,
    /// Names that lead here: 0 once it is deleted.
    names: u32,
    /// Answers to the kernel that named this node, and have not been forgotten.
    known: u64,
    /// Grows with each change of the bytes.
    version: u64,
    /// The version whose bytes the kernel may have cached.
    cached_version: Option<u64>,
}

#[derive(Debug)]
enum NodeKind {
    File(Vec<u8>),
    Directory(BTreeMap<OsString, u64>),
    Link(OsString),
}

/// Owner and permissions of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ownership {
    pub(crate) user: u32,
    pub(crate) group: u32,
    pub(crate) permissions: u16,
}

/// What a node shall become. What is `None` stays as it is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Change {
    pub(crate) permissions: Option<u16>,
    pub(crate) user: Option<u32>,
    pub(crate) group: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) modified: Option<SystemTime>,
}

/// What is made under a new name.
pub(crate) enum New<'a> {
    File,
    Directory,
    Link(&'a OsStr),
}

impl Tree {
    /// An empty top directory, with room for that many bytes of files.
    pub(crate) fn new(capacity_bytes: u64, now: SystemTime) -> Tree {
        let ownership = Ownership {
            user: 0,
            group: 0,
            permissions: 0o755,
        };
        let mut root = Node::new(NodeKind::Directory(BTreeMap::new()), ownership, now);
        root.names = 1;
        Tree {
            nodes: HashMap::from([(ROOT, root)]),
            next: ROOT + 1,
            restarts: 0,
            used_bytes: 0,
            capacity_bytes,
        }
    }

    /// The server goes and comes back: every node but the top directory has another number, and the
    /// old numbers are stale.
    pub(crate) fn restart(&mut self) {
        self.restarts += 1;
        self.nodes.values_mut().for_each(|node| node.known = 0);
        self.nodes.retain(|_, node| node.names > 0);
    }

    /// Bytes of the files, and how many there may be.
    pub(crate) fn used_and_capacity_bytes(&self) -> (u64, u64) {
        (self.used_bytes, self.capacity_bytes)
    }

    /// Nodes, the top directory included.
    pub(crate) fn count(&self) -> u64 {
        self.nodes.len() as u64
    }

    /// Nodes that the kernel knows, without the top directory.
    pub(crate) fn known(&self) -> usize {
        let known = |(number, node): (&u64, &Node)| *number != ROOT && node.known > 0;
        self.nodes.iter().filter(|&entry| known(entry)).count()
    }

    /// The node with that name. The kernel knows it from now on.
    pub(crate) fn look_up(&mut self, parent: u64, name: &OsStr) -> Result<FileAttr, Errno> {
        let key = *self.directory(parent)?.get(name).ok_or(Errno::ENOENT)?;
        self.node_mut(self.number(key))?.known += 1;
        self.attributes(self.number(key))
    }

    /// The kernel has forgotten a number of answers that named this node.
    pub(crate) fn forget(&mut self, number: u64, answers: u64) {
        let Ok(key) = self.key(number) else {
            return;
        };
        if let Some(node) = self.nodes.get_mut(&key) {
            node.known = node.known.saturating_sub(answers);
            if node.known == 0 {
                node.cached_version = None;
            }
        }
        self.drop_unused(key);
    }

    pub(crate) fn attributes(&self, number: u64) -> Result<FileAttr, Errno> {
        let node = self.node(number)?;
        let (kind, size) = match &node.kind {
            NodeKind::File(bytes) => (FileType::RegularFile, bytes.len()),
            NodeKind::Directory(entries) => (FileType::Directory, entries.len()),
            NodeKind::Link(target) => (FileType::Symlink, target.len()),
        };
        Ok(FileAttr {
            ino: INodeNo(number),
            size: size as u64,
            blocks: (size as u64).div_ceil(512),
            atime: node.modified,
            mtime: node.modified,
            ctime: node.changed,
            crtime: node.changed,
            kind,
            perm: node.permissions,
            nlink: node.names,
            uid: node.user,
            gid: node.group,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    /// Changes a node.
    pub(crate) fn change(
        &mut self,
        number: u64,
        change: Change,
        now: SystemTime,
    ) -> Result<FileAttr, Errno> {
        if let Some(size) = change.size {
            self.resize(number, size, now)?;
        }
        let node = self.node_mut(number)?;
        node.permissions = change.permissions.unwrap_or(node.permissions);
        node.user = change.user.unwrap_or(node.user);
        node.group = change.group.unwrap_or(node.group);
        node.modified = change.modified.unwrap_or(node.modified);
        node.changed = now;
        self.attributes(number)
    }

    /// Opens a file. Returns whether the kernel may keep the bytes that it has cached.
    pub(crate) fn open(&mut self, number: u64) -> Result<bool, Errno> {
        let node = self.node_mut(number)?;
        let fresh = node.cached_version == Some(node.version);
        node.cached_version = Some(node.version);
        Ok(fresh)
    }

    /// Bytes of a file; short at its end.
    pub(crate) fn read(&self, number: u64, offset: u64, length: u64) -> Result<&[u8], Errno> {
        match &self.node(number)?.kind {
            NodeKind::File(bytes) => {
                let begin = offset.min(bytes.len() as u64) as usize;
                let end = offset.saturating_add(length).min(bytes.len() as u64) as usize;
                Ok(&bytes[begin..end])
            }
            _ => Err(Errno::EISDIR),
        }
    }

    /// Writes bytes into a file, which grows as it has to.
    pub(crate) fn write(
        &mut self,
        number: u64,
        offset: u64,
        bytes: &[u8],
        now: SystemTime,
    ) -> Result<(), Errno> {
        let end = offset.checked_add(bytes.len() as u64).ok_or(Errno::EFBIG)?;
        if end > self.attributes(number)?.size {
            self.resize(number, end, now)?;
        }
        let node = self.node_mut(number)?;
        let NodeKind::File(content) = &mut node.kind else {
            return Err(Errno::EISDIR);
        };
        content[offset as usize..end as usize].copy_from_slice(bytes);
        node.touch(now);
        // The kernel caches what it writes.
        node.cached_version = Some(node.version);
        Ok(())
    }

    /// Target of a symbolic link.
    pub(crate) fn link_target(&self, number: u64) -> Result<&OsStr, Errno> {
        match &self.node(number)?.kind {
            NodeKind::Link(target) => Ok(target),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Names of a directory with their nodes and kinds.
    pub(crate) fn entries(&self, number: u64) -> Result<Vec<(OsString, u64, FileType)>, Errno> {
        let entries = self.directory(number)?.iter();
        entries
            .map(|(name, &key)| {
                let number = self.number(key);
                Ok((name.clone(), number, self.attributes(number)?.kind))
            })
            .collect()
    }

    /// Makes a node under a name that does not exist. The kernel knows it from now on.
    pub(crate) fn make(
        &mut self,
        parent: u64,
        name: &OsStr,
        new: New<'_>,
        ownership: Ownership,
        now: SystemTime,
    ) -> Result<FileAttr, Errno> {
        if self.directory(parent)?.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        let kind = match new {
            New::File => NodeKind::File(Vec::new()),
            New::Directory => NodeKind::Directory(BTreeMap::new()),
            New::Link(target) => NodeKind::Link(target.to_owned()),
        };
        let mut node = Node::new(kind, ownership, now);
        node.names = 1;
        node.known = 1;
        let key = self.next;
        self.next += 1;
        self.nodes.insert(key, node);
        self.directory_mut(parent, now)?
            .insert(name.to_owned(), key);
        self.attributes(self.number(key))
    }

    /// Removes the name of a file or link, or of an empty directory if `directory` is asked for.
    pub(crate) fn remove(
        &mut self,
        parent: u64,
        name: &OsStr,
        directory: bool,
        now: SystemTime,
    ) -> Result<(), Errno> {
        let key = *self.directory(parent)?.get(name).ok_or(Errno::ENOENT)?;
        match (&self.nodes[&key].kind, directory) {
            (NodeKind::Directory(entries), true) if !entries.is_empty() => {
                return Err(Errno::ENOTEMPTY);
            }
            (NodeKind::Directory(_), false) => return Err(Errno::EISDIR),
            (NodeKind::File(_) | NodeKind::Link(_), true) => return Err(Errno::ENOTDIR),
            _ => {}
        }
        self.directory_mut(parent, now)?.remove(name);
        self.remove_name(key, now);
        Ok(())
    }

    /// Gives a node another name; what had that name loses it in the same instant.
    pub(crate) fn rename(
        &mut self,
        from: (u64, &OsStr),
        to: (u64, &OsStr),
        replace: bool,
        now: SystemTime,
    ) -> Result<(), Errno> {
        let key = *self.directory(from.0)?.get(from.1).ok_or(Errno::ENOENT)?;
        let replaced = self.directory(to.0)?.get(to.1).copied();
        if replaced == Some(key) {
            return Ok(());
        }
        if let Some(replaced) = replaced {
            if !replace {
                return Err(Errno::EEXIST);
            }
            let directory = matches!(self.nodes[&key].kind, NodeKind::Directory(_));
            self.remove(to.0, to.1, directory, now)?;
            debug_assert_ne!(replaced, key);
        }
        self.directory_mut(from.0, now)?.remove(from.1);
        self.directory_mut(to.0, now)?.insert(to.1.to_owned(), key);
        self.nodes
            .get_mut(&key)
            .into_iter()
            .for_each(|node| node.changed = now);
        Ok(())
    }

    fn resize(&mut self, number: u64, size: u64, now: SystemTime) -> Result<(), Errno> {
        let (used_bytes, capacity_bytes) = self.used_and_capacity_bytes();
        let node = self.node_mut(number)?;
        let NodeKind::File(bytes) = &mut node.kind else {
            return Err(Errno::EISDIR);
        };
        let others_bytes = used_bytes - bytes.len() as u64;
        let total_bytes = others_bytes.checked_add(size).ok_or(Errno::EFBIG)?;
        if size > bytes.len() as u64 && total_bytes > capacity_bytes {
            return Err(Errno::ENOSPC);
        }
        bytes.resize(size as usize, 0);
        node.touch(now);
        self.used_bytes = total_bytes;
        Ok(())
    }

    fn remove_name(&mut self, key: u64, now: SystemTime) {
        if let Some(node) = self.nodes.get_mut(&key) {
            node.names = 0;
            node.changed = now;
        }
        self.drop_unused(key);
    }

    fn drop_unused(&mut self, key: u64) {
        let unused = |node: &Node| node.names == 0 && node.known == 0;
        if self.nodes.get(&key).is_some_and(unused)
            && let Some(node) = self.nodes.remove(&key)
            && let NodeKind::File(bytes) = node.kind
        {
            self.used_bytes -= bytes.len() as u64;
        }
    }

    /// The number by which the kernel knows a node.
    fn number(&self, key: u64) -> u64 {
        match key {
            ROOT => ROOT,
            key => key | self.restarts << RESTART_SHIFT,
        }
    }

    /// The node with that number.
    fn key(&self, number: u64) -> Result<u64, Errno> {
        match number {
            ROOT => Ok(ROOT),
            number if number >> RESTART_SHIFT == self.restarts => {
                Ok(number & ((1 << RESTART_SHIFT) - 1))
            }
            _ => Err(Errno::ESTALE),
        }
    }

    fn node(&self, number: u64) -> Result<&Node, Errno> {
        self.nodes.get(&self.key(number)?).ok_or(Errno::ESTALE)
    }

    fn node_mut(&mut self, number: u64) -> Result<&mut Node, Errno> {
        let key = self.key(number)?;
        self.nodes.get_mut(&key).ok_or(Errno::ESTALE)
    }

    fn directory(&self, number: u64) -> Result<&BTreeMap<OsString, u64>, Errno> {
        match &self.node(number)?.kind {
            NodeKind::Directory(entries) => Ok(entries),
            _ => Err(Errno::ENOTDIR),
        }
    }

    /// A directory whose names are about to change.
    fn directory_mut(
        &mut self,
        number: u64,
        now: SystemTime,
    ) -> Result<&mut BTreeMap<OsString, u64>, Errno> {
        let node = self.node_mut(number)?;
        (node.modified, node.changed) = (now, now);
        match &mut node.kind {
            NodeKind::Directory(entries) => Ok(entries),
            _ => Err(Errno::ENOTDIR),
        }
    }
}

impl Node {
    fn new(kind: NodeKind, ownership: Ownership, now: SystemTime) -> Node {
        Node {
            kind,
            permissions: ownership.permissions,
            user: ownership.user,
            group: ownership.group,
            modified: now,
            changed: now,
            names: 0,
            known: 0,
            version: 0,
            cached_version: None,
        }
    }

    fn touch(&mut self, now: SystemTime) {
        self.version += 1;
        (self.modified, self.changed) = (now, now);
    }
}

/// Numbers of nodes are not used for other nodes.
pub(crate) const GENERATION: Generation = Generation(0);

#[cfg(test)]
mod tests;
