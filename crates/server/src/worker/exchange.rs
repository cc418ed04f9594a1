//! One request from its head to its reply.
//!
//! Requests of a connection are answered strictly in order. While one waits for a helper its bytes
//! are held and nothing after it is looked at; when the answer comes the head is parsed again,
//! which costs less than keeping borrowed pieces of it alive across turns.

use std::rc::Rc;

use headway_debox::Call;
use headway_files::protocol::Brought;
use headway_files::{Answer, Failure, FoundFile, OpenFile};
use headway_http::chunked::Progress;
use headway_http::path::{Path, normalise};
use headway_http::{Framing, Head, Method, Parsed, Reject, Status, Target};
use rustix::io::Errno;

use super::dynamic::Found as FoundProgram;
use super::flow::ASKS_IN_ALL_MAX;
use super::small::{Copied, Missing};
use super::{Fate, Worker};
use crate::connection::{Body, Connection, Phase};
use crate::lookup::{Found, FoundPage};
use crate::request::{Entry, Outgoing, Piece, Site, Variant};
use crate::respond::{self, Context, Representation, Source};
use crate::send;

/// Pipelined requests answered before others get their turn.
const REQUESTS_A_TURN: usize = 64;

/// A file that keeps changing under us is looked up this often before we give up on it.
pub(super) const LOOKS_MAX: usize = 3;

/// What a helper has found out for a request that waited.
pub(super) enum Given {
    Nothing,
    /// What a name is, and a small file's content where the loop need not or cannot read it.
    Entry(Rc<Entry>, Option<Copied>),
    Listing(Rc<OpenFile>),
    /// What an application's errand has come to.
    Errand(Result<Brought<Rc<OpenFile>>, Failure>),
    Failed(Failure),
}

/// A request that is understood: where it goes and what it asks for.
struct Ask<'a> {
    head: &'a Head<'a>,
    site: &'a Site,
    path: Path<'a>,
    /// Another request stands behind it, so another reply will follow.
    more: bool,
    /// The content, copied by a helper.
    copy: Option<Copied>,
}

/// What became of one request.
pub(super) enum Served {
    /// Its reply has left.
    Done,
    /// It waits for a helper; its head must be held.
    Waiting,
    /// Its reply is on its way; the head is not needed any more.
    Sending,
    /// The connection is of no more use.
    Close,
}

impl Worker {
    /// Continues with the request that a helper has answered.
    pub(super) fn resume(&mut self, connection: &mut Connection, given: Given) -> Fate {
        let held = std::mem::take(&mut connection.held);
        self.consume(connection, &held, given)
    }

    /// Answers the requests in `bytes`, in order, as far as they go.
    pub(super) fn consume(
        &mut self,
        connection: &mut Connection,
        bytes: &[u8],
        mut given: Given,
    ) -> Fate {
        let mut at = 0;
        for _ in 0..REQUESTS_A_TURN {
            let rest = &bytes[at..];
            if rest.is_empty() {
                return self.await_head(connection, rest);
            }
            let head = match headway_http::parse(rest, &self.limits) {
                Parsed::Complete(head) => head,
                Parsed::Partial => return self.await_head(connection, rest),
                Parsed::Reject(reject) => return self.reject(connection, rest, &reject),
            };
            connection.site = self.hosts.find(head.host).root;
            if self.awaits_body(connection, &head, rest) {
                return self.await_rest(connection, &head, rest);
            }
            if matches!(given, Given::Nothing) && !connection.body_read {
                self.counters.requests += 1;
                connection.partial = false;
                self.start_clock(connection);
            }
            let found = match self.places.is_empty() {
                true => FoundProgram::Files,
                false => self.find_program(connection, &head, &mut given),
            };
            let served = match found {
                FoundProgram::Files => {
                    let given = std::mem::replace(&mut given, Given::Nothing);
                    self.serve_file(connection, &head, rest, given)
                }
                FoundProgram::Application(place) => {
                    let given = std::mem::replace(&mut given, Given::Nothing);
                    self.serve_application(connection, &head, rest, place, given)
                }
                found => {
                    given = Given::Nothing;
                    self.serve_program(connection, &head, rest, found)
                }
            };
            let (end, served) = match served {
                Ok(served) => served,
                Err(fate) => return fate,
            };
            match served {
                Served::Done => {
                    connection.body_read = false;
                    at += end;
                    if self.finish(connection, Some(&head)) == Fate::Close {
                        return self.part(connection, !bytes[at..].is_empty());
                    }
                }
                Served::Waiting => {
                    connection.hold(&rest[..head.length]);
                    connection.held.extend_from_slice(&rest[end..]);
                    connection.body_read = head.framing != Framing::None;
                    return Fate::Keep;
                }
                Served::Sending => {
                    connection.body_read = false;
                    self.record(connection, &head);
                    connection.hold(&rest[end..]);
                    return Fate::Keep;
                }
                Served::Close => {
                    self.record(connection, &head);
                    return Fate::Close;
                }
            }
        }
        connection.hold(&bytes[at..]);
        self.stand_in_line(connection);
        Fate::Keep
    }

