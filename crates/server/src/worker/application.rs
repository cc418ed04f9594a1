//! The SPECweb99 application inside the worker, as Flash had it.
//!
//! Its documents are looked up and read like any other file: in the file cache, the response cache,
//! or by helpers where the loop would block. The advertisements stay in memory; before each use the
//! worker checks, without blocking, whether their file is unchanged. What may block is a helper's
//! job ([`crate::application_job`]): appending a record under the log's lock, rebuilding and
//! loading tables, reading the log. Meanwhile the phase of the connection has the progress
//! ([`crate::connection::ApplicationRequest`]), so that nothing is done twice.
//!
//! Bodies are at most 1 KiB and received before the application is asked. Longer ones get 413, chunked
//! ones 411.

use std::io;
use std::rc::Rc;

use headway_files::protocol::CustomResult;
use headway_files::{Answer, CustomJob as Sharing, Failure, Full, OpenFile, RootId};
use headway_http::chunked::DrainProgress;
use headway_http::{Framing, Status};
use headway_specweb::FileName;
use headway_specweb::application::{self, PageResponse, RequestAction};
use headway_specweb::request::{self as specweb, BODY_BYTES_MAX, Operation, parse};
use headway_specweb::scan::{PATH_BYTES, Scanner};
use headway_specweb::state::ADS_NAME;

use super::files::small_file::{CacheMiss, LoadedContent};
use super::files::static_file::{LOOKUP_ATTEMPTS_MAX, LookedUp};
use super::sending::{HELPER_REQUESTS_MAX, status_of};
use super::{Disposition, Worker};
use crate::application_job::ApplicationJob;
use crate::connection::{
    ApplicationRequest, ApplicationStage, Body, BodyUse, Connection, LookupFor, Next, Phase,
};
use crate::lookup::LookupResult;
use crate::request::{Entry, Piece, Request};
use crate::respond::Representation;
use crate::respond::handlers::Route;
use crate::respond::handlers::application::{RequestParts, file, log, page};

mod tables;

pub(super) use tables::Applications;
use tables::{Loaded, NoTables, Tables};

/// A file with placeholders has a tenth of this size; a larger one does not belong to a file set.
const SCANNED_BYTES_MAX: u64 = 1 << 20;

/// A request in progress: with its parts and its location.
struct AppRequest {
    request: Box<Request>,
    parts: RequestParts,
    route: Rc<Route>,
    now_s: i64,
}

impl AppRequest {
    /// The request as the application sees it.
    fn parsed(&self) -> specweb::Request<'_> {
        self.parts.request(&self.request.body, self.now_s)
    }
}

impl Worker {
    /// Answers a request of an application after its body has been received.
    pub(super) fn serve_application(
        &mut self,
        connection: &mut Connection,
        mut request: Box<Request>,
        input: &mut &[u8],
        number: usize,
    ) -> Next {
        match request.head.framing() {
            _ if request.body_read => {}
            Framing::None => {}
            Framing::Length(length) if length <= BODY_BYTES_MAX as u64 => {
                let mut body = Body::new(request.head.framing(), length);
                match body.feed_into(input, &mut request.body) {
                    DrainProgress::Done(used) => *input = &input[used..],
                    _ => {
                        let is_first = std::mem::take(input).is_empty();
                        let expected = request.head.expects_continue() && is_first;
                        let body_use = BodyUse::Application(number);
                        return self
                            .context
                            .wait_for_body(connection, request, body, body_use, expected);
                    }
                }
            }
            refused => {
                let status = match refused {
                    Framing::Chunked => Status::LENGTH_REQUIRED,
                    _ => Status::CONTENT_TOO_LARGE,
                };
                return self.context.close_with_error(connection, request, status);
            }
        }
        self.context.counters.handler_requests_specweb99 += 1;
        let app = self.app_request(connection, request, number);
        if let Ok(Operation::Custom { .. }) = parse(&app.parsed()) {
            return self.decide_custom(connection, app, ApplicationStage::Tables, None);
        }
        let step = application::decide(&app.parsed(), &mut NoTables);
        self.execute(connection, app, step)
    }

    fn app_request(
        &self,
        connection: &mut Connection,
        request: Box<Request>,
        number: usize,
    ) -> AppRequest {
        let head = request.head.head();
        connection.keep_alive = self.context.keeps_alive(connection, &head);
        let route = self.context.routes.get(number).clone();
        let whole = headway_gateway::Request::new(&head, request.head.bytes());
        let parts = RequestParts::new(&route, &whole, connection.client.ip());
        AppRequest {
            parts,
            route,
            now_s: self.context.date.second,
            request,
        }
    }

