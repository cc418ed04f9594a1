//! A tokio server which serves the metrics of its own event loop.
//!
//! ```text
//! $ cargo run --release -p headway-debox --example watch_tokio
//! $ curl -s http://127.0.0.1:8000/slow
//! $ curl -s http://127.0.0.1:8000/metrics | grep loop_blocked
//! ```
//!
//! The handler of `/slow` calls `std::thread::sleep`, which blocks the loop.

use std::time::Duration;

use headway_debox::LoopWatch;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;

/// Longer than the period of the lag's timer, so that the timer is late.
const SLEEP: Duration = Duration::from_millis(200);

fn main() -> std::io::Result<()> {
    let listener = std::net::TcpListener::bind("127.0.0.1:8000")?;
    println!("http://{}/", listener.local_addr()?);
    serve(listener)
}

/// Serves until the process ends.
pub fn serve(listener: std::net::TcpListener) -> std::io::Result<()> {
    let watch = headway_debox::watch_loop();
    let (begin, end) = (watch.clone(), watch.clone());
    let runtime = Builder::new_current_thread()
        .enable_all()
        .on_thread_unpark(move || begin.begin_turn())
        .on_thread_park(move || end.end_turn())
        .build()?;
    runtime.block_on(async move {
        tokio::spawn(watch.clone().measure_lag(tokio::time::sleep));
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        loop {
            let (client, _) = listener.accept().await?;
            tokio::spawn(answer(client, watch.clone()));
        }
    })
}

/// Answers one request.
async fn answer(mut client: TcpStream, watch: LoopWatch) -> std::io::Result<()> {
    let mut request = [0; 4096];
    let length = client.read(&mut request).await?;
    let body = match &request[..length] {
        request if request.starts_with(b"GET /metrics ") => watch.metrics(),
        request if request.starts_with(b"GET /slow ") => {
            std::thread::sleep(SLEEP);
            "slept\n".to_owned()
        }
        _ => "hello\n".to_owned(),
    };
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    client.write_all(format!("{head}{body}").as_bytes()).await
}
