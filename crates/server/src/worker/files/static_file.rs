//! The way of a request for a file from its path to the last byte, from top to bottom.
//!
//! 1. [`StaticFiles::start`] skips a body and checks method and path.
//! 2. `look_up` takes the path from the file cache or probes it; otherwise a helper opens the file, and reads it if it is small.
//! 3. `respond` leaves listings and redirects to their handlers.
//! 4. `respond_with_file` gets the content: a whole response from the response cache, a small file
//!    from memory ([`small_file`](super::small_file)), or the open file.
//! 5. `send_cached` sends a cached response with one call. Others are built and given to
//!    [`LoopContext::start_response`], which sends what the socket, the write quantum and the page
//!    cache allow, and continues until [`Next::Finished`].
//!
//! A step that would block leaves the rest to a helper. The request continues with
//! [`StaticFiles::answer`] when the result is there.

use std::convert::Infallible;
use std::ops::ControlFlow::{Break, Continue};
use std::rc::Rc;

use headway_connection::{Connection, Delegate, LookupFor, Next, Phase};
use headway_files::{Answer, Failure, FoundFile};
use headway_http::Status;
use headway_metrics::{HandlerLabel, RequestStage};
use headway_request::{Entry, LookedUp, Piece, Request, Variant};
use headway_respond::{ContentSource, Representation, variant_file};
use headway_send::SendProgress;
use rustix::io::Errno;

use super::StaticFiles;
use super::content_store::send_stored;
use super::small_file::is_unsettled;
use crate::worker::context::LoopContext;
use crate::worker::handler::{Handler, Step};
use crate::worker::sending::{HELPER_REQUESTS_MAX, holds_a_head};

/// The most lookups of a file that changes each time.
pub(in crate::worker) const LOOKUP_ATTEMPTS_MAX: usize = 3;

impl Handler for StaticFiles {
    /// The path, if it has been looked up already.
    type Target = Option<LookedUp>;

    fn start(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        mut request: Box<Request>,
        input: &mut &[u8],
        looked_up: Option<LookedUp>,
    ) -> Next {
        request.handler = HandlerLabel::Files;
        let Break(next) = (|| {
            let request = context.skip_body(connection, request, input)?;
            let request = StaticFiles::check_target(context, connection, request)?;
            self.answer(context, connection, request, input, looked_up)
        })();
        next
    }
}

impl StaticFiles {
    /// Looks the path up and responds, again and again if the file changes meanwhile. A request whose
    /// path a helper has looked up, or whose small file it has read, continues here.
    pub(in crate::worker) fn answer(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        mut request: Box<Request>,
        input: &[u8],
        looked_up: Option<LookedUp>,
    ) -> Step<Infallible> {
        if let Some(looked_up) = looked_up {
            request = self.respond(context, connection, request, input, &looked_up)?;
            // What the helper has read belongs to the old version.
            drop(looked_up);
            request = self.forget(context, connection, request)?;
            if request.count_helper_request(0) > HELPER_REQUESTS_MAX {
                return Break(context.send_overloaded(connection, request));
            }
        }
        for _ in 0..LOOKUP_ATTEMPTS_MAX {
            let looked_up;
            (request, looked_up) = self.look_up(context, connection, request)?;
            request = self.respond(context, connection, request, input, &looked_up)?;
            request = self.forget(context, connection, request)?;
        }
        Break(context.send_overloaded(connection, request))
    }

    /// Looks up the path in the file cache or by a probe; otherwise a helper opens the cold file.
    fn look_up(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        request: Box<Request>,
    ) -> Step<(Box<Request>, LookedUp)> {
        let (root, path) = (request.virtual_host, request.path());
        if let Some(entry) = self.find(context, root, path) {
            return Continue((request, entry.into()));
        }
        let pool = &mut context.pool;
        let mode = match self.lookup.is_known(root, path) {
            true => pool.mode(),
            false => pool.first_mode(root),
        };
        let waiter = connection.waiter(&request);
        Break(match pool.submit_lookup_for(root, path, mode, waiter) {
            Ok(()) => context.wait_for_helper(connection, request, |request| {
                Phase::AwaitLookup(request, LookupFor::File)
            }),
            Err(_) => context.send_overloaded(connection, request),
        })
    }

    /// The file of a request has changed: forgets its entry. With locations a program may have its
    /// name now, so the router decides again. A program is never served as a file, which would show
    /// its source.
    fn forget(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        request: Box<Request>,
    ) -> Step {
        self.lookup.invalidate(request.virtual_host, request.path());
        if context.routes.is_empty() {
            return Continue(request);
        }
        Break(context.route_again(connection, request))
    }

    /// Responds with what the path names. The request goes on if the file has changed or was closed:
    /// it must be looked up again.
    fn respond(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        request: Box<Request>,
        input: &[u8],
        looked_up: &LookedUp,
    ) -> Step {
        if self.is_outdated(context, &request, request.virtual_host, &looked_up.entry) {
            return Continue(request);
        }
        let has_listing = context.hosts.get(request.virtual_host).listing;
        Break(match &looked_up.entry.answer {
            Answer::File(found) => {
                return self
                    .respond_with_file(context, connection, request, input, looked_up, found);
            }
            // It would add a slash to the path that was requested.
            Answer::Redirect | Answer::Directory if request.is_substituted() => {
                context.send_error(connection, request, Status::NOT_FOUND)
            }
            Answer::Redirect => Next::Delegate(request, Delegate::DirectoryRedirect),
            Answer::Directory if has_listing => Next::Delegate(request, Delegate::Listing),
            Answer::Directory => context.send_error(connection, request, Status::FORBIDDEN),
            Answer::Failed(Failure::Exhausted) if self.release_reserve(context) => {
                return Continue(request);
            }
            Answer::Failed(failure) => context.send_failure(connection, request, *failure),
        })
    }

