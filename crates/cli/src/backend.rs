//! `headway backend`: the open-file service, beside a server that would wait for the disk itself.
//!
//! Glue: the service's loop runs in the first thread, [`spawner`] starts its helpers in another
//! (fork and exec wait), [`status`] answers an administrator in a third, and one waits for signals.
//! A command given at the end is started when the service listens, and ends with it.

use anyhow::{Context, anyhow};
use clap::Args;
use headway_files::service::{Remote, Service, ServiceConfig, ServiceError};
use headway_files::{KeepLimits, keepable_bytes};
use headway_files::{NamesBounds, PoolLimits};
use headway_server::config::units::{Bytes, Count, ListenAddress, Millis};
use headway_server::config::{available_now, default_kept_bytes, raise_descriptor_limit};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Failure;
use status::Status;

mod identity;
mod spawner;
mod status;

/// Clients at most, unless there are too few descriptors for so many: Apache's own bound of
/// processes is lower.
const CLIENTS_MAX: usize = 4096;

/// A client that has not taken an answer for so long is closed, and opens its files itself.
const PATIENCE: Duration = Duration::from_secs(10);

const EXAMPLES: &str = "\
Examples:
  headway backend --root /srv/www --socket /run/headway/open.sock
                                                 for clients of the same user
  headway backend --root /srv/www --root /usr/share/javascript --socket /run/headway/open.sock \\
      --user www-data --status 9091              started by root, for Apache, with counters on
                                                 http://127.0.0.1:9091/
  headway backend --root /srv/www --socket /run/headway/open.sock --allow-user www-data \\
      -- sh -c '. /etc/apache2/envvars && exec apache2 -D FOREGROUND'
                                                 starts Apache beside it, as root, and ends with it

Clients are mod_headway for Apache, programs with libheadway_open, and unchanged programs under
libheadway_preload.so. They open each file themselves, with their own rights: the service sees to it that
this does not wait. Without the service, or when it does not answer, they do what they always did.

Run it as the server's user, or as another one that can read the roots; it needs no privilege, and with
--user it gives up root's. Name the roots as the server's configuration does: symbolic links that lead out
of a root are not followed here.

Exit codes: 0 done, 1 failed, 2 wrong use.";

