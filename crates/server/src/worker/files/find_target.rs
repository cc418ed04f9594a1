//! Finds the handler for a request without blocking: asks the file cache component by
//! component, and a helper where the kernel would have to wait, as for files.
//!
//! A path below a prefix may name several programs: `a` with the argument `/b`, or `a/b`. The
//! shortest one that exists is used. While a helper looks it up, the phase of the
//! connection says which component was asked about.

use std::net::IpAddr;
use std::ops::ControlFlow::{self, Break, Continue};

use headway_config::{HandlerConfig, PathMatch, Protocol};
use headway_connection::{Connection, Delegate};
use headway_files::{Answer, RootId, Waiter};
use headway_gateway::cgi::ScriptSplit;
use headway_http::path::{Path, PathError, SlashReadings, normalise_any_length, slash_readings};
use headway_http::{self as http, Method, Status};
use headway_request::{LookedUp, ProgramName, Request, VirtualHost};
use headway_respond::handlers::{Candidate, Route};

mod fallback;

use super::StaticFiles;
use super::static_file::LOOKUP_ATTEMPTS_MAX;
use crate::worker::context::LoopContext;
use crate::worker::handler::Step;
use crate::worker::sending::status_of;

/// Most path components that are looked up one after the other.
const COMPONENTS_MAX: u16 = 64;
/// Stands for the directory itself, whose index file may be a program.
const INDEX_COMPONENT: u16 = u16::MAX;

/// Which handler answers a request, with what it needs to know.
pub(in crate::worker) enum Target {
    /// Files, also for the error response if there is none. With the path, if it has been looked up.
    Files(Option<LookedUp>),
    /// The file of this path in place of that of the request.
    OtherFile(Vec<u8>),
    /// The program or upstream of this name.
    Program(ProgramName),
    /// A handler that needs to know nothing else.
    Delegate(Delegate),
}

/// Why there is no target.
pub(in crate::worker) enum NoTarget {
    /// A helper is looking up this part of the path; then the search continues.
    AwaitLookup(u16),
    /// There is no such program, or the lookup failed.
    Error(Status),
}

/// A step of the search. `Break` ends the search without a target.
type Search<T = Target> = ControlFlow<NoTarget, T>;

impl StaticFiles {
    /// Checks the method and the path of a request for a file.
    pub(super) fn check_target(
        context: &mut LoopContext,
        connection: &mut Connection,
        request: Box<Request>,
    ) -> Step {
        connection.keep_alive = context.keeps_alive(connection, &request);
        let dotfiles = context.hosts.get(request.virtual_host).dotfiles;
        let status = match (request.head.method(), request.head.path()) {
            (Method::Options, _) => {
                let head = request.head.head();
                let response = headway_respond::options(&context.response_context(
                    &head,
                    request.virtual_host,
                    connection,
                ));
                return Break(context.start_response(connection, request, response));
            }
            (Method::Other(_), Some(Ok(path))) if context.is_for_handler(&request, &path.bytes) => {
                let status = Status::METHOD_NOT_ALLOWED;
                return Break(context.answer_for_handler(connection, request, status));
            }
            (Method::Other(_), _) => Status::METHOD_NOT_ALLOWED,
            (_, Some(Ok(path))) if !path.hidden || dotfiles => return Continue(request),
            (_, Some(Ok(_))) => Status::NOT_FOUND,
            (_, Some(Err(error))) => error.status(),
            (_, None) => Status::BAD_REQUEST,
        };
        Break(context.send_error(connection, request, status))
    }

