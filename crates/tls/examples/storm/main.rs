//! What established TLS connections suffer from new handshakes: two open loops, for `bench/tls`.
//!
//! `cargo run --release -p headway-tls --example storm -- 127.0.0.1:8443 /500.bin --seconds 10
//! --connections 50 --requests 2000 --handshakes 200`
//!
//! One thread sends `--requests` per second on `--connections` established connections. Another one makes
//! `--handshakes` new connections per second: each does its handshake, sends one request and closes. Both
//! keep to intended start times, and times count from these. The figures are printed as JSON.
//! Certificates are not verified, so that the client computes little. Every server gets the same cipher and
//! group: `TLS_AES_128_GCM_SHA256` (in TLS 1.2 its ECDHE forms) and X25519.
//!
//! `--established-only` and `--new-only` do one of them, for two processes with different priorities.
//! `--resume` resumes sessions in new connections, `--tls12` speaks TLS 1.2, and `--settle` is the time in
//! seconds between the handshakes of the established connections and their first request.

mod connection;
mod load;

use std::error::Error;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use connection::{Connection, Target};
use load::{Figures, Plan, load_with_connections, load_with_requests};

/// As many as rustls keeps.
const TICKETS: usize = 8;

fn main() -> ExitCode {
    let done = Options::from_arguments().and_then(|options| run(&options));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("storm: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    // Otherwise a sleep is up to 50 µs too long. Threads inherit it.
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
    let calm = Target::new(options, false)?;
    let connections = match options.is_new_only {
        true => Vec::new(),
        false => connection::established_connections(&calm, options.connections)?,
    };
    let new = Target::new(options, options.resumes)?;
    if options.resumes {
        // One after the other, so that there are tickets from the beginning.
        for _ in 0..TICKETS {
            Connection::open(&new)?.finish()?.close();
        }
    }
    let plan = |per_second: f64| Plan {
        begin: Instant::now() + options.settle,
        per_second,
        total: (per_second * options.seconds).round() as u64,
    };
    let (requests, handshakes) = (plan(options.requests), plan(options.handshakes));
    let (established, handshaken) = std::thread::scope(|scope| {
        let other = (!options.is_established_only)
            .then(|| scope.spawn(|| load_with_connections(&new, &handshakes)));
        let established =
            (!options.is_new_only).then(|| load_with_requests(&calm, connections, &requests));
        (established, other.map(|thread| thread.join()))
    });
    let handshaken = handshaken
        .transpose()
        .map_err(|_| "the thread of the new connections has panicked")?;
    print(options, established, handshaken);
    Ok(())
}

struct Options {
    address: SocketAddr,
    path: String,
    seconds: f64,
    connections: usize,
    requests: f64,
    handshakes: f64,
    settle: Duration,
    is_new_only: bool,
    is_established_only: bool,
    resumes: bool,
    only_12: bool,
}

impl Options {
    fn from_arguments() -> Result<Options, Box<dyn Error>> {
        let usage = "usage: storm ADDRESS PATH [--seconds N] [--connections N] [--requests N] [--handshakes N] \
                     [--settle N] [--new-only|--established-only] [--resume] [--tls12]";
        let mut arguments = std::env::args().skip(1);
        let (Some(address), Some(path)) = (arguments.next(), arguments.next()) else {
            return Err(usage.into());
        };
        let mut options = Options {
            address: address.parse()?,
            path,
            seconds: 10.0,
            connections: 50,
            requests: 2000.0,
            handshakes: 200.0,
            settle: Duration::from_millis(200),
            is_new_only: false,
            is_established_only: false,
            resumes: false,
            only_12: false,
        };
        while let Some(name) = arguments.next() {
            let mut value = || arguments.next().ok_or(usage);
            match &name[..] {
                "--seconds" => options.seconds = value()?.parse()?,
                "--connections" => options.connections = value()?.parse()?,
                "--requests" => options.requests = value()?.parse()?,
                "--handshakes" => options.handshakes = value()?.parse()?,
                "--settle" => options.settle = Duration::try_from_secs_f64(value()?.parse()?)?,
                "--new-only" => options.is_new_only = true,
                "--established-only" => options.is_established_only = true,
                "--resume" => options.resumes = true,
                "--tls12" => options.only_12 = true,
                _ => return Err(usage.into()),
            }
        }
        match options.is_new_only && options.is_established_only {
            true => Err(usage.into()),
            false => Ok(options),
        }
    }
}

fn print(options: &Options, established: Option<Figures>, handshaken: Option<Figures>) {
    let mut parts = vec![format!("  \"seconds\": {}", options.seconds)];
    if let Some(figures) = established {
        let counts = format!(
            "    \"connections\": {},\n    \"offered\": {},\n    \"count\": {},\n    \"errors\": {},\n",
            options.connections, figures.offered, figures.answered, figures.failed
        );
        parts.push(part("established", &counts, figures));
    }
    if let Some(figures) = handshaken {
        let counts = format!(
            "    \"offered\": {},\n    \"done\": {},\n    \"failed\": {},\n    \"resumed\": {},\n",
            figures.offered, figures.answered, figures.failed, figures.resumed
        );
        parts.push(part("handshakes", &counts, figures));
    }
    println!("{{\n{}\n}}", parts.join(",\n"));
}

fn part(name: &str, counts: &str, mut figures: Figures) -> String {
    figures.times.sort_unstable();
    figures.lags.sort_unstable();
    let (times, lags) = (&figures.times, &figures.lags);
    let error = figures.first_error.unwrap_or_default();
    let error = error.replace(['"', '\\', '\n'], " ");
    format!(
        "  \"{name}\": {{\n{counts}    \"p50_us\": {},\n    \"p90_us\": {},\n    \"p99_us\": {},\n    \
         \"max_us\": {},\n    \"client_lag_p50_us\": {},\n    \"client_lag_p99_us\": {},\n    \
         \"client_lag_max_us\": {},\n    \"first_error\": \"{error}\"\n  }}",
        quantile(times, 0.5),
        quantile(times, 0.9),
        quantile(times, 0.99),
        quantile(times, 1.0),
        quantile(lags, 0.5),
        quantile(lags, 0.99),
        quantile(lags, 1.0),
    )
}

/// In microseconds, by the nearest rank.
fn quantile(sorted: &[Duration], share: f64) -> u128 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    let place = rank.clamp(1, sorted.len().max(1)) - 1;
    sorted.get(place).map_or(0, Duration::as_micros)
}
