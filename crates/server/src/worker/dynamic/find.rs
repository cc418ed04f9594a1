//! From a request to the program that answers it, without waiting: the name cache is asked part by
//! part, and a helper where the kernel would have to wait, as for files.
//!
//! A path below a prefix may name several programs, `a` with the argument `/b` or `a/b`; the
//! shortest one that exists is meant. While a helper looks, the connection remembers which part it
//! was asked about.

use std::rc::Rc;

use headway_files::{Answer, RootId};
use headway_gateway::cgi::Split;
use headway_http::path::{Path, normalise};
use headway_http::{Head, Method, Status, Target};

use crate::config::{Handler, PathMatch, Protocol};
use crate::connection::{Connection, Phase};
use crate::lookup;
use crate::request::{Entry, ProgramName, VirtualHost};
use crate::respond::dynamic::{Candidate, Place};
use crate::worker::Worker;
use crate::worker::request_handling::{Resume, status_of};
use crate::worker::small_file::LoadedContent;

/// Directories that are looked into one below the other.
const PARTS_MAX: u16 = 64;
/// The part that stands for the directory as a whole, whose index file may be a program.
const INDEX: u16 = u16::MAX;

/// Who answers a request.
pub(in crate::worker) enum Found {
    /// No program: a file, or an error that files are answered with.
    Files,
    /// This program.
    Program(ProgramName),
    /// A directory asked for without its slash.
    Directory,
    /// There is no such program, or it cannot be found out.
    Failed(Status),
    /// A helper has been asked.
    Waiting,
    /// The application at this location, in the worker itself.
    Application(usize),
}

impl Found {
    /// What to answer where nobody can be asked.
    pub(in crate::worker) fn status(&self) -> Status {
        match self {
            Found::Failed(status) => *status,
            _ => Status::NOT_FOUND,
        }
    }
}

impl Worker {
    /// Finds out who answers. What a helper has said about a part of the path is taken from
    /// `given`, what it has said otherwise is left there.
    pub(in crate::worker) fn find_program(
        &mut self,
        connection: &mut Connection,
        head: &Head<'_>,
        given: &mut Resume,
    ) -> Found {
        if let Some(turn) = &connection.application {
            return Found::Application(turn.place);
        }
        let asked = connection.program_part.take();
        if asked.is_none() && !matches!(given, Resume::Start) {
            return Found::Files;
        }
        // These are about the server, and no program's.
        if let Method::Other("TRACE" | "CONNECT") = head.method {
            return Found::Files;
        }
        let Target::Path(target) = head.target else {
            return Found::Files;
        };
        let hosts = self.hosts();
        let site = hosts.get(connection.virtual_host);
        let path = match normalise(target) {
            Ok(path) if !path.hidden || site.dotfiles => path,
            _ => return Found::Files,
        };
        let Some(place) = self.places.find(site, &path.bytes).cloned() else {
            return self.find_index_of_files(connection, site, &path, given);
        };
        if !may_enter(connection, &place) {
            return Found::Failed(Status::NOT_FOUND);
        }
        match place.location.handler {
            Handler::Files => Found::Files,
            Handler::SpecWeb99(_) => Found::Application(place.number),
            _ => match self.owner(&place, site, &path.bytes) {
                Some(program) => Found::Program(program),
                None => self.find_part(connection, site, &place, &path, asked, given),
            },
        }
    }

    /// The program of a location that has no files to look for: one that owns its paths.
    fn owner(&self, place: &Place, site: &VirtualHost, path: &[u8]) -> Option<ProgramName> {
        match &place.location.handler {
            Handler::Direct(_) | Handler::Pipe(_) => {
                let whole = [b"/", path].concat();
                Some(self.places.only_program(place, site, &whole))
            }
            Handler::Upstreams(peers)
                if peers.protocol == Protocol::Proxy
                    || matches!(place.location.path, PathMatch::Prefix(_)) =>
            {
                Some(self.places.application(place, site, path))
            }
            Handler::Files | Handler::Cgi(_) | Handler::Upstreams(_) | Handler::SpecWeb99(_) => {
                None
            }
        }
    }

    /// Looks for the shortest name that is a file's.
    fn find_part(
        &mut self,
        connection: &mut Connection,
        site: &VirtualHost,
        place: &Place,
        path: &Path<'_>,
        asked: Option<u16>,
        given: &mut Resume,
    ) -> Found {
        let whole = [b"/", &*path.bytes].concat();
        let mut part = asked.unwrap_or(0);
        while part < PARTS_MAX {
            let Some(candidate) = place.candidate(&whole, usize::from(part), site) else {
                break;
            };
            let Candidate { split, root, name } = candidate;
            let entry = match self.look_for_program(connection, root, name, part, given) {
                Ok((entry, _)) => entry,
                Err(found) => return found,
            };
            match &entry.answer {
                Answer::File(_) => {
                    return Found::Program(self.places.program(place, site, split, name));
                }
                // A directory: its entries may be meant.
                Answer::Redirect => part += 1,
                Answer::Directory => return Found::Failed(Status::FORBIDDEN),
                Answer::Failed(failure) => return Found::Failed(status_of(*failure)),
            }
        }
        match path.is_directory() {
            true => self.find_index(connection, site, place, &whole, given),
            false if part < PARTS_MAX => Found::Directory,
            false => Found::Failed(Status::NOT_FOUND),
        }
    }