    /// Finds what answers the request. `looked_up` is a helper's answer about a part of the path.
    pub(in crate::worker) fn find_target(
        &mut self,
        context: &mut LoopContext,
        connection: &Connection,
        request: &Request,
        looked_up: Option<(u16, LookedUp)>,
    ) -> Search {
        // These methods address the server itself.
        if let Method::Other("TRACE" | "CONNECT") = request.head.method() {
            return Continue(Target::Files(None));
        }
        let hosts = context.hosts();
        let site = hosts.get(request.virtual_host);
        let client = connection.client.ip();
        if !context.routes.admits(site, client) {
            return Break(NoTarget::Error(Status::FORBIDDEN));
        }
        let path = match request.head.path() {
            Some(Ok(path)) if !path.hidden || site.dotfiles => path,
            // It shows nothing of what is hidden.
            Some(Ok(path)) if StaticFiles::is_redirected(context, site, &path.bytes) => path,
            Some(Err(PathError::EncodedSlash)) => {
                let program =
                    StaticFiles::owner_despite_escaped_slash(context, site, request, client);
                return Continue(program.map_or(Target::Files(None), Target::Program));
            }
            Some(Err(PathError::NameTooLong | PathError::TooLong)) => {
                let program = StaticFiles::owner_of_long_path(context, site, request, client);
                return Continue(program.map_or(Target::Files(None), Target::Program));
            }
            _ => return Continue(Target::Files(None)),
        };
        let (last_part, looked_up) = looked_up.unzip();
        let mut search = PathSearch {
            request,
            waiter: connection.waiter(request),
            redirected: request.redirects > 0,
            client,
            first_part: 0,
            last_part,
            looked_up,
        };
        if let Some(route) = context.routes.find(site, &path.bytes).cloned() {
            return self.find_in_location(context, site, &route, &path, &mut search);
        }
        if search.may_be_cleaned() && context.routes.clean_url(site, &path.bytes).is_some() {
            return Continue(Target::Delegate(Delegate::CleanRedirect));
        }
        let target = match search.is_in_fallback() {
            true => Target::Files(None),
            false => self.find_index_program(context, site, &path, &mut search)?,
        };
        match (target, context.routes.fallbacks(site)) {
            (Target::Files(looked_up), Some(fallbacks)) => {
                self.find_fallback(context, site, &path, &fallbacks, looked_up, &mut search)
            }
            (target, _) => Continue(target),
        }
    }

    /// Finds what answers a path of a location.
    fn find_in_location(
        &mut self,
        context: &mut LoopContext,
        site: &VirtualHost,
        route: &Route,
        path: &Path<'_>,
        search: &mut PathSearch<'_>,
    ) -> Search {
        if let Some(status) = search.refusal(route) {
            return Break(NoTarget::Error(status));
        }
        match route.location.handler {
            HandlerConfig::Files if search.is_in_fallback() => {
                Continue(Target::OtherFile(path.bytes.to_vec()))
            }
            HandlerConfig::Files => self.find_index_program(context, site, path, search),
            HandlerConfig::Application(_) => {
                Continue(Target::Delegate(Delegate::Application(route.number)))
            }
            HandlerConfig::Redirect(_) => {
                Continue(Target::Delegate(Delegate::LocationRedirect(route.number)))
            }
            _ => match StaticFiles::owner(context, route, site, &path.bytes) {
                Some(program) => Continue(Target::Program(program)),
                None => self.find_component(context, site, route, path, search),
            },
        }
    }

    /// Whether the location of a path redirects it.
    fn is_redirected(context: &LoopContext, site: &VirtualHost, path: &[u8]) -> bool {
        let route = context.routes.find(site, path);
        route.is_some_and(|route| matches!(route.location.handler, HandlerConfig::Redirect(_)))
    }

    /// The handler of a location that owns all its paths, so no file is looked up.
    fn owner(
        context: &LoopContext,
        route: &Route,
        site: &VirtualHost,
        path: &[u8],
    ) -> Option<ProgramName> {
        match &route.location.handler {
            HandlerConfig::Direct(_) | HandlerConfig::Pipe(_) => {
                let whole = [b"/", path].concat();
                Some(context.routes.only_program(route, &whole))
            }
            HandlerConfig::Upstreams(upstreams)
                if upstreams.protocol == Protocol::Proxy
                    || matches!(route.location.path, PathMatch::Prefix(_)) =>
            {
                Some(context.routes.application(route, site, path))
            }
            HandlerConfig::Files
            | HandlerConfig::Cgi(_)
            | HandlerConfig::Upstreams(_)
            | HandlerConfig::Application(_)
            | HandlerConfig::Redirect(_) => None,
        }
    }

    /// The upstream for a path with an escaped slash. Upstreams differ in what such a path means to
    /// them, so both readings must belong to its location.
    fn owner_despite_escaped_slash(
        context: &LoopContext,
        site: &VirtualHost,
        request: &Request,
        client: IpAddr,
    ) -> Option<ProgramName> {
        let SlashReadings {
            separating,
            joining,
        } = slash_readings(target_path(request)?).ok()?;
        let route = context.routes.find(site, &separating.bytes)?;
        let is_same = context.routes.find(site, &joining)?.number == route.number;
        let allows = matches!(
            &route.location.handler,
            HandlerConfig::Upstreams(upstreams) if upstreams.escaped_slashes
        );
        (is_same && allows && may_enter(route, site, request, client, separating.hidden))
            .then(|| context.routes.application(route, site, &separating.bytes))
    }

