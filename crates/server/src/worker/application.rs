//! The SPECweb99 application inside the worker, as Flash had it.
//!
//! Its documents are looked up and read like any other file: in the file cache, the response cache,
//! or by helpers where the loop would block. The advertisements stay in memory; before each use the
//! worker checks, without blocking, whether their file is unchanged. What may block is a helper's
//! job ([`crate::application_job`]): appending a record under the log's lock, rebuilding and
//! loading tables, reading the log. Meanwhile the connection remembers its progress
//! ([`crate::connection::ApplicationRequest`]), so that nothing is done twice.
//!
//! Bodies are at most 1 KiB, so a body is received together with its head and not kept elsewhere.
//! Longer ones get 413, chunked ones 411.

use std::io;
use std::rc::Rc;

use headway_files::protocol::CustomResult;
use headway_files::{Answer, CustomJob as Sharing, Failure, Full, OpenFile, RootId};
use headway_http::path::normalise;
use headway_http::{Framing, Head, Status, Target};
use headway_specweb::FileName;
use headway_specweb::application::{self, PageResponse, RequestAction};
use headway_specweb::request::{BODY_BYTES_MAX, Operation, Request, parse};
use headway_specweb::scan::{PATH_BYTES, Scanner};
use headway_specweb::state::ADS_NAME;

use super::connection_io::HELPER_REQUESTS_MAX;
use super::request_handling::{Handled, LOOKUP_ATTEMPTS_MAX, Resume, status_of};
use super::small_file::{CacheMiss, LoadedContent};
use super::{Disposition, Worker};
use crate::application_job::ApplicationJob;
use crate::config::Handler;
use crate::connection::{ApplicationRequest, ApplicationStage, Connection, Phase};
use crate::lookup::LookupResult;
use crate::request::{Entry, Piece};
use crate::respond::Representation;
use crate::respond::handlers::Route;
use crate::respond::handlers::application::{RequestParts, file, log, page};

mod tables;

pub(super) use tables::Applications;
use tables::{Loaded, NoTables, Tables};

/// A file with placeholders has a tenth of this size; a larger one does not belong to a file set.
const SCANNED_BYTES_MAX: u64 = 1 << 20;

/// A request in progress: its head, its parts, and its location.
struct AppRequest<'a> {
    head: &'a Head<'a>,
    request: Request<'a>,
    route: &'a Route,
}

impl Worker {
    /// Whether the rest of this request's body must be received before the application can answer.
    pub(super) fn awaits_body(
        &self,
        connection: &Connection,
        head: &Head<'_>,
        bytes: &[u8],
    ) -> bool {
        let Framing::Length(length) = head.framing else {
            return false;
        };
        let waits = self.applications.any
            && !connection.body_read
            && length <= BODY_BYTES_MAX as u64
            && ((bytes.len() - head.length) as u64) < length;
        waits && self.is_for_an_application(connection, head)
    }

    fn is_for_an_application(&self, connection: &Connection, head: &Head<'_>) -> bool {
        let Target::Path(target) = head.target else {
            return false;
        };
        let Ok(path) = normalise(target) else {
            return false;
        };
        let route = self
            .routes
            .find(self.hosts.get(connection.virtual_host), &path.bytes);
        route.is_some_and(|route| matches!(route.location.handler, Handler::SpecWeb99(_)))
    }

    /// Waits for the rest of a request including its body, as for the rest of a head.
    pub(super) fn await_rest(
        &mut self,
        connection: &mut Connection,
        head: &Head<'_>,
        bytes: &[u8],
    ) -> Disposition {
        if head.expect_continue
            && bytes.len() == head.length
            && let Err(disposition) = self.send_continue(connection)
        {
            return disposition;
        }
        self.await_head(connection, bytes)
    }

    /// Answers a request of an application, or continues with it. Returns how many bytes belonged
    /// to it, or what happens to the connection instead.
    pub(super) fn serve_application(
        &mut self,
        connection: &mut Connection,
        head: &Head<'_>,
        bytes: &[u8],
        number: usize,
        given: Resume,
    ) -> Result<(usize, Handled), Disposition> {
        let end = match head.framing {
            _ if connection.body_read => head.length,
            Framing::None => head.length,
            Framing::Length(length) if length <= BODY_BYTES_MAX as u64 => {
                head.length + length as usize
            }
            refused => {
                let status = match refused {
                    Framing::Chunked => Status::LENGTH_REQUIRED,
                    _ => Status::CONTENT_TOO_LARGE,
                };
                self.record(connection, head);
                return Err(self.close_with_error(connection, head.request_line, status));
            }
        };
        connection.keep_alive = self.keeps_alive(connection, head);
        let route = self.routes.get(number).clone();
        let request = headway_gateway::Request::new(head, bytes);
        let parts = RequestParts::new(&route, &request, connection.client.ip());
        let ask = AppRequest {
            head,
            request: parts.request(&bytes[head.length..end], self.date.second),
            route: &route,
        };
        let served = match connection.application.take() {
            None => self.begin_progress(connection, &ask),
            Some(progress) => self.resume_progress(connection, &ask, progress.stage, given),
        };
        Ok((end, served))
    }