    /// A directory of programs was asked for: perhaps its index file is one.
    fn find_index(
        &mut self,
        connection: &mut Connection,
        site: &VirtualHost,
        place: &Place,
        whole: &[u8],
        given: &mut Resume,
    ) -> Found {
        let (root, name) = (place.root(site), place.name(whole));
        let entry = match self.look_for_program(connection, root, name, INDEX, given) {
            Ok((entry, _)) => entry,
            Err(found) => return found,
        };
        match &entry.answer {
            Answer::File(found) => match index_name(site, found.index) {
                Some(index) => {
                    let file = [name, index.as_bytes()].concat();
                    self.index_program(place, site, whole, index, &file)
                }
                None => Found::Failed(Status::FORBIDDEN),
            },
            Answer::Redirect | Answer::Directory => Found::Failed(Status::FORBIDDEN),
            Answer::Failed(failure) => Found::Failed(status_of(*failure)),
        }
    }

    fn index_program(
        &self,
        place: &Place,
        site: &VirtualHost,
        directory: &[u8],
        index: &str,
        file: &[u8],
    ) -> Found {
        let script_name = [directory, index.as_bytes()].concat();
        let split = Split {
            script_name: &script_name,
            path_info: b"",
        };
        Found::Program(self.places.program(place, site, split, file))
    }

    /// A directory of files was asked for: its index file is a program if a suffix says so.
    fn find_index_of_files(
        &mut self,
        connection: &mut Connection,
        site: &VirtualHost,
        path: &Path<'_>,
        given: &mut Resume,
    ) -> Found {
        if !path.is_directory() || !self.places.has_suffixes(site) {
            return Found::Files;
        }
        let looked = self.look_for_program(connection, site.root, &path.bytes, INDEX, given);
        let (entry, copy) = match looked {
            Ok(looked) => looked,
            Err(found) => return found,
        };
        let index = match &entry.answer {
            Answer::File(found) => index_name(site, found.index),
            _ => None,
        };
        let program = index.and_then(|index| {
            let file = [&*path.bytes, index.as_bytes()].concat();
            let place = self.places.find(site, &file)?;
            let whole = [b"/", &*path.bytes].concat();
            match place.location.handler {
                _ if !may_enter(connection, place) => Some(Found::Failed(Status::NOT_FOUND)),
                Handler::Files => None,
                // Never as a file: its text is nobody's business.
                _ => Some(match self.owner(place, site, &file) {
                    Some(program) => Found::Program(program),
                    None => self.index_program(place, site, &whole, index, &file),
                }),
            }
        });
        program.unwrap_or_else(|| {
            // Nobody has to look again.
            *given = Resume::Entry(entry, copy);
            Found::Files
        })
    }

    /// What is this name? What a helper has just said, what the name cache knows, or what the
    /// kernel knows without waiting; else a helper is asked.
    fn look_for_program(
        &mut self,
        connection: &mut Connection,
        root: RootId,
        name: &[u8],
        part: u16,
        given: &mut Resume,
    ) -> Result<(Rc<Entry>, Option<LoadedContent>), Found> {
        match std::mem::replace(given, Resume::Start) {
            Resume::Entry(entry, copy) => return Ok((entry, copy)),
            Resume::Failed(failure) => return Err(Found::Failed(status_of(failure))),
            _ => {}
        }
        let found = self
            .lookup
            .find(root, name, self.now_ms, &self.tracer, &mut self.counters);
        if let lookup::LookupResult::Known(entry) = found {
            return Ok((entry, None));
        }
        match self.pool.resolve(root, name, connection.waiter()) {
            Ok(()) => {
                self.wait_for_helper(connection, Phase::Lookup);
                connection.program_part = Some(part);
                Err(Found::Waiting)
            }
            Err(_) => Err(Found::Failed(Status::SERVICE_UNAVAILABLE)),
        }
    }
}

/// Whether a request may come to a location: to some only if a program has sent it there.
fn may_enter(connection: &Connection, place: &Place) -> bool {
    !place.location.internal || connection.redirects > 0
}

fn index_name(site: &VirtualHost, index: Option<u16>) -> Option<&str> {
    let index = site.index.get(usize::from(index?))?;
    Some(index)
}
