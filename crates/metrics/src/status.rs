//! The status server: `/status` for people, `/status.json` for programs, `/metrics` for Prometheus.
//!
//! The server runs in a thread of the master with its own listener, so a scrape costs the workers
//! one control message. It serves one client at a time, which has two seconds for its request and
//! two for the response: it is for an administrator and a scraper, not for the public. It changes
//! nothing and reads no input but a path.

use headway_debox::Symbols;
use headway_http::response::HeadWriter;
use headway_http::{Head, HeadLimits, Method, Parsed, Status, Target, Version};
use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::{Overview, prometheus};

pub mod page;

/// Time for one client to send its request, and again to read the response. The time that the
/// server needs in between does not count.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);
const HEAD_BYTES_MAX: usize = 8 * 1024;
/// Pause after a failed accept (no file descriptors left), so that the thread does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers status requests for as long as the process lives. `overview` returns the current numbers.
pub fn serve(listener: &TcpListener, overview: &dyn Fn() -> Option<Overview>) {
    let mut symbols = Resolver::default();
    loop {
        match listener.accept() {
            // Errors of one client, such as a timeout, do not matter to the others.
            Ok((client, _)) => drop(answer(client, overview, &mut symbols)),
            Err(_) => std::thread::sleep(ACCEPT_PAUSE),
        }
    }
}

/// Kernel symbols, loaded when the first sleep has to be named: 10 MB that a server that never
/// blocks does not need.
#[derive(Default)]
struct Resolver(Option<Option<Symbols>>);

impl Resolver {
    fn resolve(&mut self, overview: &mut Overview) {
        let total = overview.total.iter_mut();
        let reports = total.chain(&mut overview.workers).map(|one| &mut one.trace);
        for report in reports.filter(|report| !report.sleeps.is_empty()) {
            if let Some(symbols) = self.0.get_or_insert_with(|| Symbols::load().ok()) {
                report.resolve(symbols);
            }
        }
    }
}

struct StatusResponse {
    status: Status,
    kind: &'static str,
    body: String,
}

impl StatusResponse {
    fn text(status: Status, body: &str) -> StatusResponse {
        StatusResponse {
            status,
            kind: "text/plain; charset=utf-8",
            body: body.into(),
        }
    }
}

fn answer(
    mut client: TcpStream,
    overview: &dyn Fn() -> Option<Overview>,
    symbols: &mut Resolver,
) -> io::Result<()> {
    let deadline = Instant::now() + CLIENT_TIMEOUT;
    let loopback = client.local_addr()?.ip().is_loopback();
    let limits = HeadLimits {
        head_bytes_max: HEAD_BYTES_MAX,
        target_bytes_max: 1024,
        ..HeadLimits::default()
    };
    let (mut received, mut buffer) = (Vec::new(), [0; 2048]);
    let (answer, bodiless) = loop {
        set_timeouts(&client, deadline)?;
        match client.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(bytes) => received.extend_from_slice(&buffer[..bytes]),
            // SIGCHLD may be delivered to this thread, and a read with a timeout is not restarted
            // after a signal handler, even with SA_RESTART (signal(7)).
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        match headway_http::parse(&received, &limits) {
            Parsed::Partial => {}
            Parsed::Reject(reject) => {
                break (StatusResponse::text(reject.status, reject.reason), false);
            }
            Parsed::Complete(head) => {
                break (
                    route(&head, loopback, overview, symbols),
                    head.method == Method::Head,
                );
            }
        }
    };
    let (message, deadline) = (message(&answer, bodiless), Instant::now() + CLIENT_TIMEOUT);
    let mut left = message.as_slice();
    while !left.is_empty() {
        set_timeouts(&client, deadline)?;
        match client.write(left) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => left = &left[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    client.shutdown(std::net::Shutdown::Write)
}

/// Limits each read and write to what is left of the client's time.
fn set_timeouts(client: &TcpStream, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    client.set_read_timeout(Some(left))?;
    client.set_write_timeout(Some(left))
}

fn route(
    head: &Head<'_>,
    loopback: bool,
    overview: &dyn Fn() -> Option<Overview>,
    symbols: &mut Resolver,
) -> StatusResponse {
    if !matches!(head.method, Method::Get | Method::Head) {
        return StatusResponse::text(Status::METHOD_NOT_ALLOWED, "GET and HEAD only\n");
    }
    if loopback && !head.host.is_none_or(is_local) {
        return StatusResponse::text(
            Status::FORBIDDEN,
            "use an address or localhost as the host\n",
        );
    }
    let path = match &head.target {
        Target::Path(path) => path.split(|byte| *byte == b'?').next().unwrap_or(b"/"),
        _ => b"/",
    };
    let render: fn(&Overview) -> StatusResponse = match path {
        b"/" | b"/status" => |all| StatusResponse {
            status: Status::OK,
            kind: "text/html; charset=utf-8",
            body: page::render(all),
        },
        b"/status.json" => json,
        b"/metrics" => |all| StatusResponse {
            status: Status::OK,
            kind: prometheus::CONTENT_TYPE,
            body: prometheus::render(all),
        },
        _ => return StatusResponse::text(Status::NOT_FOUND, "/status, /status.json, /metrics\n"),
    };
    match overview() {
        Some(mut overview) => {
            symbols.resolve(&mut overview);
            render(&overview)
        }
        None => StatusResponse::text(Status::SERVICE_UNAVAILABLE, "the server is stopping\n"),
    }
}

/// Whether a host is an address or localhost. Other names are rejected, because a foreign name that
/// resolves to 127.0.0.1 would let any web page read the status (DNS rebinding).
fn is_local(host: &[u8]) -> bool {
    let name = String::from_utf8_lossy(headway_http::target::host_name(host)).to_ascii_lowercase();
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || bare.parse::<IpAddr>().is_ok()
}

fn json(overview: &Overview) -> StatusResponse {
    match serde_json::to_string_pretty(overview) {
        Ok(body) => StatusResponse {
            status: Status::OK,
            kind: "application/json",
            body: body + "\n",
        },
        Err(error) => StatusResponse::text(Status::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

fn message(answer: &StatusResponse, bodiless: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(answer.body.len() + 256);
    let not_allowed = answer.status == Status::METHOD_NOT_ALLOWED;
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_s = since_epoch.map_or(0, |since| since.as_secs() as i64);
    HeadWriter::new(&mut out, Version::Http11, answer.status)
        .field("Date", headway_http::date::format(now_s))
        .field("Content-Type", answer.kind)
        .field_u64("Content-Length", answer.body.len() as u64)
        .field("Cache-Control", "no-store")
        .field("X-Content-Type-Options", "nosniff")
        .field("Connection", "close")
        .field_if_some("Allow", not_allowed.then_some("GET, HEAD"))
        .end();
    if !bodiless {
        out.extend_from_slice(answer.body.as_bytes());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_sent_when_collecting_it_takes_longer_than_the_client_timeout() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let answering = std::thread::spawn(move || {
            let slowly = || {
                std::thread::sleep(CLIENT_TIMEOUT + Duration::from_millis(100));
                None
            };
            let (client, _) = listener.accept().unwrap();
            answer(client, &slowly, &mut Resolver::default())
        });
        let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
        client.write_all(request).unwrap();
        let mut response = String::new();
        client.read_to_string(&mut response).unwrap();
        assert!(response.starts_with("HTTP/1.1 503 "), "{response}");
        answering.join().unwrap().unwrap();
    }
}
