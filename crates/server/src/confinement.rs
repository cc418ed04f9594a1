//! From a configuration to what the processes that serve it may do.
//!
//! The kernel holds a process to it (`headway-sandbox`). A worker learns it from its configuration. A helper
//! obeys its worker, so it learns it from the master.

use std::path::PathBuf;

use headway_config::{Config, HandlerConfig, Opening, Upstreams};
use headway_control::ToHelper;
use headway_event::Mechanism;
use headway_files::{RootConfig, Symlinks};
use headway_gateway::upstream::Address;
use headway_lookup::VirtualHosts;
use headway_respond::handlers::Routes;
use headway_sandbox::{Connect, Kind, Rules};

/// Why workers and their helpers cannot be confined, if they cannot: research stages wait, map, fork and
/// open files in the worker, and applications may do anything.
pub(crate) fn workers_need_more(config: &Config) -> Option<&'static str> {
    let research = &config.research;
    let has_stages = research.opening != Opening::Probe
        || research.send_method.is_some()
        || !research.pipe.is_empty()
        || !research.fork_in_server.is_empty();
    if has_stages {
        return Some("a server of [research] does what they may not");
    }
    let mut handlers = handlers(config);
    let has_application = handlers.any(|one| matches!(one, HandlerConfig::Application(_)));
    has_application.then_some("an application may do what they may not")
}

/// The rules of a worker: it reads its roots, and connects to its upstreams.
pub(crate) fn of_worker(config: &Config) -> Rules {
    let upstreams: Vec<&Upstreams> = handlers(config)
        .filter_map(|handler| match handler {
            HandlerConfig::Upstreams(upstreams) => Some(upstreams),
            _ => None,
        })
        .collect();
    let ports = upstreams.iter().flat_map(|one| one.addresses());
    let ports = ports.filter_map(|address| match address {
        Address::Tcp(address) => Some(address.port()),
        Address::Unix(_) => None,
    });
    Rules {
        read: readable(config),
        connect: match upstreams.is_empty() {
            true => Connect::Nowhere,
            false => Connect::Ports(ports.collect()),
        },
        io_uring: uses_io_uring(config),
        ..Rules::of(Kind::Worker)
    }
}

fn uses_io_uring(config: &Config) -> bool {
    let events = config.events.parse::<Mechanism>();
    config.helper_backend == headway_config::HelperBackend::IoUring
        || events.is_ok_and(|events| events == Mechanism::IoUring)
}

/// What the master tells a helper before its worker does.
pub(crate) fn order_to_helper(config: &Config) -> ToHelper {
    let buffers = handlers(config)
        .any(|handler| !matches!(handler, HandlerConfig::Files | HandlerConfig::Redirect(_)));
    let spools = buffers && config.buffer_disk_max_bytes > 0;
    ToHelper::Start {
        read: readable(config),
        write: spools
            .then(|| config.temp_directory.clone())
            .into_iter()
            .collect(),
    }
}

/// The rules of a helper with this order.
pub(crate) fn of_helper(order: ToHelper) -> Rules {
    let ToHelper::Start { read, write } = order;
    Rules {
        read,
        write,
        ..Rules::of(Kind::Helper)
    }
}

/// The directories of all roots; `None` where symbolic links may lead anywhere.
fn readable(config: &Config) -> Option<Vec<PathBuf>> {
    let roots = [VirtualHosts::roots(&config.hosts), Routes::roots(config)].concat();
    let leaves = |root: &RootConfig| matches!(root.symlinks, Symlinks::Owner | Symlinks::Any);
    match roots.iter().any(leaves) {
        true => None,
        false => Some(roots.into_iter().map(|root| root.directory).collect()),
    }
}

fn handlers(config: &Config) -> impl Iterator<Item = &HandlerConfig> {
    let locations = config.hosts.iter().flat_map(|host| &host.locations);
    locations.map(|location| &location.handler)
}
