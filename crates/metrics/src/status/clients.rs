//! A small HTTP server for an administrator and a scraper, in one thread. It reads nothing but a
//! header, answers it and closes.
//!
//! No client delays another one: sockets do not block, and each client has two seconds for its
//! request and two for the response. Clients are few; with more, the one goes which has been silent
//! longest, so that silent clients keep none out.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use headway_http::response::HeadWriter;
use headway_http::{Head, HeadLimits, Method, Parsed, Status, Target, Version};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Time for a client to send its request, and again to read the response. The time that the server
/// needs in between does not count.
pub(super) const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);
const CLIENTS_MAX: usize = 32;
const HEAD_BYTES_MAX: usize = 8 * 1024;
/// Pause after a failed accept (no file descriptors left), so that the thread does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A whole response.
#[derive(Debug)]
pub struct Page {
    pub(super) status: Status,
    kind: &'static str,
    body: String,
}

impl Page {
    /// A page of this media type.
    pub fn new(kind: &'static str, body: String) -> Page {
        Page {
            status: Status::OK,
            kind,
            body,
        }
    }

    /// A plain text.
    pub fn text(body: String) -> Page {
        Page::new("text/plain; charset=utf-8", body)
    }

    /// There is no such page.
    pub fn not_found(text: &str) -> Page {
        Page::error(Status::NOT_FOUND, text)
    }

    /// There is nothing to tell now.
    pub fn unavailable(text: &str) -> Page {
        Page::error(Status::SERVICE_UNAVAILABLE, text)
    }

    pub(super) fn error(status: Status, text: &str) -> Page {
        Page {
            status,
            ..Page::text(text.into())
        }
    }
}

/// What answers requests.
pub trait Pages {
    /// Called before the requests which have come by one moment are answered: these may share what
    /// is expensive to find out.
    fn begin_round(&mut self) {}

    /// When [`work`](Pages::work) is due, if there is any.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// Does what is due. `due` is later then.
    fn work(&mut self) {}

    /// The page at this path.
    fn page(&mut self, path: &[u8]) -> Page;
}

/// Answers requests for as long as the process lives.
///
/// # Errors
/// If the listener cannot be made non-blocking, or cannot be polled.
pub fn serve_pages(listener: &TcpListener, pages: &mut dyn Pages) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let mut clients = Vec::new();
    loop {
        wait(listener, &clients, pages.due())?;
        if pages.due().is_some_and(|due| due <= Instant::now()) {
            pages.work();
        }
        serve_ready(listener, &mut clients, pages);
    }
}

/// Takes one step with every client, and with new ones.
fn serve_ready(listener: &TcpListener, clients: &mut Vec<Client>, pages: &mut dyn Pages) {
    clients.retain_mut(|client| client.receive() && client.send());
    accept(listener, clients);
    if clients.iter().any(|client| client.has_request) {
        pages.begin_round();
    }
    for client in clients.iter_mut().filter(|client| client.has_request) {
        client.answer(pages);
    }
    let now = Instant::now();
    clients.retain_mut(|client| client.send() && client.deadline > now);
}

/// Waits for a client, for a deadline, or until `due`.
fn wait(listener: &TcpListener, clients: &[Client], due: Option<Instant>) -> io::Result<()> {
    let mut polled = vec![PollFd::new(listener, PollFlags::IN)];
    polled.extend(clients.iter().map(|client| {
        let flags = match client.response.is_empty() {
            true => PollFlags::IN,
            false => PollFlags::OUT,
        };
        PollFd::new(&client.stream, flags)
    }));
    let next = clients
        .iter()
        .map(|client| client.deadline)
        .chain(due)
        .min();
    let timeout = next.map(|deadline| {
        // Rounded up, so that the deadline has passed when the wait ends.
        let left = deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        }
    });
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Accepts all waiting clients, and reads what they have sent already.
fn accept(listener: &TcpListener, clients: &mut Vec<Client>) {
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                let Ok(mut client) = Client::new(stream) else {
                    continue;
                };
                if client.receive() {
                    make_room(clients);
                    clients.push(client);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            // An error of the new connection itself, or a signal.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
                ) => {}
            Err(_) => return std::thread::sleep(ACCEPT_PAUSE),
        }
    }
}