    /// Answers a request with a file: how many of the bytes belonged to it, or what becomes of the
    /// connection instead.
    fn serve_file(
        &mut self,
        connection: &mut Connection,
        head: &Head<'_>,
        bytes: &[u8],
        given: Given,
    ) -> Result<(usize, Served), Fate> {
        let end = match self.pass_body(connection, head, &bytes[head.length..]) {
            Ok(body) => head.length + body,
            Err(fate) => {
                if matches!(connection.phase, Phase::Body(_)) {
                    connection.hold(&bytes[..head.length]);
                }
                return Err(fate);
            }
        };
        let more = holds_a_head(&bytes[end..]);
        Ok((end, self.serve(connection, head, given, more)))
    }

    /// Whether the connection may stay after the reply.
    pub(super) fn keeps(&self, connection: &Connection, head: &Head<'_>) -> bool {
        let most = self.config.max_requests_per_connection;
        head.keep_alive
            && self.draining_until_ms.is_none()
            && (most == 0 || connection.requests + 1 < most)
    }

    /// Reads past a request body that static files have no use for. How many of `after` belong to
    /// it, or what becomes of the connection while or instead of waiting for the rest.
    fn pass_body(
        &mut self,
        connection: &mut Connection,
        head: &Head<'_>,
        after: &[u8],
    ) -> Result<usize, Fate> {
        if head.framing == Framing::None || connection.body_read {
            return Ok(0);
        }
        let unwanted = matches!(head.method, Method::Other(_)) && head.expect_continue;
        if unwanted {
            return Err(self.refuse(connection, head.request_line, Status::METHOD_NOT_ALLOWED));
        }
        if matches!(head.framing, Framing::Length(length) if length > self.config.max_body_bytes) {
            return Err(self.refuse(connection, head.request_line, Status::CONTENT_TOO_LARGE));
        }
        let mut body = Body::new(head.framing, self.config.max_body_bytes);
        match body.feed(after) {
            Progress::Done(used) => Ok(used),
            Progress::More => {
                if head.expect_continue && after.is_empty() {
                    self.send_continue(connection)?;
                }
                connection.phase = Phase::Body(body);
                let deadline = self.now_ms + self.config.body_timeout_ms;
                self.deadlines.set(connection.slot(), deadline);
                self.watch(connection, headway_event::Interest::READ);
                Err(Fate::Keep)
            }
            Progress::TooLarge => {
                Err(self.refuse(connection, head.request_line, Status::CONTENT_TOO_LARGE))
            }
            Progress::Bad => Err(self.refuse(connection, head.request_line, Status::BAD_REQUEST)),
        }
    }

