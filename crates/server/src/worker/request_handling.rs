//! Handles requests: from the parsed header to the response.
//!
//! Requests of a connection are answered strictly in order. While one waits for a helper, its
//! header stays in the connection's buffer and later input is not processed. When the answer
//! arrives the header is parsed again, which is cheaper than keeping its parsed form across
//! iterations.

use std::rc::Rc;

use headway_debox::Call;
use headway_files::protocol::CustomResult;
use headway_files::{Answer, Failure, FoundFile, OpenFile};
use headway_http::chunked::DrainProgress;
use headway_http::path::{Path, normalise};
use headway_http::{Framing, Head, Method, Parsed, Reject, Status, Target};

use super::connection_io::HELPER_REQUESTS_MAX;
use super::handlers::Found as FoundProgram;
use super::small_file::{CacheMiss, LoadedContent};
use super::{Disposition, Worker};
use crate::connection::{Body, Connection, Phase};
use crate::lookup::{ListingLookup, LookupResult};
use crate::request::{Entry, VirtualHost};
use crate::respond::{self, ContentSource, Representation, ResponseContext};

/// The most pipelined requests answered per connection and iteration.
const REQUESTS_PER_TICK_MAX: usize = 64;

/// The most lookups of a file that changes each time.
pub(super) const LOOKUP_ATTEMPTS_MAX: usize = 3;

/// What a helper has found for a waiting request.
pub(super) enum Resume {
    /// Nothing: handle the next request.
    Start,
    /// The entry of the path, and the content of a small file if the helper has read it.
    Entry(Rc<Entry>, Option<LoadedContent>),
    Listing(Rc<OpenFile>),
    /// The result of an application job.
    ApplicationJob(Result<CustomResult<Rc<OpenFile>>, Failure>),
    Failed(Failure),
}

/// A parsed request to a static file.
struct RequestContext<'a> {
    head: &'a Head<'a>,
    host: &'a VirtualHost,
    path: Path<'a>,
    /// Whether another request follows in the buffer, so that another response follows this one.
    more: bool,
    /// The content, if a helper has read it.
    copy: Option<LoadedContent>,
}

/// The state of a request after a step.
pub(super) enum Handled {
    /// The response has been sent.
    Done,
    /// The request waits for a helper, so its header must stay buffered.
    Waiting,
    /// The response is being sent; the header is no longer needed.
    Sending,
    /// The connection must close.
    Close,
}

impl Worker {
    /// Continues with a request after a helper's answer.
    pub(super) fn resume(&mut self, connection: &mut Connection, resume: Resume) -> Disposition {
        let buffered = std::mem::take(&mut connection.rx_buffer);
        self.handle_requests(connection, &buffered, resume)
    }

    /// Handles the requests in `bytes` in order, until one has to wait.
    pub(super) fn handle_requests(
        &mut self,
        connection: &mut Connection,
        bytes: &[u8],
        mut resume: Resume,
    ) -> Disposition {
        let mut at = 0;
        for _ in 0..REQUESTS_PER_TICK_MAX {
            let rest = &bytes[at..];
            if rest.is_empty() {
                return self.await_head(connection, rest);
            }
            let head = match headway_http::parse(rest, &self.limits) {
                Parsed::Complete(head) => head,
                Parsed::Partial => return self.await_head(connection, rest),
                Parsed::Reject(reject) => return self.reject_header(connection, rest, &reject),
            };
            connection.virtual_host = self.hosts.find(head.host).root;
            if self.awaits_body(connection, &head, rest) {
                return self.await_rest(connection, &head, rest);
            }
            if matches!(resume, Resume::Start) && !connection.body_read {
                self.counters.requests_received += 1;
                connection.method = head.method.into();
                connection.header_partial = false;
                self.start_request_timer(connection);
            }
            let resumed = std::mem::replace(&mut resume, Resume::Start);
            let (end, handled) = match self.serve_request(connection, &head, rest, resumed) {
                Ok(handled) => handled,
                Err(disposition) => return disposition,
            };
            match handled {
                Handled::Done => {
                    connection.body_read = false;
                    at += end;
                    if self.finish_response(connection, Some(&head)) == Disposition::Close {
                        return self.linger_close(connection, !bytes[at..].is_empty());
                    }
                }
                Handled::Waiting => {
                    connection.stash_input(&rest[..head.length]);
                    connection.rx_buffer.extend_from_slice(&rest[end..]);
                    connection.body_read = head.framing != Framing::None;
                    return Disposition::Keep;
                }
                Handled::Sending => {
                    connection.body_read = false;
                    self.record(connection, &head);
                    connection.stash_input(&rest[end..]);
                    return Disposition::Keep;
                }
                Handled::Close => {
                    self.record(connection, &head);
                    return Disposition::Close;
                }
            }
        }
        connection.stash_input(&bytes[at..]);
        self.requeue(connection);
        Disposition::Keep
    }

