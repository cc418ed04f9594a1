//! What a way to wait costs when there is nothing else: a byte comes, a byte goes back.
//!
//! `mechanisms` starts a server for each way in turn, on a CPU of its own, and asks it on many
//! connections, each again as soon as it is answered; with `--churn` on a new connection each time.
//! It prints responses per second and the server's CPU time per response, one line per measurement.
//! Ways are interleaved round by round, so that a drift of the machine meets all alike.
//!
//! The ways are those of the crate `event` (`select`, `poll`, `epoll`, `epoll-edge`, `io_uring` as
//! readiness), each with one `recv` and one `send` a request, `multishot` (io_uring's polls that
//! stay armed, with the same two calls), and `completion`: io_uring that accepts, receives into
//! buffers provided to it, and sends, all handed over in one call a turn. It refuses to be a
//! server: no parsing, no files, no deadlines. What is gained here is the most that could be
//! gained.
//!
//! Used by `bench/mechanisms`, whose first lines say how to run it.

mod client;
mod complete;
mod multishot;
mod ready;
mod ring;

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};

const USAGE: &str = "mechanisms [--ways \"epoll io_uring multishot completion\"] [--connections \"64 1024 10000\"] [--active all|N] \
                     [--churn] [--rounds N] [--seconds N] [--client-cpu N] [--server-cpu N]";

struct Plan {
    ways: Vec<String>,
    connections: Vec<usize>,
    /// How many of them ask; the others are silent.
    active: Option<usize>,
    /// Each byte has a connection of its own.
    churning: bool,
    rounds: usize,
    measured: Duration,
    client_cpu: usize,
    /// A number, as it is handed on.
    server_cpu: String,
}

fn main() -> Result<(), Box<dyn Error>> {
    raise_descriptor_limit()?;
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if(|word| word == "serve").is_some() {
        let (way, cpu) = (arguments.next(), arguments.next());
        return serve(&way.ok_or(USAGE)?, cpu.ok_or(USAGE)?.parse()?);
    }
    let plan = parse(arguments)?;
    stay_on(plan.client_cpu)?;
    println!(
        "way,connections,active,bytes_a_connection,round,responses_per_s,server_us_per_response,server_busy"
    );
    for round in 1..=plan.rounds {
        for &connections in &plan.connections {
            for turn in 0..plan.ways.len() {
                // Another one is first in each round.
                let way = &plan.ways[(turn + round - 1) % plan.ways.len()];
                measure(&plan, way, connections, round)?;
            }
        }
    }
    Ok(())
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Plan, Box<dyn Error>> {
    let mut plan = Plan {
        ways: words("epoll io_uring multishot completion"),
        connections: vec![64, 1024, 10_000],
        active: None,
        churning: false,
        rounds: 3,
        measured: Duration::from_secs(3),
        client_cpu: 1,
        server_cpu: "0".to_owned(),
    };
    while let Some(name) = arguments.next() {
        if name == "--churn" {
            plan.churning = true;
            continue;
        }
        let value = arguments.next().ok_or(USAGE)?;
        match name.as_str() {
            "--ways" => plan.ways = words(&value),
            "--connections" => {
                let numbers = value.split_whitespace().map(str::parse);
                plan.connections = numbers.collect::<Result<_, _>>()?;
            }
            "--active" if value == "all" => plan.active = None,
            "--active" => plan.active = Some(value.parse()?),
            "--client-cpu" => plan.client_cpu = value.parse()?,
            "--server-cpu" => plan.server_cpu = value,
            "--rounds" => plan.rounds = value.parse()?,
            "--seconds" => plan.measured = Duration::from_secs_f64(value.parse()?),
            _ => return Err(format!("{name}: not known; {USAGE}").into()),
        }
    }
    Ok(plan)
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn measure(plan: &Plan, way: &str, connections: usize, round: usize) -> Result<(), Box<dyn Error>> {
    let mut server = Server::start(way, &plan.server_cpu)?;
    let active = plan.active.unwrap_or(connections).min(connections);
    let mut clients = client::Clients::connect(server.address, connections, plan.churning)
        .map_err(|error| format!("{way}, {connections} connections: {error}"))?;
    clients.ask(active, plan.measured / 4)?;
    let before = server.cpu_ns()?;
    let (responses, passed) = clients.ask(0, plan.measured)?;
    let spent_ns = server.cpu_ns()? - before;
    server.stop()?;
    let bytes = if plan.churning { "1" } else { "many" };
    println!(
        "{way},{connections},{active},{bytes},{round},{:.0},{:.3},{:.3}",
        responses as f64 / passed.as_secs_f64(),
        spent_ns as f64 / 1e3 / responses.max(1) as f64,
        spent_ns as f64 / passed.as_nanos() as f64
    );
    Ok(())
}

/// A server process.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start(way: &str, cpu: &str) -> Result<Server, Box<dyn Error>> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["serve", way, cpu])
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().ok_or("the server has no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        match line.trim().parse() {
            Ok(address) => Ok(Server { child, address }),
            Err(_) => {
                child.wait()?;
                Err(format!("{way}: the server did not start; it says above why").into())
            }
        }
    }

    /// Its CPU time, the kernel's work for it included (proc(5), `schedstat`).
    fn cpu_ns(&self) -> Result<u64, Box<dyn Error>> {
        let path = format!("/proc/{}/schedstat", self.child.id());
        let text =
            std::fs::read_to_string(&path).map_err(|error| format!("read({path}): {error}"))?;
        let first = text.split_whitespace().next();
        Ok(first.ok_or("schedstat is empty")?.parse()?)
    }

    fn stop(&mut self) -> std::io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nothing to do about a server that has ended already.
        let _ = self.stop();
    }
}

fn serve(way: &str, cpu: usize) -> Result<(), Box<dyn Error>> {
    stay_on(cpu)?;
    // The standard library's queue of 4096 takes all connections at once.
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let ended = match way {
        "multishot" => multishot::serve(&listener, || println!("{address}"))?,
        "completion" => complete::serve(&listener, || println!("{address}"))?,
        _ => ready::serve(&listener, way.parse()?, || println!("{address}"))?,
    };
    match ended {}
}

fn stay_on(cpu: usize) -> Result<(), String> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|error| {
        format!("staying on cpu {cpu}: {error}; give another one by --client-cpu or --server-cpu")
    })
}

fn raise_descriptor_limit() -> std::io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    Ok(setrlimit(Resource::Nofile, raised)?)
}