    /// A head that could not be read, answered and then the connection ends.
    fn reject(&mut self, connection: &mut Connection, asked: &[u8], reject: &Reject) -> Fate {
        self.counters.requests += 1;
        self.start_clock(connection);
        self.refuse(connection, asked, reject.status)
    }

    fn serve(
        &mut self,
        connection: &mut Connection,
        head: &Head<'_>,
        given: Given,
        more: bool,
    ) -> Served {
        connection.keep_alive = self.keeps(connection, head);
        let hosts = self.hosts();
        let site = hosts.site(connection.site);
        match head.method {
            Method::Get | Method::Head => {}
            Method::Options => {
                let reply = respond::options(&self.context(head, connection));
                return self.reply(connection, reply);
            }
            Method::Other(_) => {
                return self.fail(connection, head, site, Status::METHOD_NOT_ALLOWED);
            }
        }
        let Target::Path(target) = head.target else {
            return self.fail(connection, head, site, Status::BAD_REQUEST);
        };
        let path = match normalise(target) {
            Ok(path) if path.hidden && !site.dotfiles => {
                return self.fail(connection, head, site, Status::NOT_FOUND);
            }
            Ok(path) => path,
            Err(error) => return self.fail(connection, head, site, error.status()),
        };
        self.serve_given(
            connection,
            Ask {
                head,
                site,
                path,
                more,
                copy: None,
            },
            given,
        )
    }

    fn serve_given(
        &mut self,
        connection: &mut Connection,
        mut ask: Ask<'_>,
        given: Given,
    ) -> Served {
        let entry = match given {
            // An application's errands are not asked for here.
            Given::Nothing | Given::Errand(_) => return self.look_up(connection, &ask),
            Given::Entry(entry, copy) => {
                ask.copy = copy;
                entry
            }
            Given::Listing(page) => {
                let reply = respond::listing_page(&self.context(ask.head, connection), page);
                return self.reply(connection, reply);
            }
            Given::Failed(failure) => return self.fail_for(connection, &ask, failure),
        };
        if let Some(served) = self.answer(connection, &ask, &entry) {
            return served;
        }
        // What a helper has read is of the version that has gone.
        ask.copy = None;
        self.lookup.forget(ask.site.root, &ask.path.bytes);
        if connection.ask_window(0) > ASKS_IN_ALL_MAX {
            return self.overloaded(connection, &ask);
        }
        self.look_up(connection, &ask)
    }

    fn look_up(&mut self, connection: &mut Connection, ask: &Ask<'_>) -> Served {
        let (root, path) = (ask.site.root, &*ask.path.bytes);
        for _ in 0..LOOKS_MAX {
            let found = self
                .lookup
                .find(root, path, self.now_ms, &self.tracer, &mut self.counters);
            let entry = match found {
                Found::Entry(entry) => entry,
                Found::AskHelper => {
                    return match self.pool.resolve(root, path, connection.waiter()) {
                        Ok(()) => self.wait(connection, Phase::Name),
                        Err(_) => self.overloaded(connection, ask),
                    };
                }
            };
            if let Some(served) = self.answer(connection, ask, &entry) {
                return served;
            }
            self.lookup.forget(root, path);
        }
        self.overloaded(connection, ask)
    }

    /// `None`: the file is not what the name cache believed, or is closed; look again.
    fn answer(
        &mut self,
        connection: &mut Connection,
        ask: &Ask<'_>,
        entry: &Rc<Entry>,
    ) -> Option<Served> {
        let (head, site) = (ask.head, ask.site);
        Some(match &entry.answer {
            Answer::File(found) => return self.answer_file(connection, ask, entry, found),
            Answer::Redirect => {
                let context = self.context(head, connection);
                let reply = respond::redirect(&context, &ask.path.bytes, ask.path.query);
                self.reply(connection, reply)
            }
            Answer::Directory if site.listing => self.answer_listing(connection, ask),
            Answer::Directory => self.fail(connection, head, site, Status::FORBIDDEN),
            Answer::Failed(Failure::Exhausted) if self.free_descriptors() => return None,
            Answer::Failed(failure) => self.fail_for(connection, ask, *failure),
        })
    }