    /// Continues after a helper has looked up or read a file.
    pub(super) fn resume_application_file(
        &mut self,
        connection: &mut Connection,
        request: Box<Request>,
        progress: ApplicationRequest,
        found: LookedUp,
    ) -> Next {
        let app = self.app_request(connection, request, progress.route);
        match progress.stage {
            stage @ (ApplicationStage::Tables | ApplicationStage::Loading(_)) => {
                self.decide_custom(connection, app, stage, Some(found))
            }
            ApplicationStage::Page(response) => {
                self.send_page(connection, app, response, Some(found))
            }
            // A result that was not asked for.
            _ => self
                .context
                .send_error(connection, app.request, Status::INTERNAL_SERVER_ERROR),
        }
    }

    /// Continues after a helper has done a job.
    pub(super) fn deliver_job(
        &mut self,
        connection: &mut Connection,
        request: Box<Request>,
        progress: ApplicationRequest,
        answer: &Result<CustomResult<Rc<OpenFile>>, Failure>,
    ) -> Disposition {
        self.resume(connection, |worker, connection, _| {
            let app = worker.app_request(connection, request, progress.route);
            match answer {
                Ok(result) => worker.resume_after_job(connection, app, progress.stage, result),
                Err(failure) => {
                    let status = status_of(*failure);
                    worker.context.send_error(connection, app.request, status)
                }
            }
        })
    }

    fn resume_after_job(
        &mut self,
        connection: &mut Connection,
        app: AppRequest,
        stage: ApplicationStage,
        result: &CustomResult<Rc<OpenFile>>,
    ) -> Next {
        match (stage, result) {
            (ApplicationStage::Loading(version), CustomResult::File(content)) => {
                match Tables::read(content.clone(), version, &self.context.tracer) {
                    Some(tables) => self.decide_with(connection, app, Rc::new(tables)),
                    None => self.context.send_error(
                        connection,
                        app.request,
                        Status::INTERNAL_SERVER_ERROR,
                    ),
                }
            }
            (ApplicationStage::Posting(entry), CustomResult::Inline(number)) => {
                let number = std::str::from_utf8(number).ok();
                match number.and_then(|digits| digits.parse().ok()) {
                    Some(number) => {
                        let response = application::posted(&app.parsed(), &entry, number);
                        self.send_page(connection, app, response, None)
                    }
                    None => self.context.send_error(
                        connection,
                        app.request,
                        Status::INTERNAL_SERVER_ERROR,
                    ),
                }
            }
            (ApplicationStage::Resetting(reset), _) => {
                // Without probing, the cached names of the old tables would be believed for a
                // while.
                if let Some((root, _)) = app.route.own() {
                    self.files.lookup.invalidate(root, ADS_NAME.as_bytes());
                }
                let response = application::was_reset(&app.parsed(), &reset);
                self.send_page(connection, app, response, None)
            }
            (ApplicationStage::Fetching, brought) => {
                let content = match brought {
                    CustomResult::Inline(bytes) => Piece::bytes(bytes.to_vec()),
                    CustomResult::File(file) => {
                        let length = file.meta().size;
                        Piece::File(file.clone(), 0..length)
                    }
                };
                let head = app.request.head.head();
                let context = self.context.response(&head, connection);
                let outgoing = log(&context, &app.parsed(), content);
                self.context
                    .start_response(connection, app.request, outgoing)
            }
            // A result that was not asked for.
            _ => self
                .context
                .send_error(connection, app.request, Status::INTERNAL_SERVER_ERROR),
        }
    }

    /// Executes a decision, or has a helper execute it.
    fn execute(
        &mut self,
        connection: &mut Connection,
        app: AppRequest,
        step: io::Result<RequestAction>,
    ) -> Next {
        let (job, stage) = match step {
            Ok(RequestAction::Response(response)) => {
                return self.send_page(connection, app, response, None);
            }
            Ok(RequestAction::Post(entry)) => (
                ApplicationJob::Append(entry),
                ApplicationStage::Posting(entry),
            ),
            Ok(RequestAction::Reset(reset)) => (
                ApplicationJob::Reset(reset),
                ApplicationStage::Resetting(reset),
            ),
            Ok(RequestAction::Fetch) => (ApplicationJob::Log, ApplicationStage::Fetching),
            Err(_) => {
                return self.context.send_error(
                    connection,
                    app.request,
                    Status::INTERNAL_SERVER_ERROR,
                );
            }
        };
        self.submit_job(connection, app, job, stage)
    }

