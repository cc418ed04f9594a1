//! Finds the program or handler for a request without blocking: asks the file cache component by
//! component, and a helper where the kernel would have to wait, as for files.
//!
//! A path below a prefix may name several programs: `a` with the argument `/b`, or `a/b`. The
//! shortest one that exists is used. While a helper looks it up, the phase of the
//! connection says which component was asked about.

use headway_files::{Answer, RootId, Waiter};
use headway_gateway::cgi::ScriptSplit;
use headway_http::path::Path;
use headway_http::{Method, Status};

use super::StaticFiles;
use super::static_file::LookedUp;
use crate::config::{Handler, PathMatch, Protocol};
use crate::connection::Connection;
use crate::lookup;
use crate::request::{ProgramName, Request, VirtualHost};
use crate::respond::handlers::{Candidate, Route};
use crate::worker::context::LoopContext;
use crate::worker::sending::status_of;

/// Most path components that are looked up one after the other.
const COMPONENTS_MAX: u16 = 64;
/// Stands for the directory itself, whose index file may be a program.
const INDEX_COMPONENT: u16 = u16::MAX;

/// Result of the search: what answers the request.
pub(in crate::worker) enum Found {
    /// No handler: a file, or the error response for files. With the entry of the path, if it has
    /// been looked up.
    Files(Option<LookedUp>),
    /// The program of this name.
    Program(ProgramName),
    /// A directory that was requested without its final slash.
    Directory,
    /// No such program, or the lookup failed.
    Failed(Status),
    /// A helper is looking up this part of the path.
    Waiting(u16),
    /// The embedded application of this location.
    Application(usize),
}

impl StaticFiles {
    /// Finds what answers the request. `looked_up` is a helper's answer about a part of the path.
    pub(in crate::worker) fn find_program(
        &mut self,
        context: &mut LoopContext,
        connection: &Connection,
        request: &Request,
        looked_up: Option<(u16, LookedUp)>,
    ) -> Found {
        // These methods address the server itself.
        if let Method::Other("TRACE" | "CONNECT") = request.head.method() {
            return Found::Files(None);
        }
        let hosts = context.hosts();
        let site = hosts.get(request.virtual_host);
        let path = match request.head.path() {
            Some(Ok(path)) if !path.hidden || site.dotfiles => path,
            _ => return Found::Files(None),
        };
        let (last_component, known) = looked_up.unzip();
        let mut search = Search {
            waiter: connection.waiter(request),
            redirected: request.redirects > 0,
            known,
        };
        let Some(route) = context.routes.find(site, &path.bytes).cloned() else {
            return self.find_index_program(context, site, &path, &mut search);
        };
        if !search.may_enter(&route) {
            return Found::Failed(Status::NOT_FOUND);
        }
        match route.location.handler {
            Handler::Files => Found::Files(None),
            Handler::Application(_) => Found::Application(route.number),
            _ => match StaticFiles::owner(context, &route, site, &path.bytes) {
                Some(program) => Found::Program(program),
                None => {
                    self.find_component(context, site, &route, &path, last_component, &mut search)
                }
            },
        }
    }

    /// The handler of a location that owns all its paths, so no file is looked up.
    fn owner(
        context: &LoopContext,
        route: &Route,
        site: &VirtualHost,
        path: &[u8],
    ) -> Option<ProgramName> {
        match &route.location.handler {
            Handler::Direct(_) | Handler::Pipe(_) => {
                let whole = [b"/", path].concat();
                Some(context.routes.only_program(route, site, &whole))
            }
            Handler::Upstreams(upstreams)
                if upstreams.protocol == Protocol::Proxy
                    || matches!(route.location.path, PathMatch::Prefix(_)) =>
            {
                Some(context.routes.application(route, site, path))
            }
            Handler::Files | Handler::Cgi(_) | Handler::Upstreams(_) | Handler::Application(_) => {
                None
            }
        }
    }

    /// Looks up the shortest name that is a file.
    fn find_component(
        &mut self,
        context: &mut LoopContext,
        site: &VirtualHost,
        route: &Route,
        path: &Path<'_>,
        last_component: Option<u16>,
        search: &mut Search,
    ) -> Found {
        let whole = [b"/", &*path.bytes].concat();
        let mut part = last_component.unwrap_or(0);
        while part < COMPONENTS_MAX {
            let Some(candidate) = route.candidate(&whole, usize::from(part), site) else {
                break;
            };
            let Candidate { split, root, name } = candidate;
            let found = match self.look_for_program(context, root, name, part, search) {
                Ok(found) => found,
                Err(found) => return found,
            };
            match &found.entry.answer {
                Answer::File(_) => {
                    return Found::Program(context.routes.program(route, site, split, name));
                }
                // A directory: continue with the next component.
                Answer::Redirect => part += 1,
                Answer::Directory => return Found::Failed(Status::FORBIDDEN),
                Answer::Failed(failure) => return Found::Failed(status_of(*failure)),
            }
        }
        match path.is_directory() {
            true => self.find_index(context, site, route, &whole, search),
            false if part < COMPONENTS_MAX => Found::Directory,
            false => Found::Failed(Status::NOT_FOUND),
        }
    }