    /// Answers a request with what its path leads to. Returns how many of the bytes belonged to the
    /// request, or what happens to the connection instead.
    fn serve_request(
        &mut self,
        connection: &mut Connection,
        head: &Head<'_>,
        bytes: &[u8],
        mut resume: Resume,
    ) -> Result<(usize, Handled), Disposition> {
        let found = match self.routes.is_empty() {
            true => FoundProgram::Files,
            false => self.find_program(connection, head, &mut resume),
        };
        match found {
            FoundProgram::Files => self.serve_file(connection, head, bytes, resume),
            FoundProgram::Application(place) => {
                self.serve_application(connection, head, bytes, place, resume)
            }
            found => self.serve_program(connection, head, bytes, found),
        }
    }

    /// Answers a request with a file. Returns how many of the bytes belonged to the request, or
    /// what happens to the connection instead.
    fn serve_file(
        &mut self,
        connection: &mut Connection,
        head: &Head<'_>,
        bytes: &[u8],
        resume: Resume,
    ) -> Result<(usize, Handled), Disposition> {
        let end = match self.skip_body(connection, head, &bytes[head.length..]) {
            Ok(body) => head.length + body,
            Err(disposition) => {
                if matches!(connection.phase, Phase::Body(_)) {
                    connection.stash_input(&bytes[..head.length]);
                }
                return Err(disposition);
            }
        };
        let more = holds_a_head(&bytes[end..]);
        Ok((end, self.route_file_request(connection, head, resume, more)))
    }

    /// Whether the connection may stay open after the response.
    pub(super) fn keeps_alive(&self, connection: &Connection, head: &Head<'_>) -> bool {
        let most = self.config.max_requests_per_connection;
        head.keep_alive
            && self.draining_until_ms.is_none()
            && (most == 0 || connection.requests + 1 < most)
    }

    /// Skips a request body, which static files do not use. Returns how many bytes of `after`
    /// belong to it, or what happens to the connection while or instead of waiting for the rest.
    fn skip_body(
        &mut self,
        connection: &mut Connection,
        head: &Head<'_>,
        after: &[u8],
    ) -> Result<usize, Disposition> {
        if head.framing == Framing::None || connection.body_read {
            return Ok(0);
        }
        let unwanted = matches!(head.method, Method::Other(_)) && head.expect_continue;
        if unwanted {
            return Err(self.close_with_error(
                connection,
                head.request_line,
                Status::METHOD_NOT_ALLOWED,
            ));
        }
        if matches!(head.framing, Framing::Length(length) if length > self.config.max_body_bytes) {
            return Err(self.close_with_error(
                connection,
                head.request_line,
                Status::CONTENT_TOO_LARGE,
            ));
        }
        let mut body = Body::new(head.framing, self.config.max_body_bytes);
        match body.feed(after) {
            DrainProgress::Done(used) => Ok(used),
            DrainProgress::More => {
                if head.expect_continue && after.is_empty() {
                    self.send_continue(connection)?;
                }
                connection.phase = Phase::Body(body);
                let deadline = self.now_ms + self.config.body_timeout_ms;
                self.deadlines.set(connection.slot(), deadline);
                self.watch(connection, headway_event::Interest::READ);
                Err(Disposition::Keep)
            }
            DrainProgress::TooLarge => {
                Err(self.close_with_error(connection, head.request_line, Status::CONTENT_TOO_LARGE))
            }
            DrainProgress::Bad => {
                Err(self.close_with_error(connection, head.request_line, Status::BAD_REQUEST))
            }
        }
    }

