//! Answers a request with a file, a listing or a redirect: from the path to the response.
//!
//! The steps in order: skip a body, check method and path, look the path up, get the content of a
//! small file, build the response. A step that would block leaves the rest to a helper; the request
//! continues with [`StaticFiles::answer_with`] when the answer is there.

use std::ops::ControlFlow;
use std::rc::Rc;

use headway_files::{Answer, Failure, FoundFile, OpenFile};
use headway_http::chunked::DrainProgress;
use headway_http::{Framing, Method, Status};

use super::StaticFiles;
use super::small_file::{CacheMiss, LoadedContent};
use crate::connection::{Body, BodyUse, Connection, LookupFor, Next, Phase};
use crate::lookup::{ListingLookup, LookupResult};
use crate::request::{Entry, Request};
use crate::respond::{self, ContentSource, Representation};
use crate::worker::context::LoopContext;
use crate::worker::handler::Handler;
use crate::worker::sending::HELPER_REQUESTS_MAX;

/// The most lookups of a file that changes each time.
pub(in crate::worker) const LOOKUP_ATTEMPTS_MAX: usize = 3;

/// The file cache entry of a path, and the content of a small file if a helper has read it.
pub(in crate::worker) struct LookedUp {
    pub entry: Rc<Entry>,
    pub content: Option<LoadedContent>,
}

/// A step of a request: the request goes on, or the step says what happens instead.
pub(in crate::worker) type Step = ControlFlow<Next, Box<Request>>;

impl Handler for StaticFiles {
    /// The entry of the path, if it has been looked up already.
    type Target = Option<LookedUp>;

    fn start(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        request: Box<Request>,
        input: &mut &[u8],
        known: Option<LookedUp>,
    ) -> Next {
        let step = match StaticFiles::skip_body(context, connection, request, input) {
            ControlFlow::Continue(request) => {
                StaticFiles::check_target(context, connection, request)
            }
            settled => settled,
        };
        match (step, known) {
            (ControlFlow::Continue(request), Some(known)) => {
                self.answer_with(context, connection, request, input, known)
            }
            (ControlFlow::Continue(request), None) => {
                self.look_up(context, connection, request, input)
            }
            (ControlFlow::Break(next), _) => next,
        }
    }
}

impl StaticFiles {
    /// Skips a request body, which static files do not use, or waits for the rest of it.
    fn skip_body(
        context: &mut LoopContext,
        connection: &mut Connection,
        mut request: Box<Request>,
        input: &mut &[u8],
    ) -> Step {
        let framing = request.head.framing();
        if framing == Framing::None || request.body_read {
            return ControlFlow::Continue(request);
        }
        let expects_continue = request.head.expects_continue();
        let bytes_max = context.config.max_body_bytes;
        let mut body = Body::new(framing, bytes_max);
        let status = match framing {
            _ if expects_continue && matches!(request.head.method(), Method::Other(_)) => {
                Status::METHOD_NOT_ALLOWED
            }
            Framing::Length(length) if length > bytes_max => Status::CONTENT_TOO_LARGE,
            _ => match body.feed(input) {
                DrainProgress::Done(used) => {
                    *input = &input[used..];
                    request.body_read = true;
                    return ControlFlow::Continue(request);
                }
                DrainProgress::More => {
                    let is_first = std::mem::take(input).is_empty();
                    let expected = expects_continue && is_first;
                    let use_of = BodyUse::Discard;
                    let next = context.wait_for_body(connection, request, body, use_of, expected);
                    return ControlFlow::Break(next);
                }
                DrainProgress::TooLarge => Status::CONTENT_TOO_LARGE,
                DrainProgress::Bad => Status::BAD_REQUEST,
            },
        };
        ControlFlow::Break(context.close_with_error(connection, request, status))
    }

