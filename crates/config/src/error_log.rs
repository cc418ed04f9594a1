//! The error log: which messages the server writes to standard error, and how.

use serde::{Deserialize, Serialize};

use super::strategy::named_values;

named_values! {
    /// How serious a message of the error log is. The most serious one is first.
    ErrorLevel, "level" {
        /// Something failed: a request, a process, a reload.
        Error = "error",
        /// Something is not as it should be, and the server has found a way around it.
        Warn = "warn",
        /// What an administrator may want to know.
        #[default]
        Info = "info",
        /// Each request.
        Debug = "debug",
    }
}

named_values! {
    /// The form of a line of the error log.
    ErrorFormat, "format" {
        /// For people.
        #[default]
        Text = "text",
        /// A JSON object.
        Json = "json",
    }
}

/// The error log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorLog {
    /// The least serious messages that are written.
    pub level: ErrorLevel,
    /// The form of the lines.
    pub format: ErrorFormat,
}

impl ErrorLog {
    /// Whether messages of this level are written.
    pub fn has(&self, level: ErrorLevel) -> bool {
        level as u8 <= self.level as u8
    }
}
