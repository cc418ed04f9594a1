//! `headway backend`: the open-file service, for servers that would otherwise wait for the disk.
//!
//! The service's loop runs in the first thread. [`helper_starter`] starts its helpers in a second one,
//! because fork and exec block. [`status`] serves counters in a third, and a fourth waits for
//! signals. A command given at the end is started when the service listens, and ends with it.

use anyhow::{Context, anyhow};
use clap::Args;
use headway_files::service::{Remote, Service, ServiceConfig, ServiceError};
use headway_files::{FileCacheLimits, PoolLimits};
use headway_files::{PinLimits, pinnable_bytes};
use headway_os::privileges::{CapabilitySet, close_on_exec_from, drop_capabilities};
use headway_os::spawn::in_new_session;
use headway_server::config::units::{Bytes, Count, ListenAddress, Millis};
use headway_server::config::{Account, account};
use headway_server::config::{available_now, default_kept_bytes, raise_descriptor_limit};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Failure;
use status::Status;

mod helper_starter;
mod status;

/// Default limit of client connections if there are enough descriptors. Apache's own limit of
/// processes is lower.
const CONNECTIONS_MAX: usize = 4096;

/// A client that does not receive an answer for this long is disconnected, and opens its files
/// itself.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// A service that runs as root gives clients no rights, but makes a fault in it worth an attack.
const ROOT_WITHOUT_USER: &str = "started as root without --user; name a user that can read the roots, such as --user www-data. \
     Use --user root only if COMMAND needs root";

const SHORT_EXAMPLES: &str = "\
Examples:
  headway backend --root /srv/www --socket /run/headway/open.sock
                                              for clients of the same user
  headway backend --root /srv/www --socket /run/headway/open.sock --user www-data --status 9091
                                              for Apache, with counters on http://127.0.0.1:9091/
Exit codes: 0 success, 1 failure, 2 usage error. `--help` has more options and examples.";

const EXAMPLES: &str = "\
Examples:
  headway backend --root /srv/www --socket /run/headway/open.sock
                                              for clients of the same user
  headway backend --root /srv/www --root /usr/share/javascript \\
      --socket /run/headway/open.sock --user www-data --status 9091
                                              for Apache, started as root, with counters on
                                              http://127.0.0.1:9091/
  headway backend --root /srv/www --socket /run/headway/open.sock --user root \\
      --allow-user www-data -- sh -c '. /etc/apache2/envvars && exec apache2 -D FOREGROUND'
                                              start Apache as root beside it, and end when Apache
                                              ends

Clients are mod_headway for Apache, programs that use libheadway_open, and unchanged programs under
libheadway_preload.so. Clients open each file themselves, with their own rights. The service brings
the file into memory first, so that the client does not wait for the disk. Without the service, or
when it does not answer in time, clients open files as they did before.

Run the service as the server's user or as another user that can read the roots. It needs no
privileges. Root has to give --user, and the service becomes that user. Its answers say nothing
about a file and pass no descriptor, so clients gain no rights through it. Name the roots as the
server's configuration does: symbolic links that lead out of a root are not followed.

Exit codes: 0 success, 1 failure, 2 usage error.";

