//! What the suites share: a small server that does as its script says, and an observer that keeps
//! rows.

#![allow(dead_code)] // Each suite is a crate of its own and uses a part of this.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headway_latency::{Outcome, Row};
use headway_load::engine::{self, Address, Control, Live, Measured, Observer, Plan, Target, Work};

/// One request as the server saw it.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    /// Counted from 0 over the server's life.
    pub connection: usize,
    /// Counted from 0 on its connection.
    pub ordinal: usize,
    pub path: String,
    /// Whether the request said `Connection: close`.
    pub last: bool,
    pub from: Option<IpAddr>,
    /// Request line and header.
    pub head: String,
    pub body: Vec<u8>,
}

/// What the server does, step by step. After the last one the next request is read.
#[derive(Clone, Debug)]
pub enum Step {
    Send(Vec<u8>),
    /// One byte after the other, each in a segment of its own.
    Dribble(Vec<u8>),
    Wait(Duration),
    Close,
    /// Closes after `close_notify`; without TLS as `Close`.
    Goodbye,
    /// Closes so that the client meets a reset.
    Reset,
    /// Does nothing until the client has gone.
    Ignore,
}

/// A response of known length.
pub fn response(body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\nServer: scripted/1\r\nContent-Length: {length}\r\n\r\n{body}")
        .into_bytes()
}

pub fn send(bytes: impl Into<Vec<u8>>) -> Vec<Step> {
    vec![Step::Send(bytes.into())]
}

type Script = dyn Fn(&ReceivedRequest) -> Vec<Step> + Send + Sync;

/// A server with one thread a connection. The threads end when their clients have gone.
pub struct Server {
    pub address: Address,
    received: Arc<Mutex<Vec<ReceivedRequest>>>,
}

pub trait Stream: Read + Write + AsFd + Send {
    /// Says that nothing more comes, where the protocol can.
    fn goodbye(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Stream for TcpStream {}
impl Stream for UnixStream {}

impl Server {
    pub fn start(script: impl Fn(&ReceivedRequest) -> Vec<Step> + Send + Sync + 'static) -> Server {
        Server::listen(TcpListener::bind("127.0.0.1:0").unwrap(), script)
    }

    pub fn listen(
        listener: TcpListener,
        script: impl Fn(&ReceivedRequest) -> Vec<Step> + Send + Sync + 'static,
    ) -> Server {
        let address = Address::Inet(listener.local_addr().unwrap());
        Server::serve(address, script, move || {
            let (client, from) = listener.accept().ok()?;
            client.set_nodelay(true).unwrap();
            Some((Box::new(client), Some(from.ip())))
        })
    }

    pub fn unix(
        path: &Path,
        script: impl Fn(&ReceivedRequest) -> Vec<Step> + Send + Sync + 'static,
    ) -> Server {
        let listener = UnixListener::bind(path).unwrap();
        Server::serve(Address::Unix(path.into()), script, move || {
            let (client, _) = listener.accept().ok()?;
            Some((Box::new(client), None))
        })
    }

    pub fn serve(
        address: Address,
        script: impl Fn(&ReceivedRequest) -> Vec<Step> + Send + Sync + 'static,
        accept: impl Fn() -> Option<(Box<dyn Stream>, Option<IpAddr>)> + Send + 'static,
    ) -> Server {
        let received = Arc::new(Mutex::new(Vec::new()));
        let (script, log): (Arc<Script>, _) = (Arc::new(script), Arc::clone(&received));
        std::thread::spawn(move || {
            for connection in 0.. {
                // The process may be short of descriptors on purpose.
                let Some((client, from)) = accept() else {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                };
                let (script, log) = (Arc::clone(&script), Arc::clone(&log));
                std::thread::spawn(move || {
                    // The client may leave at any time; that ends the thread and nothing else.
                    let _ = converse(client, connection, from, &*script, &log);
                });
            }
        });
        Server { address, received }
    }

    pub fn target(&self) -> Target {
        Target::new(self.address.clone(), "test.example")
    }

    /// The requests received so far.
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.received.lock().unwrap().clone()
    }
}

fn converse(
    mut client: Box<dyn Stream>,
    connection: usize,
    from: Option<IpAddr>,
    script: &Script,
    log: &Mutex<Vec<ReceivedRequest>>,
) -> std::io::Result<()> {
    for ordinal in 0.. {
        let Some((head, body)) = read_request(&mut *client)? else {
            return Ok(());
        };
        let request = ReceivedRequest {
            connection,
            ordinal,
            path: head.split(' ').nth(1).unwrap_or_default().to_owned(),
            last: head.contains("\r\nConnection: close\r\n"),
            from,
            head,
            body,
        };
        log.lock().unwrap().push(request.clone());
        for step in script(&request) {
            match step {
                Step::Send(bytes) => client.write_all(&bytes)?,
                Step::Dribble(bytes) => {
                    for byte in bytes {
                        client.write_all(&[byte])?;
                        std::thread::yield_now();
                    }
                }
                Step::Wait(length) => std::thread::sleep(length),
                Step::Close => return Ok(()),
                Step::Goodbye => return client.goodbye(),
                Step::Reset => return reset(client.as_fd()),
                Step::Ignore => while client.read(&mut [0; 1024])? > 0 {},
            }
        }
    }
    Ok(())
}

/// A linger of 0 makes the close that follows a reset (socket(7)).
fn reset(client: BorrowedFd<'_>) -> std::io::Result<()> {
    rustix::net::sockopt::set_socket_linger(client, Some(Duration::ZERO))?;
    Ok(())
}

/// The head of the next request, and its body.
fn read_request(client: &mut dyn Stream) -> std::io::Result<Option<(String, Vec<u8>)>> {
    let mut received = Vec::new();
    let mut piece = [0; 4096];
    // Heads of megabytes come in small pieces, so each byte is looked at once.
    let mut looked = 0;
    let end = loop {
        let found = received[looked..]
            .windows(4)
            .position(|bytes| bytes == b"\r\n\r\n");
        if let Some(at) = found {
            break looked + at + 4;
        }
        looked = received.len().saturating_sub(3);
        match client.read(&mut piece)? {
            0 => return Ok(None),
            count => received.extend_from_slice(&piece[..count]),
        }
    };
    let head = String::from_utf8_lossy(&received[..end]).into_owned();
    let length = head.split("\r\nContent-Length: ").nth(1);
    let length: usize = length
        .and_then(|rest| rest.split('\r').next()?.parse().ok())
        .unwrap_or(0);
    while received.len() < end + length {
        match client.read(&mut piece)? {
            0 => return Ok(None),
            count => received.extend_from_slice(&piece[..count]),
        }
    }
    Ok(Some((head, received.split_off(end))))
}

/// Decides when a run ends.
pub type Stopper = Box<dyn Fn(&Live) -> bool>;

/// Keeps rows, and stops the run when its predicate says so.
#[derive(Default)]
pub struct RowCollector {
    pub rows: Vec<Row>,
    pub ticks: usize,
    pub stop: Option<Stopper>,
}

impl Observer for RowCollector {
    fn rows(&mut self, batch: &mut Vec<Row>) {
        self.rows.append(batch);
    }

