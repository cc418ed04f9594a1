//! Embedded applications inside the worker: carries out what they decide.
//!
//! An application ([`headway_embedded`]) returns actions and never waits. Its documents are looked up
//! and read like any other file: in the file cache, the response cache, or by helpers where the loop
//! would block. Its own files are checked without blocking, and its jobs run in helpers. Meanwhile
//! the phase of the connection has the progress ([`ApplicationRequest`]), so that nothing is done
//! twice.
//!
//! A body is received before the application is asked. Longer ones than it accepts get 413, chunked
//! ones 411.

use std::convert::Infallible;
use std::ops::ControlFlow::Break;
use std::rc::Rc;

use headway_config::PathMatch;
use headway_connection::{ApplicationRequest, ApplicationStage, Connection, Next, PendingResponse};
use headway_embedded::{
    Action, Application, Applications, FileVersion, JobResult, Outcome, Part, State, Stored,
};
use headway_files::protocol::CustomResult;
use headway_files::{Answer, Failure, OpenFile, RootId};
use headway_http::Status;
use headway_metrics::HandlerLabel;
use headway_request::{Entry, LookedUp, Piece, Request};
use headway_respond::handlers::application::response;
use headway_respond::handlers::{Route, Routes};

use super::context::LoopContext;
use super::files::StaticFiles;
use super::handler::{Handler, Step};
use super::sending::status_of;

mod turn;

pub(super) use turn::Turn;
use turn::{Unready, look_up};

/// The most actions in a row for which nothing has to be awaited. An application that wants more
/// would occupy the loop for good.
const ACTIONS_MAX: usize = 16;

/// The applications of a worker, by location.
pub(super) struct EmbeddedApplications {
    by_route: Vec<Option<Box<dyn Application>>>,
}

/// The applications, and the files among which they look up documents.
pub(super) struct EmbeddedHandler<'w> {
    applications: &'w mut EmbeddedApplications,
    files: &'w mut StaticFiles,
}

impl Handler for EmbeddedHandler<'_> {
    /// The number of the location.
    type Target = usize;

    fn start(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        request: Box<Request>,
        input: &mut &[u8],
        number: usize,
    ) -> Next {
        let mut turn = Turn {
            files: self.files,
            context,
            connection,
        };
        let Break(next) = self.applications.serve(&mut turn, request, input, number);
        next
    }
}

impl EmbeddedApplications {
    /// The applications of all locations. A name that the program does not have is answered with
    /// 500; the configuration was checked by the same program.
    pub(super) fn new(routes: &Routes, applications: Applications) -> Self {
        let of_route = |number: usize| match &routes.get(number).location.handler {
            headway_config::HandlerConfig::Application(named) => {
                applications.find(&named.name).map(|kind| kind.start())
            }
            _ => None,
        };
        Self {
            by_route: (0..routes.len()).map(of_route).collect(),
        }
    }

    /// The applications as a handler, which looks up documents among these files.
    pub(super) fn with<'w>(&'w mut self, files: &'w mut StaticFiles) -> EmbeddedHandler<'w> {
        EmbeddedHandler {
            applications: self,
            files,
        }
    }

    /// Answers a request after its body has been received.
    fn serve(
        &mut self,
        turn: &mut Turn<'_>,
        mut request: Box<Request>,
        input: &mut &[u8],
        number: usize,
    ) -> Step<Infallible> {
        request.handler = HandlerLabel::Application;
        let bytes_max = match &self.by_route[number] {
            Some(application) => application.body_bytes_max(),
            None => 0,
        };
        let request = turn.take_body(request, input, number, bytes_max)?;
        turn.context.counters.handler_requests_application += 1;
        turn.connection.keep_alive = turn.context.keeps_alive(turn.connection, &request);
        let action = self.call(turn, &request, number, |application, request| {
            application.answer(request)
        });
        Break(self.carry_out(turn, request, number, action))
    }

    /// Continues after a helper has looked up or read a file.
    pub(super) fn resume_after_file(
        &mut self,
        turn: &mut Turn<'_>,
        request: Box<Request>,
        progress: ApplicationRequest,
        looked_up: LookedUp,
    ) -> Next {
        let number = progress.route;
        match progress.stage {
            ApplicationStage::File(state) => {
                let outcome = Outcome::File(version(&looked_up.entry));
                let action = self.ask_again(turn, &request, number, state, outcome);
                self.carry_out(turn, request, number, action)
            }
            ApplicationStage::Response(pending) => {
                self.respond(turn, request, number, pending, Some(looked_up))
            }
            ApplicationStage::Job(..) => turn.fail(request, Status::INTERNAL_SERVER_ERROR),
        }
    }

    /// Continues after a helper has run a job.
    pub(super) fn resume_after_job(
        &mut self,
        turn: &mut Turn<'_>,
        request: Box<Request>,
        progress: ApplicationRequest,
        result: &Result<CustomResult<Rc<OpenFile>>, Failure>,
    ) -> Next {
        let number = progress.route;
        match (progress.stage, result) {
            (ApplicationStage::Job(state, replaced), Ok(result)) => {
                let route = turn.context.routes.get(number);
                if let (Some(path), Some((root, _))) = (replaced, route.own()) {
                    // Otherwise the cached entry of the old file would be believed for a while.
                    turn.files.lookup.invalidate(root, path.as_bytes());
                }
                let outcome = Outcome::Job(JobResult::new(result));
                let action = self.ask_again(turn, &request, number, state, outcome);
                self.carry_out(turn, request, number, action)
            }
            (_, Err(failure)) => turn.fail(request, status_of(*failure)),
            // A result that was not asked for.
            _ => turn.fail(request, Status::INTERNAL_SERVER_ERROR),
        }
    }