/// Open files for Apache and other servers, so that they do not wait for the disk
#[derive(Debug, Args)]
#[command(after_help = SHORT_EXAMPLES, after_long_help = EXAMPLES)]
pub struct Arguments {
    /// Directory with files to open; can be repeated
    #[arg(long = "root", value_name = "DIR", required = true)]
    roots: Vec<PathBuf>,
    /// Unix socket for clients; the service creates it
    ///
    /// Its type is SOCK_SEQPACKET.
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Drop root's privileges and run as this user; required when started as root
    ///
    /// A name or a number, with the user's groups. Applies to the service, its helpers and COMMAND.
    /// Before, the service creates the socket. `--user root` stays root, for a COMMAND that needs
    /// it.
    #[arg(long, value_name = "NAME[:GROUP]")]
    user: Option<String>,
    /// Let this user connect, by name or number; can be repeated
    ///
    /// The service's own user can always connect.
    #[arg(long = "allow-user", value_name = "USER")]
    users: Vec<String>,
    /// Let the members of this group connect, by name or number; can be repeated
    #[arg(long = "allow-group", value_name = "GROUP")]
    groups: Vec<String>,
    /// Helper processes: a fixed number (5) or a range (1-16) that scales with demand
    #[arg(long, value_name = "N|MIN-MAX", default_value = "1-16")]
    helpers: Count,
    /// Memory for small files pinned in the page cache; 0 = none
    ///
    /// Files up to 128 KiB are pinned after a client had to wait for them. They are locked in the
    /// page cache, in less than half of the memory that it could use, and within RLIMIT_MEMLOCK.
    /// Default: 0.4 of the control group's memory limit, at most 512MiB; without a limit a
    /// twentieth of the memory, at most 64MiB.
    #[arg(long, value_name = "SIZE")]
    pin_max: Option<Bytes>,
    /// Serve counters over HTTP: a page at /, Prometheus metrics at /metrics
    #[arg(long, value_name = "ADDR")]
    status: Option<ListenAddress>,
    /// Print only warnings and errors
    #[arg(long, short)]
    quiet: bool,
    /// Jobs that may wait for a helper; beyond it the answer is "busy"
    ///
    /// A client whose request is answered "busy" opens the file itself.
    #[arg(long, value_name = "N", default_value_t = 4096, hide_short_help = true)]
    helper_queue_max: usize,
    /// Bytes of a file that are read into memory before the answer, if the client asks for it
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "16MiB",
        hide_short_help = true
    )]
    prefetch_max: Bytes,
    /// Age after which a cached file is checked for changes before it is used
    #[arg(
        long,
        value_name = "TIME",
        default_value = "1s",
        hide_short_help = true
    )]
    revalidate: Millis,
    /// Entries in the file cache
    #[arg(
        long,
        value_name = "N",
        default_value_t = 65_536,
        hide_short_help = true
    )]
    file_cache_entries: usize,
    /// Open files in the file cache [default: half of RLIMIT_NOFILE]
    #[arg(long, value_name = "N", hide_short_help = true)]
    file_cache_descriptors: Option<usize>,
    /// Open connections of clients [default: 4096, or a quarter of RLIMIT_NOFILE if that is less]
    #[arg(long, value_name = "N", hide_short_help = true)]
    max_connections: Option<usize>,
    /// Start this server beside the service; when the server ends, the service ends
    ///
    /// SIGTERM and SIGINT are passed on to it.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    raise_descriptor_limit().context("raising the limit of descriptors")?;
    let account = arguments.user.as_deref().map(Account::parse);
    let account = account.transpose().map_err(Failure::Usage)?;
    if account.is_none() && rustix::process::geteuid().is_root() {
        return Err(Failure::Usage(ROOT_WITHOUT_USER.into()));
    }
    if let Some(account) = account.as_ref().filter(|account| !account.can_assume()) {
        return Err(Failure::Usage(format!(
            "--user: only root can become {account}; start it as root, or as that user without --user"
        )));
    }
    close_on_exec_from(3)?;
    let config = config(arguments, account.as_ref())?;
    let starter = helper_starter::HelperStarter::new();
    let (mut service, remote) =
        Service::new(config, starter.requester()).map_err(|error| match error {
            ServiceError::Root(_) | ServiceError::Listen(_) => Failure::Usage(error.to_string()),
            ServiceError::Loop(_) => Failure::Runtime(error.into()),
        })?;
    let stop = signals()?;
    let status = arguments
        .status
        .map(|ListenAddress(wanted)| Status::bind(wanted));
    let status = status.transpose()?;
    raise_lock_limit(pin_max(arguments));
    // Root can open a low port and roots that the user cannot. All code that reads input from
    // clients runs as the user.
    if let Some(account) = &account {
        account
            .assume()
            .with_context(|| format!("becoming {account}"))?;
        // The user may reach less than root. What it cannot reach it must not serve.
        service
            .reopen_roots()
            .map_err(|error| Failure::Usage(format!("as user {account}: {error}")))?;
        if account.user != 0 && arguments.command.is_empty() {
            drop_capabilities(CapabilitySet::IPC_LOCK).context("giving up capabilities")?;
        }
    }
    starter.start(remote.clone())?;
    if let Some(Bytes(wanted)) = arguments.pin_max {
        warn_of_lock_limit(wanted);
    }
    if !arguments.quiet {
        print_addresses(arguments, status.as_ref().map(|status| status.address));
    }
    if let Some(status) = status {
        status.start(remote.clone())?;
    }
    let server = CompanionServer::start(&arguments.command, &remote)?;
    server.handle_signals(stop, &remote)?;
    service.run().context("the service's loop")?;
    server.ended()
}

fn config(arguments: &Arguments, account: Option<&Account>) -> Result<ServiceConfig, Failure> {
    let descriptors = descriptors();
    let roots = arguments.roots.iter().map(std::path::absolute);
    let mut users = arguments
        .users
        .iter()
        .map(|name| account::user(name))
        .collect::<Result<Vec<_>, _>>()
        .map_err(Failure::Usage)?;
    let own = rustix::process::geteuid().as_raw();
    users.push(account.map_or(own, |account| account.user));
    let groups = arguments.groups.iter().map(|name| account::group(name));
    Ok(ServiceConfig {
        socket: std::path::absolute(&arguments.socket)?,
        roots: roots.collect::<Result<_, _>>()?,
        users,
        groups: groups.collect::<Result<_, _>>().map_err(Failure::Usage)?,
        connections_max: arguments
            .max_connections
            .unwrap_or(CONNECTIONS_MAX.min(descriptors / 4)),
        send_timeout: SEND_TIMEOUT,
        prefetch_max: arguments.prefetch_max.0,
        pin: PinLimits {
            bytes_max: pin_max(arguments),
            available: available_now,
        },
        revalidate: Duration::from_millis(arguments.revalidate.0),
        file_cache: FileCacheLimits {
            entries_max: arguments.file_cache_entries,
            descriptors_max: arguments.file_cache_descriptors.unwrap_or(descriptors / 2),
        },
        helpers: PoolLimits {
            min: arguments.helpers.min,
            max: arguments.helpers.max.max(1),
            queue_max: arguments.helper_queue_max,
            ..PoolLimits::default()
        },
    })
}