/// Opens files for a server's processes, so that they need not wait for the disk (Flashpache).
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// A directory whose files are opened, may be repeated
    #[arg(long = "root", value_name = "DIR", required = true)]
    roots: Vec<PathBuf>,
    /// Where clients connect: a Unix socket of type SOCK_SEQPACKET is made there
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Run as this user, by name or number, with its groups: the service, its helpers and COMMAND.
    /// For root, who opens the roots and makes the socket first [default: as whoever starts it]
    #[arg(long, value_name = "NAME[:GROUP]")]
    user: Option<String>,
    /// A user who may connect, by name or number, may be repeated; the service's own user always
    /// may
    #[arg(long = "allow-user", value_name = "USER")]
    users: Vec<String>,
    /// A group whose members may connect, by name or number, may be repeated
    #[arg(long = "allow-group", value_name = "GROUP")]
    groups: Vec<String>,
    /// Helper processes: 5, or 1-16 to follow the work there is
    #[arg(long, value_name = "N|MIN-MAX", default_value = "1-16")]
    helpers: Count,
    /// Jobs that wait for a helper at most; one more is answered "busy", and the client opens the
    /// file itself
    #[arg(long, value_name = "N", default_value_t = 4096)]
    queue_max: usize,
    /// Bytes of a file at most that are read into memory before the answer; a client asks for some
    #[arg(long, value_name = "SIZE", default_value = "16MiB")]
    read_in_max: Bytes,
    /// Small files (up to 128 KiB) that stay in memory once somebody had to wait for them, so much
    /// of them at most: locked in the page cache, less than half of what it could have, and no more
    /// than RLIMIT_MEMLOCK allows; 0: none [default: 0.4 of a control group's limit, 512MiB at
    /// most; without one a twentieth of the memory, 64MiB at most]
    #[arg(long, value_name = "SIZE")]
    keep_max: Option<Bytes>,
    /// An answer older than this is compared with the directory again before it is used
    #[arg(long, value_name = "TIME", default_value = "1s")]
    revalidate: Millis,
    /// Names remembered at most
    #[arg(long, value_name = "N", default_value_t = 65_536)]
    names_max: usize,
    /// Files held open for them at most [default: half of the descriptors this process may have]
    #[arg(long, value_name = "N")]
    descriptors_max: Option<usize>,
    /// Clients at most [default: 4096, or a quarter of the descriptors]
    #[arg(long, value_name = "N")]
    clients_max: Option<usize>,
    /// Show counters over HTTP: for people at /, for Prometheus at /metrics
    #[arg(long, value_name = "ADDR")]
    status: Option<ListenAddress>,
    /// Print nothing but trouble
    #[arg(long, short)]
    quiet: bool,
    /// A server to start beside it; the service ends when that does, and hands SIGTERM and SIGINT
    /// on to it
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    raise_descriptor_limit().context("raising the limit of descriptors")?;
    let account = arguments.user.as_deref().map(identity::account);
    let account = account.transpose().map_err(Failure::Use)?;
    let config = config(arguments, account.as_ref())?;
    let spawner = spawner::Spawner::new();
    let (service, remote) = Service::new(config, spawner.asker()).map_err(|error| match error {
        ServiceError::Root(_) | ServiceError::Listen(_) => Failure::Use(error.to_string()),
        ServiceError::Loop(_) => Failure::Work(error.into()),
    })?;
    let stop = signals()?;
    let status = arguments
        .status
        .map(|ListenAddress(wanted)| Status::bind(wanted));
    let status = status.transpose()?;
    raise_lock_limit(keep_max(arguments));
    // Root opens a low port and a root that is closed to others; whatever reads what a client sends
    // is the user's.
    if let Some(account) = &account {
        account.assume()?;
    }
    spawner.start(remote.clone())?;
    if let Some(Bytes(wanted)) = arguments.keep_max {
        warn_of_lock_limit(wanted);
    }
    if !arguments.quiet {
        announce(arguments, status.as_ref().map(|status| status.address));
    }
    if let Some(status) = status {
        status.start(remote.clone())?;
    }
    if account.is_none() {
        warn_of_root();
    }
    let server = Beside::start(&arguments.command, &remote)?;
    server.heed(stop, &remote)?;
    service.run().context("the service's loop")?;
    server.ended()
}

fn config(
    arguments: &Arguments,
    account: Option<&identity::Account>,
) -> Result<ServiceConfig, Failure> {
    let descriptors = descriptors();
    let roots = arguments.roots.iter().map(std::path::absolute);
    let mut users = arguments
        .users
        .iter()
        .map(|name| identity::user(name))
        .collect::<Result<Vec<_>, _>>()
        .map_err(Failure::Use)?;
    let own = rustix::process::geteuid().as_raw();
    users.push(account.map_or(own, |account| account.user));
    let groups = arguments.groups.iter().map(|name| identity::group(name));
    Ok(ServiceConfig {
        socket: std::path::absolute(&arguments.socket)?,
        roots: roots.collect::<Result<_, _>>()?,
        users,
        groups: groups.collect::<Result<_, _>>().map_err(Failure::Use)?,
        clients_max: arguments
            .clients_max
            .unwrap_or(CLIENTS_MAX.min(descriptors / 4)),
        patience: PATIENCE,
        read_in_max: arguments.read_in_max.0,
        keep: KeepLimits {
            bytes_max: keep_max(arguments),
            available: available_now,
        },
        revalidate: Duration::from_millis(arguments.revalidate.0),
        names: NamesBounds {
            entries_max: arguments.names_max,
            descriptors_max: arguments.descriptors_max.unwrap_or(descriptors / 2),
        },
        helpers: PoolLimits {
            min: arguments.helpers.min,
            max: arguments.helpers.max.max(1),
            queue_max: arguments.queue_max,
            ..PoolLimits::default()
        },
    })
}

