//! From a path to an answer without blocking: first the shared file cache, then the kernel's name
//! cache, then the helpers.
//!
//! Equal requests of several clients are one job of the pool, so a file that a thousand clients
//! request at once is resolved and read once.

use super::wire::{Answered, ClientReply, ClientRequest};
use crate::answer::{Answer, Failure, Probe};
use crate::file::OpenFile;
use crate::file_cache::{FileCache, FileCacheLimits};
use crate::pinner::Pinner;
use crate::pool::{Done, Outcome, Pool, PoolLimits, Waiter};
use crate::protocol::OpenMode;
use crate::residency::{PREFETCH_BYTES, Residency};
use crate::resolve::LoopResolver;
use crate::revalidate::Revalidation;
use crate::root::{RootConfig, RootError, RootId, Roots, Symlinks};
use crate::root_versions::RootVersions;
use headway_event::Token;
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Remembered names given up when descriptors run out, a few at a time.
const EVICTION_BATCH: usize = 64;

/// How often cached files are searched for deleted ones. A look at one takes half a microsecond.
const DELETED_SEARCH_MS: u64 = 5_000;

/// One request that a helper works for.
#[derive(Debug)]
struct PendingRequest {
    client: Token,
    number: u64,
    read_in: u64,
    /// The requested file, once it is open.
    file: Option<Rc<OpenFile>>,
}

/// How many names came from where.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sources {
    pub(super) hits: u64,
    pub(super) probed: u64,
    pub(super) helped: u64,
    pub(super) read_in: u64,
}

/// How many answers of *done* were about what.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Results {
    pub(super) files: u64,
    pub(super) directories: u64,
    pub(super) failed: u64,
}

/// Finds files.
#[derive(Debug)]
pub(super) struct Finder {
    roots: Rc<Roots>,
    versions: RootVersions,
    /// The roots' paths, without a slash at the end; the longest first.
    prefixes: Vec<(Vec<u8>, RootId)>,
    pub(super) file_cache: FileCache<()>,
    pub(super) pool: Pool,
    residency: Residency,
    revalidate_ms: u64,
    prefetch_max: u64,
    /// Pins small files that a client had to wait for.
    pub(super) pinner: Option<Pinner>,
    /// When cached files are searched for deleted ones.
    pub(super) deleted_search_ms: Option<u64>,
    pending: HashMap<u64, PendingRequest>,
    next: u64,
    pub(super) sources: Sources,
    pub(super) results: Results,
}

/// Outcome of a request for now.
pub(super) enum Progress {
    Answered(ClientReply),
    /// A helper works for it; its number.
    Pending(u64),
}

impl Finder {
    pub(super) fn new(
        roots: &[PathBuf],
        file_cache: FileCacheLimits,
        helpers: PoolLimits,
        revalidate_ms: u64,
        prefetch_max: u64,
    ) -> Result<Finder, RootError> {
        let configs: Vec<_> = roots.iter().map(|root| config(root)).collect();
        let opened = Rc::new(Roots::open(&configs)?);
        let mut prefixes: Vec<_> = (0..)
            .zip(roots)
            .map(|(number, root)| (trimmed(root), RootId(number)))
            .collect();
        prefixes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        Ok(Finder {
            pool: Pool::new(helpers, Rc::clone(&opened)),
            roots: opened,
            versions: RootVersions::default(),
            prefixes,
            file_cache: FileCache::new(file_cache),
            residency: Residency::detect(),
            revalidate_ms,
            prefetch_max,
            pinner: None,
            deleted_search_ms: None,
            pending: HashMap::new(),
            next: 0,
            sources: Sources::default(),
            results: Results::default(),
        })
    }

    /// Answer a request, or put helpers to it.
    pub(super) fn begin(
        &mut self,
        client: Token,
        request: &ClientRequest<'_>,
        now_ms: u64,
    ) -> Progress {
        let pending = PendingRequest {
            client,
            number: request.number,
            read_in: request.read_in.min(self.prefetch_max),
            file: None,
        };
        let Some((root, path)) = self.locate(request.path) else {
            return Progress::Answered(pending.reply(Answered::Elsewhere));
        };
        // Whether such a path leads anywhere depends on directories that the client may not be able
        // to search, and shows in what is in memory afterwards.
        if has_parent_component(path) {
            self.results.failed += 1;
            return Progress::Answered(pending.reply(Answered::Done));
        }
        let id = self.next;
        self.next += 1;
        match self.known(root, path, now_ms) {
            Some(answer) => self.settle(id, pending, &answer, false),
            None => {
                self.sources.helped += 1;
                // Read in the same job; a client that does not request contents gets none read.
                let want = match pending.read_in {
                    0 => OpenMode::Open,
                    most => OpenMode::OpenAndPrefetch(most),
                };
                match self
                    .pool
                    .submit_lookup_for(root, path, want, Waiter::new(id))
                {
                    Ok(()) => {
                        self.pending.insert(id, pending);
                        Progress::Pending(id)
                    }
                    Err(_) => Progress::Answered(pending.reply(Answered::Busy)),
                }
            }
        }
    }