    /// A directory of programs was requested: look for its index file.
    fn find_index(
        &mut self,
        context: &mut LoopContext,
        site: &VirtualHost,
        route: &Route,
        whole: &[u8],
        search: &mut Search,
    ) -> Found {
        let (root, name) = (route.root(site), route.name(whole));
        let found = match self.look_for_program(context, root, name, INDEX_COMPONENT, search) {
            Ok(found) => found,
            Err(found) => return found,
        };
        match &found.entry.answer {
            Answer::File(found) => match index_name(site, found.index) {
                Some(index) => {
                    let file = [name, index.as_bytes()].concat();
                    StaticFiles::index_program(context, route, site, whole, index, &file)
                }
                None => Found::Failed(Status::FORBIDDEN),
            },
            Answer::Redirect | Answer::Directory => Found::Failed(Status::FORBIDDEN),
            Answer::Failed(failure) => Found::Failed(status_of(*failure)),
        }
    }

    fn index_program(
        context: &LoopContext,
        route: &Route,
        site: &VirtualHost,
        directory: &[u8],
        index: &str,
        file: &[u8],
    ) -> Found {
        let script_name = [directory, index.as_bytes()].concat();
        let split = ScriptSplit {
            script_name: &script_name,
            path_info: b"",
        };
        Found::Program(context.routes.program(route, site, split, file))
    }

    /// A directory of files was requested: its index file may be a program by its suffix.
    fn find_index_program(
        &mut self,
        context: &mut LoopContext,
        site: &VirtualHost,
        path: &Path<'_>,
        search: &mut Search,
    ) -> Found {
        if !path.is_directory() || !context.routes.has_suffixes(site) {
            return Found::Files(None);
        }
        let known =
            match self.look_for_program(context, site.root, &path.bytes, INDEX_COMPONENT, search) {
                Ok(known) => known,
                Err(found) => return found,
            };
        let index = match &known.entry.answer {
            Answer::File(found) => index_name(site, found.index),
            _ => None,
        };
        let program = index.and_then(|index| {
            let file = [&*path.bytes, index.as_bytes()].concat();
            let route = context.routes.find(site, &file)?;
            let whole = [b"/", &*path.bytes].concat();
            match route.location.handler {
                _ if !search.may_enter(route) => Some(Found::Failed(Status::NOT_FOUND)),
                Handler::Files => None,
                // Never served as a file, which would show the source of the program.
                _ => Some(match StaticFiles::owner(context, route, site, &file) {
                    Some(program) => Found::Program(program),
                    None => StaticFiles::index_program(context, route, site, &whole, index, &file),
                }),
            }
        });
        // Saves the file handler a second lookup.
        program.unwrap_or(Found::Files(Some(known)))
    }

    /// Looks up one name: in a helper's answer, in the file cache, or in the kernel without
    /// waiting. Otherwise asks a helper.
    fn look_for_program(
        &mut self,
        context: &mut LoopContext,
        root: RootId,
        name: &[u8],
        part: u16,
        search: &mut Search,
    ) -> Result<LookedUp, Found> {
        if let Some(known) = search.known.take() {
            return Ok(known);
        }
        let found = self.lookup.find(root, name, context.lookup());
        if let lookup::LookupResult::Known(entry) = found {
            return Ok(LookedUp {
                entry,
                content: None,
            });
        }
        Err(match context.pool.resolve(root, name, search.waiter) {
            Ok(()) => Found::Waiting(part),
            Err(_) => Found::Failed(Status::SERVICE_UNAVAILABLE),
        })
    }
}

/// A search for the program of one request.
struct Search {
    /// The connection that waits for a helper's answer.
    waiter: Waiter,
    /// The request is an internal redirect.
    redirected: bool,
    /// A helper's answer about one part of the path.
    known: Option<LookedUp>,
}

impl Search {
    /// Whether the request may reach this location: an internal location needs an internal redirect.
    fn may_enter(&self, route: &Route) -> bool {
        !route.location.internal || self.redirected
    }
}

fn index_name(site: &VirtualHost, index: Option<u16>) -> Option<&str> {
    let index = site.index.get(usize::from(index?))?;
    Some(index)
}
