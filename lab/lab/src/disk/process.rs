//! The disk process: a FUSE file system whose requests take as long as the engine says. It is the
//! image below a disk ([`Image`]), or a remote file system as clients see it ([`Remote`]).
//!
//! Threads of the FUSE library put requests into the engine; a timer thread answers them when they
//! are due; one thread takes orders. A reply is kept until then, so a slow request holds up no
//! other and the queue is as deep as the kernel makes it. The process ends when its file system is
//! unmounted. It makes nothing that would outlive it: when it is killed, the kernel ends every
//! request with an error.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use fuser::{Config, Filesystem, KernelConfig, MountOption, Session, SessionACL};

use super::backing::BackingStore;
use super::control::{self, Answer, DiskCommand};
use super::engine::{Done, Engine};
use super::image::Image;
use super::layout::DiskLayout;
use super::remote::{Remote, RemoteControl};
use super::{DiskError, DiskSpec, Order};

/// The kernel sends no more requests at once. A loop device has 128.
const REQUESTS_MAX: u16 = 256;

/// Of one write, and by the FUSE library's arithmetic of one read.
const REQUEST_BYTES_MAX: u32 = 1 << 20;

/// Runs a disk until it is unmounted. `folder` is what [`super::Disk::start`] prepared; the hidden
/// sub-command `headway-lab disk-process FOLDER` calls this.
///
/// # Errors
/// When the folder was not prepared, or memory, FUSE or the socket cannot be had.
pub fn process_main(folder: &Path) -> Result<(), DiskError> {
    let layout = DiskLayout::of(folder);
    let spec = layout.read_spec()?;
    let delays = Arc::new(Delays::new(spec.clone()));
    if spec.filesystem.is_remote() {
        let remote = Remote::new(Arc::clone(&delays), spec.size_bytes);
        let tree = remote.tree();
        let mut options = Config::default();
        // For servers with users of their own, whose rights the kernel checks.
        options.acl = SessionACL::All;
        options.mount_options = vec![
            MountOption::FSName("headway-lab".to_owned()),
            MountOption::DefaultPermissions,
            MountOption::NoDev,
            MountOption::NoSuid,
            MountOption::NoAtime,
        ];
        let session = mount(remote, &layout.files, &options)?;
        let control = RemoteControl::new(tree, session.notifier());
        return serve(session, delays, &layout, Some(control));
    }
    let backing = BackingStore::new(spec.backing.as_deref(), spec.size_bytes);
    let backing = backing.map_err(|cause| match &spec.backing {
        Some(file) => DiskError::io("making the file behind the disk", file, cause),
        None => DiskError::io("making the memory of the disk", folder, cause),
    })?;
    let image = Image {
        delays: Arc::clone(&delays),
        backing: Arc::new(backing),
    };
    let mut options = Config::default();
    options.mount_options = vec![MountOption::FSName("headway-lab".to_owned())];
    let session = mount(image, &layout.fuse, &options)?;
    serve(session, delays, &layout, None)
}

fn mount<F: Filesystem>(files: F, path: &Path, options: &Config) -> Result<Session<F>, DiskError> {
    Session::new(files, path, options)
        .map_err(|cause| DiskError::io("mounting the FUSE file system", path, cause))
}

/// Starts the threads, then answers the kernel until the file system is unmounted.
fn serve<F: Filesystem>(
    session: Session<F>,
    delays: Arc<Delays>,
    layout: &DiskLayout,
    remote: Option<RemoteControl>,
) -> Result<(), DiskError> {
    let listener = UnixListener::bind(&layout.socket)
        .map_err(|cause| DiskError::io("listening on the socket", &layout.socket, cause))?;
    // It works little, but a disk does not wait for a processor. Without the privilege delays are
    // less exact.
    if let Err(error) = headway_os::process::real_time() {
        eprintln!(
            "sched_setscheduler(SCHED_FIFO): {error}; delays are longer while the CPUs are busy"
        );
    }
    let timer = Arc::clone(&delays);
    std::thread::spawn(move || timer.run_timer());
    std::thread::spawn(move || delays.serve_commands(&listener, remote.as_ref()));
    session
        .run()
        .map_err(|cause| DiskError::io("serving the FUSE file system", &layout.folder, cause))
}

/// Lets the kernel send many requests at once, and large ones.
pub(crate) fn set_limits(config: &mut KernelConfig) {
    // A kernel that allows less names its limit, which is then taken.
    if let Err(most) = config.set_max_write(REQUEST_BYTES_MAX) {
        let _ = config.set_max_write(most);
    }
    if let Err(most) = config.set_max_background(REQUESTS_MAX) {
        let _ = config.set_max_background(most);
    }
    let _ = config.set_congestion_threshold(REQUESTS_MAX);
}

/// What a request moves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    offset_bytes: u64,
    length_bytes: u64,
    write: bool,
}

impl Transfer {
    pub(crate) fn read(offset_bytes: u64, length_bytes: u64) -> Transfer {
        Transfer {
            offset_bytes,
            length_bytes,
            write: false,
        }
    }

    pub(crate) fn write(offset_bytes: u64, length_bytes: u64) -> Transfer {
        Transfer {
            write: true,
            ..Transfer::read(offset_bytes, length_bytes)
        }
    }
}

/// Answers a request; told whether a fault makes it fail.
type Pending = Box<dyn FnOnce(bool) + Send>;

