//! Offers 500 requests per second to a server that stalls once, and shows that the requests behind
//! the stall are late, too.
//!
//! ```text
//! $ cargo run -p headway-load --example open_loop
//! 500 requests, 0 errors: p50 0.0 ms, p90 11.0 ms, max 104.8 ms
//! the client started requests up to 12.8 ms late
//! ```

use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use headway_latency::{Histogram, Outcome, Row};
use headway_load::engine::{
    self, Address, Arrivals, Mode, Observer, Plan, Schedule, Stop, Target, Work,
};

const REQUESTS: u64 = 500;

#[derive(Default)]
struct Latencies {
    response: Histogram,
    errors: u64,
}

impl Observer for Latencies {
    fn rows(&mut self, batch: &mut Vec<Row>) {
        for row in batch.drain(..) {
            self.response.record_ns(row.response_ns());
            self.errors += u64::from(row.error != Outcome::Ok);
        }
    }
}

/// Public, since a test calls it.
pub fn main() -> Result<(), Box<dyn Error>> {
    let address = start_server()?;
    let target = Target::new(Address::Inet(address), address.to_string());
    let mut plan = Plan::closed(target, Work::paths(["/"]), 1);
    // One connection, so every request waits for the one before it.
    plan.mode = Mode::Open {
        schedule: Schedule::constant(500.0),
        arrivals: Arrivals::Constant,
        connections_max: 1,
        waiting_max: 1000,
    };
    plan.stop = Stop {
        requests: Some(REQUESTS),
        ..Stop::default()
    };
    let mut latencies = Latencies::default();
    let measured = engine::run(&plan, &mut latencies)?;
    let response = &latencies.response;
    let ms = |ns: u64| ns as f64 / 1e6;
    println!(
        "{} requests, {} errors: p50 {:.1} ms, p90 {:.1} ms, max {:.1} ms",
        measured.requests,
        latencies.errors,
        ms(response.percentile(50.0)),
        ms(response.percentile(90.0)),
        ms(response.max_ns()),
    );
    println!(
        "the client started requests up to {:.1} ms late",
        ms(measured.lag.max_ns())
    );
    match latencies.errors {
        0 => Ok(()),
        errors => Err(format!("{errors} requests failed").into()),
    }
}

fn start_server() -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for client in listener.incoming() {
            // A client that closes is the end of its connection, not of the server.
            let _ = serve(client?);
        }
        std::io::Result::Ok(())
    });
    Ok(address)
}

/// Answers every request; the hundredth one after 100 ms.
fn serve(mut client: TcpStream) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    let mut header = [0; 1024];
    let mut requests = 0;
    while client.read(&mut header)? > 0 {
        requests += 1;
        if requests == 100 {
            std::thread::sleep(Duration::from_millis(100));
        }
        client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")?;
    }
    Ok(())
}