    fn begin_progress(&mut self, connection: &mut Connection, ask: &AppRequest<'_>) -> Handled {
        self.counters.handler_requests_specweb99 += 1;
        if let Ok(Operation::Custom { .. }) = parse(&ask.request) {
            return self.decide_custom(connection, ask, ApplicationStage::Tables, Resume::Start);
        }
        let step = application::decide(&ask.request, &mut NoTables);
        self.execute(connection, ask, step)
    }

    /// Continues after a helper's answer.
    fn resume_progress(
        &mut self,
        connection: &mut Connection,
        ask: &AppRequest<'_>,
        stage: ApplicationStage,
        given: Resume,
    ) -> Handled {
        match (stage, given) {
            (_, Resume::ApplicationJob(Err(failure)) | Resume::Failed(failure)) => {
                self.fail_progress(connection, ask, status_of(failure))
            }
            (stage @ (ApplicationStage::Tables | ApplicationStage::Loading(_)), given) => {
                self.decide_custom(connection, ask, stage, given)
            }
            (ApplicationStage::Page(response), given) => {
                self.send_page(connection, ask, response, given)
            }
            (
                ApplicationStage::Posting(entry),
                Resume::ApplicationJob(Ok(CustomResult::Inline(number))),
            ) => {
                let number = std::str::from_utf8(&number).ok();
                match number.and_then(|digits| digits.parse().ok()) {
                    Some(number) => {
                        let response = application::posted(&ask.request, &entry, number);
                        self.send_page(connection, ask, response, Resume::Start)
                    }
                    None => self.fail_progress(connection, ask, Status::INTERNAL_SERVER_ERROR),
                }
            }
            (ApplicationStage::Resetting(reset), Resume::ApplicationJob(Ok(_))) => {
                // Without probing, the cached names of the old tables would be believed for a
                // while.
                if let Some((root, _)) = ask.route.own() {
                    self.lookup.invalidate(root, ADS_NAME.as_bytes());
                }
                let response = application::was_reset(&ask.request, &reset);
                self.send_page(connection, ask, response, Resume::Start)
            }
            (ApplicationStage::Fetching, Resume::ApplicationJob(Ok(brought))) => {
                let content = match brought {
                    CustomResult::Inline(words) => Piece::bytes(words.into()),
                    CustomResult::File(file) => {
                        let length = file.meta().size;
                        Piece::File(file, 0..length)
                    }
                };
                let context = self.context(ask.head, connection);
                let outgoing = log(&context, &ask.request, content);
                self.start_response(connection, outgoing)
            }
            // A result that was not asked for.
            _ => self.fail_progress(connection, ask, Status::INTERNAL_SERVER_ERROR),
        }
    }

    fn fail_progress(
        &mut self,
        connection: &mut Connection,
        ask: &AppRequest<'_>,
        status: Status,
    ) -> Handled {
        let hosts = self.hosts();
        self.send_error(
            connection,
            ask.head,
            hosts.get(connection.virtual_host),
            status,
        )
    }