/// Requests and when they are answered: what the threads share.
pub(crate) struct Delays {
    size_bytes: u64,
    begin: Instant,
    state: Mutex<DelayState>,
    /// Wakes the timer when something is due earlier than its current deadline.
    earlier: Condvar,
}

struct DelayState {
    engine: Engine,
    waiting: HashMap<u64, Pending>,
    /// When the timer wakes by itself.
    timer_ns: u64,
}

impl Delays {
    fn new(spec: DiskSpec) -> Delays {
        Delays {
            size_bytes: spec.size_bytes,
            begin: Instant::now(),
            state: Mutex::new(DelayState {
                engine: Engine::new(spec, 0),
                waiting: HashMap::new(),
                timer_ns: u64::MAX,
            }),
            earlier: Condvar::new(),
        }
    }

    fn now_ns(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }

    fn lock(&self) -> MutexGuard<'_, DelayState> {
        self.state
            .lock()
            .expect("no thread panics while it holds the disk")
    }

    /// Whether a fault makes such a request fail now.
    pub(crate) fn fails(&self, transfer: Transfer) -> bool {
        let state = self.lock();
        state
            .engine
            .fails(self.now_ns(), transfer.offset_bytes, transfer.length_bytes)
    }

    /// Queues a request and answers what is due; that may be the same request.
    pub(crate) fn arrive(&self, transfer: Transfer, answer: impl FnOnce(bool) + Send + 'static) {
        let mut state = self.lock();
        let id = state.engine.arrive(
            self.now_ns(),
            transfer.offset_bytes,
            transfer.length_bytes,
            transfer.write,
        );
        state.waiting.insert(id, Box::new(answer));
        let (state, wake_ns) = self.answer(state);
        // Most requests change nothing for the timer, and waking it costs more than answering them.
        if wake_ns.is_some_and(|wake_ns| wake_ns < state.timer_ns) {
            self.earlier.notify_one();
        }
    }

    /// Answers what is due and gives the lock back meanwhile. Returns when the next one is due.
    fn answer<'a>(
        &'a self,
        mut state: MutexGuard<'a, DelayState>,
    ) -> (MutexGuard<'a, DelayState>, Option<u64>) {
        loop {
            let done = state.engine.due(self.now_ns());
            if done.is_empty() {
                let wake_ns = state.engine.wake_ns();
                return (state, wake_ns);
            }
            let ready: Vec<(Done, Pending)> = done
                .into_iter()
                .filter_map(|done| Some((done, state.waiting.remove(&done.id)?)))
                .collect();
            drop(state);
            ready
                .into_iter()
                .for_each(|(done, pending)| pending(done.failed));
            state = self.lock();
        }
    }

    /// The timer: sleeps until the next request is due.
    fn run_timer(&self) {
        // By default the kernel lets a sleep last 50 us longer, to wake fewer times.
        if let Err(error) = rustix::thread::set_current_timer_slack(NonZeroU64::new(1)) {
            eprintln!("prctl(PR_SET_TIMERSLACK): {error}; delays are up to 50 us longer");
        }
        let mut state = self.lock();
        loop {
            let (mut held, wake_ns) = self.answer(state);
            held.timer_ns = wake_ns.unwrap_or(u64::MAX);
            state = match wake_ns.map(|wake_ns| wake_ns.saturating_sub(self.now_ns())) {
                Some(0) => held,
                Some(wait_ns) => {
                    let wait = Duration::from_nanos(wait_ns);
                    let woken = self.earlier.wait_timeout(held, wait);
                    woken.expect("no thread panics while it holds the disk").0
                }
                None => self
                    .earlier
                    .wait(held)
                    .expect("no thread panics while it holds the disk"),
            };
        }
    }

    /// The control socket: one command per connection, one after the other.
    fn serve_commands(&self, listener: &UnixListener, remote: Option<&RemoteControl>) {
        for stream in listener.incoming() {
            let served = stream.and_then(|stream| {
                control::serve(&stream, |command| match (command, remote) {
                    (DiskCommand::DropCaches, Some(remote)) => remote.drop_caches(),
                    (DiskCommand::Order(Order::Restart), Some(remote)) => remote.restart(),
                    (command, _) => self.execute(command),
                })
            });
            if let Err(error) = served {
                eprintln!("control socket: {error}");
            }
        }
    }

    fn execute(&self, command: DiskCommand) -> Answer {
        let mut state = self.lock();
        let now_ns = self.now_ns();
        match command {
            DiskCommand::Statistics => return Answer::Statistics(state.engine.statistics(now_ns)),
            DiskCommand::Fast => return Answer::Fast(state.engine.is_fast()),
            DiskCommand::Probe(probe) => state.engine.set_probe(now_ns, probe),
            DiskCommand::ReadOverhead(read_overhead_ns) => {
                state.engine.set_read_overhead(read_overhead_ns)
            }
            DiskCommand::Maintenance(paused) => state.engine.set_maintenance(now_ns, paused),
            DiskCommand::DropCaches | DiskCommand::Order(Order::Restart) => {
                return Answer::Refused(
                    "only remote files can be made stale; make the lab with --filesystem remote"
                        .to_owned(),
                );
            }
            DiskCommand::Order(order) => match order.check_on(self.size_bytes) {
                Ok(()) => state.engine.order(now_ns, &order),
                Err(reason) => return Answer::Refused(reason),
            },
        }
        drop(state);
        self.earlier.notify_one();
        Answer::Done
    }
}