    fn answer_listing(&mut self, connection: &mut Connection, ask: &Ask<'_>) -> Served {
        let (root, path) = (ask.site.root, &*ask.path.bytes);
        let known = match self.lookup.find_page(root, path, self.now_ms) {
            FoundPage::Page(page) => {
                let reply = respond::listing_page(&self.context(ask.head, connection), page);
                return self.reply(connection, reply);
            }
            FoundPage::AskHelper(known) => known,
        };
        let asked = self
            .pool
            .list(root, path, known.as_ref(), connection.waiter());
        match asked {
            Ok(()) => self.wait(connection, Phase::Name),
            Err(_) => self.overloaded(connection, ask),
        }
    }

    fn answer_file(
        &mut self,
        connection: &mut Connection,
        ask: &Ask<'_>,
        entry: &Rc<Entry>,
        found: &FoundFile,
    ) -> Option<Served> {
        let variant = respond::choose_variant(ask.head, found);
        entry.prepared.used.set(true);
        let handed = connection.handed.clone();
        let plain = handed.is_none() && respond::is_plain(ask.head, connection.keep_alive);
        if plain && let Some(served) = self.send_prepared(connection, entry, variant, ask.more) {
            return Some(served);
        }
        let mut representation = Representation::new(found, variant, ask.site, &ask.path.bytes);
        let source = if representation.file.meta().size <= self.config.small_file_max_bytes {
            let content = match self.content(entry, &representation, ask.copy.as_ref()) {
                Ok(content) => content,
                Err(Missing::Changed) => return None,
                Err(missing) => {
                    let file = representation.file.open()?;
                    return Some(self.fetch_content(connection, ask, entry, &file, &missing));
                }
            };
            if plain && let Some(served) = self.send_prepared(connection, entry, variant, ask.more)
            {
                return Some(served);
            }
            Source::Content(content)
        } else {
            let file = representation.file.open()?;
            if !self.is_unchanged(&file) {
                return None;
            }
            Source::File(file)
        };
        // Not before: what is kept in memory is for everybody.
        representation.handed = handed.as_deref();
        let context = self.context(ask.head, connection);
        let reply = respond::file(&context, ask.head, &representation, &source, ask.site);
        Some(self.reply(connection, reply))
    }

    /// Has a helper bring a small file into reach.
    fn fetch_content(
        &mut self,
        connection: &mut Connection,
        ask: &Ask<'_>,
        entry: &Rc<Entry>,
        file: &Rc<OpenFile>,
        missing: &Missing,
    ) -> Served {
        if let Missing::Changed | Missing::Unreadable = missing {
            self.counters.io_errors += 1;
            let status = Status::INTERNAL_SERVER_ERROR;
            return self.fail(connection, ask.head, ask.site, status);
        }
        match self.ask_for_content(connection, entry, file, missing) {
            Ok(()) => self.wait(connection, Phase::Content(entry.clone())),
            Err(_) => self.overloaded(connection, ask),
        }
    }

    pub(super) fn is_unchanged(&self, file: &OpenFile) -> bool {
        // A file that cannot be asked is found out when it is read.
        self.tracer
            .call(Call::Status, || file.unchanged())
            .unwrap_or(true)
    }