    /// The upstream for a path that is too long for a file. What is too long for an upstream is its
    /// own affair.
    fn owner_of_long_path(
        context: &LoopContext,
        site: &VirtualHost,
        request: &Request,
        client: IpAddr,
    ) -> Option<ProgramName> {
        let path = normalise_any_length(target_path(request)?).ok()?;
        let route = context.routes.find(site, &path.bytes)?;
        let is_upstream = matches!(&route.location.handler, HandlerConfig::Upstreams(_));
        match is_upstream && may_enter(route, site, request, client, path.hidden) {
            true => StaticFiles::owner(context, route, site, &path.bytes),
            false => None,
        }
    }

    /// Looks up the shortest name that is a file.
    fn find_component(
        &mut self,
        context: &mut LoopContext,
        site: &VirtualHost,
        route: &Route,
        path: &Path<'_>,
        search: &mut PathSearch<'_>,
    ) -> Search {
        let whole = [b"/", &*path.bytes].concat();
        let first = search.first_part;
        let mut part = match search.last_part {
            Some(INDEX_COMPONENT) if first == 0 => INDEX_COMPONENT,
            last => last
                .and_then(|last| last.checked_sub(first))
                .filter(|part| *part < COMPONENTS_MAX)
                .unwrap_or(0),
        };
        while part < COMPONENTS_MAX {
            let Some(candidate) = route.candidate(&whole, usize::from(part), site) else {
                break;
            };
            let Candidate { split, root, name } = candidate;
            let looked_up = self.look_up_part(context, root, name, first + part, search)?;
            match &looked_up.entry.answer {
                Answer::File(_) => {
                    return Continue(Target::Program(
                        context.routes.program(route, site, split, name),
                    ));
                }
                // A directory: continue with the next component.
                Answer::Redirect => part += 1,
                Answer::Directory => return Break(NoTarget::Error(Status::FORBIDDEN)),
                Answer::Failed(failure) => return Break(NoTarget::Error(status_of(*failure))),
            }
        }
        match path.is_directory() {
            true => self.find_index(context, site, route, &whole, search),
            // A redirect would add a slash to the path that was requested.
            false if search.is_in_fallback() => Break(NoTarget::Error(Status::NOT_FOUND)),
            false if part < COMPONENTS_MAX => {
                Continue(Target::Delegate(Delegate::DirectoryRedirect))
            }
            false => Break(NoTarget::Error(Status::NOT_FOUND)),
        }
    }

    /// A directory of programs was requested: look for its index file.
    fn find_index(
        &mut self,
        context: &mut LoopContext,
        site: &VirtualHost,
        route: &Route,
        whole: &[u8],
        search: &mut PathSearch<'_>,
    ) -> Search {
        let (root, name) = (route.root(site), route.name(whole));
        let looked_up = self.look_up_part(context, root, name, INDEX_COMPONENT, search)?;
        match &looked_up.entry.answer {
            Answer::File(found) => match index_name(site, found.index) {
                Some(index) => {
                    let file = [name, index.as_bytes()].concat();
                    StaticFiles::index_program(context, route, site, whole, index, &file)
                }
                None => Break(NoTarget::Error(Status::FORBIDDEN)),
            },
            Answer::Redirect | Answer::Directory => Break(NoTarget::Error(Status::FORBIDDEN)),
            Answer::Failed(failure) => Break(NoTarget::Error(status_of(*failure))),
        }
    }

    fn index_program(
        context: &LoopContext,
        route: &Route,
        site: &VirtualHost,
        directory: &[u8],
        index: &str,
        file: &[u8],
    ) -> Search {
        let script_name = [directory, index.as_bytes()].concat();
        let split = ScriptSplit {
            script_name: &script_name,
            path_info: b"",
        };
        Continue(Target::Program(
            context.routes.program(route, site, split, file),
        ))
    }