fn pin_max(arguments: &Arguments) -> u64 {
    arguments
        .pin_max
        .map_or_else(default_kept_bytes, |Bytes(most)| most)
}

/// Raises RLIMIT_MEMLOCK while the process is still root: a limit survives the change of the user.
/// If the kernel refuses, less is pinned.
fn raise_lock_limit(wanted: u64) {
    let limit = getrlimit(Resource::Memlock);
    if limit.current.is_some_and(|current| current < wanted) {
        let maximum = limit.maximum.map(|maximum| maximum.max(wanted));
        let raised = Rlimit {
            current: Some(wanted),
            maximum,
        };
        let at_least = Rlimit {
            current: limit.maximum.map(|maximum| maximum.min(wanted)),
            ..limit
        };
        let _ = setrlimit(Resource::Memlock, raised)
            .or_else(|_| setrlimit(Resource::Memlock, at_least));
    }
}

fn warn_of_lock_limit(wanted: u64) {
    let most = pinnable_bytes(wanted);
    if most < wanted {
        let _ = writeln!(
            std::io::stderr(),
            "headway: --pin-max {}: only {} can be pinned (RLIMIT_MEMLOCK); raise the limit with ulimit -l, or under systemd \
             with LimitMEMLOCK=",
            Bytes(wanted),
            Bytes(most),
        );
    }
}

/// The limit of descriptors of this process.
fn descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile);
    limit.current.map_or(usize::MAX, |limit| limit as usize)
}

fn print_addresses(arguments: &Arguments, status: Option<std::net::SocketAddr>) {
    let mut line = format!("headway: listening on {}", arguments.socket.display());
    if let Some(status) = status {
        line += &format!(", status on http://{status}/");
    }
    // A closed standard error is not a failure.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// A stream that becomes readable when the service is asked to stop.
fn signals() -> Result<UnixStream, Failure> {
    let (ours, handlers) = UnixStream::pair()?;
    handlers.set_nonblocking(true)?;
    for signal in [SIGTERM, SIGINT] {
        signal_hook::low_level::pipe::register(signal, handlers.try_clone()?)
            .context("signal handlers")?;
    }
    Ok(ours)
}

/// The server that was started beside the service, if a command was given.
struct CompanionServer {
    /// The thread that waits for its end.
    waiter: Option<JoinHandle<std::io::Result<ExitStatus>>>,
    pid: Option<Pid>,
    /// We have sent it SIGTERM, so an end by a signal is not a failure.
    is_stopping: Arc<AtomicBool>,
}

impl CompanionServer {
    fn start(command: &[OsString], remote: &Remote) -> Result<CompanionServer, Failure> {
        let mut beside = CompanionServer {
            waiter: None,
            pid: None,
            is_stopping: Arc::default(),
        };
        if let Some((program, rest)) = command.split_first() {
            // Apache signals its whole process group when it ends, and a terminal signals its
            // foreground group. In a session of its own the command gets signals from us only.
            let child = in_new_session(Command::new(program).args(rest))
                .spawn()
                .with_context(|| format!("starting {}", program.to_string_lossy()))?;
            beside.pid = Pid::from_raw(child.id().cast_signed());
            beside.waiter = Some(wait(child, remote.clone())?);
        }
        Ok(beside)
    }

    /// From now on a signal ends the server, and with it the service. Without a server it ends the
    /// service.
    fn handle_signals(&self, mut stop: UnixStream, remote: &Remote) -> Result<(), Failure> {
        let (pid, is_stopping, remote) = (self.pid, Arc::clone(&self.is_stopping), remote.clone());
        let handle = move || {
            let mut byte = [0; 1];
            while matches!(stop.read(&mut byte), Ok(1..)) {
                is_stopping.store(true, Ordering::Relaxed);
                match pid {
                    // It may have ended this moment.
                    Some(pid) => drop(kill_process(pid, Signal::TERM)),
                    None => remote.stop(),
                }
            }
        };
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(handle)?;
        Ok(())
    }

    fn ended(self) -> Result<(), Failure> {
        let Some(waiter) = self.waiter else {
            return Ok(());
        };
        let status = match waiter.join() {
            Ok(status) => status.context("waiting for the command")?,
            Err(_) => return Err(anyhow!("the thread that waits for the command failed").into()),
        };
        if status.success() || self.is_stopping.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(anyhow!("the command ended ({status}); stopping").into())
    }
}

fn wait(
    mut child: Child,
    remote: Remote,
) -> Result<JoinHandle<std::io::Result<ExitStatus>>, Failure> {
    let wait = move || {
        let status = child.wait();
        remote.stop();
        status
    };
    let thread = std::thread::Builder::new().name("command".into());
    Ok(thread.spawn(wait)?)
}
