//! Starts a CGI program: its variables, its streams, and the order to the spawner. Passes other
//! requests to their kind of handler.

use std::io;
use std::net::SocketAddr;
use std::ops::ControlFlow::{Break, Continue};
use std::os::fd::OwnedFd;

use headway_config::{Cgi, HandlerConfig, Streams, UNIX_CLIENT};
use headway_connection::{Channel, Connection, Exchange, Stage};
use headway_gateway::cgi::Variables;
use headway_gateway::{ClientCertificate, TlsClient};
use headway_http::{Framing, Head, Method, Status};
use headway_metrics::RequestStage;
use headway_metrics::calls::Call;
use headway_respond::handlers::{Endpoints, launch, variables};
use headway_spawner::wire::{Launch, SpawnerOrder};
use headway_tls::Summary;
use rustix::fs::OFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;

use super::{ExchangeEnd, ExchangeStep, Gateway, Program};
use crate::worker::context::LoopContext;

/// The two ends of one stream.
struct Pair {
    ours: OwnedFd,
    theirs: OwnedFd,
}

/// The program's ends of its streams.
pub(super) struct Streamed {
    pub(super) output: OwnedFd,
    pub(super) input: Option<OwnedFd>,
}

impl Gateway {
    /// Starts the handler of an exchange.
    pub(super) fn start_program(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        exchange: &mut Exchange,
    ) -> ExchangeStep {
        connection
            .stages
            .enter(RequestStage::Upstream, context.clock.now_us());
        let route = context.routes.get(exchange.program.route).clone();
        let cgi = match &route.location.handler {
            HandlerConfig::Cgi(cgi) => cgi,
            HandlerConfig::Direct(_) | HandlerConfig::Pipe(_) => {
                return self.hand_off(context, connection, exchange, &route);
            }
            HandlerConfig::Upstreams(_) => {
                return self.start_upstream(context, connection, exchange);
            }
            // These have no exchange.
            HandlerConfig::Files | HandlerConfig::Application(_) | HandlerConfig::Redirect(_) => {
                return Break(ExchangeEnd::Fail(Status::INTERNAL_SERVER_ERROR));
            }
        };
        let Some(launch) = self.launch(context, connection, exchange) else {
            return Break(ExchangeEnd::Fail(Status::INTERNAL_SERVER_ERROR));
        };
        let theirs = match Gateway::open_streams(context, exchange, cgi.streams) {
            Ok(theirs) => theirs,
            Err(error) => {
                context.counters.handler_process_spawn_failures += 1;
                self.log_program(
                    context,
                    exchange.id,
                    &format!("{}: {error}", launch.path.to_string_lossy()),
                );
                return Break(ExchangeEnd::Fail(Status::SERVICE_UNAVAILABLE));
            }
        };
        self.make_process(context, connection, exchange, cgi, launch, theirs)?;
        Gateway::continue_if_expected(context, connection, exchange)?;
        Gateway::renew_deadline(context, connection, exchange);
        self.write_program(context, connection, exchange)
    }

    fn launch(
        &self,
        context: &LoopContext,
        connection: &Connection,
        exchange: &Exchange,
    ) -> Option<Launch> {
        let variables = Gateway::describe(context, connection, exchange)?;
        let route = context.routes.get(exchange.program.route);
        // A forked program gets no process tag: no orphan reaper looks for its descendants.
        let process_tag = match &route.location.handler {
            HandlerConfig::Cgi(cgi) if cgi.fork_in_server => 0,
            _ => self.process_tags.of(exchange.id),
        };
        Some(launch(route, &exchange.program, variables, process_tag))
    }

    /// The CGI variables of the request.
    pub(super) fn describe(
        context: &LoopContext,
        connection: &Connection,
        exchange: &Exchange,
    ) -> Option<Variables> {
        let request = &exchange.request;
        let head = request.head.head();
        let endpoints = Gateway::endpoints(connection)?;
        let hosts = context.hosts();
        let route = context.routes.get(exchange.program.route);
        Some(variables(
            &context.routes,
            route,
            hosts.get(request.virtual_host),
            &exchange.program,
            &headway_gateway::Request::new(&head, request.head.bytes())
                .with_trace(request.trace.as_ref()),
            endpoints,
            body_bytes(&head, exchange.upload.bytes),
        ))
    }

