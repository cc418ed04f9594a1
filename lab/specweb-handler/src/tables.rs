//! The two tables by which advertisements are chosen, kept in memory in one version; the caller
//! checks whether that version is current.

use std::io;

use headway_embedded::{FileVersion, JobResult, Request};
use headway_specweb::Ads;
use headway_specweb::application::Lookup;
use headway_specweb::tables::{USER_RECORD_BYTES, User};

use crate::job::TABLES_HEAD_BYTES;

/// Both tables in one version.
pub struct Tables {
    pub version: FileVersion,
    ads: Ads,
    /// The result of the job, and where the users' lines begin.
    content: JobResult,
    users_at: u64,
}

impl Tables {
    /// Parses the result of a job; `None` if it is malformed.
    pub fn read(content: JobResult, version: FileVersion, request: &Request<'_>) -> Option<Tables> {
        let mut length = [0; TABLES_HEAD_BYTES];
        let head_bytes = TABLES_HEAD_BYTES as u64;
        if !request.read(&content, &mut length, 0) {
            return None;
        }
        let length = u64::from_le_bytes(length);
        let users_at = head_bytes.checked_add(length)?;
        if users_at > content.len() {
            return None;
        }
        let mut ads = vec![0; length as usize];
        if !request.read(&content, &mut ads, head_bytes) {
            return None;
        }
        Some(Tables {
            version,
            ads: Ads::parse(std::str::from_utf8(&ads).ok()?)?,
            content,
            users_at,
        })
    }
}

/// The tables for one decision.
pub struct Loaded<'t, 'r> {
    pub tables: &'t Tables,
    pub request: &'t Request<'r>,
}

impl Lookup for Loaded<'_, '_> {
    fn user(&mut self, id: u32) -> io::Result<Option<User>> {
        let Some(offset) = User::offset(id) else {
            return Ok(None);
        };
        let mut line = [0; USER_RECORD_BYTES];
        let at = self.tables.users_at.saturating_add(offset);
        match self.request.read(&self.tables.content, &mut line, at) {
            // After the last user.
            false => Ok(None),
            true => match User::parse(&line, id) {
                Some(user) => Ok(Some(user)),
                None => Err(io::ErrorKind::InvalidData.into()),
            },
        }
    }

    fn ads(&mut self) -> io::Result<&Ads> {
        Ok(&self.tables.ads)
    }
}

/// Stands for the tables where a decision does not need them.
pub struct NoTables;

impl Lookup for NoTables {
    fn user(&mut self, _: u32) -> io::Result<Option<User>> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn ads(&mut self) -> io::Result<&Ads> {
        Err(io::ErrorKind::NotFound.into())
    }
}
