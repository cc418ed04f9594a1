//! What a step of an embedded application may use, and the work that may need a helper: jobs, and
//! documents from the file cache and the response cache.

use std::net::IpAddr;
use std::ops::ControlFlow::{Break, Continue};
use std::rc::Rc;

use headway_config::HandlerConfig;
use headway_connection::{
    ApplicationRequest, ApplicationStage, Body, BodyUse, Connection, LookupFor, Next,
    PendingResponse, Phase,
};
use headway_embedded::{Document, Edit, Job, Part, State};
use headway_files::{Answer, Failure, Full, OpenFile, RootId};
use headway_http::chunked::DrainProgress;
use headway_http::{Framing, Status};
use headway_request::{Entry, LoadedContent, LookedUp, Piece, Request};
use headway_respond::Representation;

use crate::worker::context::LoopContext;
use crate::worker::files::StaticFiles;
use crate::worker::files::small_file::CacheMiss;
use crate::worker::files::static_file::LOOKUP_ATTEMPTS_MAX;
use crate::worker::handler::Step;
use crate::worker::sending::HELPER_REQUESTS_MAX;

/// A request in progress, and what its steps need.
pub(in crate::worker) struct Turn<'w> {
    pub files: &'w mut StaticFiles,
    pub context: &'w mut LoopContext,
    pub connection: &'w mut Connection,
}

/// Why a document is not at hand.
pub(super) enum Unready {
    /// It has to be looked up by a helper.
    Unknown,
    /// Its content has to be read by a helper.
    Unread(Rc<Entry>, CacheMiss),
    Missing,
    Failed(Failure),
    /// It changes all the time, or no helper can bring it into memory.
    Overloaded,
}

