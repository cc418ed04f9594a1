//! Logs that go to a daemon of the system and not to a file: `syslog`, `journal`, or either with the path of
//! its socket.

use std::path::{Path, PathBuf};

/// The daemon that gets the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogDaemon {
    /// A syslog daemon (RFC 3164, as syslog(3) sends it).
    Syslog,
    /// The journal of systemd.
    Journal,
}

const DAEMONS: [(&str, LogDaemon, &str); 2] = [
    ("syslog", LogDaemon::Syslog, "/dev/log"),
    ("journal", LogDaemon::Journal, "/run/systemd/journal/socket"),
];

impl LogDaemon {
    /// The daemon that gets the log with this path, and its socket; `None` if a file gets it.
    pub fn of(path: &Path) -> Option<(LogDaemon, &Path)> {
        let text = path.to_str()?;
        DAEMONS.iter().find_map(|(name, daemon, _)| {
            let socket = text.strip_prefix(name)?.strip_prefix(':')?;
            socket
                .starts_with('/')
                .then_some((*daemon, Path::new(socket)))
        })
    }
}

/// The setting with the path of the socket, if it names a daemon.
pub(super) fn with_socket(written: &Path) -> Option<PathBuf> {
    let text = written.to_str()?;
    DAEMONS.iter().find_map(|(name, _, socket)| {
        match text.strip_prefix(name)? {
            "" => Some(format!("{name}:{socket}").into()),
            // A relative path would be another one for each process.
            rest if rest.starts_with(":/") => Some(written.to_owned()),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemons_are_told_from_files() {
        for (written, expected) in [
            ("syslog", Some("syslog:/dev/log")),
            ("journal", Some("journal:/run/systemd/journal/socket")),
            ("syslog:/run/x", Some("syslog:/run/x")),
            ("syslog.log", None),
            ("syslog:x", None),
            ("/var/log/syslog", None),
            ("./journal", None),
        ] {
            let found = with_socket(Path::new(written));
            assert_eq!(found.as_deref(), expected.map(Path::new), "{written}");
            let path = found.unwrap_or_else(|| written.into());
            assert_eq!(
                LogDaemon::of(&path).is_some(),
                expected.is_some(),
                "{written}"
            );
        }
    }
}