    /// Submits a job to a helper, and makes the request wait for it.
    fn submit_job(
        &mut self,
        connection: &mut Connection,
        app: AppRequest,
        job: ApplicationJob,
        stage: ApplicationStage,
    ) -> Next {
        let Some((_, directory)) = app.route.own() else {
            return self
                .context
                .send_error(connection, app.request, Status::INTERNAL_SERVER_ERROR);
        };
        let sharing = match job {
            ApplicationJob::Tables => Sharing::Shared,
            ApplicationJob::Append(_) | ApplicationJob::Reset(_) | ApplicationJob::Log => {
                Sharing::Once
            }
        };
        let encoded = job.encode(directory);
        let waiter = connection.waiter(&app.request);
        let queued = self.context.pool.custom_job(sharing, &encoded, waiter);
        self.wait_for_job(connection, app, stage, queued, Phase::ApplicationJob)
    }

    /// Makes the request wait for a helper, or rejects it if the queue is full.
    fn wait_for_job(
        &mut self,
        connection: &mut Connection,
        app: AppRequest,
        stage: ApplicationStage,
        queued: Result<(), Full>,
        phase: impl FnOnce(Box<Request>, Box<ApplicationRequest>) -> Phase,
    ) -> Next {
        if queued.is_err() {
            return self.context.send_overloaded(connection, app.request);
        }
        let route = app.route.number;
        let progress = Box::new(ApplicationRequest { route, stage });
        self.context
            .wait_for_helper(connection, app.request, |request| phase(request, progress))
    }

    /// Chooses the advertisement once the current tables are loaded.
    fn decide_custom(
        &mut self,
        connection: &mut Connection,
        app: AppRequest,
        stage: ApplicationStage,
        found: Option<LookedUp>,
    ) -> Next {
        let number = app.route.number;
        let entry = match (stage, found) {
            (_, Some(found)) => found.entry,
            (_, None) => {
                let root = app.route.own().map_or(RootId(0), |(root, _)| root);
                let name = ADS_NAME.as_bytes();
                let now_ms = self.context.now_ms;
                let found = self.files.lookup.find_now(
                    root,
                    name,
                    now_ms,
                    &self.context.tracer,
                    &mut self.context.counters,
                );
                match found {
                    LookupResult::Known(entry) => entry,
                    LookupResult::NeedsHelper => {
                        let waiter = connection.waiter(&app.request);
                        let queued = self.context.pool.resolve(root, name, waiter);
                        let stage = ApplicationStage::Tables;
                        return self.wait_for_job(connection, app, stage, queued, look_up);
                    }
                }
            }
        };
        let Answer::File(found) = &entry.answer else {
            return self
                .context
                .send_error(connection, app.request, Status::INTERNAL_SERVER_ERROR);
        };
        let version = *found.file.meta();
        let known = self.applications.tables[number].as_ref();
        match known.filter(|tables| tables.version == version) {
            Some(tables) => self.decide_with(connection, app, tables.clone()),
            None => {
                let stage = ApplicationStage::Loading(version);
                self.submit_job(connection, app, ApplicationJob::Tables, stage)
            }
        }
    }

    /// Chooses the advertisement from these tables, which are current.
    fn decide_with(
        &mut self,
        connection: &mut Connection,
        app: AppRequest,
        tables: Rc<Tables>,
    ) -> Next {
        self.applications.tables[app.route.number] = Some(tables.clone());
        let mut loaded = Loaded {
            tables: &tables,
            tracer: &self.context.tracer,
        };
        let step = application::decide(&app.parsed(), &mut loaded);
        self.execute(connection, app, step)
    }

    /// Sends a response after its file has been looked up and read in.
    fn send_page(
        &mut self,
        connection: &mut Connection,
        mut app: AppRequest,
        response: PageResponse,
        mut given: Option<LookedUp>,
    ) -> Next {
        let Some((name, ad)) = file(&response) else {
            return self.send_text(connection, app, response, None);
        };
        let (root, path) = (app.request.virtual_host, relative_path(name));
        for _ in 0..LOOKUP_ATTEMPTS_MAX {
            let LookedUp { entry, content } = match given.take() {
                Some(given) => given,
                None => {
                    let now_ms = self.context.now_ms;
                    let found = self.files.lookup.find(
                        root,
                        &path,
                        now_ms,
                        &self.context.tracer,
                        &mut self.context.counters,
                    );
                    let LookupResult::Known(entry) = found else {
                        let waiter = connection.waiter(&app.request);
                        let queued = self.context.pool.resolve(root, &path, waiter);
                        let stage = ApplicationStage::Page(response);
                        return self.wait_for_job(connection, app, stage, queued, look_up);
                    };
                    LookedUp {
                        entry,
                        content: None,
                    }
                }
            };
            match &entry.answer {
                Answer::File(_) => {}
                Answer::Failed(Failure::Exhausted)
                    if self.files.free_descriptors(&mut self.context) =>
                {
                    self.files.lookup.invalidate(root, &path);
                    continue;
                }
                Answer::Failed(failure) if *failure != Failure::NotFound => {
                    return self.context.send_failure(connection, app.request, *failure);
                }
                _ => return self.send_text(connection, app, PageResponse::missing(), None),
            }
            match self.content_of(root, &entry, &path, ad, content.as_ref()) {
                Ok(piece) => return self.send_text(connection, app, response, Some(piece)),
                Err(CacheMiss::Changed) => {
                    self.files.lookup.invalidate(root, &path);
                    if app.request.count_chunk_request(0) > HELPER_REQUESTS_MAX {
                        break;
                    }
                }
                Err(missing) => {
                    return self.fetch_page(connection, app, response, &entry, &missing);
                }
            }
        }
        self.context.send_overloaded(connection, app.request)
    }