fn keep_max(arguments: &Arguments) -> u64 {
    arguments
        .keep_max
        .map_or_else(default_kept_bytes, |Bytes(most)| most)
}

/// Whoever becomes another user keeps limits, and no rights. Where it is refused less is kept.
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
    let most = keepable_bytes(wanted);
    if most < wanted {
        let _ = writeln!(
            std::io::stderr(),
            "headway: --keep-max {}: {} can be kept in memory, as much as may be locked (RLIMIT_MEMLOCK); raise it by ulimit -l, \
             or under systemd by LimitMEMLOCK=",
            Bytes(wanted),
            Bytes(most),
        );
    }
}

/// How many descriptors this process may have.
fn descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile);
    limit.current.map_or(usize::MAX, |limit| limit as usize)
}

fn announce(arguments: &Arguments, status: Option<std::net::SocketAddr>) {
    let mut line = format!("headway: opening files at {}", arguments.socket.display());
    if let Some(status) = status {
        line += &format!(", counters on http://{status}/");
    }
    // If standard error is closed there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Clients gain nothing by a service that may read everything; whoever finds a fault in it would.
fn warn_of_root() {
    if rustix::process::geteuid().is_root() {
        let _ = writeln!(
            std::io::stderr(),
            "headway: the service runs as root, which it need not: start it with --user NAME, a user who can read the roots"
        );
    }
}

/// Readable when the service is to end.
fn signals() -> Result<UnixStream, Failure> {
    let (ours, handlers) = UnixStream::pair()?;
    handlers.set_nonblocking(true)?;
    for signal in [SIGTERM, SIGINT] {
        signal_hook::low_level::pipe::register(signal, handlers.try_clone()?)
            .context("signal handlers")?;
    }
    Ok(ours)
}

/// The server beside the service, if one was named.
struct Beside {
    /// Waits for its end.
    waiter: Option<JoinHandle<std::io::Result<ExitStatus>>>,
    pid: Option<Pid>,
    /// We have told it to end, so the signal is no failure.
    told: Arc<AtomicBool>,
}

impl Beside {
    fn start(command: &[OsString], remote: &Remote) -> Result<Beside, Failure> {
        let mut beside = Beside {
            waiter: None,
            pid: None,
            told: Arc::default(),
        };
        if let Some((program, words)) = command.split_first() {
            let child = Command::new(program)
                .args(words)
                // Apache ends itself by a signal to its whole group, and a terminal signals its
                // own: the service is in neither, and tells the command itself.
                .process_group(0)
                .spawn()
                .with_context(|| format!("starting {}", program.to_string_lossy()))?;
            beside.pid = Pid::from_raw(child.id().cast_signed());
            beside.waiter = Some(wait(child, remote.clone())?);
        }
        Ok(beside)
    }

    /// From now on signals end the server, whose end then ends the service; or the service, if it
    /// is alone.
    fn heed(&self, mut stop: UnixStream, remote: &Remote) -> Result<(), Failure> {
        let (pid, told, remote) = (self.pid, Arc::clone(&self.told), remote.clone());
        let heed = move || {
            let mut byte = [0; 1];
            while matches!(stop.read(&mut byte), Ok(1..)) {
                told.store(true, Ordering::Relaxed);
                match pid {
                    // It may have ended this moment.
                    Some(pid) => drop(kill_process(pid, Signal::TERM)),
                    None => remote.stop(),
                }
            }
        };
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(heed)?;
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
        if status.success() || self.told.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(anyhow!("the command ended with {status}; the service ends with it").into())
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
