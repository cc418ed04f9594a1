//! Upstreams in a network namespace of their own: two for HTTP, one for SCGI. They stop, die, and
//! can be cut off.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::machine::run;
use crate::site::answer;

pub const HOST: &str = "10.0.0.2";
pub const PORTS: [u16; 3] = [7001, 7002, 7003];
const SCGI_PORT: u16 = 7003;

/// An upstream, and what is to happen to it.
#[derive(Default)]
struct State {
    is_stopped: AtomicBool,
    is_dead: AtomicBool,
    connections: Mutex<Vec<TcpStream>>,
}

/// All upstreams, and the way to their network.
pub struct Upstreams {
    states: Vec<Arc<State>>,
    orders: Sender<bool>,
    done: Mutex<Receiver<()>>,
}

impl Upstreams {
    /// Makes the network and starts the upstreams in it.
    pub fn start() -> Upstreams {
        let states: Vec<Arc<State>> = PORTS.iter().map(|_| Arc::default()).collect();
        let (orders, received) = channel::<bool>();
        let (finished, done) = channel();
        let (ready, is_ready) = channel();
        let inside = states.clone();
        std::thread::spawn(move || {
            // SAFETY: it changes the network of this thread and of those it starts.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
            ready
                .send(rustix::thread::gettid())
                .expect("the other side");
            received.recv().expect("the link");
            run("ip", "link set lo up").expect("loopback");
            run("ip", "addr add 10.0.0.2/24 dev up1").expect("an address");
            run("ip", "link set up1 up").expect("a link");
            for (state, port) in inside.into_iter().zip(PORTS) {
                std::thread::spawn(move || listen(&state, port));
            }
            finished.send(()).expect("the other side");
            // Orders about the link are carried out here, since it belongs to this namespace.
            for is_up in received {
                let state = if is_up { "up" } else { "down" };
                run("ip", &format!("link set up1 {state}")).expect("a link");
                finished.send(()).expect("the other side");
            }
        });
        let thread = is_ready.recv().expect("a thread").as_raw_nonzero();
        run("ip", "link set lo up").expect("loopback");
        run(
            "ip",
            &format!("link add up0 type veth peer name up1 netns {thread}"),
        )
        .expect("a link");
        run("ip", "addr add 10.0.0.1/24 dev up0").expect("an address");
        run("ip", "link set up0 up").expect("a link");
        let done = Mutex::new(done);
        let upstreams = Upstreams {
            states,
            orders,
            done,
        };
        upstreams.set_link(true);
        upstreams
    }

    /// Connects the network of the upstreams, or cuts it off.
    pub fn set_link(&self, is_up: bool) {
        let done = self.done.lock().expect("done");
        self.orders.send(is_up).expect("the thread of the network");
        done.recv().expect("the thread of the network");
    }

    pub fn set_stopped(&self, which: usize, is_stopped: bool) {
        self.states[which]
            .is_stopped
            .store(is_stopped, Ordering::SeqCst);
    }

    /// Closes the listener and all connections, or listens again.
    pub fn set_dead(&self, which: usize, is_dead: bool) {
        self.states[which].is_dead.store(is_dead, Ordering::SeqCst);
        if is_dead {
            self.close_connections(which);
        }
    }