    /// Executes a decision, or has a helper execute it.
    fn execute(
        &mut self,
        connection: &mut Connection,
        ask: &AppRequest<'_>,
        step: io::Result<RequestAction>,
    ) -> Handled {
        let (job, stage) = match step {
            Ok(RequestAction::Response(response)) => {
                return self.send_page(connection, ask, response, Resume::Start);
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
            Err(_) => return self.fail_progress(connection, ask, Status::INTERNAL_SERVER_ERROR),
        };
        self.submit_job(connection, ask, job, stage)
    }

    /// Submits a job to a helper, and makes the request wait for it.
    fn submit_job(
        &mut self,
        connection: &mut Connection,
        ask: &AppRequest<'_>,
        job: ApplicationJob,
        stage: ApplicationStage,
    ) -> Handled {
        let Some((_, directory)) = ask.route.own() else {
            return self.fail_progress(connection, ask, Status::INTERNAL_SERVER_ERROR);
        };
        let sharing = match job {
            ApplicationJob::Tables => Sharing::Shared,
            ApplicationJob::Append(_) | ApplicationJob::Reset(_) | ApplicationJob::Log => {
                Sharing::Once
            }
        };
        let encoded = job.encode(directory);
        let asked = self.pool.custom_job(sharing, &encoded, connection.waiter());
        self.wait_for_job(connection, ask, stage, Phase::ApplicationJob, asked)
    }

    /// Makes the request wait for a helper, or rejects it if the queue is full.
    fn wait_for_job(
        &mut self,
        connection: &mut Connection,
        ask: &AppRequest<'_>,
        stage: ApplicationStage,
        phase: Phase,
        asked: Result<(), Full>,
    ) -> Handled {
        if asked.is_err() {
            return self.fail_progress(connection, ask, Status::SERVICE_UNAVAILABLE);
        }
        let route = ask.route.number;
        connection.application = Some(Box::new(ApplicationRequest { route, stage }));
        self.wait_for_helper(connection, phase)
    }

    /// Chooses the advertisement once the current tables are loaded.
    fn decide_custom(
        &mut self,
        connection: &mut Connection,
        ask: &AppRequest<'_>,
        stage: ApplicationStage,
        given: Resume,
    ) -> Handled {
        let tables = match self.present_tables(connection, ask, stage, given) {
            Ok(tables) => tables,
            Err(served) => return served,
        };
        let mut loaded = Loaded {
            tables: &tables,
            tracer: &self.tracer,
        };
        let step = application::decide(&ask.request, &mut loaded);
        self.execute(connection, ask, step)
    }

    /// The current tables; or what happens to the request while they are being loaded or if they
    /// are missing.
    fn present_tables(
        &mut self,
        connection: &mut Connection,
        ask: &AppRequest<'_>,
        stage: ApplicationStage,
        given: Resume,
    ) -> Result<Rc<Tables>, Handled> {
        let number = ask.route.number;
        let entry = match (stage, given) {
            (
                ApplicationStage::Loading(version),
                Resume::ApplicationJob(Ok(CustomResult::File(content))),
            ) => {
                return match Tables::read(content, version, &self.tracer) {
                    Some(tables) => {
                        let tables = Rc::new(tables);
                        self.applications.tables[number] = Some(tables.clone());
                        Ok(tables)
                    }
                    None => {
                        let status = Status::INTERNAL_SERVER_ERROR;
                        Err(self.fail_progress(connection, ask, status))
                    }
                };
            }
            (_, Resume::Entry(entry, _)) => entry,
            _ => self.find_table(connection, ask)?,
        };
        let Answer::File(found) = &entry.answer else {
            let status = Status::INTERNAL_SERVER_ERROR;
            return Err(self.fail_progress(connection, ask, status));
        };
        let version = *found.file.meta();
        let known = self.applications.tables[number].as_ref();
        match known.filter(|tables| tables.version == version) {
            Some(tables) => Ok(tables.clone()),
            None => {
                let stage = ApplicationStage::Loading(version);
                Err(self.submit_job(connection, ask, ApplicationJob::Tables, stage))
            }
        }
    }

    /// The current file of advertisements.
    fn find_table(
        &mut self,
        connection: &mut Connection,
        ask: &AppRequest<'_>,
    ) -> Result<Rc<Entry>, Handled> {
        let root = ask.route.own().map_or(RootId(0), |(root, _)| root);
        let name = ADS_NAME.as_bytes();
        let found = self
            .lookup
            .find_now(root, name, self.now_ms, &self.tracer, &mut self.counters);
        match found {
            LookupResult::Known(entry) => Ok(entry),
            LookupResult::NeedsHelper => {
                let asked = self.pool.resolve(root, name, connection.waiter());
                Err(self.wait_for_job(
                    connection,
                    ask,
                    ApplicationStage::Tables,
                    Phase::Lookup,
                    asked,
                ))
            }
        }
    }

    /// Sends a response after its file has been looked up and read in.
    fn send_page(
        &mut self,
        connection: &mut Connection,
        ask: &AppRequest<'_>,
        response: PageResponse,
        mut given: Resume,
    ) -> Handled {
        let Some((name, ad)) = file(&response) else {
            return self.send_text(connection, ask, response, None);
        };
        let hosts = self.hosts();
        let (root, path) = (hosts.get(connection.virtual_host).root, relative_path(name));
        for _ in 0..LOOKUP_ATTEMPTS_MAX {
            let (entry, copy) = match std::mem::replace(&mut given, Resume::Start) {
                Resume::Entry(entry, copy) => (entry, copy),
                _ => {
                    let found = self.lookup.find(
                        root,
                        &path,
                        self.now_ms,
                        &self.tracer,
                        &mut self.counters,
                    );
                    let LookupResult::Known(entry) = found else {
                        let asked = self.pool.resolve(root, &path, connection.waiter());
                        let stage = ApplicationStage::Page(response);
                        return self.wait_for_job(connection, ask, stage, Phase::Lookup, asked);
                    };
                    (entry, None)
                }
            };
            match &entry.answer {
                Answer::File(_) => {}
                Answer::Failed(Failure::Exhausted) if self.free_descriptors() => {
                    self.lookup.invalidate(root, &path);
                    continue;
                }
                Answer::Failed(failure) if *failure != Failure::NotFound => {
                    self.counters.io_errors += u64::from(*failure == Failure::Io);
                    return self.fail_progress(connection, ask, status_of(*failure));
                }
                _ => return self.send_text(connection, ask, PageResponse::missing(), None),
            }
            match self.content_of(connection, &entry, &path, ad, copy.as_ref()) {
                Ok(piece) => return self.send_text(connection, ask, response, Some(piece)),
                Err(CacheMiss::Changed) => {
                    self.lookup.invalidate(root, &path);
                    if connection.count_chunk_request(0) > HELPER_REQUESTS_MAX {
                        break;
                    }
                }
                Err(missing) => {
                    return self.fetch_page(connection, ask, response, &entry, &missing);
                }
            }
        }
        self.fail_progress(connection, ask, Status::SERVICE_UNAVAILABLE)
    }

    fn send_text(
        &mut self,
        connection: &mut Connection,
        ask: &AppRequest<'_>,
        response: PageResponse,
        content: Option<Piece>,
    ) -> Handled {
        let context = self.context(ask.head, connection);
        let outgoing = page(&context, response, content);
        self.start_response(connection, outgoing)
    }

    /// The file of a page, from memory or to be sent; a copy in memory if an advertisement is
    /// inserted.
    fn content_of(
        &mut self,
        connection: &Connection,
        entry: &Rc<Entry>,
        path: &[u8],
        ad: Option<[u8; PATH_BYTES]>,
        copy: Option<&LoadedContent>,
    ) -> Result<Piece, CacheMiss> {
        let Answer::File(found) = &entry.answer else {
            return Err(CacheMiss::Unreadable);
        };
        let hosts = self.hosts();
        let site = hosts.get(connection.virtual_host);
        let representation = Representation::new(found, 0, site, path);
        let size = representation.file.meta().size;
        if size <= self.config.small_file_max_bytes {
            entry.prepared.recently_used.set(true);
            let content = self.small_file(entry, &representation, copy)?;
            let body = content.body_at..content.bytes.len();
            return Ok(match ad {
                None => Piece::Cached(content, body),
                Some(ad) => Piece::bytes(scanned(content.bytes[body].to_vec(), &ad)),
            });
        }
        let whole = representation.file.open().ok_or(CacheMiss::Changed)?;
        let Some(ad) = ad else {
            return match self.is_unchanged(&whole) {
                true => Ok(Piece::File(whole, 0..size)),
                false => Err(CacheMiss::Changed),
            };
        };
        if size > SCANNED_BYTES_MAX {
            return Err(CacheMiss::Unreadable);
        }
        let mut bytes = vec![0; size as usize];
        self.read_small_file(copy, &whole, &mut bytes)?;
        Ok(Piece::bytes(scanned(bytes, &ad)))
    }

    /// Has a helper bring the file of a page into memory.
    fn fetch_page(
        &mut self,
        connection: &mut Connection,
        ask: &AppRequest<'_>,
        response: PageResponse,
        entry: &Rc<Entry>,
        missing: &CacheMiss,
    ) -> Handled {
        let file = match (&entry.answer, missing) {
            (Answer::File(found), CacheMiss::NotResident | CacheMiss::ResidencyUnknown) => {
                found.file.open()
            }
            _ => None,
        };
        let Some(file) = file else {
            self.counters.io_errors += 1;
            return self.fail_progress(connection, ask, Status::INTERNAL_SERVER_ERROR);
        };
        let asked = self.request_content(connection, entry, &file, missing);
        let stage = ApplicationStage::Page(response);
        self.wait_for_job(
            connection,
            ask,
            stage,
            Phase::SmallFile(entry.clone()),
            asked,
        )
    }

    /// A helper has finished a job.
    pub(super) fn wake_application(
        &mut self,
        waiter: headway_event::Token,
        answer: &Result<CustomResult<Rc<OpenFile>>, Failure>,
    ) {
        let Some(slot) = self.connections.find(waiter) else {
            return;
        };
        self.with_connection(slot, |worker, connection| match connection.phase {
            Phase::ApplicationJob => {
                worker.resume(connection, Resume::ApplicationJob(answer.clone()))
            }
            _ => Disposition::Keep,
        });
    }
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
