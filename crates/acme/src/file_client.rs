//! The files as the ACME process has them: it asks the master, which alone can read and write them.

use serde::{Serialize, de::DeserializeOwned};

use crate::files::Stored;
use crate::schedule::Failures;
use crate::wire::{FileReply, FileRequest};

/// Asks for files.
pub(crate) struct FileClient<'p>(pub(crate) &'p dyn Fn(FileRequest) -> Result<FileReply, String>);

impl FileClient<'_> {
    fn ask(&self, request: FileRequest) -> Result<FileReply, String> {
        match (self.0)(request)? {
            FileReply::Failed { why } => Err(why),
            reply => Ok(reply),
        }
    }

    /// The certificate of a name. `None` if the server could not use it.
    pub(crate) fn certificate(&self, host: &str) -> Option<Stored> {
        let host = host.to_owned();
        match self.ask(FileRequest::Certificate { host }) {
            Ok(FileReply::Certificate { stored }) => stored,
            _ => None,
        }
    }

    /// Replaces the certificate of a name.
    pub(crate) fn set_certificate(
        &self,
        host: &str,
        authority: &str,
        (key, chain): (String, String),
    ) -> Result<(), String> {
        let request = FileRequest::SetCertificate {
            host: host.to_owned(),
            authority: authority.to_owned(),
            key,
            chain,
        };
        self.ask(request).map(drop)
    }

    /// The account as it was kept. `None` if there is none, or it is damaged.
    pub(crate) fn account_as<T: DeserializeOwned>(&self) -> Result<Option<T>, String> {
        match self.ask(FileRequest::Account)? {
            FileReply::Account { text } => Ok(serde_json::from_str(&text).ok()),
            _ => Ok(None),
        }
    }

    pub(crate) fn set_account(&self, account: &impl Serialize) -> Result<(), String> {
        let text = serde_json::to_string(account).map_err(|error| error.to_string())?;
        self.ask(FileRequest::SetAccount { text }).map(drop)
    }

    pub(crate) fn failures_at(&self, host: &str) -> Failures {
        let host = host.to_owned();
        match self.ask(FileRequest::Failures { host }) {
            Ok(FileReply::Failures { failures }) => failures,
            _ => Failures::default(),
        }
    }

    pub(crate) fn set_failures(&self, host: &str, failures: &Failures) -> Result<(), String> {
        let (host, failures) = (host.to_owned(), failures.clone());
        self.ask(FileRequest::SetFailures { host, failures })
            .map(drop)
    }

    /// Notes when the next order is planned, for `headway acme status`.
    pub(crate) fn set_plan(&self, host: &str, next_s: u64) -> Result<(), String> {
        let host = host.to_owned();
        self.ask(FileRequest::SetPlan { host, next_s }).map(drop)
    }

    /// Lets the workers answer a challenge until the result is dropped.
    pub(crate) fn answer(&self, token: &str, text: &str) -> Result<AnswerFile<'_>, String> {
        self.ask(FileRequest::Answer {
            token: token.to_owned(),
            text: text.to_owned(),
        })?;
        Ok(AnswerFile {
            files: self,
            token: token.to_owned(),
        })
    }
}

/// The file with the answer to a challenge.
pub(crate) struct AnswerFile<'p> {
    files: &'p FileClient<'p>,
    token: String,
}

impl Drop for AnswerFile<'_> {
    fn drop(&mut self) {
        let token = std::mem::take(&mut self.token);
        let _ = self.files.ask(FileRequest::Forget { token });
    }
}
