//! What a way to send a body costs when there is nothing else: a request comes, a body goes back.
//!
//! `send_methods` has a server thread and a client thread, each on a CPU of its own, with 16 connections
//! over loopback. It prints the server thread's CPU time per response, one line per measurement. Methods
//! are interleaved round by round, so that a drift of the machine meets all alike.
//!
//! The body is in memory: for `copy` and the two `zerocopy` methods as plain memory, for `sendfile` and
//! `splice` in a memfd, as Headway's content store has it. It refuses to be a server: no parsing, no
//! files, no deadlines.
//!
//! Over loopback the kernel copies what was sent with `MSG_ZEROCOPY` when the receiver gets it
//! (`skb_orphan_frags_rx`). So there, these two methods show their cost without their gain; over a network
//! card that can gather, the copy is saved.
//!
//! Sources: sendfile(2), splice(2), `Documentation/networking/msg_zerocopy.rst`,
//! io_uring_prep_send_zc(3). Used by `bench/send`.

use std::error::Error;
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use io_uring::types::Fd;
use io_uring::{IoUring, opcode};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fs::{MemfdFlags, memfd_create, sendfile};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendFlags, recv, recvmsg, send};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

const USAGE: &str = "send_methods [--methods \"copy sendfile splice zerocopy uring uring-zerocopy\"] \
                     [--bytes \"5000 50000 1000000\"] [--rounds N] [--seconds N] [--server-cpu N] [--client-cpu N]";
const CONNECTIONS: usize = 16;
const REQUEST: &[u8] = b"GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n";
/// As long as the head of a response is.
const HEAD: [u8; 250] = [b'h'; 250];
/// `MSG_ZEROCOPY` (socket(7)).
const ZEROCOPY: SendFlags = SendFlags::from_bits_retain(0x400_0000);
/// A pipe as large as an unprivileged user may have it.
const PIPE_BYTES: usize = 1 << 20;

struct Plan {
    methods: Vec<String>,
    bytes: Vec<usize>,
    rounds: usize,
    measured: Duration,
    server_cpu: usize,
    client_cpu: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let plan = parse(std::env::args().skip(1))?;
    println!("method,bytes,round,responses_per_s,server_us_per_response,server_busy");
    for round in 1..=plan.rounds {
        for &bytes in &plan.bytes {
            for turn in 0..plan.methods.len() {
                // Another one is first in each round.
                let method = &plan.methods[(turn + round - 1) % plan.methods.len()];
                measure(&plan, method, bytes, round)?;
            }
        }
    }
    Ok(())
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Plan, Box<dyn Error>> {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
    let mut plan = Plan {
        methods: words("copy sendfile splice zerocopy uring uring-zerocopy"),
        bytes: vec![5_000, 50_000, 1_000_000],
        rounds: 5,
        measured: Duration::from_secs(2),
        server_cpu: 0,
        client_cpu: 1,
    };
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or(USAGE)?;
        match name.as_str() {
            "--methods" => plan.methods = words(&value),
            "--bytes" => {
                let numbers = value.split_whitespace().map(str::parse);
                plan.bytes = numbers.collect::<Result<_, _>>()?;
            }
            "--rounds" => plan.rounds = value.parse()?,
            "--seconds" => plan.measured = Duration::from_secs_f64(value.parse()?),
            "--server-cpu" => plan.server_cpu = value.parse()?,
            "--client-cpu" => plan.client_cpu = value.parse()?,
            _ => return Err(format!("{name}: not known; {USAGE}").into()),
        }
    }
    Ok(plan)
}

fn measure(plan: &Plan, method: &str, bytes: usize, round: usize) -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let (stop, answered) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let client = {
        let (stop, answered, cpu) = (stop.clone(), answered.clone(), plan.client_cpu);
        thread::spawn(move || ask(address, cpu, bytes, &stop, &answered).map_err(|e| e.to_string()))
    };
    let mut server = Server::new(method, bytes, &listener, plan.server_cpu)?;
    server.serve(plan.measured / 4)?;
    let (before, spent_before, begun) =
        (answered.load(Ordering::Relaxed), cpu_ns(), Instant::now());
    server.serve(plan.measured)?;
    let (after, spent_ns, passed) = (
        answered.load(Ordering::Relaxed),
        cpu_ns() - spent_before,
        begun.elapsed(),
    );
    stop.store(true, Ordering::Relaxed);
    drop(server);
    client.join().expect("the client thread panicked")?;
    let responses = after - before;
    println!(
        "{method},{bytes},{round},{:.0},{:.3},{:.3}",
        responses as f64 / passed.as_secs_f64(),
        spent_ns as f64 / 1e3 / responses.max(1) as f64,
        spent_ns as f64 / passed.as_nanos() as f64
    );
    Ok(())
}

fn stay_on(cpu: usize) -> Result<(), Errno> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set)
}

