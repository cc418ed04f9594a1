//! Finds a running server: its processes by name, number or port, and the ports that they listen on.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use headway_debox_bpf::{AttachError, RequestLimits, RequestObserver, ServerPort};

/// The kernel cuts a process's name after this many bytes.
const COMM_BYTES_MAX: usize = 15;

/// Which server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Processes with this name, and their children.
    Name(String),
    /// A process and its children.
    Pid(u32),
    /// The processes that listen on a TCP port, in any network namespace.
    Port(u16),
    /// The processes of a control group, by its path or the name or number of a unit or container.
    Group(String),
}

/// A server that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// The name of its program.
    pub name: String,
    /// Its processes.
    pub pids: Vec<u32>,
    /// The ports that they listen on.
    pub ports: Vec<ServerPort>,
    /// The Unix sockets that they listen on.
    pub sockets: Vec<ServerSocket>,
}

/// A Unix socket on which a server listens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerSocket {
    /// Its inode.
    pub inode: u64,
    /// Its path; an abstract name begins with `@`.
    pub path: String,
}

/// Why a server was not found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerError {
    /// No process has the name.
    #[error("no process is named {0} (is the server running? `ss -ltnp` lists the listeners)")]
    NoName(String),
    /// No process has the number; and what has it, if anything does.
    #[error("no such process: {0}{1}")]
    NoPid(u32, String),
    /// No process listens on the port.
    #[error(
        "no process that you may see listens on TCP port {0} (`ss -ltnp` lists the listeners; other users' processes need \
         root)"
    )]
    NoPort(u16),
    /// No process is in the control group.
    #[error(
        "no process is in a control group {0}: give its path below /sys/fs/cgroup, the name of a unit, or at least \
         {CONTAINER_ID_MIN} digits of a container's id"
    )]
    NoGroup(String),
}

/// The first characters of a container's id, as `docker ps` shows them. These are unique.
const CONTAINER_ID_MIN: usize = 12;

/// A process, as /proc shows it.
struct Process {
    parent: u32,
    comm: String,
    program: String,
}

impl Server {
    /// Finds a server.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn find(target: &Target) -> Result<Server, ServerError> {
        let all = processes();
        let own = std::process::id();
        let mut roots: BTreeSet<u32> = match target {
            Target::Name(name) => (all.iter())
                .filter(|(pid, process)| **pid != own && process.is_named(name))
                .map(|(pid, _)| *pid)
                .collect(),
            Target::Pid(pid) => all.contains_key(pid).then_some(*pid).into_iter().collect(),
            Target::Port(port) => (all.keys().copied())
                .filter(|pid| *pid != own)
                .filter(|pid| {
                    listening_ports(*pid)
                        .iter()
                        .any(|known| known.port == *port)
                })
                .collect(),
            Target::Group(group) => (all.keys().copied())
                .filter(|pid| *pid != own && is_in_group(*pid, group))
                .collect(),
        };
        if roots.is_empty() {
            return Err(match target {
                Target::Name(name) => ServerError::NoName(name.clone()),
                Target::Pid(pid) => ServerError::NoPid(*pid, no_process(*pid)),
                Target::Port(port) => ServerError::NoPort(*port),
                Target::Group(group) => ServerError::NoGroup(group.clone()),
            });
        }
        add_children(&mut roots, &all);
        let listens = |pid: &&u32| !listening_ports(**pid).is_empty();
        let named = match target {
            // A container may have a program which starts the server.
            Target::Group(_) => roots.iter().find(listens).and_then(|pid| all.get(pid)),
            _ => None,
        };
        let first = named.or_else(|| roots.iter().find_map(|pid| all.get(pid)));
        let sockets: BTreeSet<ServerSocket> = match target {
            Target::Port(_) => BTreeSet::new(),
            _ => (roots.iter().flat_map(|pid| listening_sockets(*pid))).collect(),
        };
        let ports: BTreeSet<ServerPort> =
            roots.iter().flat_map(|pid| listening_ports(*pid)).collect();
        Ok(Server {
            name: first.map_or_else(String::new, |process| process.program.clone()),
            ports: (ports.into_iter())
                .filter(|known| !matches!(target, Target::Port(port) if *port != known.port))
                .collect(),
            sockets: sockets.into_iter().collect(),
            pids: roots.into_iter().collect(),
        })
    }
}

