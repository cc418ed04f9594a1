//! The error log: what the master has to say, and what workers report to it, on standard error.
//!
//! Workers never write there themselves, because a stopped terminal would block them. The spawner, which starts
//! programs, writes what these say, since it may wait.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use headway_base::error_line::{ErrorLine, RequestNote};
use headway_config::{ErrorFormat, ErrorLevel, ErrorLog};
use headway_control::NoticeRequest;

/// The settings in use: the level, and a bit for JSON. Two threads of the master write messages.
static SETTINGS: AtomicU8 = AtomicU8::new(ErrorLevel::Info as u8);
const JSON: u8 = 1 << 7;

/// Writes messages as this configuration says from now on.
pub(super) fn configure(log: ErrorLog) {
    let json = match log.format {
        ErrorFormat::Json => JSON,
        ErrorFormat::Text => 0,
    };
    SETTINGS.store(log.level as u8 | json, Ordering::Relaxed);
}

/// What failed.
pub(super) fn log_error(what: impl Display) {
    of_master(ErrorLevel::Error, what);
}

/// What is not as it should be.
pub(super) fn log_warn(what: impl Display) {
    of_master(ErrorLevel::Warn, what);
}

/// What an administrator may want to know.
pub(super) fn log_info(what: impl Display) {
    of_master(ErrorLevel::Info, what);
}

fn of_master(level: ErrorLevel, what: impl Display) {
    log_of(
        "master",
        std::process::id(),
        (level, &what.to_string()),
        None,
    );
}

/// The message of a process, perhaps about a request. Errors of writing are ignored.
#[expect(clippy::disallowed_methods, reason = "the master may wait")]
pub(super) fn log_of(
    process: &str,
    pid: u32,
    (level, message): (ErrorLevel, &str),
    request: Option<NoticeRequest>,
) {
    let settings = SETTINGS.load(Ordering::Relaxed);
    if level as u8 > settings & !JSON {
        return;
    }
    let request = request.map(|request| RequestNote {
        client: request.client,
        host: request.host,
        line: request.line,
        id: request.id,
    });
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let line = ErrorLine {
        time_ms: since.map_or(0, |since| since.as_millis() as u64),
        level: &level.to_string(),
        process,
        pid,
        message,
        request: request.as_ref(),
    };
    let line = match settings & JSON {
        0 => line.text(),
        _ => line.json(),
    };
    let _ = writeln!(io::stderr(), "{line}");
}