/// CPU time of this thread.
fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Each connection asks again as soon as it has its response, until `stop` or the server is gone.
fn ask(
    address: SocketAddr,
    cpu: usize,
    bytes: usize,
    stop: &AtomicBool,
    answered: &AtomicU64,
) -> Result<(), Box<dyn Error>> {
    stay_on(cpu)?;
    let poll = epoll::create(CreateFlags::CLOEXEC)?;
    let mut connections = Vec::new();
    for slot in 0..CONNECTIONS {
        let mut connection = TcpStream::connect(address)?;
        connection.write_all(REQUEST)?;
        connection.set_nonblocking(true)?;
        epoll::add(
            &poll,
            &connection,
            EventData::new_u64(slot as u64),
            EventFlags::IN,
        )?;
        connections.push((connection, 0));
    }
    let whole = HEAD.len() + bytes;
    let mut buffer = vec![0; 256 << 10];
    let mut events = Vec::with_capacity(CONNECTIONS);
    while !stop.load(Ordering::Relaxed) {
        wait(&poll, &mut events)?;
        for event in events.drain(..) {
            let (connection, got) = &mut connections[event.data.u64() as usize];
            match connection.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => *got += count,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                // The server has ended with the measurement.
                Err(_) => return Ok(()),
            }
            if *got >= whole {
                *got = 0;
                answered.fetch_add(1, Ordering::Relaxed);
                if connection.write_all(REQUEST).is_err() {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

/// Waits for at most 0.1 s. The kernel ends a wait early when a ring has news.
fn wait(poll: &OwnedFd, events: &mut Vec<Event>) -> Result<(), Errno> {
    let longest = Timespec {
        tv_sec: 0,
        tv_nsec: 100_000_000,
    };
    match epoll::wait(poll, rustix::buffer::spare_capacity(events), Some(&longest)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error),
    }
}

struct Server {
    poll: OwnedFd,
    connections: Vec<Connection>,
    sender: Sender,
}

struct Connection {
    stream: TcpStream,
    /// What is sent of the response, with its head; `None` while no request is there.
    sent: Option<usize>,
    /// Whether it waits until the socket takes more.
    full: bool,
}

impl Server {
    fn new(
        method: &str,
        bytes: usize,
        listener: &TcpListener,
        cpu: usize,
    ) -> Result<Server, Box<dyn Error>> {
        stay_on(cpu)?;
        let poll = epoll::create(CreateFlags::CLOEXEC)?;
        let sender = Sender::new(method, bytes)?;
        let mut connections = Vec::new();
        for slot in 0..CONNECTIONS {
            let (stream, _) = listener.accept()?;
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            if method == "zerocopy" {
                allow_zerocopy(&stream)?;
            }
            epoll::add(
                &poll,
                &stream,
                EventData::new_u64(slot as u64),
                EventFlags::IN,
            )?;
            connections.push(Connection {
                stream,
                sent: None,
                full: false,
            });
        }
        Ok(Server {
            poll,
            connections,
            sender,
        })
    }

    fn serve(&mut self, lasting: Duration) -> Result<(), Box<dyn Error>> {
        let until = Instant::now() + lasting;
        let mut events: Vec<Event> = Vec::with_capacity(CONNECTIONS);
        while Instant::now() < until {
            wait(&self.poll, &mut events)?;
            for event in events.drain(..) {
                let slot = event.data.u64();
                let connection = &mut self.connections[slot as usize];
                connection.step(slot as usize, event.flags, &mut self.sender)?;
                let full = connection.sent.is_some();
                if full != connection.full {
                    connection.full = full;
                    let wanted = if full {
                        EventFlags::OUT
                    } else {
                        EventFlags::IN
                    };
                    epoll::modify(
                        &self.poll,
                        &connection.stream,
                        EventData::new_u64(slot),
                        wanted,
                    )?;
                }
            }
        }
        Ok(())
    }
}

impl Connection {
    fn step(
        &mut self,
        slot: usize,
        flags: EventFlags,
        sender: &mut Sender,
    ) -> Result<(), Box<dyn Error>> {
        if flags.contains(EventFlags::ERR) {
            read_notices(&self.stream)?;
        }
        if self.sent.is_none() {
            let mut request = [0u8; 512];
            match recv(self.stream.as_fd(), &mut request[..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err("the client has gone".into()),
                Ok(_) => self.sent = Some(0),
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        let whole = HEAD.len() + sender.bytes;
        while let Some(sent) = self.sent {
            match sender.send(slot, &self.stream, sent) {
                Ok(count) if sent + count >= whole => self.sent = None,
                Ok(count) => self.sent = Some(sent + count),
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Sets `SO_ZEROCOPY`.
fn allow_zerocopy(stream: &TcpStream) -> std::io::Result<()> {
    let on: libc::c_int = 1;
    let (fd, bytes) = (stream.as_raw_fd(), size_of::<libc::c_int>() as u32);
    // SAFETY: the value is of the size that is given, and lives until the call returns.
    match unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_ZEROCOPY,
            (&raw const on).cast(),
            bytes,
        )
    } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Takes the notices of the kernel that it has let go of memory.
fn read_notices(stream: &TcpStream) -> Result<(), Errno> {
    loop {
        let mut space = [MaybeUninit::uninit(); 128];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        match recvmsg(
            stream,
            &mut [],
            &mut control,
            RecvFlags::ERRQUEUE | RecvFlags::DONTWAIT,
        ) {
            Ok(_) => {}
            Err(Errno::AGAIN) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

enum Method {
    Copy(SendFlags),
    SendFile(OwnedFd),
    Splice { body: OwnedFd, pipes: Vec<Pipe> },
    Ring { ring: Box<IoUring>, zerocopy: bool },
}

/// Of each connection one: what a socket does not take at once stays in it.
struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    held: usize,
}

struct Sender {
    bytes: usize,
    body: Vec<u8>,
    method: Method,
}

impl Sender {
    fn new(method: &str, bytes: usize) -> Result<Sender, Box<dyn Error>> {
        let body = vec![b'x'; bytes];
        let memfd = || -> Result<OwnedFd, Box<dyn Error>> {
            let file = memfd_create("body", MemfdFlags::CLOEXEC)?;
            let mut file = std::fs::File::from(file);
            file.write_all(&body)?;
            Ok(file.into())
        };
        let method = match method {
            "copy" => Method::Copy(SendFlags::empty()),
            "zerocopy" => Method::Copy(ZEROCOPY),
            "sendfile" => Method::SendFile(memfd()?),
            "splice" => {
                let pipe = |_| {
                    let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
                    fcntl_setpipe_size(&write, PIPE_BYTES)?;
                    Ok(Pipe {
                        read,
                        write,
                        held: 0,
                    })
                };
                let pipes = (0..CONNECTIONS).map(pipe).collect::<Result<_, Errno>>()?;
                Method::Splice {
                    body: memfd()?,
                    pipes,
                }
            }
            "uring" | "uring-zerocopy" => Method::Ring {
                ring: Box::new(
                    IoUring::builder()
                        .setup_single_issuer()
                        .setup_defer_taskrun()
                        .build(64)?,
                ),
                zerocopy: method != "uring",
            },
            other => return Err(format!("{other}: no such method; {USAGE}").into()),
        };
        Ok(Sender {
            bytes,
            body,
            method,
        })
    }

    /// One step of a response of which so much is sent.
    fn send(&mut self, slot: usize, stream: &TcpStream, sent: usize) -> Result<usize, Errno> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if sent < HEAD.len() {
            return send(stream, &HEAD[sent..], flags | SendFlags::MORE);
        }
        let offset = sent - HEAD.len();
        match &mut self.method {
            Method::Copy(more) => send(stream, &self.body[offset..], flags | *more),
            Method::SendFile(body) => sendfile(
                stream,
                body.as_fd(),
                Some(&mut (offset as u64)),
                self.bytes - offset,
            ),
            Method::Splice { body, pipes } => {
                let pipe = &mut pipes[slot];
                if pipe.held == 0 {
                    let (mut from, length) = (offset as u64, self.bytes - offset);
                    pipe.held = splice(
                        &*body,
                        Some(&mut from),
                        &pipe.write,
                        None,
                        length,
                        SpliceFlags::NONBLOCK,
                    )?;
                }
                let count = splice(
                    &pipe.read,
                    None,
                    stream,
                    None,
                    pipe.held,
                    SpliceFlags::NONBLOCK,
                )?;
                pipe.held -= count;
                Ok(count)
            }
            Method::Ring { ring, zerocopy } => {
                send_by_ring(ring, stream, &self.body[offset..], *zerocopy)
            }
        }
    }
}

/// Hands one request over and waits for its result, and with `zerocopy` until the kernel has let go of
/// the memory or at least has told the result: that comes first.
fn send_by_ring(
    ring: &mut IoUring,
    stream: &TcpStream,
    body: &[u8],
    zerocopy: bool,
) -> Result<usize, Errno> {
    let (fd, length) = (Fd(stream.as_raw_fd()), body.len() as u32);
    let flags = (SendFlags::DONTWAIT | SendFlags::NOSIGNAL).bits() as i32;
    let entry = match zerocopy {
        true => opcode::SendZc::new(fd, body.as_ptr(), length)
            .flags(flags)
            .build(),
        false => opcode::Send::new(fd, body.as_ptr(), length)
            .flags(flags)
            .build(),
    };
    // SAFETY: the body lives as long as the process measures, and nobody writes to it.
    unsafe { ring.submission().push(&entry.user_data(1)) }.expect("an empty queue has room");
    loop {
        ring.submit_and_wait(1)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        for done in ring.completion() {
            // The second one of a request only says that the memory is free again.
            if !io_uring::cqueue::notif(done.flags()) {
                return match done.result() {
                    count if count >= 0 => Ok(count as usize),
                    error => Err(Errno::from_raw_os_error(-error)),
                };
            }
        }
    }
}