    /// Answers an invalid request header and closes the connection.
    fn reject_header(
        &mut self,
        connection: &mut Connection,
        received: &[u8],
        reject: &Reject,
    ) -> Disposition {
        self.counters.requests_received += 1;
        self.start_request_timer(connection);
        self.close_with_error(connection, received, reject.status)
    }

    /// Checks the method and the path of a request to a file, and continues it.
    fn route_file_request(
        &mut self,
        connection: &mut Connection,
        head: &Head<'_>,
        resume: Resume,
        more: bool,
    ) -> Handled {
        connection.keep_alive = self.keeps_alive(connection, head);
        let hosts = self.hosts();
        let host = hosts.get(connection.virtual_host);
        match head.method {
            Method::Get | Method::Head => {}
            Method::Options => {
                let response = respond::options(&self.context(head, connection));
                return self.start_response(connection, response);
            }
            Method::Other(_) => {
                return self.send_error(connection, head, host, Status::METHOD_NOT_ALLOWED);
            }
        }
        let Target::Path(target) = head.target else {
            return self.send_error(connection, head, host, Status::BAD_REQUEST);
        };
        let path = match normalise(target) {
            Ok(path) if path.hidden && !host.dotfiles => {
                return self.send_error(connection, head, host, Status::NOT_FOUND);
            }
            Ok(path) => path,
            Err(error) => return self.send_error(connection, head, host, error.status()),
        };
        self.continue_request(
            connection,
            RequestContext {
                head,
                host,
                path,
                more,
                copy: None,
            },
            resume,
        )
    }

    /// Continues a request with the result of a helper, or starts its lookup.
    fn continue_request(
        &mut self,
        connection: &mut Connection,
        mut request: RequestContext<'_>,
        resume: Resume,
    ) -> Handled {
        let entry = match resume {
            // Static files have no application jobs.
            Resume::Start | Resume::ApplicationJob(_) => {
                return self.resolve_path(connection, &request);
            }
            Resume::Entry(entry, copy) => {
                request.copy = copy;
                entry
            }
            Resume::Listing(page) => {
                let response = respond::listing_page(&self.context(request.head, connection), page);
                return self.start_response(connection, response);
            }
            Resume::Failed(failure) => return self.send_failure(connection, &request, failure),
        };
        if let Some(handled) = self.respond_to_entry(connection, &request, &entry) {
            return handled;
        }
        // What the helper has read belongs to the old version.
        request.copy = None;
        self.lookup
            .invalidate(request.host.root, &request.path.bytes);
        if connection.count_chunk_request(0) > HELPER_REQUESTS_MAX {
            return self.send_overloaded(connection, &request);
        }
        self.resolve_path(connection, &request)
    }

    /// Looks up the path in the file cache or by a probe; otherwise a helper opens the cold file.
    fn resolve_path(
        &mut self,
        connection: &mut Connection,
        request: &RequestContext<'_>,
    ) -> Handled {
        let (root, path) = (request.host.root, &*request.path.bytes);
        for _ in 0..LOOKUP_ATTEMPTS_MAX {
            let found = self
                .lookup
                .find(root, path, self.now_ms, &self.tracer, &mut self.counters);
            let entry = match found {
                LookupResult::Known(entry) => entry,
                LookupResult::NeedsHelper => {
                    return match self.pool.resolve(root, path, connection.waiter()) {
                        Ok(()) => self.wait_for_helper(connection, Phase::Lookup),
                        Err(_) => self.send_overloaded(connection, request),
                    };
                }
            };
            if let Some(handled) = self.respond_to_entry(connection, request, &entry) {
                return handled;
            }
            self.lookup.invalidate(root, path);
        }
        self.send_overloaded(connection, request)
    }

