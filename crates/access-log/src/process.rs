//! The log process: reads batches of lines from the workers and appends them to the file.
//!
//! The log process is the only one that may wait for the log's disk. While it waits, the workers'
//! sockets fill up and the workers drop lines, so a full or slow disk costs log lines and nothing
//! else. It ends when the master has ended, after writing what the workers still send.

use headway_config::LogDaemon;
use headway_control::{Control, ControlError, FromLog, Received, ToLog};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::daemon::Daemon;
use super::queue::{PACKET_BYTES_MAX, newlines};

/// Packets read from one worker before the next worker is served.
const PACKETS_PER_WORKER: usize = 16;
/// Shortest interval between two reports of dropped lines.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Time that workers have for their last lines after the master has ended.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Error that ends the log process.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The channel to the master failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The file could not be opened.
    #[error("{0}")]
    Open(String),
    /// Waiting failed.
    #[error("poll: {0}")]
    Poll(Errno),
}

/// The main function of the log process; `control` is the channel to the master.
pub fn log_main(control: Control) -> Result<(), LogError> {
    let Some((ToLog::Start { log }, _)) = control.receive::<ToLog>()? else {
        return Ok(());
    };
    let paths = log.files().into_iter().map(|file| file.path);
    let files = match paths.map(OpenLog::open).collect::<Result<Vec<_>, _>>() {
        Ok(files) => files,
        Err(why) => {
            control.send(&FromLog::Failed { why: why.clone() }, &[])?;
            return Err(LogError::Open(why));
        }
    };
    control.send(&FromLog::Ready, &[])?;
    let mut process = LogProcess {
        control: Some(control),
        files,
        workers: Vec::new(),
        dropped: 0,
        why: String::new(),
        reported: Instant::now(),
        end: None,
    };
    process.run()
}

struct LogProcess {
    /// Channel to the master; `None` after the master has ended.
    control: Option<Control>,
    /// By number.
    files: Vec<OpenLog>,
    workers: Vec<OwnedFd>,
    dropped: u64,
    why: String,
    reported: Instant,
    end: Option<Instant>,
}

/// Where lines go.
enum Destination {
    File(OwnedFd),
    Daemon(Daemon),
}

impl Destination {
    fn open(path: &Path) -> Result<Destination, String> {
        match LogDaemon::of(path) {
            Some((kind, socket)) => Daemon::open(kind, socket).map(Destination::Daemon),
            None => open(path).map(Destination::File),
        }
    }
}

/// A file of the log.
struct OpenLog {
    path: PathBuf,
    destination: Destination,
    /// Whether the last write ended within a line.
    torn: bool,
}

impl OpenLog {
    fn open(path: PathBuf) -> Result<OpenLog, String> {
        Ok(OpenLog {
            destination: Destination::open(&path)?,
            path,
            torn: false,
        })
    }
}

impl LogProcess {
    fn run(&mut self) -> Result<(), LogError> {
        let mut buffer = vec![0; PACKET_BYTES_MAX + 1];
        loop {
            if self.control.is_none() && (self.workers.is_empty() || self.is_past_deadline()) {
                return Ok(());
            }
            let ready = self.wait()?;
            self.take_lines(&ready, &mut buffer);
            if self.control.is_some() {
                self.handle_orders()?;
            }
            self.report();
        }
    }

    fn is_past_deadline(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
    }

