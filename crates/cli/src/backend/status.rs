//! The service's counters over HTTP: for people at `/`, for Prometheus at `/metrics`.
//!
//! It reads only the path: it is for an administrator and a scraper, not for the public. On the
//! loopback address it refuses requests with a foreign host name, so that no web page in a browser
//! of this machine can read it.

use anyhow::Context;
use headway_files::service::{Remote, ServiceStatistics};
use headway_server::metrics::status::{Page, Pages, serve_pages};
use std::io;
use std::net::{SocketAddr, TcpListener};

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
        let serve =
            move || serve_pages(&self.listener, &mut StatisticsPages(|| remote.statistics()));
        let thread = std::thread::Builder::new().name("status".into());
        thread.spawn(serve).map(drop)
    }
}

/// The pages.
struct StatisticsPages<S>(S);

impl<S: Fn() -> Option<ServiceStatistics>> Pages for StatisticsPages<S> {
    fn page(&mut self, path: &[u8]) -> Page {
        let Some(statistics) = (self.0)() else {
            return Page::unavailable("the service is stopping\n");
        };
        let text = statistics.prometheus();
        match path {
            b"/metrics" => Page::new("text/plain; version=0.0.4", text),
            b"/" => Page::text(page_text(&text)),
            _ => Page::not_found("/, /metrics\n"),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_for_people_has_each_counter_with_its_help() {
        let people = page_text(&ServiceStatistics::default().prometheus());
        assert!(people.contains("0  source=kernel: Paths by"), "{people}");
    }
}