    /// A directory of files was requested: its index file may be a program, or belong to a location which
    /// not every client may enter.
    fn find_index_program(
        &mut self,
        context: &mut LoopContext,
        site: &VirtualHost,
        path: &Path<'_>,
        search: &mut PathSearch<'_>,
    ) -> Search {
        if !path.is_directory() || !context.routes.has_locations(site) {
            return Continue(Target::Files(None));
        }
        let looked_up =
            self.look_up_part(context, site.root, &path.bytes, INDEX_COMPONENT, search)?;
        let index = match &looked_up.entry.answer {
            Answer::File(found) => index_name(site, found.index),
            _ => None,
        };
        let program = index.and_then(|index| {
            let file = [&*path.bytes, index.as_bytes()].concat();
            let route = context.routes.find(site, &file)?;
            if let Some(status) = search.refusal(route) {
                return Some(Break(NoTarget::Error(status)));
            }
            let whole = [b"/", &*path.bytes].concat();
            match route.location.handler {
                // What is at the path of the index file redirects those who ask for that path.
                HandlerConfig::Files | HandlerConfig::Redirect(_) => None,
                // Never served as a file, which would show the source of the program.
                _ => Some(match StaticFiles::owner(context, route, site, &file) {
                    Some(program) => Continue(Target::Program(program)),
                    None => StaticFiles::index_program(context, route, site, &whole, index, &file),
                }),
            }
        });
        // Saves the file handler a second lookup.
        program.unwrap_or(Continue(Target::Files(Some(looked_up))))
    }

    /// Looks up one name: in a helper's answer, in the file cache, or in the kernel without
    /// waiting. Otherwise asks a helper.
    fn look_up_part(
        &mut self,
        context: &mut LoopContext,
        root: RootId,
        name: &[u8],
        part: u16,
        search: &mut PathSearch<'_>,
    ) -> Search<LookedUp> {
        if search.last_part == Some(part)
            && let Some(looked_up) = search.looked_up.take()
            && !self.is_outdated(context, search.request, root, &looked_up.entry)
        {
            return Continue(looked_up);
        }
        for _ in 0..LOOKUP_ATTEMPTS_MAX {
            match self.find(context, root, name) {
                Some(entry) if self.is_outdated(context, search.request, root, &entry) => {}
                Some(entry) => return Continue(entry.into()),
                None => break,
            }
        }
        Break(
            match context.pool.submit_lookup(root, name, search.waiter) {
                Ok(()) => NoTarget::AwaitLookup(part),
                Err(_) => NoTarget::Error(Status::SERVICE_UNAVAILABLE),
            },
        )
    }
}

/// A search for the program of one request.
struct PathSearch<'r> {
    request: &'r Request,
    /// The connection that waits for a helper's answer.
    waiter: Waiter,
    /// The request is an internal redirect.
    redirected: bool,
    client: IpAddr,
    /// The number of the first component of the path: that of a fallback is not 0.
    first_part: u16,
    /// The part of the path that a helper has looked up …
    last_part: Option<u16>,
    /// … and its answer.
    looked_up: Option<LookedUp>,
}

impl PathSearch<'_> {
    /// Whether the search has come to the fallbacks.
    fn is_in_fallback(&self) -> bool {
        let is_later = |part| (fallback::OWN_PART..INDEX_COMPONENT).contains(&part);
        self.first_part > 0 || self.last_part.is_some_and(is_later)
    }

    /// Whether the path is as the client wrote it, with a method that files have.
    fn may_be_cleaned(&self) -> bool {
        let is_read = matches!(self.request.head.method(), Method::Get | Method::Head);
        is_read && !self.redirected && !self.is_in_fallback()
    }

    /// Why the request may not reach this location: an internal one needs an internal redirect, and an
    /// access rule may exclude the client.
    fn refusal(&self, route: &Route) -> Option<Status> {
        match &route.location {
            location if location.internal && !self.redirected => Some(Status::NOT_FOUND),
            location if !location.access.admits(self.client) => Some(Status::FORBIDDEN),
            _ => None,
        }
    }
}

/// The path of a request as it came, escapes included.
fn target_path(request: &Request) -> Option<&[u8]> {
    match request.head.head().target {
        http::Target::Path(target) => Some(target),
        _ => None,
    }
}

/// Whether a request of this client may have a location, whose path may be hidden.
fn may_enter(
    route: &Route,
    site: &VirtualHost,
    request: &Request,
    client: IpAddr,
    is_hidden: bool,
) -> bool {
    (!route.location.internal || request.redirects > 0)
        && (!is_hidden || site.dotfiles)
        && route.location.access.admits(client)
}

fn index_name(site: &VirtualHost, index: Option<u16>) -> Option<&str> {
    let index = site.index.get(usize::from(index?))?;
    Some(index)
}