    /// Answers a request according to its file cache entry. Returns `None` if the file has changed
    /// or was closed: look it up again.
    fn respond_to_entry(
        &mut self,
        connection: &mut Connection,
        request: &RequestContext<'_>,
        entry: &Rc<Entry>,
    ) -> Option<Handled> {
        let (head, host) = (request.head, request.host);
        Some(match &entry.answer {
            Answer::File(found) => {
                return self.respond_with_file(connection, request, entry, found);
            }
            Answer::Redirect => {
                let context = self.context(head, connection);
                let response = respond::redirect(&context, &request.path.bytes, request.path.query);
                self.start_response(connection, response)
            }
            Answer::Directory if host.listing => self.respond_with_listing(connection, request),
            Answer::Directory => self.send_error(connection, head, host, Status::FORBIDDEN),
            Answer::Failed(Failure::Exhausted) if self.free_descriptors() => return None,
            Answer::Failed(failure) => self.send_failure(connection, request, *failure),
        })
    }

    /// Answers with a directory listing, which a helper renders unless it is cached.
    fn respond_with_listing(
        &mut self,
        connection: &mut Connection,
        request: &RequestContext<'_>,
    ) -> Handled {
        let (root, path) = (request.host.root, &*request.path.bytes);
        let known = match self.lookup.find_listing(root, path, self.now_ms) {
            ListingLookup::Known(page) => {
                let response = respond::listing_page(&self.context(request.head, connection), page);
                return self.start_response(connection, response);
            }
            ListingLookup::NeedsHelper(known) => known,
        };
        let queued = self
            .pool
            .list(root, path, known.as_ref(), connection.waiter());
        match queued {
            Ok(()) => self.wait_for_helper(connection, Phase::Lookup),
            Err(_) => self.send_overloaded(connection, request),
        }
    }

    /// Answers with a file: from the response cache, from memory or from the open file.
    fn respond_with_file(
        &mut self,
        connection: &mut Connection,
        request: &RequestContext<'_>,
        entry: &Rc<Entry>,
        found: &FoundFile,
    ) -> Option<Handled> {
        let variant = respond::choose_variant(request.head, found);
        entry.prepared.recently_used.set(true);
        let handed = connection.accel_fields.clone();
        let plain = handed.is_none() && respond::is_plain(request.head, connection.keep_alive);
        if plain
            && let Some(handled) =
                self.send_cached_response(connection, entry, variant, request.more)
        {
            return Some(handled);
        }
        let mut representation =
            Representation::new(found, variant, request.host, &request.path.bytes);
        let source = if representation.file.meta().size <= self.config.small_file_max_bytes {
            let content = match self.small_file(entry, &representation, request.copy.as_ref()) {
                Ok(content) => content,
                Err(CacheMiss::Changed) => return None,
                Err(miss) => {
                    let file = representation.file.open()?;
                    return Some(self.load_with_helper(connection, request, entry, &file, &miss));
                }
            };
            if plain
                && let Some(handled) =
                    self.send_cached_response(connection, entry, variant, request.more)
            {
                return Some(handled);
            }
            ContentSource::Cached(content)
        } else {
            let file = representation.file.open()?;
            if !self.is_unchanged(&file) {
                return None;
            }
            ContentSource::File(file)
        };
        // Set only now: the cached response serves all requests, so it must not contain these
        // headers.
        representation.handed = handed.as_deref();
        let context = self.context(request.head, connection);
        let response = respond::file(
            &context,
            request.head,
            &representation,
            &source,
            request.host,
        );
        Some(self.start_response(connection, response))
    }