    fn send_text(
        &mut self,
        connection: &mut Connection,
        app: AppRequest,
        response: PageResponse,
        content: Option<Piece>,
    ) -> Next {
        let head = app.request.head.head();
        let context = self.context.response(&head, connection);
        let outgoing = page(&context, response, content);
        self.context
            .start_response(connection, app.request, outgoing)
    }

    /// The file of a page, from memory or to be sent; a copy in memory if an advertisement is
    /// inserted.
    fn content_of(
        &mut self,
        root: RootId,
        entry: &Rc<Entry>,
        path: &[u8],
        ad: Option<[u8; PATH_BYTES]>,
        copy: Option<&LoadedContent>,
    ) -> Result<Piece, CacheMiss> {
        let Answer::File(found) = &entry.answer else {
            return Err(CacheMiss::Unreadable);
        };
        let hosts = self.context.hosts();
        let representation = Representation::new(found, 0, hosts.get(root), path);
        let size = representation.file.meta().size;
        if size <= self.context.config.small_file_max_bytes {
            entry.prepared.recently_used.set(true);
            let content = self
                .files
                .small_file(&mut self.context, entry, &representation, copy)?;
            let body = content.body_at..content.bytes.len();
            return Ok(match ad {
                None => Piece::Cached(content, body),
                Some(ad) => Piece::bytes(scanned(content.bytes[body].to_vec(), &ad)),
            });
        }
        let whole = representation.file.open().ok_or(CacheMiss::Changed)?;
        let Some(ad) = ad else {
            return match self.context.is_unchanged(&whole) {
                true => Ok(Piece::File(whole, 0..size)),
                false => Err(CacheMiss::Changed),
            };
        };
        if size > SCANNED_BYTES_MAX {
            return Err(CacheMiss::Unreadable);
        }
        let mut bytes = vec![0; size as usize];
        self.files
            .read_small_file(&self.context, copy, &whole, &mut bytes)?;
        Ok(Piece::bytes(scanned(bytes, &ad)))
    }

    /// Has a helper bring the file of a page into memory.
    fn fetch_page(
        &mut self,
        connection: &mut Connection,
        mut app: AppRequest,
        response: PageResponse,
        entry: &Rc<Entry>,
        missing: &CacheMiss,
    ) -> Next {
        let file = match (&entry.answer, missing) {
            (Answer::File(found), CacheMiss::NotResident | CacheMiss::ResidencyUnknown) => {
                found.file.open()
            }
            _ => None,
        };
        let Some(file) = file else {
            self.context.counters.io_errors += 1;
            return self
                .context
                .send_error(connection, app.request, Status::INTERNAL_SERVER_ERROR);
        };
        let queued = self.files.request_content(
            &mut self.context,
            connection,
            &mut app.request,
            entry,
            &file,
            missing,
        );
        let stage = ApplicationStage::Page(response);
        self.wait_for_job(connection, app, stage, queued, |request, progress| {
            Phase::SmallFile(request, entry.clone(), LookupFor::Application(progress))
        })
    }
}

/// The phase of a request that waits for a path to be looked up.
fn look_up(request: Box<Request>, progress: Box<ApplicationRequest>) -> Phase {
    Phase::Lookup(request, LookupFor::Application(progress))
}

/// A document's name below the document root.
fn relative_path(name: FileName) -> Vec<u8> {
    let mut path = name.to_string().into_bytes();
    path.remove(0);
    path
}

fn scanned(mut bytes: Vec<u8>, ad: &[u8; PATH_BYTES]) -> Vec<u8> {
    Scanner::new().replace(&mut bytes, ad);
    bytes
}