impl Server {
    /// Observes its requests.
    ///
    /// # Errors
    ///
    /// See [`AttachError`]; each says what to do.
    pub fn observe(&self, limits: &RequestLimits) -> Result<RequestObserver, AttachError> {
        let mut observer = RequestObserver::start(&self.pids, &self.ports, limits)?;
        let mut sockets = self.sockets.iter();
        sockets.try_for_each(|socket| observer.add_listener(socket.inode))?;
        // It may have forked before that was observed.
        let mut family: BTreeSet<u32> = self.pids.iter().copied().collect();
        add_children(&mut family, &processes());
        let new = family.iter().filter(|pid| !self.pids.contains(pid));
        new.copied().try_for_each(|pid| observer.add_process(pid))?;
        Ok(observer)
    }
}

impl Process {
    /// By the thread's name or that of the executable.
    fn is_named(&self, name: &str) -> bool {
        let cut = name.len() > COMM_BYTES_MAX;
        self.program == name
            || self.comm == name
            || (cut
                && name.as_bytes().starts_with(self.comm.as_bytes())
                && self.comm.len() == COMM_BYTES_MAX)
    }
}

/// All processes but kernel threads.
fn processes() -> BTreeMap<u32, Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| Some((pid, process(pid)?))).collect()
}

/// `None` for a kernel thread, which has no program, and for one that has ended.
fn process(pid: u32) -> Option<Process> {
    let folder = Path::new("/proc").join(pid.to_string());
    let status = fs::read_to_string(folder.join("status")).ok()?;
    let field = |name: &str| {
        let line = (status.lines()).find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(line.trim().to_owned())
    };
    let (comm, parent) = (field("Name")?, field("PPid")?.parse().ok()?);
    if field("State")?.starts_with(['Z', 'X']) || field("VmSize").is_none() {
        return None;
    }
    // Of other users' processes the link cannot be read.
    let program = fs::read_link(folder.join("exe")).ok();
    let program = (program.as_deref())
        .and_then(|path| path.file_name()?.to_str())
        .map_or_else(
            || comm.clone(),
            |name| name.trim_end_matches(" (deleted)").to_owned(),
        );
    Some(Process {
        parent,
        comm,
        program,
    })
}

/// What has a number that is none of a process which can serve.
fn no_process(pid: u32) -> String {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else {
        return String::new();
    };
    let group: Option<u32> = status
        .lines()
        .find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
    match group {
        Some(group) if group != pid => format!(" (it is a thread of process {group})"),
        _ => " (it is a kernel thread, which answers no requests, or has just ended)".to_owned(),
    }
}

fn add_children(found: &mut BTreeSet<u32>, all: &BTreeMap<u32, Process>) {
    loop {
        let before = found.len();
        let more = all
            .iter()
            .filter(|(_, process)| found.contains(&process.parent));
        let more: Vec<u32> = more.map(|(pid, _)| *pid).collect();
        found.extend(more);
        if found.len() == before {
            return;
        }
    }
}

/// What cannot be seen of these processes if one of them uses io_uring(7).
pub fn io_uring_note(pids: &[u32]) -> Option<String> {
    let pid = pids.iter().find(|pid| uses_io_uring(**pid))?;
    Some(format!(
        "Process {pid} uses io_uring: a request that waits for a file which is read that way waits in io_uring_enter, \
         and its connections are in no accept queue."
    ))
}

/// What cannot be seen of processes of 32 bits; `None` if there is none.
pub fn compat_note(pids: &[u32]) -> Option<String> {
    let pid = pids.iter().find(|pid| is_of_32_bits(**pid))?;
    Some(format!(
        "Process {pid} is a 32-bit program: its calls have no names, and when it accepted connections is not known."
    ))
}