    fn tick(&mut self, live: &Live) -> Control {
        self.ticks += 1;
        match &self.stop {
            Some(stop) if stop(live) => Control::Stop,
            _ => Control::Continue,
        }
    }
}

/// Runs a plan, checks what must be true of every run, and returns the rows.
pub fn run(plan: &Plan) -> (Vec<Row>, Measured) {
    run_until(plan, None)
}

pub fn run_until(plan: &Plan, stop: Option<Stopper>) -> (Vec<Row>, Measured) {
    let mut collector = RowCollector {
        stop,
        ..RowCollector::default()
    };
    let measured = engine::run(plan, &mut collector).unwrap();
    check(&collector.rows, &measured);
    (collector.rows, measured)
}

/// One row per request, times in order, consistent counts.
pub fn check(rows: &[Row], measured: &Measured) {
    assert_eq!(rows.len() as u64, measured.requests, "one row a request");
    for outcome in Outcome::ALL {
        let counted = rows.iter().filter(|row| row.error == outcome).count() as u64;
        assert_eq!(
            counted,
            measured.outcomes[usize::from(outcome.code())],
            "{outcome}"
        );
    }
    for row in rows {
        assert!(
            row.intended_ns <= row.start_ns && row.start_ns <= row.end_ns,
            "{row:?}"
        );
        assert!(row.end_ns <= measured.elapsed_ns, "{row:?}");
        let begun = row.first_byte_ns != 0;
        assert!(
            !begun || (row.start_ns..=row.end_ns).contains(&row.first_byte_ns),
            "{row:?}"
        );
    }
    assert!((0.0..=1.0).contains(&measured.busy_share));
}

/// A closed loop of this many requests by one client.
pub fn closed(server: &Server, requests: u64) -> Plan {
    closed_to(server.target(), requests)
}

pub fn closed_to(target: Target, requests: u64) -> Plan {
    let mut plan = Plan::closed(target, Work::paths(["/"]), 1);
    plan.stop.requests = Some(requests);
    // So that a failure is a row and not a test that hangs.
    plan.timeout = Some(Duration::from_secs(20));
    plan
}

pub fn outcomes(rows: &[Row]) -> Vec<Outcome> {
    rows.iter().map(|row| row.error).collect()
}

pub fn count(rows: &[Row], outcome: Outcome) -> usize {
    rows.iter().filter(|row| row.error == outcome).count()
}

/// Whether a connection can be opened.
pub fn reachable(address: SocketAddr) -> bool {
    TcpStream::connect(address).is_ok()
}

pub fn pair() -> (UnixStream, UnixStream) {
    UnixStream::pair().unwrap()
}