    /// Checks the method and the path.
    fn check_target(
        context: &mut LoopContext,
        connection: &mut Connection,
        request: Box<Request>,
    ) -> Step {
        connection.keep_alive = context.keeps_alive(connection, &request);
        let dotfiles = context.hosts.get(request.virtual_host).dotfiles;
        let status = match (request.head.method(), request.head.path()) {
            (Method::Options, _) => {
                let head = request.head.head();
                let response = respond::options(&context.response(&head, connection));
                return ControlFlow::Break(context.start_response(connection, request, response));
            }
            (Method::Other(_), _) => Status::METHOD_NOT_ALLOWED,
            (_, Some(Ok(path))) if !path.hidden || dotfiles => {
                return ControlFlow::Continue(request);
            }
            (_, Some(Ok(_))) => Status::NOT_FOUND,
            (_, Some(Err(error))) => error.status(),
            (_, None) => Status::BAD_REQUEST,
        };
        ControlFlow::Break(context.send_error(connection, request, status))
    }

    /// Looks up the path in the file cache or by a probe; otherwise a helper opens the cold file.
    fn look_up(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        mut request: Box<Request>,
        input: &[u8],
    ) -> Next {
        for _ in 0..LOOKUP_ATTEMPTS_MAX {
            let (root, path) = (request.virtual_host, request.path());
            let found = self.lookup.find(root, path, context.lookup());
            let entry = match found {
                LookupResult::Known(entry) => entry,
                LookupResult::NeedsHelper => {
                    return match context
                        .pool
                        .resolve(root, path, connection.waiter(&request))
                    {
                        Ok(()) => context.wait_for_helper(connection, request, |request| {
                            Phase::Lookup(request, LookupFor::File)
                        }),
                        Err(_) => context.send_overloaded(connection, request),
                    };
                }
            };
            let known = LookedUp {
                entry,
                content: None,
            };
            request = match self.respond_to_entry(context, connection, request, input, &known) {
                ControlFlow::Continue(request) => request,
                ControlFlow::Break(next) => return next,
            };
            self.lookup.invalidate(root, request.path());
            if !context.routes.is_empty() {
                return StaticFiles::route_again(context, connection, request);
            }
        }
        context.send_overloaded(connection, request)
    }

    /// The file of a request has changed, so a program may have its name now: the router decides
    /// again. A program is never served as a file, which would show its source.
    fn route_again(
        context: &mut LoopContext,
        connection: &mut Connection,
        mut request: Box<Request>,
    ) -> Next {
        match request.count_chunk_request(0) > HELPER_REQUESTS_MAX {
            true => context.send_overloaded(connection, request),
            false => Next::Start(request),
        }
    }

    /// Answers a request whose path has been looked up.
    pub(in crate::worker) fn answer_with(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        request: Box<Request>,
        input: &[u8],
        known: LookedUp,
    ) -> Next {
        let mut request = match self.respond_to_entry(context, connection, request, input, &known) {
            ControlFlow::Continue(request) => request,
            ControlFlow::Break(next) => return next,
        };
        // What the helper has read belongs to the old version.
        drop(known);
        self.lookup.invalidate(request.virtual_host, request.path());
        if !context.routes.is_empty() {
            return StaticFiles::route_again(context, connection, request);
        }
        if request.count_chunk_request(0) > HELPER_REQUESTS_MAX {
            return context.send_overloaded(connection, request);
        }
        self.look_up(context, connection, request, input)
    }

    /// Answers a request according to its file cache entry. The request goes on if the file has
    /// changed or was closed: it must be looked up again.
    fn respond_to_entry(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        request: Box<Request>,
        input: &[u8],
        known: &LookedUp,
    ) -> Step {
        let listing = context.hosts.get(request.virtual_host).listing;
        ControlFlow::Break(match &known.entry.answer {
            Answer::File(found) => {
                return self.respond_with_file(context, connection, request, input, known, found);
            }
            Answer::Redirect => context.redirect(connection, request),
            Answer::Directory if listing => self.respond_with_listing(context, connection, request),
            Answer::Directory => context.send_error(connection, request, Status::FORBIDDEN),
            Answer::Failed(Failure::Exhausted) if self.free_descriptors(context) => {
                return ControlFlow::Continue(request);
            }
            Answer::Failed(failure) => context.send_failure(connection, request, *failure),
        })
    }

