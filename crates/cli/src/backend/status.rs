//! The service's counters over HTTP: for people at `/`, for Prometheus at `/metrics`.
//!
//! It serves one client at a time, for two seconds at most, and reads only the path: it is for an
//! administrator and a scraper, not for the public. On the loopback address it refuses requests
//! with a foreign host name, so that no web page in a browser of this machine can read it.

use anyhow::Context;
use headway_files::service::{Remote, ServiceStatistics};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(2);
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const HEADER_BYTES_MAX: usize = 8 * 1024;

/// The address where it will answer.
pub struct Status {
    listener: TcpListener,
    /// The address, with the port that the kernel chose if none was given.
    pub address: SocketAddr,
}

impl Status {
    /// Binds the address; clients are not answered yet.
    pub fn bind(wanted: SocketAddr) -> anyhow::Result<Status> {
        let listener = TcpListener::bind(wanted).with_context(|| format!("--status {wanted}"))?;
        let address = listener.local_addr()?;
        Ok(Status { listener, address })
    }

    /// Answers clients in a thread that runs as long as the process.
    pub fn start(self, remote: Remote) -> io::Result<()> {
        let serve = move || {
            loop {
                match self.listener.accept() {
                    // Errors of one client do not matter.
                    Ok((client, _)) => drop(answer(client, &remote)),
                    Err(_) => std::thread::sleep(ACCEPT_PAUSE),
                }
            }
        };
        let thread = std::thread::Builder::new().name("status".into());
        thread.spawn(serve).map(drop)
    }
}

fn answer(mut client: TcpStream, remote: &Remote) -> io::Result<()> {
    client.set_read_timeout(Some(TIMEOUT))?;
    client.set_write_timeout(Some(TIMEOUT))?;
    let mut head = Vec::new();
    let mut buffer = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < HEADER_BYTES_MAX {
        match client.read(&mut buffer)? {
            0 => return Ok(()),
            count => head.extend_from_slice(&buffer[..count]),
        }
    }
    let local = client.local_addr()?.ip().is_loopback();
    let head = String::from_utf8_lossy(&head);
    let (status, kind, body) = respond(&head, local, &|| remote.statistics());
    write!(
        client,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

const TEXT: &str = "text/plain; charset=utf-8";

fn respond(
    head: &str,
    local: bool,
    statistics: &dyn Fn() -> Option<ServiceStatistics>,
) -> (&'static str, &'static str, String) {
    let mut parts = head.lines().next().unwrap_or_default().split(' ');
    let (method, path) = (parts.next(), parts.next());
    if method != Some("GET") {
        return ("405 Method Not Allowed", TEXT, "GET only\n".into());
    }
    if local && host(head).is_some_and(|host| !is_local(host)) {
        let message = "use the IP address or localhost\n".into();
        return ("403 Forbidden", TEXT, message);
    }
    let Some(statistics) = statistics() else {
        let message = "the service is stopping\n".into();
        return ("503 Service Unavailable", TEXT, message);
    };
    let text = statistics.prometheus();
    match path {
        Some("/metrics") => ("200 OK", "text/plain; version=0.0.4", text),
        Some("/") => ("200 OK", TEXT, page_text(&text)),
        _ => ("404 Not Found", TEXT, "/, /metrics\n".into()),
    }
}

/// Each counter with its help on one line.
fn page_text(text: &str) -> String {
    let (mut out, mut help) = (String::new(), "");
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').map_or("", |(_, help)| help);
        } else if !line.starts_with('#')
            && let Some((name, value)) = line.split_once(' ')
        {
            let label = name.split_once('{').map_or("", |(_, label)| label);
            let label = label.trim_end_matches('}').replace('"', "");
            let label = if label.is_empty() {
                label
            } else {
                format!("{label}: ")
            };
            out += &format!("{value:>12}  {label}{help}\n");
        }
    }
    out
}

fn host(head: &str) -> Option<&str> {
    let mut lines = head.lines().skip(1);
    lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("host").then(|| value.trim())
    })
}

fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || bare.parse::<std::net::IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(head: &str) -> &'static str {
        respond(head, true, &|| Some(ServiceStatistics::default())).0
    }

    #[test]
    fn status_page_and_metrics_are_served_by_path() {
        assert_eq!(
            status("GET / HTTP/1.1\r\nHost: 127.0.0.1:9\r\n\r\n"),
            "200 OK"
        );
        assert_eq!(
            status("GET /metrics HTTP/1.1\r\nhost: [::1]:9\r\n\r\n"),
            "200 OK"
        );
        assert_eq!(status("GET /x HTTP/1.1\r\n\r\n"), "404 Not Found");
        assert_eq!(status("POST / HTTP/1.1\r\n\r\n"), "405 Method Not Allowed");
        assert_eq!(
            status("GET / HTTP/1.1\r\nHost: rebound.example:9\r\n\r\n"),
            "403 Forbidden"
        );
        let people = page_text(&ServiceStatistics::default().prometheus());
        assert!(people.contains("0  source=kernel: Paths by"), "{people}");
    }
}
