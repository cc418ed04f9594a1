//! Which processes: checked against /proc before anything is loaded.

use std::fs;
use std::path::Path;

use crate::error::AttachError;

/// The inode of the host's namespace of process numbers (`PROC_PID_INIT_INO`).
const HOST_NAMESPACE: &str = "pid:[4026531836]";

/// The processes to trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pids {
    /// Process numbers, as `ps` shows them.
    pub pids: Vec<u32>,
    /// Whether children made from now on are traced, too. Those they have already are not.
    pub follow_children: bool,
}

impl Pids {
    /// One process with its threads and its later children.
    pub fn one(pid: u32) -> Pids {
        Pids {
            pids: vec![pid],
            follow_children: true,
        }
    }

    /// Refuses numbers that are no process, or another's in BPF's eyes.
    pub(crate) fn check(&self, processes_max: u32) -> Result<(), AttachError> {
        if self.pids.len() > processes_max as usize {
            return Err(AttachError::TooMany {
                given: self.pids.len(),
                limit: processes_max,
            });
        }
        self.pids.iter().try_for_each(|pid| check(*pid))
    }
}

pub(crate) fn check(pid: u32) -> Result<(), AttachError> {
    let own = fs::read_link("/proc/self/ns/pid");
    if own.is_ok_and(|name| name.as_os_str() != HOST_NAMESPACE) {
        return Err(AttachError::Namespace { pid });
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    let Some(process) = status
        .ok()
        .and_then(|text| field(&text, "Tgid")?.parse().ok())
    else {
        let hint = hint(Path::new("/proc"), pid);
        return Err(AttachError::UnknownPid { pid, hint });
    };
    if process != pid {
        return Err(AttachError::Thread { pid, process });
    }
    if !is_alive(pid) {
        let hint =
            " any more: it has ended, and its parent has not asked for its status".to_owned();
        return Err(AttachError::UnknownPid { pid, hint });
    }
    Ok(())
}

/// Whether the process exists and is not a zombie, which makes no calls.
pub(crate) fn is_alive(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    field(&status, "State").is_some_and(|state| !state.starts_with(['Z', 'X']))
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim())
}

/// A number that a user read inside a container means a process with another number outside.
fn hint(proc: &Path, pid: u32) -> String {
    let inner = pid.to_string();
    let outside: Vec<String> = (fs::read_dir(proc).into_iter().flatten().flatten())
        .filter_map(|entry| fs::read_to_string(entry.path().join("status")).ok())
        .filter_map(|status| {
            let mut numbers = field(&status, "NSpid")?.split_ascii_whitespace();
            let host = numbers.next()?.to_owned();
            numbers
                .next_back()
                .is_some_and(|last| last == inner)
                .then_some(host)
        })
        .collect();
    match outside.as_slice() {
        [] => String::new(),
        some => format!(
            "; process {} has this id inside a container",
            some.join(" or ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::{Pids, hint, is_alive};
    use crate::error::AttachError;

    #[test]
    fn process_id_is_an_error_when_it_is_unused_or_a_thread() {
        let unused = Pids::one(u32::MAX).check(1).expect_err("no such process");
        assert!(unused.to_string().contains("no such process"), "{unused}");
        let (sender, receiver) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let link = std::fs::read_link("/proc/thread-self").expect("proc");
            let number = link
                .file_name()
                .expect("a number")
                .to_string_lossy()
                .into_owned();
            sender
                .send(number.parse().expect("a number"))
                .expect("it is received");
            let _ = ended.recv();
        });
        let tid = receiver.recv().expect("a number");
        let error = Pids::one(tid).check(1).expect_err("a thread");
        drop(end);
        thread.join().expect("the thread ends");
        let own = std::process::id();
        assert!(
            matches!(error, AttachError::Thread { process, .. } if process == own),
            "{error}"
        );
        assert!(Pids::one(own).check(1).is_ok());
    }

    #[test]
    fn zombie_is_refused_when_its_parent_is_late() {
        let mut child = std::process::Command::new("true").spawn().expect("a child");
        while is_alive(child.id()) {
            std::thread::yield_now();
        }
        let error = Pids::one(child.id()).check(1).expect_err("it has ended");
        child.wait().expect("our child");
        assert!(error.to_string().contains("it has ended"), "{error}");
    }

    #[test]
    fn too_many_are_refused_when_the_limit_is_lower() {
        let pids = Pids {
            pids: vec![std::process::id(); 3],
            follow_children: false,
        };
        let error = pids.check(2).expect_err("two at most");
        assert_eq!(
            error.to_string(),
            "3 processes were given; at most 2 can be traced at a time"
        );
    }

    #[test]
    fn host_process_id_is_shown_when_the_id_is_from_inside_a_container() {
        let proc = tempfile::tempdir().expect("a folder");
        for (host, line) in [("40", "40"), ("4711", "4711\t7\t40")] {
            let folder = proc.path().join(host);
            std::fs::create_dir(&folder).expect("a folder");
            std::fs::write(folder.join("status"), format!("Name:\tx\nNSpid:\t{line}\n"))
                .expect("a file");
        }
        assert!(
            hint(proc.path(), 40).contains("process 4711"),
            "{}",
            hint(proc.path(), 40)
        );
        assert_eq!(hint(proc.path(), 7), "");
    }
}
