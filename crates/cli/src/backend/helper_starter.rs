//! Starts helpers for the service in a thread of its own, because fork and exec block and the
//! service's loop must not.

use headway_files::service::Remote;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Interval of reaping ended helpers.
const REAP_INTERVAL: Duration = Duration::from_secs(1);

/// The thread's two ends, until it starts.
pub struct HelperStarter {
    request: Sender<usize>,
    requested: Receiver<usize>,
}

impl HelperStarter {
    /// Nothing is started yet.
    pub fn new() -> HelperStarter {
        let (request, requested) = channel();
        HelperStarter { request, requested }
    }

    /// What the service calls when it wants helpers.
    pub fn requester(&self) -> Box<dyn FnMut(usize)> {
        let request = self.request.clone();
        Box::new(move |count| {
            // The thread lives as long as the service.
            let _ = request.send(count);
        })
    }

    /// Starts the thread.
    pub fn start(self, remote: Remote) -> std::io::Result<()> {
        let HelperStarter { request, requested } = self;
        // The service has the other sender, and its end is the thread's.
        drop(request);
        let thread = std::thread::Builder::new().name("helper starter".into());
        thread
            .spawn(move || start_helpers(&requested, &remote))
            .map(drop)
    }
}

fn start_helpers(requested: &Receiver<usize>, remote: &Remote) {
    let mut children: Vec<Child> = Vec::new();
    let mut is_reported = false;
    loop {
        match requested.recv_timeout(REAP_INTERVAL) {
            Ok(count) => (0..count).for_each(|_| match helper(remote) {
                Ok(child) => {
                    children.push(child);
                    is_reported = false;
                }
                Err(error) => {
                    remote.no_helper();
                    // The service tries again ten times per second; report only once.
                    if !std::mem::replace(&mut is_reported, true) {
                        report(&error);
                    }
                }
            }),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }
}

/// Reports that a helper could not be started: without helpers no request is answered in time.
fn report(error: &std::io::Error) {
    let hint = match error.kind() {
        std::io::ErrorKind::PermissionDenied => "; may the service's user execute this program?",
        _ => "",
    };
    let _ = writeln!(
        std::io::stderr(),
        "headway: a helper of the service could not be started: {error}{hint}"
    );
}

/// The helper's command: this binary again, by /proc/self/exe so that it is the same version after
/// an upgrade. The helper ends itself when the service's end of the socket closes.
fn helper(remote: &Remote) -> std::io::Result<Child> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (ours, theirs) = socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
    let child = Command::new("/proc/self/exe")
        .arg0("headway")
        .arg("serve-helper")
        .stdin(theirs)
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()?;
    remote.helper(ours, child.id());
    Ok(child)
}