/// With too many clients, closes one: of those without a request, if there are any, the one which
/// has waited longest.
fn make_room(clients: &mut Vec<Client>) {
    if clients.len() < CLIENTS_MAX {
        return;
    }
    let all = clients.iter().enumerate();
    let oldest = all.min_by_key(|(_, client)| {
        let is_served = client.has_request || !client.response.is_empty();
        (is_served, client.deadline)
    });
    if let Some((number, _)) = oldest {
        clients.swap_remove(number);
    }
}

struct Client {
    stream: TcpStream,
    deadline: Instant,
    received: Vec<u8>,
    /// A whole header has been received, or one that will never be valid.
    has_request: bool,
    /// What is left of the response; empty before there is one.
    response: Vec<u8>,
}

impl Client {
    fn new(stream: TcpStream) -> io::Result<Client> {
        stream.set_nonblocking(true)?;
        Ok(Client {
            stream,
            deadline: Instant::now() + CLIENT_TIMEOUT,
            received: Vec::new(),
            has_request: false,
            response: Vec::new(),
        })
    }

    /// Reads what has come of the request. Returns `false` if the client is gone.
    fn receive(&mut self) -> bool {
        let mut buffer = [0; 2048];
        while !self.has_request && self.response.is_empty() {
            match self.stream.read(&mut buffer) {
                Ok(0) => return false,
                Ok(bytes) => self.received.extend_from_slice(&buffer[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return false,
            }
            self.has_request = !matches!(self.parse(), Parsed::Partial);
        }
        true
    }

    fn parse(&self) -> Parsed<'_> {
        let limits = HeadLimits {
            head_bytes_max: HEAD_BYTES_MAX,
            target_bytes_max: 1024,
            ..HeadLimits::default()
        };
        headway_http::parse(&self.received, &limits)
    }

    /// Prepares the response.
    fn answer(&mut self, pages: &mut dyn Pages) {
        let local = self.stream.local_addr();
        let loopback = local.is_ok_and(|address| address.ip().is_loopback());
        self.response = match self.parse() {
            Parsed::Complete(head) => message(
                &respond(&head, loopback, pages),
                head.method == Method::Head,
            ),
            Parsed::Reject(reject) => message(&Page::error(reject.status, reject.reason), false),
            Parsed::Partial => return,
        };
        self.has_request = false;
        self.deadline = Instant::now() + CLIENT_TIMEOUT;
    }

    /// Sends what the socket accepts. Returns `false` if the client is gone or has everything.
    fn send(&mut self) -> bool {
        while !self.response.is_empty() {
            match self.stream.write(&self.response) {
                Ok(0) => return false,
                Ok(bytes) => drop(self.response.drain(..bytes)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return false,
            }
            if self.response.is_empty() {
                let _ = self.stream.shutdown(std::net::Shutdown::Write);
                return false;
            }
        }
        true
    }
}

/// The response to a request. `loopback`: it has come to a loopback address.
fn respond(head: &Head<'_>, loopback: bool, pages: &mut dyn Pages) -> Page {
    if !matches!(head.method, Method::Get | Method::Head) {
        return Page::error(Status::METHOD_NOT_ALLOWED, "GET and HEAD only\n");
    }
    if loopback && !head.host.is_none_or(is_local) {
        let text = "use an address or localhost as the host\n";
        return Page::error(Status::FORBIDDEN, text);
    }
    let path = match head.target {
        Target::Path(path) => path.split(|byte| *byte == b'?').next().unwrap_or(b"/"),
        _ => b"/",
    };
    pages.page(path)
}

/// Whether a host is an address or localhost. Other names are rejected, because a foreign name that
/// resolves to 127.0.0.1 would let any web page read the status (DNS rebinding).
fn is_local(host: &[u8]) -> bool {
    let name = String::from_utf8_lossy(headway_http::target::host_name(host)).to_ascii_lowercase();
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || bare.parse::<IpAddr>().is_ok()
}

fn message(page: &Page, bodiless: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(page.body.len() + 256);
    let not_allowed = page.status == Status::METHOD_NOT_ALLOWED;
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_s = since_epoch.map_or(0, |since| since.as_secs() as i64);
    HeadWriter::new(&mut out, Version::Http11, page.status)
        .field("Date", headway_http::date::format(now_s))
        .field("Content-Type", page.kind)
        .field_u64("Content-Length", page.body.len() as u64)
        .field("Cache-Control", "no-store")
        .field("X-Content-Type-Options", "nosniff")
        .field("Connection", "close")
        .field_if_some("Allow", not_allowed.then_some("GET, HEAD"))
        .end();
    if !bodiless {
        out.extend_from_slice(page.body.as_bytes());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers each request with the number of the round.
    #[derive(Default)]
    struct Rounds(u32);

    impl Pages for Rounds {
        fn begin_round(&mut self) {
            self.0 += 1;
        }

        fn page(&mut self, _: &[u8]) -> Page {
            Page::text(self.0.to_string())
        }
    }

    fn listener() -> TcpListener {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        listener
    }

    fn connect(listener: &TcpListener, request: &[u8]) -> TcpStream {
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.write_all(request).unwrap();
        client
    }

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

    fn body(mut client: TcpStream) -> String {
        let mut response = String::new();
        client.read_to_string(&mut response).unwrap();
        response.rsplit("\r\n").next().unwrap().to_owned()
    }

    #[test]
    fn clients_are_answered_in_one_round_while_many_others_are_silent() {
        let (listener, mut clients, mut pages) = (listener(), Vec::new(), Rounds::default());
        let silent: Vec<_> = (0..3 * CLIENTS_MAX)
            .map(|_| connect(&listener, b"GET"))
            .collect();
        serve_ready(&listener, &mut clients, &mut pages);
        assert_eq!((clients.len(), pages.0), (CLIENTS_MAX, 0));
        let asking = [(); 3].map(|()| connect(&listener, REQUEST));
        // More silent ones do not displace a client with a request.
        let more: Vec<_> = (0..CLIENTS_MAX).map(|_| connect(&listener, b"")).collect();
        serve_ready(&listener, &mut clients, &mut pages);
        assert_eq!(asking.map(body), ["1", "1", "1"]);
        assert!(clients.len() <= CLIENTS_MAX);
        drop((silent, more));
    }

    #[test]
    fn request_for_a_foreign_host_is_refused_on_the_loopback_address() {
        let answer = |request: &str, loopback| {
            let parsed = headway_http::parse(request.as_bytes(), &HeadLimits::default());
            let Parsed::Complete(head) = parsed else {
                panic!("{request} is a whole request")
            };
            respond(&head, loopback, &mut Rounds::default()).status
        };
        let with = |host| format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        for host in ["localhost", "LOCALHOST:9", "127.0.0.1:9", "[::1]:9"] {
            assert_eq!(answer(&with(host), true), Status::OK, "{host}");
        }
        let foreign = with("rebound.example:9");
        assert_eq!(answer(&foreign, true), Status::FORBIDDEN);
        assert_eq!(answer(&foreign, false), Status::OK);
        let post = "POST / HTTP/1.1\r\nHost: localhost\r\n\r\n";
        assert_eq!(answer(post, true), Status::METHOD_NOT_ALLOWED);
    }

    #[test]
    fn client_is_closed_at_its_deadline() {
        let (listener, mut clients, mut pages) = (listener(), Vec::new(), Rounds::default());
        let mut silent = connect(&listener, b"GET");
        serve_ready(&listener, &mut clients, &mut pages);
        clients[0].deadline = Instant::now();
        wait(&listener, &clients, None).unwrap();
        serve_ready(&listener, &mut clients, &mut pages);
        assert!(clients.is_empty());
        // Its three bytes have been read, so this is no reset.
        assert_eq!(silent.read(&mut [0; 1]).unwrap(), 0);
    }

    #[test]
    fn response_is_complete_when_its_client_reads_slowly() {
        struct Long;
        impl Pages for Long {
            fn page(&mut self, _: &[u8]) -> Page {
                Page::text("x".repeat(20_000_000))
            }
        }
        let (listener, mut clients) = (listener(), Vec::new());
        let mut slow = connect(&listener, REQUEST);
        serve_ready(&listener, &mut clients, &mut Long);
        assert_eq!(clients.len(), 1, "the socket accepts only a part");
        let reading = std::thread::spawn(move || {
            let mut response = Vec::new();
            slow.read_to_end(&mut response).map(|_| response.len())
        });
        while !clients.is_empty() {
            wait(&listener, &clients, None).unwrap();
            serve_ready(&listener, &mut clients, &mut Long);
        }
        assert!(reading.join().unwrap().unwrap() > 20_000_000);
    }
}
