//! The start of a worker: what it opens before it serves. These are listeners, document roots,
//! programs and upstreams, helpers and the log.
//!
//! Opening may block, because no client is served yet.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use headway_accept::{AddressBoard, Balance, Listeners};
use headway_config::{Config, ErrorLevel, Handshakes, HelperBackend, Opening, TlsConfig};
use headway_control::{
    Control, ControlError, DescriptorError, FromWorker, StartDescriptor, StartDescriptors, ToWorker,
};
use headway_event::{Events, Interest, Mechanism, Token};
use headway_files::protocol::{FETCH_BYTES_MAX, OpenMode};
use headway_files::{FileCache, FileCacheLimits, PREFETCH_BYTES, Pool, PoolLimits, Roots};
use headway_lookup::{Ages, Lookup, VirtualHosts};
use headway_metrics::calls::Tracer;
use headway_os::privileges::{CapabilitySet, drop_capabilities};
use headway_os::shared_lines::SharedLines;
use headway_respond::handlers::Routes;
use headway_sandbox::{Demand, SandboxError, confine};
use headway_tls::Acceptor as TlsAcceptor;

use super::acceptor::Acceptor;
use super::application::EmbeddedApplications;
use super::context::{LoopContext, Opened};
use super::files::StaticFiles;
use super::gateway::Gateway;
use super::helpers::Helpers;
use super::listings::Listings;
use super::log::Log;
use super::memory;
use super::router::Router;
use super::sending::Sender;
use super::tls::Tls;
use super::turn::Turn;
use super::{CONTROL, HELPER, Worker, helpers};
use crate::confinement::{self, GivenDirectories};
use crate::extensions::{Extensions, Research};

/// Why a worker cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The channel to the master failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The start message lacks a descriptor or has one too many.
    #[error(transparent)]
    Descriptors(#[from] DescriptorError),
    /// The first control message was not the start message.
    #[error("the master sent no start message")]
    NoStart,
    /// Descriptors had run out when the master passed a socket.
    #[error("no descriptor was free for the socket of the log or the spawner")]
    SocketLost,
    /// The worker could not be confined.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// A resource could not be set up.
    #[error("{what}: {error}")]
    Setup {
        /// What failed.
        what: String,
        /// The cause.
        error: io::Error,
    },
}

/// Runs a worker until the master stops it or disappears. The configuration refers to these extensions.
pub fn worker_main(control: Control, extensions: Extensions) -> Result<(), WorkerError> {
    run(control, extensions, |_| {})
}

/// As [`worker_main`], for a process whose master keeps its directories, and which may be confined before it serves.
pub(crate) fn run_worker(
    control: Control,
    extensions: Extensions,
    sandbox: Option<Demand>,
) -> Result<(), WorkerError> {
    run(control, extensions, |context| {
        context.sends_directories = true;
        context.sandbox = sandbox;
        if sandbox.is_some() {
            context.pool.confine_helpers();
        }
    })
}

fn run(
    control: Control,
    extensions: Extensions,
    prepare: impl FnOnce(&mut LoopContext),
) -> Result<(), WorkerError> {
    match start(control, extensions) {
        Ok(mut worker) => {
            prepare(&mut worker.context);
            worker.run()
        }
        Err((control, error)) => {
            // The master prints the error. If the master is gone, nothing more can be done.
            let _ = control.send(
                &FromWorker::Failed {
                    why: error.to_string(),
                },
                &[],
            );
            Err(error)
        }
    }
}

/// Opens what the start message says.
fn start(control: Control, extensions: Extensions) -> Result<Worker, (Control, WorkerError)> {
    let mut directories = GivenDirectories::default();
    let (order, received) = loop {
        match control.receive::<ToWorker>() {
            Ok(Some((ToWorker::Directories { numbers }, opened))) => {
                directories.add(numbers, opened);
            }
            Ok(Some(message)) => break message,
            Ok(None) => return Err((control, WorkerError::NoStart)),
            Err(error) => return Err((control, error.into())),
        }
    };
    let ToWorker::Start {
        worker,
        config,
        descriptors,
        listeners: of_listeners,
    } = order
    else {
        return Err((control, WorkerError::NoStart));
    };
    let resources = StartDescriptors::new(descriptors, received)
        .map_err(WorkerError::from)
        .and_then(|descriptors| {
            Resources::new(&config, (descriptors, directories), &control, extensions)
        });
    match resources {
        Ok(resources) => Ok(compose((worker, of_listeners), config, control, resources)),
        Err(error) => Err((control, error)),
    }
}

