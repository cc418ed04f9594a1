//! The status server: `/status` for people, `/status.json` for programs, `/metrics` for Prometheus,
//! `/healthz` and `/readyz` for what restarts a server or sends it requests.
//!
//! The server runs in a thread of the master with its own listener, so a scrape costs the workers
//! one control message, and scrapes at the same time share it. It is for an administrator and a
//! scraper, not for the public. It changes nothing and reads no input but a path.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use headway_debox::Symbols;
use headway_http::Status;

use crate::{Overview, prometheus};

mod clients;
pub mod history;
pub mod page;

pub use clients::{Page, Pages, serve_pages};

use history::History;

/// Pause after an error of the listener, so that the thread does not spin.
const ERROR_PAUSE: Duration = Duration::from_secs(1);
/// How long the numbers are taken for the curves after the page was last shown. Nothing wakes the
/// workers for a page that is not open.
const WATCHED: Duration = Duration::from_secs(600);

/// Answers status requests for as long as the process lives. `overview` returns the current numbers.
pub fn serve(listener: &TcpListener, overview: &dyn Fn() -> Option<Overview>) {
    let mut pages = StatusPages {
        request: overview,
        overview: None,
        symbols: Resolver::default(),
        history: History::default(),
        viewed: None,
    };
    loop {
        // The clients of before are lost, and new ones are served.
        let _ = serve_pages(listener, &mut pages);
        std::thread::sleep(ERROR_PAUSE);
    }
}

/// The pages, and what those of one round share.
struct StatusPages<'r> {
    request: &'r dyn Fn() -> Option<Overview>,
    /// The numbers of this round, once a page has needed them; `None` inside if the server is
    /// stopping.
    overview: Option<Option<Overview>>,
    symbols: Resolver,
    /// The last minute.
    history: History,
    /// When the page was last shown.
    viewed: Option<Instant>,
}

/// Kernel symbols, loaded when the first sleep has to be named: 10 MB that a server that never
/// blocks does not need.
#[derive(Default)]
struct Resolver(Option<Option<Symbols>>);

impl Resolver {
    fn resolve(&mut self, overview: &mut Overview) {
        let total = overview.total.iter_mut();
        let reports = total.chain(&mut overview.workers).map(|one| &mut one.trace);
        for report in reports.filter(|report| !report.sleeps.is_empty()) {
            if let Some(symbols) = self.0.get_or_insert_with(|| Symbols::load().ok()) {
                report.resolve(symbols);
            }
        }
    }
}

impl Pages for StatusPages<'_> {
    fn begin_round(&mut self) {
        self.overview = None;
    }

    fn due(&self) -> Option<Instant> {
        let due = self.history.due()?;
        (due < self.viewed? + WATCHED).then_some(due)
    }

    fn work(&mut self) {
        let overview = (self.request)();
        let total = overview.as_ref().and_then(|all| all.total.as_ref());
        let counters = total.map(|total| &total.counters);
        self.history.add(Instant::now(), counters);
    }

    fn page(&mut self, path: &[u8]) -> Page {
        let render: fn(&Overview, &History) -> Page = match path {
            b"/" | b"/status" => {
                |all, history| Page::new("text/html; charset=utf-8", page::render(all, history))
            }
            b"/status.json" => |all, _| json(all),
            b"/metrics" => |all, _| Page::new(prometheus::CONTENT_TYPE, prometheus::render(all)),
            b"/healthz" | b"/readyz" => |all, _| health(all),
            _ => return Page::not_found("/status, /status.json, /metrics, /healthz, /readyz\n"),
        };
        let overview = self.overview.get_or_insert_with(|| {
            let mut overview = (self.request)();
            overview
                .iter_mut()
                .for_each(|overview| self.symbols.resolve(overview));
            overview
        });
        let total = overview.as_ref().and_then(|all| all.total.as_ref());
        let now = Instant::now();
        self.history.add(now, total.map(|total| &total.counters));
        if matches!(path, b"/" | b"/status") {
            self.viewed = Some(now);
        }
        match overview {
            Some(overview) => render(overview, &self.history),
            // Restarted now, it would lose the requests that it still answers.
            None if path == b"/healthz" => Page::text("stopping\n".into()),
            None => Page::unavailable("the server is stopping\n"),
        }
    }
}

/// Whether a worker serves.
fn health(overview: &Overview) -> Page {
    match overview.workers.is_empty() {
        true => Page::unavailable("no worker answers\n"),
        false => Page::text("ok\n".into()),
    }
}

fn json(overview: &Overview) -> Page {
    match serde_json::to_string_pretty(overview) {
        Ok(body) => Page::new("application/json", body + "\n"),
        Err(error) => Page::error(Status::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn scrapes_of_one_round_share_the_numbers() {
        let requested = Cell::new(0);
        let request = || {
            requested.set(requested.get() + 1);
            None
        };
        let mut pages = StatusPages {
            request: &request,
            overview: None,
            symbols: Resolver::default(),
            history: History::default(),
            viewed: None,
        };
        for round in 1..=2 {
            pages.begin_round();
            for path in ["/metrics", "/status", "/status.json", "/readyz"] {
                let page = pages.page(path.as_bytes());
                assert_eq!(page.status, Status::SERVICE_UNAVAILABLE, "{path}");
                assert_eq!(requested.get(), round);
            }
            let page = pages.page(b"/healthz");
            assert_eq!(page.status, Status::OK, "it may be slow to stop");
        }
        pages.begin_round();
        assert_eq!(pages.page(b"/x").status, Status::NOT_FOUND);
        assert_eq!(requested.get(), 2);
    }
}