    /// Both addresses of a client's connection.
    pub(super) fn endpoints(connection: &Connection) -> Option<Endpoints<'_>> {
        let local = match connection.local.get() {
            Some(known) => **known,
            None => {
                let named = rustix::net::getsockname(&connection.socket).ok()?;
                // A Unix socket has no address.
                let unix = SocketAddr::new(UNIX_CLIENT, 0);
                let named = SocketAddr::try_from(named).unwrap_or(unix);
                **connection.local.get_or_init(|| Box::new(named))
            }
        };
        Some(Endpoints {
            local,
            remote: connection.client,
            sender: connection.sender(),
            is_trusted: connection.has_trusted_sender(),
            is_tls: connection.is_secure,
            tls: connection.tls_summary.as_deref().map(tls_client),
        })
    }

    /// Opens the program's streams; the worker's ends go to the exchange.
    fn open_streams(
        context: &mut LoopContext,
        exchange: &mut Exchange,
        streams: Streams,
    ) -> io::Result<Streamed> {
        let output = context
            .tracer
            .call(Call::ProgramPair, || pair(streams, true))?;
        exchange.download.source = Some(Channel::new(output.ours));
        let upload = &mut exchange.upload;
        let has_body = upload.body.is_some() || upload.bytes > 0;
        let input = match &upload.spooled {
            // The file's offset is at its start, because helpers write at explicit offsets.
            Some(file) => Some(rustix::io::fcntl_dupfd_cloexec(file, 0)?),
            None if has_body => {
                let input = context
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
        context: &mut LoopContext,
        connection: &Connection,
        exchange: &mut Exchange,
        cgi: &Cgi,
        launch: Launch,
        theirs: Streamed,
    ) -> ExchangeStep {
        let (id, route) = (exchange.id, exchange.program.route);
        let forked = match cgi.fork_in_server {
            true => match self.fork(context, &launch, &theirs) {
                Ok(forked) => Some(forked),
                Err(status) => return Break(ExchangeEnd::Fail(status)),
            },
            false => {
                let descriptors = std::iter::once(theirs.output).chain(theirs.input);
                if !self.send_order(
                    context,
                    &SpawnerOrder::Spawn { id, launch },
                    descriptors.collect(),
                ) {
                    return Break(ExchangeEnd::Fail(Status::REQUEST_HEADER_FIELDS_TOO_LARGE));
                }
                None
            }
        };
        exchange.stage = match forked {
            Some(_) => Stage::Running,
            None => Stage::Starting,
        };
        self.running[route] += 1;
        let client = connection.token;
        let program = Program {
            client,
            route,
            killed: false,
            forked,
        };
        self.programs.insert(id, program);
        Continue(())
    }
}

/// The body length as the program sees it. A request that may have a body but has none gets
/// `Content-Length: 0`, because programs check for that.
pub(super) fn body_bytes(head: &Head<'_>, gathered_bytes: u64) -> Option<u64> {
    match (head.framing, head.method) {
        (Framing::Length(bytes), _) => Some(bytes),
        (Framing::Chunked, _) => Some(gathered_bytes),
        (Framing::None, Method::Other("POST" | "PUT" | "PATCH")) => Some(0),
        (Framing::None, _) => None,
    }
}

/// Creates one stream, from the program (`outward`) or to it. Only the worker's end is
/// non-blocking.
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

fn tls_client(summary: &Summary) -> TlsClient<'_> {
    let certificate = summary.certificate.as_ref();
    TlsClient {
        version: summary.version(),
        cipher_suite: summary.cipher_suite(),
        server_name: summary.server_name.as_deref(),
        is_resumed: summary.is_resumed,
        certificate: certificate.map(|certificate| ClientCertificate {
            subject: &certificate.subject,
            issuer: &certificate.issuer,
            serial: &certificate.serial,
        }),
    }
}