/// By the class of its executable file (elf(5)); false if it cannot be read.
fn is_of_32_bits(pid: u32) -> bool {
    let mut ident = [0; 5];
    let file = fs::File::open(format!("/proc/{pid}/exe"));
    let read = file.and_then(|mut file| file.read_exact(&mut ident));
    read.is_ok() && &ident == b"\x7fELF\x01"
}

/// By its descriptors; false if they cannot be read.
fn uses_io_uring(pid: u32) -> bool {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"));
    let mut links = (entries.into_iter().flatten().flatten())
        .filter_map(|entry| fs::read_link(entry.path()).ok());
    links.any(|link| link.as_os_str() == "anon_inode:[io_uring]")
}

/// The name of a process's program.
pub(crate) fn program_of(pid: u32) -> Option<String> {
    Some(process(pid)?.program)
}

/// The inodes of a process's sockets; none if its descriptors cannot be read.
pub(crate) fn socket_inodes(pid: u32) -> BTreeSet<u64> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten();
    entries
        .filter_map(|entry| {
            let link = fs::read_link(entry.path()).ok()?;
            let number = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
            number.parse().ok()
        })
        .collect()
}

/// The TCP ports that a process listens on; none if its descriptors cannot be read.
pub fn listening_ports(pid: u32) -> Vec<ServerPort> {
    let sockets = socket_inodes(pid);
    if sockets.is_empty() {
        return Vec::new();
    }
    let Ok(namespace) = fs::metadata(format!("/proc/{pid}/ns/net")) else {
        return Vec::new();
    };
    let tables = ["tcp", "tcp6"].map(|name| fs::read_to_string(format!("/proc/{pid}/net/{name}")));
    let listening = (tables.iter().flatten()).flat_map(|table| table.lines().filter_map(listener));
    let ports: BTreeSet<u16> = listening
        .filter(|(inode, _)| sockets.contains(inode))
        .map(|(_, port)| port)
        .collect();
    (ports.into_iter())
        .map(|port| ServerPort {
            namespace: namespace.ino() as u32,
            port,
        })
        .collect()
}

/// The Unix sockets that a process listens on; none if its descriptors cannot be read.
fn listening_sockets(pid: u32) -> Vec<ServerSocket> {
    let own = socket_inodes(pid);
    if own.is_empty() {
        return Vec::new();
    }
    let table = fs::read_to_string(format!("/proc/{pid}/net/unix")).unwrap_or_default();
    (table.lines().filter_map(unix_listener))
        .filter(|socket| own.contains(&socket.inode))
        .collect()
}

/// A line of /proc/net/unix, if it is a stream socket (type 1) which accepts connections (__SO_ACCEPTCON).
fn unix_listener(line: &str) -> Option<ServerSocket> {
    let mut fields = line.split_ascii_whitespace().skip(3);
    let (flags, kind) = (
        u32::from_str_radix(fields.next()?, 16).ok()?,
        fields.next()?,
    );
    let (inode, path) = (fields.nth(1)?.parse().ok()?, fields.next()?);
    (flags & 0x10000 != 0 && kind == "0001").then(|| ServerSocket {
        inode,
        path: path.to_owned(),
    })
}

/// Whether a process is in a control group or below it (cgroups(7)).
fn is_in_group(pid: u32, group: &str) -> bool {
    let table = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let wanted = group.trim_start_matches("/sys/fs/cgroup").trim_matches('/');
    !wanted.is_empty() && table.lines().any(|line| names_group(line, wanted))
}

