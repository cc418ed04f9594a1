//! A trace instance of our own: a ring and a tracer whose settings no other program shares.
//!
//! Nothing is changed that is shared with other users of the tracer: neither the global buffer nor
//! `max_graph_depth`, `set_graph_function` or the `funcgraph-*` options, of which the kernel has
//! only one copy. What others have set there is reported ([`Instance::remarks`]).
//!
//! An instance outlives the process that created it. So its name contains the process id, and
//! [`remove_stale`] removes those of processes that have ended. The kernel refuses to remove an
//! instance whose ring is being read.
//!
//! Source: Documentation/trace/ftrace.rst, "Instances" and "Single thread tracing".

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::FunctionsError;
use super::format::ExitFormat;

/// Where tracefs is mounted.
const TRACEFS_PATHS: &[&str] = &["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

const TRACER: &str = "function_graph";

/// The beginning of our instances' names; the number and the start of the process follow.
const NAME: &str = "headway-";

/// Size of the ring of one CPU, and of all: room for the events of some hundredths of a second.
const RING_KIB_MAX: usize = 8192;
const RINGS_KIB_MAX: usize = 128 * 1024;

/// The ring of a reader that was killed is released slightly after the process ends.
const REMOVAL_TRIES: u32 = 50;
const REMOVAL_PAUSE: Duration = Duration::from_millis(20);

/// The instance of this process. Dropping it removes the tracer from the kernel.
#[derive(Debug)]
pub struct Instance {
    tracefs: PathBuf,
    path: PathBuf,
}

impl Instance {
    /// Returns the path of this process's instance, if the kernel has the tracer at all.
    pub fn own_path() -> Result<PathBuf, FunctionsError> {
        let tracefs = tracefs()?;
        if !has_tracer(&read(&tracefs.join("available_tracers"))?) {
            return Err(FunctionsError::NoTracer);
        }
        Ok(tracefs.join("instances").join(name(std::process::id())))
    }

    /// Creates the instance; nothing is traced yet.
    pub fn create() -> Result<Instance, FunctionsError> {
        let (path, tracefs) = (Instance::own_path()?, tracefs()?);
        remove_stale(&tracefs.join("instances"));
        fs::create_dir(&path).map_err(|error| FunctionsError::io("making", &path, error))?;
        let instance = Instance { tracefs, path };
        if !has_tracer(&read(&instance.path.join("available_tracers"))?) {
            return Err(FunctionsError::NoInstances);
        }
        instance.prepare()?;
        Ok(instance)
    }

    fn prepare(&self) -> Result<(), FunctionsError> {
        let cpus = self.cpus()?.len().max(1);
        let kib = (RINGS_KIB_MAX / cpus).clamp(256, RING_KIB_MAX);
        self.set("tracing_on", "0")?;
        self.set("trace_clock", "mono")?;
        self.set("options/function-fork", "1")?;
        self.set("buffer_size_kb", &kib.to_string())
    }

    /// Traces these threads, and what they start, from now on. The first call activates the tracer:
    /// the kernel rewrites the entries of all its functions, which takes a fraction of a second.
    pub fn follow(&self, threads: &[u32]) -> Result<(), FunctionsError> {
        for thread in threads {
            match self.append("set_ftrace_pid", &thread.to_string()) {
                // It has ended meanwhile.
                Err(FunctionsError::Io { source, .. })
                    if source.raw_os_error() == Some(libc::ESRCH) => {}
                answer => answer?,
            }
        }
        // Without a thread in the list the kernel would trace all there are.
        if !read(&self.path.join("current_tracer"))?.starts_with(TRACER) && !threads.is_empty() {
            self.set("current_tracer", TRACER)?;
            self.resume()?;
        }
        Ok(())
    }

    /// Stops the tracing; what is in the ring can still be read.
    pub fn stop(&self) -> Result<(), FunctionsError> {
        self.set("tracing_on", "0")
    }

    /// Resumes the tracing after [`Instance::stop`].
    pub fn resume(&self) -> Result<(), FunctionsError> {
        self.set("tracing_on", "1")
    }

    /// The CPUs' rings, which answer *would block* when they are empty.
    pub fn rings(&self) -> Result<Vec<File>, FunctionsError> {
        let open = |cpu: PathBuf| {
            let path = cpu.join("trace_pipe_raw");
            let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
            let file = File::options()
                .read(true)
                .custom_flags(nonblocking)
                .open(&path);
            file.map_err(|error| FunctionsError::io("opening", &path, error))
        };
        self.cpus()?.into_iter().map(open).collect()
    }

    /// Bytes of a page of the rings.
    pub fn page_bytes(&self) -> Result<usize, FunctionsError> {
        let text = read(&self.path.join("buffer_subbuf_size_kb")).unwrap_or_default();
        let kib: Option<usize> = text.trim().parse().ok();
        Ok(kib.map_or_else(rustix::param::page_size, |kib| kib * 1024))
    }

    /// The layout of the event that describes a function.
    pub fn format(&self) -> Result<ExitFormat, FunctionsError> {
        let path = self.tracefs.join("events/ftrace/funcgraph_exit/format");
        ExitFormat::parse(&read(&path)?).ok_or(FunctionsError::Format)
    }

    /// What other users of the tracer have set for all, so that it is missing here too.
    pub fn remarks(&self) -> Vec<String> {
        let shared = |file: &str| read(&self.tracefs.join(file)).unwrap_or_default();
        let mut remarks = Vec::new();
        let depth = shared("max_graph_depth");
        if !matches!(depth.trim(), "" | "0") {
            remarks.push(format!(
                "kernel functions are timed to a depth of {}, since max_graph_depth of tracefs says so",
                depth.trim()
            ));
        }
        let graph = shared("set_graph_function");
        if graph
            .lines()
            .any(|line| !line.is_empty() && !line.starts_with('#'))
        {
            remarks.push(
                "only the kernel functions in set_graph_function of tracefs are timed, and what they call".to_owned(),
            );
        }
        if read(&self.path.join("options/sleep-time")).is_ok_and(|text| text.trim() == "0") {
            remarks.push("the times of kernel functions are without sleeps, since the option sleep-time is off".to_owned());
        }
        remarks
    }

    fn cpus(&self) -> Result<Vec<PathBuf>, FunctionsError> {
        let path = self.path.join("per_cpu");
        let entries =
            fs::read_dir(&path).map_err(|error| FunctionsError::io("listing", &path, error))?;
        Ok(entries.flatten().map(|entry| entry.path()).collect())
    }

    fn set(&self, file: &str, value: &str) -> Result<(), FunctionsError> {
        let path = self.path.join(file);
        fs::write(&path, value).map_err(|error| FunctionsError::io("writing", &path, error))
    }

    /// Without truncating, which would empty a list first.
    fn append(&self, file: &str, value: &str) -> Result<(), FunctionsError> {
        let path = self.path.join(file);
        let written = File::options()
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(value.as_bytes()));
        written.map_err(|error| FunctionsError::io("writing", &path, error))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // A failure cannot be reported here; the next process that creates an instance tries again.
        let _ = remove(&self.path);
    }
}