    /// Answers with a directory listing, which a helper renders unless it is cached.
    fn respond_with_listing(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        request: Box<Request>,
    ) -> Next {
        let (root, path) = (request.virtual_host, request.path());
        let known = match self.lookup.find_listing(root, path, context.now_ms) {
            ListingLookup::Known(page) => {
                return StaticFiles::send_listing(context, connection, request, page);
            }
            ListingLookup::NeedsHelper(known) => known,
        };
        let waiter = connection.waiter(&request);
        match context.pool.list(root, path, known.as_ref(), waiter) {
            Ok(()) => context.wait_for_helper(connection, request, Phase::Listing),
            Err(_) => context.send_overloaded(connection, request),
        }
    }

    /// Sends a directory listing.
    pub(in crate::worker) fn send_listing(
        context: &mut LoopContext,
        connection: &mut Connection,
        request: Box<Request>,
        page: Rc<OpenFile>,
    ) -> Next {
        let head = request.head.head();
        let response = respond::listing_page(&context.response(&head, connection), page);
        context.start_response(connection, request, response)
    }

    /// Answers with a file: from the response cache, from memory or from the open file.
    fn respond_with_file(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        request: Box<Request>,
        input: &[u8],
        known: &LookedUp,
        found: &FoundFile,
    ) -> Step {
        let entry = &known.entry;
        let variant = respond::choose_variant(request.head.accept_encoding(), found);
        entry.prepared.recently_used.set(true);
        let handed = request.accel_fields.clone();
        let plain = handed.is_none() && respond::is_plain(&request.head, connection.keep_alive);
        if plain
            && let Some(sent) = context.send_cached(connection, &request, entry, variant, input)
        {
            context.counters.response_cache_hits += 1;
            return ControlFlow::Break(context.after_send(connection, request, sent));
        }
        let hosts = context.hosts();
        let host = hosts.get(request.virtual_host);
        let mut representation = Representation::new(found, variant, host, request.path());
        let source = if representation.file.meta().size <= context.config.small_file_max_bytes {
            let content =
                match self.small_file(context, entry, &representation, known.content.as_ref()) {
                    Ok(content) => content,
                    Err(CacheMiss::Changed) => return ControlFlow::Continue(request),
                    Err(miss) => {
                        let Some(file) = representation.file.open() else {
                            return ControlFlow::Continue(request);
                        };
                        let next = StaticFiles::load_with_helper(
                            context, connection, request, entry, &file, &miss,
                        );
                        return ControlFlow::Break(next);
                    }
                };
            if plain
                && let Some(sent) = context.send_cached(connection, &request, entry, variant, input)
            {
                return ControlFlow::Break(context.after_send(connection, request, sent));
            }
            ContentSource::Cached(content)
        } else {
            match representation.file.open() {
                Some(file) if context.is_unchanged(&file) => ContentSource::File(file),
                _ => return ControlFlow::Continue(request),
            }
        };
        // Set only now: the cached response serves all requests, so it must not contain these
        // headers.
        representation.handed = handed.as_deref();
        let head = request.head.head();
        let response_context = context.response(&head, connection);
        let response = respond::file(&response_context, &head, &representation, &source, host);
        ControlFlow::Break(context.start_response(connection, request, response))
    }

    /// Has a helper read a small file.
    fn load_with_helper(
        context: &mut LoopContext,
        connection: &mut Connection,
        mut request: Box<Request>,
        entry: &Rc<Entry>,
        file: &Rc<OpenFile>,
        miss: &CacheMiss,
    ) -> Next {
        if let CacheMiss::Changed | CacheMiss::Unreadable = miss {
            context.counters.io_errors += 1;
            return context.send_error(connection, request, Status::INTERNAL_SERVER_ERROR);
        }
        match StaticFiles::request_content(context, connection, &mut request, entry, file, miss) {
            Ok(()) => context.wait_for_helper(connection, request, |request| {
                Phase::SmallFile(request, entry.clone(), LookupFor::File)
            }),
            Err(_) => context.send_overloaded(connection, request),
        }
    }
}