    /// Asks the application of a location. `None` if the program does not have it.
    fn call<T>(
        &mut self,
        turn: &Turn<'_>,
        request: &Request,
        number: usize,
        question: impl FnOnce(&mut dyn Application, &headway_embedded::Request<'_>) -> T,
    ) -> Option<T> {
        let application = self.by_route[number].as_deref_mut()?;
        let head = request.head.head();
        let route: &Route = turn.context.routes.get(number);
        let (PathMatch::Prefix(prefix) | PathMatch::Suffix(prefix) | PathMatch::Exact(prefix)) =
            &route.location.path;
        let seen = headway_embedded::Request::new(
            headway_gateway::Request::new(&head, request.head.bytes()),
            request,
            prefix.trim_end_matches('/'),
            turn.client(),
            turn.context.date.second.unsigned_abs(),
            &turn.context.tracer,
        );
        Some(question(application, &seen))
    }

    fn ask_again(
        &mut self,
        turn: &Turn<'_>,
        request: &Request,
        number: usize,
        state: State,
        outcome: Outcome,
    ) -> Option<Action> {
        self.call(turn, request, number, |application, request| {
            application.resume(request, state, outcome)
        })
    }

    /// Carries out actions until one has to wait or the response is being sent.
    fn carry_out(
        &mut self,
        turn: &mut Turn<'_>,
        request: Box<Request>,
        number: usize,
        mut action: Option<Action>,
    ) -> Next {
        for _ in 0..ACTIONS_MAX {
            let (path, state) = match action {
                Some(Action::Respond(response)) => {
                    return self.respond(turn, request, number, response.into(), None);
                }
                Some(Action::Fail(code)) => {
                    let status = Status::from_code(code).unwrap_or(Status::INTERNAL_SERVER_ERROR);
                    return turn.fail(request, status);
                }
                Some(Action::RunJob(job, state)) => {
                    return turn.submit(request, number, job, state);
                }
                Some(Action::CheckFile(path, state)) => (path, state),
                None => break,
            };
            let root = turn.context.routes.get(number).own();
            let root = root.map_or(RootId(0), |(root, _)| root);
            let found =
                turn.files
                    .lookup
                    .find_now(root, path.as_bytes(), turn.context.lookup_context());
            let Some(entry) = found else {
                let waiter = turn.connection.waiter(&request);
                let queued = turn
                    .context
                    .pool
                    .submit_lookup(root, path.as_bytes(), waiter);
                let stage = ApplicationStage::File(state);
                return turn.wait(request, number, stage, queued, look_up);
            };
            let outcome = Outcome::File(version(&entry));
            action = self.ask_again(turn, &request, number, state, outcome);
        }
        turn.fail(request, Status::INTERNAL_SERVER_ERROR)
    }

    /// Sends a response once all its documents are at hand. `looked_up` is a helper's answer about
    /// the first that is left.
    fn respond(
        &mut self,
        turn: &mut Turn<'_>,
        mut request: Box<Request>,
        number: usize,
        mut pending: PendingResponse,
        mut looked_up: Option<LookedUp>,
    ) -> Next {
        while let Some(mut part) = pending.left.pop_front() {
            let piece = match &mut part {
                Part::Bytes(bytes) => Ok(Piece::bytes(std::mem::take(bytes))),
                Part::Result(result) => Ok(whole(result)),
                Part::Document(document) => turn.document(&mut request, document, looked_up.take()),
            };
            match piece {
                Ok(piece) => pending.ready.push(piece),
                Err(Unready::Missing) if !pending.is_substitute => {
                    let missing = self.call(turn, &request, number, |application, request| {
                        application.missing(request)
                    });
                    let Some(missing) = missing else { break };
                    pending = missing.into();
                    pending.is_substitute = true;
                }
                Err(unready) => {
                    pending.left.push_front(part);
                    return turn.wait_for_document(request, number, pending, &unready);
                }
            }
        }
        let head = request.head.head();
        let context = turn
            .context
            .response_context(&head, request.virtual_host, turn.connection);
        let outgoing = response(&context, pending.status, &pending.fields, pending.ready);
        turn.context
            .start_response(turn.connection, request, outgoing)
    }
}

/// The version of a file that has been looked up.
fn version(entry: &Entry) -> Option<FileVersion> {
    match &entry.answer {
        Answer::File(found) => Some(FileVersion::of(*found.file.meta())),
        _ => None,
    }
}

/// The whole result of a job.
fn whole(result: &JobResult) -> Piece {
    match result.stored() {
        Stored::Bytes(bytes) => Piece::bytes(bytes.to_vec()),
        Stored::File(file) => Piece::File(file.clone(), 0..result.len()),
    }
}