    /// Handles a finished job: appends the answers to send and the numbers of their requests.
    pub(super) fn resume(
        &mut self,
        done: Done,
        now_ms: u64,
        out: &mut Vec<(Token, u64, ClientReply)>,
    ) {
        match done.outcome {
            Outcome::LookedUp {
                root,
                version,
                path,
                answer,
                ..
            } => {
                let entry = self.file_cache.insert(root, &path, answer, now_ms);
                if version != self.roots.version(root) {
                    self.file_cache.remove(root, &path);
                }
                if let Answer::File(found) = &entry.answer
                    && let Some(file) = found.file.open()
                {
                    self.pin(&file, &done.waiters);
                }
                for id in done.waiters {
                    let Some(request) = self.pending.remove(&id) else {
                        continue;
                    };
                    let client = request.client;
                    if let Progress::Answered(reply) = self.settle(id, request, &entry.answer, true)
                    {
                        out.push((client, id, reply));
                    }
                }
            }
            Outcome::ReadIn { result, .. } => {
                let file = done
                    .waiters
                    .iter()
                    .find_map(|id| self.pending.get(id)?.file.clone());
                if let (Ok(()), Some(file)) = (&result, &file) {
                    self.pin(file, &done.waiters);
                }
                for id in done.waiters {
                    if let Some(request) = self.pending.remove(&id) {
                        self.results.files += 1;
                        out.push((request.client, id, request.reply(Answered::Done)));
                    }
                }
            }
            // Jobs that this service does not submit.
            Outcome::Touched { .. }
            | Outcome::Listed { .. }
            | Outcome::Copied { .. }
            | Outcome::Fetched { .. }
            | Outcome::Spooled { .. }
            | Outcome::Custom { .. } => {}
        }
    }

    /// A helper has read as much of the file as one of these requests asked for.
    fn pin(&self, file: &OpenFile, waiters: &[u64]) {
        let pending = waiters.iter().filter_map(|id| self.pending.get(id));
        if let (Some(pinner), Some(read_in)) =
            (&self.pinner, pending.map(|request| request.read_in).max())
        {
            pinner.submit(file, read_in);
        }
    }

    /// A client has disconnected: its request is dropped.
    pub(super) fn leave(&mut self, id: u64) {
        if self.pending.remove(&id).is_some() {
            self.pool.leave(id);
        }
    }

    /// Descriptors have run out: forget names that hold some.
    pub(super) fn evict_descriptors(&mut self) {
        self.file_cache.evict_descriptors(EVICTION_BATCH);
    }

    /// Searches for cached files that have been deleted, which occupy the disk while they are open.
    pub(super) fn maintain(&mut self, now_ms: u64) {
        if self.file_cache.descriptors() == 0 {
            self.deleted_search_ms = None;
        } else if now_ms
            >= *self
                .deleted_search_ms
                .get_or_insert(now_ms + DELETED_SEARCH_MS)
        {
            let is_deleted = |file: &OpenFile| file.is_deleted().unwrap_or(false);
            self.file_cache.forget_deleted(usize::MAX, is_deleted);
            self.deleted_search_ms = Some(now_ms + DELETED_SEARCH_MS);
        }
    }