    /// The hot path: the whole reply lies in memory and leaves in one write. `None`: it does not,
    /// or another form of it is still being sent to somebody.
    fn send_prepared(
        &mut self,
        connection: &mut Connection,
        entry: &Entry,
        variant: Variant,
        more: bool,
    ) -> Option<Served> {
        let mut place = entry.prepared.contents[variant].borrow_mut();
        let content = place.as_mut()?;
        let keep_alive = connection.keep_alive;
        if content.date_second != self.date.second || !content.says(keep_alive) {
            let content = Rc::get_mut(content)?;
            content.set_date(self.date.second, &self.date.text);
            content.say(keep_alive);
        }
        self.counters.content_hit += 1;
        let reply = &content.bytes[content.start..];
        let sent = match self.config.eager_write {
            true => send::send_whole(&connection.socket, reply, more, &self.tracer),
            // The event mechanism is asked first.
            false => Err(Errno::AGAIN),
        };
        let sent = match sent {
            Ok(sent) => sent,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(_) => {
                self.counters.resets += 1;
                return Some(Served::Close);
            }
        };
        self.counters.bytes_sent += sent as u64;
        if sent > 0 {
            self.counters.record_response(200);
        }
        let outgoing = &mut connection.outgoing;
        outgoing.status = 200;
        outgoing.sent_bytes = sent as u64;
        outgoing.head_bytes = (content.body_at - content.start) as u64;
        if sent == reply.len() {
            return Some(Served::Done);
        }
        let rest = content.start + sent..content.bytes.len();
        outgoing
            .pieces
            .push_back(Piece::Content(content.clone(), rest));
        drop(place);
        Some(self.after_send(connection, send::Progress::SocketFull))
    }

    /// The request waits for a helper.
    pub(super) fn wait(&mut self, connection: &mut Connection, phase: Phase) -> Served {
        connection.phase = phase;
        connection.admitted = true;
        self.heed_departure(connection);
        let deadline = self.now_ms + self.config.send_timeout_ms;
        self.deadlines.set(connection.slot(), deadline);
        Served::Waiting
    }

    pub(super) fn context<'w>(&'w self, head: &Head<'w>, connection: &Connection) -> Context<'w> {
        Context::new(&self.rules, &self.date, head, connection.keep_alive)
    }

    /// An error reply to a request that was understood.
    pub(super) fn fail(
        &mut self,
        connection: &mut Connection,
        head: &Head<'_>,
        site: &Site,
        status: Status,
    ) -> Served {
        let reply = respond::error(&self.context(head, connection), status, Some(site), None);
        self.reply(connection, reply)
    }

    /// An error reply for what a name or a helper's work has come to.
    fn fail_for(&mut self, connection: &mut Connection, ask: &Ask<'_>, failure: Failure) -> Served {
        self.counters.io_errors += u64::from(failure == Failure::Io);
        self.fail(connection, ask.head, ask.site, status_of(failure))
    }

    /// A bound is reached: try again later.
    fn overloaded(&mut self, connection: &mut Connection, ask: &Ask<'_>) -> Served {
        self.fail(connection, ask.head, ask.site, Status::SERVICE_UNAVAILABLE)
    }

    /// Begins to send a reply, or (without `eager_write`) asks the event mechanism first whether it
    /// can leave.
    pub(super) fn reply(&mut self, connection: &mut Connection, outgoing: Outgoing) -> Served {
        connection.outgoing = outgoing;
        let progress = match self.config.eager_write {
            true => self.transmit(connection),
            false => send::Progress::SocketFull,
        };
        self.after_send(connection, progress)
    }
}

/// Whether another reply will follow at once. A reply that is told to wait for it waits 200 ms when
/// it does not come (tcp(7), `TCP_CORK`): the start of a head, or an old client's stray line end,
/// is not enough.
fn holds_a_head(bytes: &[u8]) -> bool {
    bytes.len() > 4 && memchr::memmem::find(bytes, b"\r\n\r\n").is_some()
}

/// The status that tells a client what went wrong with a name.
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
    fn another_reply_follows_only_when_a_whole_head_is_there() {
        for bytes in ["", "\r\n", "G", "GET / HTTP/1.1\r\nHost: x\r\n"] {
            assert!(!super::holds_a_head(bytes.as_bytes()), "{bytes:?}");
        }
        assert!(super::holds_a_head(b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET"));
    }
}