    /// Whether each worker's socket is readable.
    fn wait(&self) -> Result<Vec<bool>, LogError> {
        let mut polled: Vec<PollFd<'_>> = self
            .workers
            .iter()
            .map(|worker| PollFd::new(worker, PollFlags::IN))
            .collect();
        polled.extend(
            self.control
                .iter()
                .map(|control| PollFd::new(control, PollFlags::IN)),
        );
        // One second is short enough for reports of drops and for the deadline.
        let timeout = (self.dropped > 0 || self.end.is_some()).then_some(Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        });
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(LogError::Poll(error)),
        }
        Ok(polled[..self.workers.len()]
            .iter()
            .map(|one| !one.revents().is_empty())
            .collect())
    }

    fn take_lines(&mut self, ready: &[bool], buffer: &mut [u8]) {
        // Backwards, so that removing one does not move those not yet visited.
        for worker in (0..self.workers.len())
            .rev()
            .filter(|worker| ready[*worker])
        {
            for _ in 0..PACKETS_PER_WORKER {
                match rustix::net::recv(&self.workers[worker], &mut *buffer, RecvFlags::DONTWAIT) {
                    Ok((0, _)) => {
                        self.workers.swap_remove(worker);
                        break;
                    }
                    Ok((bytes, _)) => self.append(&buffer[..bytes]),
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => break,
                    Err(_) => {
                        self.workers.swap_remove(worker);
                        break;
                    }
                }
            }
        }
    }

    /// Appends a batch to the file whose number is its first byte. Lines that cannot be written are dropped and counted; the next batch tries
    /// again.
    fn append(&mut self, packet: &[u8]) {
        let Some((number, batch)) = packet.split_first() else {
            return;
        };
        let Some(log) = self.files.get_mut(usize::from(*number)) else {
            return;
        };
        let file = match &mut log.destination {
            Destination::File(file) => file,
            Destination::Daemon(daemon) => {
                let (dropped, why) = daemon.append(batch);
                self.dropped += dropped;
                if dropped > 0 {
                    self.why = why;
                }
                return;
            }
        };
        if log.torn && write_all(file, b"\n").0 == 1 {
            log.torn = false;
        }
        let (written, failed) = write_all(file, batch);
        if let Some(error) = failed {
            log.torn |= written > 0 && batch[written - 1] != b'\n';
            self.dropped += newlines(&batch[written..]);
            self.why = format!("write({}): {error}", log.path.display());
        }
    }

    fn handle_orders(&mut self) -> Result<(), LogError> {
        while let Some(control) = &self.control {
            match control.try_receive::<ToLog>()? {
                Received::Message(ToLog::Worker { .. }, sockets) => self.workers.extend(sockets),
                Received::Message(ToLog::Reopen, _) => self.reopen(),
                Received::Message(ToLog::Start { .. }, _) => {}
                Received::WouldBlock => break,
                Received::Closed => {
                    self.control = None;
                    self.end = Some(Instant::now() + DRAIN_TIMEOUT);
                }
            }
        }
        Ok(())
    }

    /// Reopens the files. If that fails for one, the old file stays in use: lines in it are better
    /// than none.
    fn reopen(&mut self) {
        let mut failed = Vec::new();
        for log in &mut self.files {
            match OpenLog::open(log.path.clone()) {
                Ok(opened) => *log = opened,
                Err(why) => failed.push(why),
            }
        }
        for why in failed {
            self.notify(&FromLog::Failed { why });
        }
    }

    fn report(&mut self) {
        if self.dropped == 0 || self.reported.elapsed() < REPORT_INTERVAL {
            return;
        }
        self.reported = Instant::now();
        let message = FromLog::Dropped {
            lines: self.dropped,
            why: self.why.clone(),
        };
        self.dropped = 0;
        self.notify(&message);
    }

    /// Sends a message to the master without waiting, because waiting would delay the log.
    fn notify(&self, message: &FromLog) {
        if let Some(control) = &self.control {
            let _ = control.try_send(message, &[]);
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the log process may wait")]
fn open(path: &Path) -> Result<OwnedFd, String> {
    if let Some(stream) = standard_stream(path) {
        // As it is: it may be a socket, which cannot be opened again, or a terminal of another user.
        let duplicate = match stream {
            StandardStream::Output => rustix::io::fcntl_dupfd_cloexec(std::io::stdout(), 3),
            StandardStream::Error => rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), 3),
        };
        return duplicate.map_err(|error| format!("{}: {error}", path.display()));
    }
    // O_APPEND, so that truncation by log rotation leaves no hole. O_NOCTTY: it may be a terminal.
    // O_NONBLOCK: opening a FIFO without a reader would block forever, and the master with it.
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOCTTY;
    let opened = rustix::fs::open(path, flags | OFlags::NONBLOCK, Mode::from_raw_mode(0o640));
    let file = opened.map_err(|error| match error {
        Errno::NXIO => format!("open({}): {error}; it has no reader", path.display()),
        _ => format!("open({}): {error}", path.display()),
    })?;
    // Writes may block here: that is the purpose of this process.
    rustix::fs::fcntl_setfl(&file, OFlags::APPEND)
        .map_err(|error| format!("fcntl({}): {error}", path.display()))?;
    Ok(file)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StandardStream {
    Output,
    Error,
}

/// The standard stream that a path names, possibly through symbolic links: images of containers
/// link the paths of their log files to `/dev/stdout`.
fn standard_stream(path: &Path) -> Option<StandardStream> {
    let mut path = path.to_path_buf();
    // The kernel follows as many links (path_resolution(7)).
    for _ in 0..40 {
        match path.to_str()? {
            "/dev/stdout" | "/dev/fd/1" | "/proc/self/fd/1" => return Some(StandardStream::Output),
            "/dev/stderr" | "/dev/fd/2" | "/proc/self/fd/2" => return Some(StandardStream::Error),
            _ => {}
        }
        let target = std::fs::read_link(&path).ok()?;
        path = path.parent()?.join(target);
    }
    None
}

/// Number of bytes written, and the error that prevented the rest.
fn write_all(file: &OwnedFd, bytes: &[u8]) -> (usize, Option<Errno>) {
    let mut written = 0;
    while written < bytes.len() {
        match rustix::io::write(file.as_fd(), &bytes[written..]) {
            Ok(more) => written += more,
            Err(Errno::INTR) => {}
            // A standard stream may be non-blocking, set so by another process which has it too.
            Err(Errno::AGAIN) => {
                let mut writable = [PollFd::new(file, PollFlags::OUT)];
                if let Err(error) = poll(&mut writable, None)
                    && error != Errno::INTR
                {
                    return (written, Some(error));
                }
            }
            Err(error) => return (written, Some(error)),
        }
    }
    (written, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_stream_is_recognised_through_links() {
        let directory = tempfile::tempdir().unwrap();
        let link = |name: &str, target: &str| {
            let path = directory.path().join(name);
            std::os::unix::fs::symlink(target, &path).unwrap();
            path
        };
        let output = link("access.log", "/dev/stdout");
        let error = link("error.log", "/dev/stderr");
        let relative = link("again.log", "access.log");
        let endless = link("endless", "endless");
        let file = directory.path().join("file");
        assert_eq!(standard_stream(&output), Some(StandardStream::Output));
        assert_eq!(standard_stream(&relative), Some(StandardStream::Output));
        assert_eq!(standard_stream(&error), Some(StandardStream::Error));
        for other in [&endless, &file, Path::new("/dev/null"), directory.path()] {
            assert_eq!(standard_stream(other), None, "{}", other.display());
        }
    }

    #[test]
    fn batch_is_written_whole_when_the_stream_is_non_blocking() {
        let (reader, writer) = rustix::pipe::pipe_with(
            rustix::pipe::PipeFlags::NONBLOCK | rustix::pipe::PipeFlags::CLOEXEC,
        )
        .unwrap();
        rustix::fs::fcntl_setfl(&reader, OFlags::empty()).unwrap();
        // More than a pipe holds (pipe(7)).
        let batch = vec![b'a'; 1 << 20];
        let reading = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut std::fs::File::from(reader), &mut bytes).unwrap();
            bytes.len()
        });
        assert_eq!(write_all(&writer, &batch), (batch.len(), None));
        drop(writer);
        assert_eq!(reading.join().unwrap(), batch.len());
    }
}