/// Removes an instance, and its tracer from the kernel.
///
/// # Errors
///
/// The instance is not one of ours, or the kernel keeps it because its ring is being read.
///
/// ```
/// use std::path::Path;
///
/// // Only instances of FunctionTimes are removed.
/// assert!(headway_debox::remove_instance(Path::new("/sys/kernel/tracing/instances/other")).is_err());
/// ```
pub fn remove(path: &Path) -> io::Result<()> {
    let ours = path
        .file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| owner(name).is_some());
    let among = path.parent().and_then(Path::parent);
    if !ours
        || !among.is_some_and(|tracefs| TRACEFS_PATHS.iter().any(|path| tracefs == Path::new(path)))
    {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "no trace instance of headway",
        ));
    }
    for _ in 1..REMOVAL_TRIES {
        match fs::remove_dir(path) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                std::thread::sleep(REMOVAL_PAUSE)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            answer => return answer,
        }
    }
    fs::remove_dir(path)
}

/// Removes the instances of processes that were killed.
fn remove_stale(instances: &Path) {
    for entry in fs::read_dir(instances).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let left = name
            .to_str()
            .is_some_and(|name| owner(name).is_some_and(|pid| name != self::name(pid)));
        if left {
            // Busy: a process we do not see, in another container, is at it.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The name of a process's instance; its number alone comes again.
fn name(pid: u32) -> String {
    format!("{NAME}{pid}-{}", began(pid).unwrap_or_default())
}

/// The process an instance's name names, if it is one of ours.
fn owner(name: &str) -> Option<u32> {
    let (pid, began) = name.strip_prefix(NAME)?.split_once('-')?;
    began
        .bytes()
        .all(|digit| digit.is_ascii_digit())
        .then_some(())?;
    pid.parse().ok()
}

/// When a process began, in ticks since boot: the 22nd field of /proc/PID/stat (proc_pid_stat(5)).
fn began(pid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let behind_name = &text[text.rfind(')')? + 1..];
    behind_name
        .split_ascii_whitespace()
        .nth(19)
        .map(str::to_owned)
}

/// Where tracefs is.
fn tracefs() -> Result<PathBuf, FunctionsError> {
    let mut why = None;
    for path in TRACEFS_PATHS {
        let list = Path::new(path).join("available_tracers");
        match File::open(&list) {
            Ok(_) => return Ok(PathBuf::from(path)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                why = Some(FunctionsError::NotPermitted);
            }
            Err(_) => {}
        }
    }
    Err(why.unwrap_or(FunctionsError::NoTracefs))
}

/// Whether this kernel has the tracer, as far as this user can see.
pub fn is_offered() -> bool {
    tracefs().is_ok_and(|tracefs| {
        read(&tracefs.join("available_tracers")).is_ok_and(|list| has_tracer(&list))
    })
}

fn has_tracer(list: &str) -> bool {
    list.split_ascii_whitespace().any(|tracer| tracer == TRACER)
}

fn read(path: &Path) -> Result<String, FunctionsError> {
    let mut text = String::new();
    let read = File::open(path).and_then(|mut file| file.read_to_string(&mut text));
    read.map_err(|error| FunctionsError::io("reading", path, error))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn instance_owner_is_known_only_when_the_name_is_ours() {
        let pid = std::process::id();
        assert_eq!(super::owner(&super::name(pid)), Some(pid));
        for name in [
            "headway",
            "headway-",
            "headway-12",
            "headway-x-1",
            "headway-1-x",
            "other-1-2",
        ] {
            assert_eq!(super::owner(name), None, "{name}");
        }
    }

    #[test]
    fn removal_is_refused_when_the_directory_is_no_instance_of_ours() {
        for path in [
            "/tmp/headway-1-2",
            "/sys/kernel/tracing/instances/other",
            "/sys/kernel/tracing/headway-1-2",
        ] {
            let error = super::remove(Path::new(path)).expect_err(path);
            assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{path}");
        }
        // It is removed already.
        let gone = Path::new("/sys/kernel/tracing/instances/headway-1-0");
        assert!(super::remove(gone).is_ok() || !gone.parent().is_some_and(Path::exists));
    }
}