/// A worker of this number with these resources. Of each listener the number of its address is known.
fn compose(
    (number, of_listeners): (u32, Vec<u32>),
    config: Box<Config>,
    control: Control,
    resources: Resources,
) -> Worker {
    let listeners = resources.listeners;
    let opened = Opened {
        events: resources.events,
        hosts: resources.hosts,
        routes: resources.routes,
        pool: resources.pool,
        sender: resources.sender,
        log: resources.log,
        tls: resources.tls,
        reserve: listeners.reserve(),
    };
    Worker {
        number,
        acceptor: Acceptor::new(
            &config,
            number,
            (listeners, of_listeners),
            resources
                .shared_counters
                .map(|shared| Balance::new(shared, number)),
            resources.address_board,
        ),
        router: Router {
            files: StaticFiles::new(&config, resources.lookup),
            listings: Listings::new(&config),
            gateway: resources.gateway,
            applications: resources.applications,
        },
        helpers: Helpers::default(),
        turn: Turn::default(),
        context: LoopContext::new(config, control, opened),
    }
}

/// The resources that are opened before a worker serves.
pub(super) struct Resources {
    pub events: Events,
    pub listeners: Listeners,
    pub shared_counters: Option<SharedLines>,
    pub address_board: Option<AddressBoard>,
    pub hosts: VirtualHosts,
    pub routes: Routes,
    pub gateway: Box<Gateway>,
    pub applications: EmbeddedApplications,
    pub lookup: Lookup,
    pub pool: Pool,
    pub sender: Sender,
    pub log: Option<Log>,
    pub tls: Option<Tls>,
}

impl Resources {
    pub(super) fn new(
        config: &Config,
        (descriptors, directories): (StartDescriptors, GivenDirectories),
        control: &Control,
        extensions: Extensions,
    ) -> Result<Resources, WorkerError> {
        let mechanism: Mechanism =
            setup("cannot select the event mechanism", parse_mechanism(config))?;
        let mut events = setup("cannot open the event mechanism", Events::new(mechanism))?;
        let Passed {
            log,
            shared_counters,
            address_board,
            listeners,
            first_tls,
            acceptor,
        } = Passed::new(config, descriptors)?;
        let mut listeners = setup(
            "cannot watch the listeners",
            Listeners::new(
                listeners,
                config.listeners,
                config.wakes_one_worker(),
                &mut events,
            ),
        )?;
        listeners.reset_policy(config.backlog, config.defer_accept, &Tracer::disabled());
        let watched = events.add(control.as_fd(), Token::new(CONTROL, 0, 0), Interest::READ);
        setup("cannot watch the control socket", watched)?;
        let hosts = setup(
            "cannot read the virtual hosts",
            VirtualHosts::open(&config.hosts, &config.listen),
        )?;
        let hosts = match &config.acme {
            Some(acme) => hosts.answer_challenges(&acme.hosts),
            None => hosts,
        };
        let routes = Routes::new(config);
        let research = extensions.research;
        let applications = EmbeddedApplications::new(&routes, *extensions.applications);
        let gateway = setup(
            "cannot prepare the handlers",
            Gateway::new(&routes, research),
        )?;
        let roots = directories.open_roots(config);
        let roots = Rc::new(setup("cannot open the document roots", roots)?);
        let pool = helper_pool(config, roots.clone(), &mut events)?;
        let lookup = lookup(config, roots, &pool, research);
        let other = research.and_then(|research| (research.sender)(config));
        Ok(Resources {
            events,
            listeners,
            shared_counters,
            address_board,
            hosts,
            routes,
            gateway,
            applications,
            lookup,
            pool,
            sender: Sender::new(config, other),
            log,
            tls: Tls::new(config, first_tls, acceptor),
        })
    }
}

fn lookup(
    config: &Config,
    roots: Rc<Roots>,
    pool: &Pool,
    research: Option<&'static Research>,
) -> Lookup {
    let limits = FileCacheLimits {
        entries_max: config.file_cache_entries,
        descriptors_max: config.file_cache_descriptors - config.content_store_descriptors(),
    };
    let ages = Ages {
        revalidate_ms: config.revalidate_ms,
        stale_ms: config.stale_while_revalidate_ms,
    };
    let unprobed = research.filter(|_| config.research.opening != Opening::Probe);
    Lookup::new(
        roots,
        FileCache::new(limits),
        pool.deferred_closes(),
        unprobed.map(|research| research.reopen),
        ages,
        config.research.caching,
    )
}

/// The descriptors that the master passes with the start message.
struct Passed {
    log: Option<Log>,
    shared_counters: Option<SharedLines>,
    address_board: Option<AddressBoard>,
    listeners: Vec<OwnedFd>,
    /// The number of the first listener that speaks TLS.
    first_tls: u32,
    acceptor: Option<TlsAcceptor>,
}