impl Turn<'_> {
    pub(super) fn client(&self) -> IpAddr {
        self.connection.client.ip()
    }

    pub(super) fn fail(&mut self, request: Box<Request>, status: Status) -> Next {
        self.context.send_error(self.connection, request, status)
    }

    /// Takes the body of a request, or waits for the rest of it. Longer ones than `bytes_max` and
    /// chunked ones are not accepted.
    pub(super) fn take_body(
        &mut self,
        mut request: Box<Request>,
        input: &mut &[u8],
        number: usize,
        bytes_max: u64,
    ) -> Step {
        let framing = request.head.framing();
        let status = match framing {
            _ if request.body_read => return Continue(request),
            Framing::None => return Continue(request),
            Framing::Length(length) if length <= bytes_max => {
                let mut body = Body::new(framing, length);
                if let DrainProgress::Done(used) = body.feed_into(input, &mut request.body) {
                    *input = &input[used..];
                    return Continue(request);
                }
                let is_first = std::mem::take(input).is_empty();
                let expected = request.head.expects_continue() && is_first;
                let use_of = BodyUse::Application(number);
                let (context, connection) = (&mut *self.context, &mut *self.connection);
                return Break(context.wait_for_body(connection, request, body, use_of, expected));
            }
            Framing::Length(_) => Status::CONTENT_TOO_LARGE,
            Framing::Chunked => Status::LENGTH_REQUIRED,
        };
        Break(
            self.context
                .close_with_error(self.connection, request, status),
        )
    }

    /// Submits a job to a helper, and makes the request wait for it.
    pub(super) fn submit(
        &mut self,
        request: Box<Request>,
        number: usize,
        job: Job,
        state: State,
    ) -> Next {
        let route = self.context.routes.get(number);
        let encoded = match (&route.location.handler, route.own()) {
            (HandlerConfig::Application(named), Some((_, directory))) => {
                job.encode(&named.name, directory)
            }
            _ => None,
        };
        let Some(encoded) = encoded else {
            return self.fail(request, Status::INTERNAL_SERVER_ERROR);
        };
        let waiter = self.connection.waiter(&request);
        let queued = self
            .context
            .pool
            .submit_custom(job.sharing(), &encoded, waiter);
        let stage = ApplicationStage::Job(state, job.replaces);
        self.wait(request, number, stage, queued, Phase::AwaitJob)
    }

    /// Makes the request wait for a helper, or rejects it if the queue is full.
    pub(super) fn wait(
        &mut self,
        request: Box<Request>,
        route: usize,
        stage: ApplicationStage,
        queued: Result<(), Full>,
        phase: impl FnOnce(Box<Request>, Box<ApplicationRequest>) -> Phase,
    ) -> Next {
        if queued.is_err() {
            return self.context.send_overloaded(self.connection, request);
        }
        let progress = Box::new(ApplicationRequest { route, stage });
        self.context
            .wait_for_helper(self.connection, request, |request| phase(request, progress))
    }

    /// A document of a response, from memory or to be sent.
    pub(super) fn document(
        &mut self,
        request: &mut Request,
        document: &mut Document,
        mut looked_up: Option<LookedUp>,
    ) -> Result<Piece, Unready> {
        let root = request.virtual_host;
        let Document { path, edit } = document;
        let path = path.as_bytes();
        for _ in 0..LOOKUP_ATTEMPTS_MAX {
            let LookedUp { entry, content } = match looked_up.take() {
                Some(looked_up) => looked_up,
                None => {
                    let entry = self.files.find(self.context, root, path);
                    entry.ok_or(Unready::Unknown)?.into()
                }
            };
            match &entry.answer {
                Answer::File(_) => {}
                Answer::Failed(Failure::Exhausted) if self.files.release_reserve(self.context) => {
                    self.files.lookup.invalidate(root, path);
                    continue;
                }
                Answer::Failed(failure) if *failure != Failure::NotFound => {
                    return Err(Unready::Failed(*failure));
                }
                _ => return Err(Unready::Missing),
            }
            match self.content_of(root, &entry, path, edit, content.as_ref()) {
                Ok(piece) => {
                    request.forget_chunk_requests();
                    return Ok(piece);
                }
                Err(CacheMiss::Changed) => {
                    self.files.lookup.invalidate(root, path);
                    if request.count_helper_request(0) > HELPER_REQUESTS_MAX {
                        break;
                    }
                }
                Err(CacheMiss::Unreadable(failure)) => return Err(Unready::Failed(failure)),
                Err(missing) => return Err(Unready::Unread(entry, missing)),
            }
        }
        Err(Unready::Overloaded)
    }

    /// The content of a document, from memory or to be sent; a copy in memory if it is edited.
    fn content_of(
        &mut self,
        root: RootId,
        entry: &Rc<Entry>,
        path: &[u8],
        edit: &mut Option<Edit>,
        copy: Option<&LoadedContent>,
    ) -> Result<Piece, CacheMiss> {
        let Answer::File(found) = &entry.answer else {
            return Err(CacheMiss::Unreadable(Failure::Io));
        };
        let hosts = self.context.hosts();
        let settled = self.context.is_settled(entry, &found.file);
        let representation = Representation::new(found, 0, hosts.get(root), path, settled);
        let size = representation.file.meta().size;
        if size <= self.context.config.small_file_max_bytes {
            entry.prepared.recently_used.set(true);
            let content = self
                .files
                .small_file(self.context, entry, &representation, copy)?;
            let Some(edit) = edit.take() else {
                return Ok(content.piece(0..size));
            };
            let mut bytes = vec![0; size as usize];
            match &content.stored {
                Some(stored) => StaticFiles::read_all(self.context, &stored.file, &mut bytes)?,
                None => bytes.copy_from_slice(&content.bytes[content.body_at..]),
            }
            edit(&mut bytes);
            return Ok(Piece::bytes(bytes));
        }
        let whole = representation.file.open().ok_or(CacheMiss::Changed)?;
        if edit.is_none() {
            return match self.context.is_unchanged(&whole)? {
                true => Ok(Piece::File(whole, 0..size)),
                false => Err(CacheMiss::Changed),
            };
        }
        if size > Document::EDITED_BYTES_MAX {
            return Err(CacheMiss::Unreadable(Failure::Io));
        }
        let mut bytes = vec![0; size as usize];
        StaticFiles::read_small_file(self.context, copy, &whole, &mut bytes)?;
        if let Some(edit) = edit.take() {
            edit(&mut bytes);
        }
        Ok(Piece::bytes(bytes))
    }

    /// Makes a response wait for its next document, or answers with an error.
    pub(super) fn wait_for_document(
        &mut self,
        mut request: Box<Request>,
        number: usize,
        pending: PendingResponse,
        unready: &Unready,
    ) -> Next {
        let path = match pending.left.front() {
            Some(Part::Document(document)) => document.path.as_bytes().to_vec(),
            _ => Vec::new(),
        };
        let stage = ApplicationStage::Response(pending);
        match unready {
            Unready::Unknown => {
                let waiter = self.connection.waiter(&request);
                let root = request.virtual_host;
                let queued = self.context.pool.submit_lookup(root, &path, waiter);
                self.wait(request, number, stage, queued, look_up)
            }
            Unready::Unread(entry, missing) => {
                let Some(file) = unread_file(entry, missing) else {
                    self.context.counters.io_errors += 1;
                    return self.fail(request, Status::INTERNAL_SERVER_ERROR);
                };
                let queued = StaticFiles::submit_load(
                    self.context,
                    self.connection,
                    &mut request,
                    entry,
                    &file,
                    missing,
                );
                let entry = entry.clone();
                self.wait(request, number, stage, queued, |request, progress| {
                    Phase::AwaitContent(request, entry, LookupFor::Application(progress))
                })
            }
            Unready::Missing => self.fail(request, Status::NOT_FOUND),
            Unready::Failed(failure) => {
                self.context
                    .send_failure(self.connection, request, *failure)
            }
            Unready::Overloaded => self.context.send_overloaded(self.connection, request),
        }
    }
}

/// The file that a helper can read, if that is what is missing.
fn unread_file(entry: &Entry, missing: &CacheMiss) -> Option<Rc<OpenFile>> {
    match (&entry.answer, missing) {
        (Answer::File(found), CacheMiss::NotResident | CacheMiss::ResidencyUnknown) => {
            found.file.open()
        }
        _ => None,
    }
}

/// The phase of a request that waits for a path to be looked up.
pub(super) fn look_up(request: Box<Request>, progress: Box<ApplicationRequest>) -> Phase {
    Phase::AwaitLookup(request, LookupFor::Application(progress))
}