    /// Has a helper read a small file.
    fn load_with_helper(
        &mut self,
        connection: &mut Connection,
        request: &RequestContext<'_>,
        entry: &Rc<Entry>,
        file: &Rc<OpenFile>,
        miss: &CacheMiss,
    ) -> Handled {
        if let CacheMiss::Changed | CacheMiss::Unreadable = miss {
            self.counters.io_errors += 1;
            let status = Status::INTERNAL_SERVER_ERROR;
            return self.send_error(connection, request.head, request.host, status);
        }
        match self.request_content(connection, entry, file, miss) {
            Ok(()) => self.wait_for_helper(connection, Phase::SmallFile(entry.clone())),
            Err(_) => self.send_overloaded(connection, request),
        }
    }

    pub(super) fn is_unchanged(&self, file: &OpenFile) -> bool {
        // If fstat fails, reading the file will report the error.
        self.tracer
            .call(Call::Status, || file.unchanged())
            .unwrap_or(true)
    }

    /// Marks the request as waiting for a helper.
    pub(super) fn wait_for_helper(&mut self, connection: &mut Connection, phase: Phase) -> Handled {
        connection.phase = phase;
        connection.admitted = true;
        self.watch_for_disconnect(connection);
        let deadline = self.now_ms + self.config.send_timeout_ms;
        self.deadlines.set(connection.slot(), deadline);
        Handled::Waiting
    }

    pub(super) fn context<'w>(
        &'w self,
        head: &Head<'w>,
        connection: &Connection,
    ) -> ResponseContext<'w> {
        ResponseContext::new(
            &self.response_settings,
            &self.date,
            head,
            connection.keep_alive,
        )
    }

    /// Sends an error response to a valid request.
    pub(super) fn send_error(
        &mut self,
        connection: &mut Connection,
        head: &Head<'_>,
        host: &VirtualHost,
        status: Status,
    ) -> Handled {
        let response = respond::error(&self.context(head, connection), status, Some(host), None);
        self.start_response(connection, response)
    }

    /// Sends the error response for a failed lookup or helper job.
    fn send_failure(
        &mut self,
        connection: &mut Connection,
        request: &RequestContext<'_>,
        failure: Failure,
    ) -> Handled {
        self.counters.io_errors += u64::from(failure == Failure::Io);
        self.send_error(connection, request.head, request.host, status_of(failure))
    }

    /// Sends 503 because a limit is reached.
    fn send_overloaded(
        &mut self,
        connection: &mut Connection,
        request: &RequestContext<'_>,
    ) -> Handled {
        self.send_error(
            connection,
            request.head,
            request.host,
            Status::SERVICE_UNAVAILABLE,
        )
    }
}

/// Whether a complete header follows, so that another response will be sent at once. With MSG_MORE
/// the kernel delays the last packet by up to 200 ms if no more data comes (tcp(7), `TCP_CORK`), so
/// the start of a header or a stray line end does not count.
fn holds_a_head(bytes: &[u8]) -> bool {
    bytes.len() > 4 && memchr::memmem::find(bytes, b"\r\n\r\n").is_some()
}

/// The status code for a failed lookup or read.
pub(super) fn status_of(failure: Failure) -> Status {
    match failure {
        Failure::NotFound => Status::NOT_FOUND,
        Failure::NameTooLong => Status::NOT_FOUND,
        Failure::Forbidden | Failure::NotRegular => Status::FORBIDDEN,
        Failure::Exhausted | Failure::Overloaded | Failure::GivenUp => Status::SERVICE_UNAVAILABLE,
        Failure::Io => Status::INTERNAL_SERVER_ERROR,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn more_flag_is_set_only_when_a_complete_header_follows() {
        for bytes in ["", "\r\n", "G", "GET / HTTP/1.1\r\nHost: x\r\n"] {
            assert!(!super::holds_a_head(bytes.as_bytes()), "{bytes:?}");
        }
        assert!(super::holds_a_head(b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET"));
    }
}