/// A line is `NUMBER:CONTROLLERS:PATH`.
fn names_group(line: &str, wanted: &str) -> bool {
    let path = line.splitn(3, ':').nth(2).unwrap_or_default();
    let path = path.trim_matches('/');
    let below = |rest: &str| rest.is_empty() || rest.starts_with('/');
    let is_id =
        wanted.len() >= CONTAINER_ID_MIN && wanted.bytes().all(|byte| byte.is_ascii_hexdigit());
    path.strip_prefix(wanted).is_some_and(below)
        || path
            .split('/')
            .any(|part| part == wanted || is_id && part.contains(wanted))
}

/// Inode and port of a line of /proc/net/tcp, if it is a listener (state 0A).
fn listener(line: &str) -> Option<(u64, u16)> {
    let mut fields = line.split_ascii_whitespace();
    let local = fields.nth(1)?;
    if fields.nth(1)? != "0A" {
        return None;
    }
    let port = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
    Some((fields.nth(5)?.parse().ok()?, port))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::{
        Server, ServerError, Target, listener, listening_ports, listening_sockets, names_group,
    };

    #[test]
    fn listener_is_read_from_a_line_of_the_kernel() {
        let line = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0";
        assert_eq!(listener(line), Some((4711, 8080)));
        assert_eq!(listener(&line.replace(" 0A ", " 01 ")), None);
        assert_eq!(listener("sl local_address"), None);
    }

    #[test]
    fn own_process_is_found_by_number_with_its_ports() {
        let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = socket.local_addr().expect("an address").port();
        let own = std::process::id();
        let server = Server::find(&Target::Pid(own)).expect("it runs");
        assert!(server.pids.contains(&own), "{server:?}");
        assert!(server.ports.iter().any(|known| known.port == port));
        drop(socket);
        assert!(!listening_ports(own).iter().any(|known| known.port == port));
    }

    #[test]
    fn thread_is_told_from_a_process_that_does_not_exist() {
        let own = std::process::id();
        let error = std::thread::spawn(|| {
            let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            Server::find(&Target::Pid(tid)).expect_err("it is a thread")
        });
        let text = error.join().expect("it ends").to_string();
        assert!(
            text.ends_with(&format!("(it is a thread of process {own})")),
            "{text}"
        );
        let error = Server::find(&Target::Pid(u32::MAX)).expect_err("there is none");
        assert_eq!(error.to_string(), format!("no such process: {}", u32::MAX));
    }

    #[test]
    fn kernel_thread_is_named_as_such() {
        // kthreadd, unless this process is in a namespace of its own.
        if !std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
            return;
        }
        let error = Server::find(&Target::Pid(2)).expect_err("it has no program");
        assert!(error.to_string().contains("kernel thread"), "{error}");
    }

    #[test]
    fn own_unix_socket_is_found_with_its_path() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let socket = std::os::unix::net::UnixListener::bind(&path).expect("a listener");
        let listens = || {
            let all = listening_sockets(std::process::id());
            all.iter()
                .any(|known| Some(known.path.as_str()) == path.to_str())
        };
        assert!(listens());
        drop(socket);
        assert!(!listens());
    }

    #[test]
    fn group_is_named_by_path_unit_or_container() {
        let unit = "0::/system.slice/nginx.service";
        let id = "0123456789abcdef".repeat(4);
        let container = format!("4:memory:/system.slice/docker-{id}.scope");
        assert!(names_group(unit, "nginx.service"));
        assert!(names_group(unit, "system.slice"));
        assert!(!names_group(unit, "system") && !names_group(unit, "nginx"));
        assert!(names_group(&container, &id[..12]));
        assert!(!names_group(&container, &id[..11]));
        assert_eq!(
            Server::find(&Target::Group("/".to_owned())),
            Err(ServerError::NoGroup("/".to_owned()))
        );
    }

    #[test]
    fn server_that_is_not_there_is_an_error() {
        let name = "no-such-server".to_owned();
        assert_eq!(
            Server::find(&Target::Name(name.clone())),
            Err(ServerError::NoName(name))
        );
        assert_eq!(
            Server::find(&Target::Pid(u32::MAX)),
            Err(ServerError::NoPid(u32::MAX, String::new()))
        );
    }
}