impl Passed {
    fn new(config: &Config, mut descriptors: StartDescriptors) -> Result<Passed, WorkerError> {
        let (all, plain) = (config.listen.len(), config.plain_listeners());
        let mut take = |wanted: bool, name| match wanted {
            true => descriptors.take_all(name),
            false => Ok(Vec::new()),
        };
        let mut listeners = take(plain > 0, StartDescriptor::Listener)?;
        let first_tls = listeners.len() as u32;
        listeners.extend(take(plain < all, StartDescriptor::TlsListener)?);
        let shared_counters = descriptors
            .take_if(config.is_balanced(), StartDescriptor::SharedCounters)?
            .map(|shared_counters| SharedLines::open(shared_counters).map_err(io::Error::from))
            .transpose();
        let shared_counters = setup(
            "seeing how many clients the other workers have",
            shared_counters,
        )?;
        let address_board = descriptors
            .take_if(config.shares_addresses(), StartDescriptor::AddressBoard)?
            .map(|board| AddressBoard::open(board, config.workers).map_err(io::Error::from))
            .transpose();
        let address_board = setup(
            "seeing the connections per address of other workers",
            address_board,
        )?;
        let log_socket = descriptors.take_if(config.log.is_some(), StartDescriptor::Log)?;
        let log = config
            .log
            .as_ref()
            .zip(log_socket)
            .map(|(log, socket)| Log::new(log, &config.hosts, socket));
        let is_inline = |tls: &TlsConfig| tls.handshakes == Handshakes::Inline;
        let is_inline = config.tls.as_ref().is_some_and(is_inline);
        let settings = descriptors.take_if(is_inline, StartDescriptor::Keys)?;
        let tickets = descriptors.take_if(is_inline, StartDescriptor::Keys)?;
        let acceptor = settings
            .zip(tickets)
            .map(|(settings, tickets)| headway_tls::process::read_acceptor(settings, tickets));
        let acceptor = setup("cannot use the certificates", acceptor.transpose())?;
        descriptors.finish()?;
        Ok(Passed {
            log,
            shared_counters,
            address_board,
            listeners,
            first_tls,
            acceptor,
        })
    }
}

/// The pool of helpers, which is empty at first, or the io_uring instance that replaces them.
fn helper_pool(
    config: &Config,
    roots: Rc<Roots>,
    events: &mut Events,
) -> Result<Pool, WorkerError> {
    let limits = PoolLimits {
        min: config.helpers_min,
        max: config.helpers_max,
        queue_max: config.helper_queue_max,
        want: lookup_job(config),
        ..PoolLimits::default()
    };
    let mut pool = Pool::new(limits, roots);
    if config.helper_backend == HelperBackend::IoUring {
        let ring = pool.use_ring(config.descriptors_needed());
        setup("cannot set up io_uring", ring)?;
        if let Some(ring) = pool.ring() {
            let token = Token::new(HELPER, helpers::RING_SLOT, 0);
            let watched = events.add(ring, token, Interest::READ);
            setup("cannot watch the io_uring descriptor", watched)?;
        }
    }
    Ok(pool)
}

/// The last part of the start, after which nothing may block. Reserving memory may, because no client
/// is served yet.
pub(super) fn prepare(context: &mut LoopContext) -> Result<(), WorkerError> {
    let maps = context.sender.maps_files();
    let bytes = context.config.memory_bytes() + context.config.worker_base_bytes;
    if let Err(error) = memory::reserve_and_lock(bytes, maps) {
        context.notice(ErrorLevel::Warn, error);
    }
    if context.config.trace {
        context.tracer = Tracer::enable();
    }
    if !context.tracer.sees_sleeps() {
        context.sender.always_copy();
    }
    // The SYN filter is loaded and the rings are open. Memory is locked as it grows.
    setup(
        "cannot give up capabilities",
        drop_capabilities(CapabilitySet::IPC_LOCK).map_err(Into::into),
    )?;
    let (config, open) = (&context.config, context.pool.roots());
    if context.sends_directories {
        confinement::send_directories(config, open, &context.control)?;
    }
    let Some(demand) = context.sandbox else {
        return Ok(());
    };
    let rules = confinement::of_worker(config, open);
    let rules = setup("cannot duplicate the descriptors of the roots", rules)?;
    Ok(confine(&rules, demand)?)
}

pub(super) fn setup<T>(what: &str, result: io::Result<T>) -> Result<T, WorkerError> {
    result.map_err(|error| WorkerError::Setup {
        what: what.to_owned(),
        error,
    })
}

/// Which job a helper does for a lookup. Reading the file in the same job is Headway's own idea:
/// the papers' servers first checked whether the file was resident.
fn lookup_job(config: &Config) -> OpenMode {
    match config.research.opening {
        Opening::Touch => OpenMode::TouchOnly,
        Opening::Pass => OpenMode::Open,
        Opening::Probe if config.small_file_max_bytes >= FETCH_BYTES_MAX as u64 => {
            OpenMode::OpenAndRead
        }
        // A file too large for the response cache would be read twice.
        Opening::Probe => OpenMode::OpenAndPrefetch(PREFETCH_BYTES),
    }
}

fn parse_mechanism(config: &Config) -> io::Result<Mechanism> {
    config
        .events
        .parse()
        .map_err(|error| io::Error::other(format!("{error}")))
}