    /// Which root a path is below, and the rest of it. Only strings: the kernel confines what
    /// follows.
    fn locate<'a>(&self, path: &'a [u8]) -> Option<(RootId, &'a [u8])> {
        self.prefixes.iter().find_map(|(prefix, root)| {
            let rest = path.strip_prefix(prefix.as_slice())?;
            if !rest.is_empty() && rest[0] != b'/' {
                return None;
            }
            let start = rest.iter().take_while(|byte| **byte == b'/').count();
            Some((*root, &rest[start..]))
        })
    }

    /// The answer that is known without waiting.
    fn known(&mut self, root: RootId, path: &[u8], now_ms: u64) -> Option<Answer> {
        let deferred = &self.pool.deferred_closes();
        if self.roots.is_due(root, now_ms, self.revalidate_ms) {
            self.roots.follow(root, now_ms, deferred);
        }
        if self.versions.has_changed(&self.roots, root) {
            self.file_cache.remove_root(root);
        }
        let resolver = LoopResolver {
            roots: &self.roots,
            deferred,
        };
        if let Some(entry) = self.file_cache.get(root, path).cloned() {
            let age_ms = now_ms.saturating_sub(entry.checked_ms.get());
            let state = if age_ms < self.revalidate_ms {
                Revalidation::Same
            } else if self.roots.awaits_helper(root) {
                Revalidation::WouldBlock
            } else {
                let absent = entry.absent(now_ms);
                resolver.revalidate_cached(root, path, &entry.answer, absent)
            };
            match state {
                Revalidation::Same => {
                    if age_ms >= self.revalidate_ms {
                        entry.confirm(entry.absent(now_ms), now_ms);
                    }
                    self.sources.hits += 1;
                    return Some(entry.answer.clone());
                }
                Revalidation::Changed => drop(self.file_cache.remove(root, path)),
                Revalidation::WouldBlock => return None,
            }
        }
        if self.roots.awaits_helper(root) {
            return None;
        }
        match resolver.resolve_cached(root, path) {
            Probe::Answered(answer) => {
                self.sources.probed += 1;
                Some(
                    self.file_cache
                        .insert(root, path, answer, now_ms)
                        .answer
                        .clone(),
                )
            }
            Probe::WouldBlock => None,
        }
    }

    /// From a lookup result to the answer for the client; the beginning of a file may have to be
    /// read into memory before. `admitted`: a helper has already worked for it (see [`Waiter`]).
    fn settle(
        &mut self,
        id: u64,
        mut request: PendingRequest,
        answer: &Answer,
        admitted: bool,
    ) -> Progress {
        let answered = match answer {
            Answer::File(found) => match found.file.open() {
                Some(file) => {
                    request.file = Some(Rc::clone(&file));
                    return self.read_in(id, request, &file, admitted);
                }
                // No file is closed here, since nothing but files is held.
                None => Answered::Busy,
            },
            Answer::Redirect | Answer::Directory => {
                self.results.directories += 1;
                Answered::Done
            }
            Answer::Failed(Failure::Overloaded) => Answered::Busy,
            Answer::Failed(failure) => {
                if *failure == Failure::Exhausted {
                    self.evict_descriptors();
                }
                self.results.failed += 1;
                Answered::Done
            }
        };
        Progress::Answered(request.reply(answered))
    }

    fn read_in(
        &mut self,
        id: u64,
        request: PendingRequest,
        file: &Rc<OpenFile>,
        admitted: bool,
    ) -> Progress {
        let length = request.read_in.min(file.meta().size);
        // If the residency cannot be probed without starting I/O, a helper reads, which is always
        // right, unless it has just read as much when it opened the file.
        let was_read = admitted && length <= PREFETCH_BYTES;
        let in_memory = match length {
            0 => Some(true),
            _ => self
                .residency
                .resident_untouched(file, 0, length)
                .unwrap_or(None),
        };
        if in_memory.unwrap_or(was_read) {
            self.results.files += 1;
            return Progress::Answered(request.reply(Answered::Done));
        }
        self.sources.read_in += 1;
        let waiter = Waiter {
            token: id,
            admitted,
        };
        match self.pool.submit_read_in(file, 0, length, Some(waiter)) {
            Ok(()) => {
                self.pending.insert(id, request);
                Progress::Pending(id)
            }
            // The client opens the file, and waits for its contents itself.
            Err(_) => {
                self.results.files += 1;
                Progress::Answered(request.reply(Answered::Done))
            }
        }
    }
}

impl PendingRequest {
    fn reply(&self, answered: Answered) -> ClientReply {
        let number = self.number;
        ClientReply { number, answered }
    }
}

/// Whether a path has a component `..`.
fn has_parent_component(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/')
        .any(|component| component == b"..")
}

fn config(root: &Path) -> RootConfig {
    RootConfig {
        directory: root.into(),
        index: Vec::new(),
        siblings: false,
        dotfiles: true,
        symlinks: Symlinks::Inside,
        rules: Vec::new(),
    }
}

fn trimmed(root: &Path) -> Vec<u8> {
    let bytes = root.as_os_str().as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/');
    bytes[..end.map_or(0, |last| last + 1)].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn located(roots: &[&str], path: &str) -> Option<(u32, String)> {
        let prefixes = (0..)
            .zip(roots)
            .map(|(number, root)| (trimmed(Path::new(root)), RootId(number)));
        let mut finder = Finder::new(
            &[],
            FileCacheLimits {
                entries_max: 0,
                descriptors_max: 0,
            },
            PoolLimits::default(),
            0,
            0,
        )
        .unwrap();
        finder.prefixes = prefixes.collect();
        finder
            .prefixes
            .sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        let (root, rest) = finder.locate(path.as_bytes())?;
        Some((root.0, String::from_utf8_lossy(rest).into_owned()))
    }

    #[test]
    fn root_is_the_deepest_one_when_roots_are_nested() {
        let roots = ["/srv", "/srv/www/", "/srv/w"];
        let at = |path| located(&roots, path);
        assert_eq!(at("/srv/www/a/b"), Some((1, "a/b".into())));
        assert_eq!(at("/srv/www//a"), Some((1, "a".into())));
        assert_eq!(at("/srv/wwwx"), Some((0, "wwwx".into())));
        assert_eq!(at("/srv/w/"), Some((2, String::new())));
        assert_eq!(at("/srv"), Some((0, String::new())));
        assert_eq!(at("/srvx"), None);
        assert_eq!(at("/"), None);
        assert_eq!(located(&["/"], "/etc/x"), Some((0, "etc/x".into())));
    }
}
