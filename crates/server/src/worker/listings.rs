//! The handler of directory listings: a helper renders a listing unless it is cached.

mod cache;

use std::rc::Rc;

use headway_config::Config;
use headway_connection::{Connection, Next, Phase};
use headway_files::{Failure, OpenFile, RootId};
use headway_metrics::Counters;
use headway_request::Request;

use super::context::LoopContext;
use super::handler::Handler;
use cache::ListingCache;

/// The listings, and how long they are used without a check.
pub(super) struct Listings {
    cache: ListingCache,
    revalidate_ms: u64,
    /// If false, each request has its listing rendered.
    caching: bool,
}

impl Handler for Listings {
    type Target = ();

    fn start(
        &mut self,
        context: &mut LoopContext,
        connection: &mut Connection,
        request: Box<Request>,
        _: &mut &[u8],
        (): (),
    ) -> Next {
        let (root, path) = (request.virtual_host, request.path());
        let cached = match self.caching {
            true => self
                .cache
                .find((root, context.pool.root_version(root)), path),
            false => None,
        };
        let stale = match cached {
            Some((page, checked_ms)) if context.now_ms < checked_ms + self.revalidate_ms => {
                return Listings::send(context, connection, request, page);
            }
            other => other.map(|(page, _)| page),
        };
        // The helper confirms the old listing, or renders another one.
        let waiter = connection.waiter(&request);
        let submitted = context
            .pool
            .submit_listing(root, path, stale.as_ref(), waiter);
        match submitted {
            Ok(()) => context.wait_for_helper(connection, request, Phase::AwaitListing),
            Err(_) => context.send_overloaded(connection, request),
        }
    }
}

impl Listings {
    pub(super) fn new(config: &Config) -> Listings {
        Listings {
            cache: ListingCache::default(),
            revalidate_ms: config.revalidate_ms,
            caching: config.research.caching,
        }
    }

    /// Stores the listing that a helper has rendered, or passes on why there is none. Fails if all
    /// listings together would take too much memory. `root`: with its version.
    pub(super) fn store(
        &mut self,
        context: &LoopContext,
        root: (RootId, u32),
        path: &[u8],
        page: Result<Rc<OpenFile>, Failure>,
    ) -> Result<Rc<OpenFile>, Failure> {
        self.cache.insert(root, path, page?, context.now_ms)
    }

    /// Sends a listing.
    pub(super) fn send(
        context: &mut LoopContext,
        connection: &mut Connection,
        request: Box<Request>,
        page: Rc<OpenFile>,
    ) -> Next {
        let head = request.head.head();
        let response_context = context.response_context(&head, request.virtual_host, connection);
        let host = context.hosts.get(request.virtual_host);
        let response = headway_respond::listing_page(&response_context, &head, host, page);
        context.start_response(connection, request, response)
    }

    /// Sets the gauge of a snapshot.
    pub(super) fn gauges(&self, counters: &mut Counters) {
        counters.listing_cache_entries = self.cache.count();
    }
}