    pub fn close_connections(&self, which: usize) {
        let mut connections = self.states[which].connections.lock().expect("connections");
        for connection in connections.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

fn listen(state: &Arc<State>, port: u16) {
    loop {
        let Ok(listener) = TcpListener::bind((HOST, port)) else {
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        listener.set_nonblocking(true).expect("a listener");
        while !state.is_dead.load(Ordering::SeqCst) {
            match listener.accept() {
                Ok(_) if state.is_dead.load(Ordering::SeqCst) => {}
                Ok((client, _)) => {
                    client.set_nonblocking(false).expect("a connection");
                    serve_in_thread(state.clone(), client, port);
                }
                Err(_) => std::thread::sleep(Duration::from_millis(3)),
            }
        }
        drop(listener);
        while state.is_dead.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn serve_in_thread(state: Arc<State>, client: TcpStream, port: u16) {
    let Ok(second) = client.try_clone() else {
        return;
    };
    {
        let mut connections = state.connections.lock().expect("connections");
        connections.push(second);
        if connections.len() > 256 {
            connections.retain(|connection| connection.peer_addr().is_ok());
        }
    }
    std::thread::spawn(move || {
        let _ = client.set_read_timeout(Some(Duration::from_secs(90)));
        let _ = client.set_write_timeout(Some(Duration::from_secs(90)));
        let mut reader = BufReader::new(client);
        let result = match port {
            SCGI_PORT => answer_scgi(&state, &mut reader),
            _ => std::iter::repeat_with(|| answer_http(&state, &mut reader))
                .find(Result::is_err)
                .unwrap_or(Ok(())),
        };
        let _ = result;
        // The second descriptor in the list would keep the connection open.
        let _ = reader.get_ref().shutdown(Shutdown::Both);
    });
}

/// Waits while the upstream is stopped.
fn wait_while_stopped(state: &State) {
    while state.is_stopped.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn answer_http(state: &State, reader: &mut BufReader<TcpStream>) -> std::io::Result<()> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let target = line.split(' ').nth(1).unwrap_or("").to_owned();
    let query = target.split_once('?').map_or("", |(_, query)| query);
    let (mut length, mut is_chunked) = (0, false);
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        is_chunked |= name.eq_ignore_ascii_case("transfer-encoding");
        if name.eq_ignore_ascii_case("content-length") {
            length = value.parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    while is_chunked {
        line.clear();
        reader.read_line(&mut line)?;
        let size = usize::from_str_radix(line.trim_end(), 16);
        let size = size.map_err(|_| ErrorKind::InvalidData)?;
        let at = body.len();
        body.resize(at + size, 0);
        reader.read_exact(&mut body[at..])?;
        reader.read_exact(&mut [0; 2])?;
        is_chunked = size > 0;
    }
    wait_while_stopped(state);
    let reply = answer(query, &body);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", reply.len());
    send(state, reader.get_mut(), head.as_bytes(), &reply)
}

fn answer_scgi(state: &State, reader: &mut BufReader<TcpStream>) -> std::io::Result<()> {
    let mut length = Vec::new();
    reader.read_until(b':', &mut length)?;
    let length = String::from_utf8_lossy(&length);
    let length = length
        .trim_end_matches(':')
        .parse()
        .map_err(|_| ErrorKind::InvalidData)?;
    let mut variables: Vec<u8> = vec![0; length];
    reader.read_exact(&mut variables)?;
    reader.read_exact(&mut [0])?;
    let variables = String::from_utf8_lossy(&variables).into_owned();
    let words: Vec<&str> = variables.split('\0').collect();
    let value = |name: &str| {
        let mut pairs = words.chunks(2).filter(|pair| pair.len() == 2);
        pairs
            .find(|pair| pair[0] == name)
            .map_or("", |pair| pair[1])
    };
    let mut body = vec![0; value("CONTENT_LENGTH").parse().unwrap_or(0)];
    reader.read_exact(&mut body)?;
    wait_while_stopped(state);
    let reply = answer(value("QUERY_STRING"), &body);
    let head = format!(
        "Status: 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n",
        reply.len()
    );
    send(state, reader.get_mut(), head.as_bytes(), &reply)
}

/// In parts, so that a stop or an end comes between them.
fn send(state: &State, stream: &mut TcpStream, head: &[u8], body: &[u8]) -> std::io::Result<()> {
    stream.write_all(head)?;
    for part in body.chunks(64 << 10) {
        wait_while_stopped(state);
        stream.write_all(part)?;
    }
    Ok(())
}
