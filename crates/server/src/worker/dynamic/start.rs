//! A program is started: its variables, its input and output, and the order to make its process.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use headway_debox::Call;
use headway_gateway::cgi::Variables;
use headway_http::{Framing, Head, Method, Parsed, Status};
use rustix::fs::OFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;

use super::{Program, Step};
use crate::config::{Cgi, Handler, Streams};
use crate::connection::{Channel, Connection, Exchange, Stage};
use crate::forker::wire::{Launch, Order};
use crate::respond::dynamic::{LocalParty, launch, variables};
use crate::worker::Worker;

/// The two ends of one stream.
struct Pair {
    ours: OwnedFd,
    theirs: OwnedFd,
}

/// A program's ends of its streams.
pub(super) struct Streamed {
    pub(super) output: OwnedFd,
    pub(super) input: Option<OwnedFd>,
}

impl Worker {
    /// Has the program of an exchange started.
    pub(super) fn start_program(
        &mut self,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> Step {
        let place = self.places.get(exchange.program.place).clone();
        let cgi = match &place.location.handler {
            Handler::Cgi(cgi) => cgi,
            Handler::Direct(_) | Handler::Pipe(_) => {
                return self.lend(connection, exchange, &place);
            }
            Handler::Upstreams(_) => return self.start_peer(connection, exchange),
            // They have no exchange.
            Handler::Files | Handler::SpecWeb99(_) => {
                return Step::Fail(Status::INTERNAL_SERVER_ERROR);
            }
        };
        let head = std::mem::take(&mut exchange.head);
        let launch = self.launch(connection, exchange, &head);
        exchange.head = head;
        let Some(launch) = launch else {
            return Step::Fail(Status::INTERNAL_SERVER_ERROR);
        };
        let theirs = match self.open_streams(exchange, cgi.streams) {
            Ok(theirs) => theirs,
            Err(error) => {
                self.counters.programs_not_started += 1;
                self.tell(
                    exchange.id,
                    &format!("{}: {error}", launch.path.to_string_lossy()),
                );
                return Step::Fail(Status::SERVICE_UNAVAILABLE);
            }
        };
        match self.make_process(connection, exchange, cgi, launch, theirs) {
            Step::Go => {}
            other => return other,
        }
        if let Step::Gone = self.invite(connection, exchange) {
            return Step::Gone;
        }
        self.renew(connection, exchange);
        self.feed_program(connection, exchange)
    }

    fn launch(&self, connection: &Connection, exchange: &Exchange, bytes: &[u8]) -> Option<Launch> {
        let Parsed::Complete(head) = headway_http::parse(bytes, &self.limits) else {
            return None;
        };
        let variables = self.describe(connection, exchange, &head, bytes)?;
        let place = self.places.get(exchange.program.place);
        // Those that the worker makes itself nobody would look for.
        let mark = match &place.location.handler {
            Handler::Cgi(cgi) if cgi.fork_in_server => 0,
            _ => self.dynamic.as_ref()?.marks.of(exchange.id),
        };
        Some(launch(place, &exchange.program, variables, mark))
    }

    /// The request in variables. `bytes` begin with its head.
    pub(super) fn describe(
        &self,
        connection: &Connection,
        exchange: &Exchange,
        head: &Head<'_>,
        bytes: &[u8],
    ) -> Option<Variables> {
        let parties = self.parties(connection)?;
        let hosts = self.hosts();
        let place = self.places.get(exchange.program.place);
        Some(variables(
            &self.places,
            place,
            hosts.get(connection.virtual_host),
            &exchange.program,
            &headway_gateway::Request::new(head, bytes),
            parties,
            body_bytes(head, exchange.upload.bytes),
        ))
    }

    /// Both ends of a client's connection.
    pub(super) fn parties(&self, connection: &Connection) -> Option<LocalParty> {
        let local = match connection.local.get() {
            Some(known) => **known,
            None => {
                let named = rustix::net::getsockname(&connection.socket).ok()?;
                let named = SocketAddr::try_from(named).ok()?;
                **connection.local.get_or_init(|| Box::new(named))
            }
        };
        Some(LocalParty {
            local,
            remote: connection.peer,
        })
    }

    /// Opens the program's streams; our ends go to the exchange.
    fn open_streams(&mut self, exchange: &mut Exchange, streams: Streams) -> io::Result<Streamed> {
        let output = self
            .tracer
            .call(Call::ProgramPair, || pair(streams, true))?;
        exchange.download.source = Some(Channel::new(output.ours));
        let upload = &mut exchange.upload;
        let has_body = upload.body.is_some() || upload.bytes > 0;
        let input = match &upload.spilled {
            // The file's offset is at its start: helpers write at offsets of their own.
            Some(file) => Some(rustix::io::fcntl_dupfd_cloexec(file, 0)?),
            None if has_body => {
                let input = self
                    .tracer
                    .call(Call::ProgramPair, || pair(streams, false))?;
                upload.sink = Some(Channel::new(input.ours));
                Some(input.theirs)
            }
            None => None,
        };
        Ok(Streamed {
            output: output.theirs,
            input,
        })
    }

    fn make_process(
        &mut self,
        connection: &Connection,
        exchange: &mut Exchange,
        cgi: &Cgi,
        launch: Launch,
        theirs: Streamed,
    ) -> Step {
        let (id, place) = (exchange.id, exchange.program.place);
        let forked = match cgi.fork_in_server {
            true => match self.fork(&launch, &theirs) {
                Ok(forked) => Some(forked),
                Err(status) => return Step::Fail(status),
            },
            false => {
                let descriptors = std::iter::once(theirs.output).chain(theirs.input);
                if !self.order(&Order::Spawn { id, launch }, descriptors.collect()) {
                    return Step::Fail(Status::REQUEST_HEADER_FIELDS_TOO_LARGE);
                }
                None
            }
        };
        exchange.stage = match forked {
            Some(_) => Stage::Running,
            None => Stage::Starting,
        };
        if let Some(dynamic) = &mut self.dynamic {
            dynamic.running[place] += 1;
            let client = connection.token;
            let program = Program {
                client,
                place,
                killed: false,
                forked,
            };
            dynamic.programs.insert(id, program);
        }
        Step::Go
    }
}

/// What the program is told of the body's length. A request that may have a body and has none says
/// so (`Content-Length: 0`), and programs look for that.
pub(super) fn body_bytes(head: &Head<'_>, gathered_bytes: u64) -> Option<u64> {
    match (head.framing, head.method) {
        (Framing::Length(bytes), _) => Some(bytes),
        (Framing::Chunked, _) => Some(gathered_bytes),
        (Framing::None, Method::Other("POST" | "PUT" | "PATCH")) => Some(0),
        (Framing::None, _) => None,
    }
}

/// One stream, from the program (`outward`) or towards it. Only our end does not wait.
fn pair(streams: Streams, outward: bool) -> io::Result<Pair> {
    let pair = match streams {
        Streams::Socket => {
            let kind = SocketType::STREAM;
            let flags = SocketFlags::CLOEXEC;
            let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)?;
            Pair { ours, theirs }
        }
        Streams::Pipe => {
            let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
            match outward {
                true => Pair {
                    ours: reader,
                    theirs: writer,
                },
                false => Pair {
                    ours: writer,
                    theirs: reader,
                },
            }
        }
    };
    rustix::fs::fcntl_setfl(&pair.ours, OFlags::NONBLOCK)?;
    Ok(pair)
}