    /// Responds with a file: from the response cache, from memory or from the open file.
    fn respond_with_file(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        request: Box<Request>,
        input: &[u8],
        looked_up: &LookedUp,
        found: &FoundFile,
    ) -> Step {
        let LookedUp { entry, content } = looked_up;
        let variant = headway_respond::choose_variant(request.head.accept_encoding(), found);
        let was_used = entry.prepared.recently_used.replace(true);
        let handed = request.accel_fields.clone();
        let settled = context.is_settled(entry, variant_file(found, variant));
        let is_plain = handed.is_none()
            && connection.origin.is_none()
            && !context.config.server_timing
            && headway_respond::is_plain(&request.head, connection.keep_alive);
        if is_plain
            && !(settled && is_unsettled(entry, variant))
            && let Some(sent) = send_cached(context, connection, &request, entry, variant, input)
        {
            if self.count_use(context, entry, variant) {
                self.share(context, &request, entry, found, variant);
            }
            return Break(context.after_send(connection, request, sent));
        }
        let hosts = context.hosts();
        let host = hosts.get(request.virtual_host);
        let mut representation = Representation::new(found, variant, host, request.path(), settled);
        let is_small = representation.file.meta().size <= context.config.small_file_max_bytes;
        let source = if is_small {
            let response = self.small_file(context, entry, &representation, content.as_ref());
            let response = match response {
                Ok(response) => response,
                Err(miss) => {
                    let file = representation.file.open();
                    return StaticFiles::load(context, connection, request, entry, file, &miss);
                }
            };
            if is_plain
                && let Some(sent) =
                    send_cached(context, connection, &request, entry, variant, input)
            {
                return Break(context.after_send(connection, request, sent));
            }
            ContentSource::Cached(response)
        } else if let Some(response) = self.cached_response(context, entry, &representation) {
            ContentSource::Cached(response)
        } else {
            let Some(file) = representation.file.open() else {
                return Continue(request);
            };
            match context.is_unchanged(&file) {
                Ok(true) => {}
                Ok(false) => return Continue(request),
                Err(failure) => return Break(context.send_failure(connection, request, failure)),
            }
            if was_used {
                self.request_copy(context, entry, &representation, &file, false);
            }
            ContentSource::File(file)
        };
        // Set only now: the cached response serves all requests, so it must not contain these
        // headers.
        representation.handed = handed.as_deref();
        let head = request.head.head();
        let response_context = context.response_context(&head, request.virtual_host, connection);
        let response =
            headway_respond::file(&response_context, &head, &representation, &source, host);
        // The response has what it needs of it.
        drop(source);
        Break(context.start_response(connection, request, response))
    }
}

/// Sends a cached response: the hot path. That of a small file takes one call. `input` is what follows
/// the request.
/// Returns `None` if there is no such response, or if it would have to be modified while another
/// connection is sending it.
fn send_cached(
    context: &mut LoopContext,
    connection: &mut Connection,
    request: &Request,
    entry: &Entry,
    variant: Variant,
    input: &[u8],
) -> Option<SendProgress> {
    let mut cached = entry.prepared.responses[variant].borrow_mut();
    let cached_response = cached.as_mut()?;
    let keep_alive = connection.keep_alive;
    if cached_response.date_second != context.date.second
        || !cached_response.is_for_keep_alive(keep_alive)
    {
        // Fails while another connection sends it; then the response is built again.
        let cached_response = Rc::get_mut(cached_response)?;
        cached_response.set_date(context.date.second, &context.date.text);
        cached_response.set_keep_alive(keep_alive);
    }
    // The clock is not read again for a lookup in memory.
    connection.stages.enter(RequestStage::Send, context.now_us);
    let outgoing = &mut connection.outgoing;
    (outgoing.status, outgoing.method) = (200, request.method);
    outgoing.head_bytes = (cached_response.body_at - cached_response.start) as u64;
    if cached_response.stored.is_some() {
        let response = cached_response.clone();
        drop(cached);
        return Some(send_stored(context, connection, &response));
    }
    let response = &cached_response.bytes[cached_response.start..];
    // Before a close the last segment waits for it, and its FIN needs none of its own.
    let more = holds_a_head(input) || !keep_alive;
    let sent = match context.config.research.eager_write {
        true => context.send_now(connection, response, more),
        // Without eager writes the event mechanism reports first that the socket is writable.
        false => Err(Errno::AGAIN),
    };
    let sent = match sent {
        Ok(sent) => sent,
        Err(Errno::AGAIN | Errno::INTR) => 0,
        Err(_) => return Some(SendProgress::Disconnected),
    };
    context.counters.sent_bytes += sent as u64;
    if sent > 0 {
        context.counters.http_requests.record(200, request.method);
    }
    let outgoing = &mut connection.outgoing;
    outgoing.sent_bytes = sent as u64;
    if sent == response.len() {
        return Some(match connection.has_unsent() {
            true => SendProgress::SocketFull,
            false => SendProgress::Finished,
        });
    }
    let rest = cached_response.start + sent..cached_response.bytes.len();
    outgoing
        .pieces
        .push_back(Piece::Cached(cached_response.clone(), rest));
    Some(SendProgress::SocketFull)
}
