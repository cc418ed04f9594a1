//! The two tables by which advertisements are chosen, kept in memory in one version; the caller
//! checks whether that version is current.

use std::io;
use std::rc::Rc;

use headway_debox::{Call, Tracer};
use headway_files::{Meta, OpenFile};
use headway_specweb::Ads;
use headway_specweb::application::Lookup;
use headway_specweb::profile::{USER_RECORD_BYTES, User};

use crate::application_job::TABLES_HEAD_BYTES;
use crate::respond::handlers::Routes;

/// The applications of a worker.
pub(in crate::worker) struct Applications {
    /// The tables, by location.
    pub(super) tables: Vec<Option<Rc<Tables>>>,
}

impl Applications {
    pub(in crate::worker) fn new(routes: &Routes) -> Applications {
        Applications {
            tables: vec![None; routes.len()],
        }
    }
}

/// Both tables in one version.
pub(super) struct Tables {
    pub(super) version: Meta,
    ads: Ads,
    /// The file in memory, and where the users' lines begin.
    content: Rc<OpenFile>,
    users_at: u64,
}

impl Tables {
    /// Parses the result of a job; `None` if it is malformed.
    pub(super) fn read(content: Rc<OpenFile>, version: Meta, tracer: &Tracer) -> Option<Tables> {
        let mut length = [0; TABLES_HEAD_BYTES];
        read_exactly(&content, &mut length, 0, tracer)?;
        let head_bytes = TABLES_HEAD_BYTES as u64;
        let length = u64::from_le_bytes(length);
        let users_at = head_bytes.checked_add(length)?;
        if users_at > content.meta().size {
            return None;
        }
        let mut ads = vec![0; length as usize];
        read_exactly(&content, &mut ads, head_bytes, tracer)?;
        Some(Tables {
            version,
            ads: Ads::parse(std::str::from_utf8(&ads).ok()?)?,
            content,
            users_at,
        })
    }
}

/// Reads from memory that a helper has filled, so it never blocks.
fn read_exactly(file: &OpenFile, buffer: &mut [u8], at: u64, tracer: &Tracer) -> Option<()> {
    let mut have = 0;
    while have < buffer.len() {
        let read = tracer.call(Call::ReadNowait, || {
            headway_files::read_nowait(file, &mut buffer[have..], at + have as u64)
        });
        match read {
            Ok(Some(count @ 1..)) => have += count,
            _ => return None,
        }
    }
    Some(())
}

/// The tables for one decision.
pub(super) struct Loaded<'w> {
    pub(super) tables: &'w Tables,
    pub(super) tracer: &'w Tracer,
}

impl Lookup for Loaded<'_> {
    fn user(&mut self, id: u32) -> io::Result<Option<User>> {
        let Some(offset) = User::offset(id) else {
            return Ok(None);
        };
        let mut line = [0; USER_RECORD_BYTES];
        let at = self.tables.users_at.saturating_add(offset);
        match read_exactly(&self.tables.content, &mut line, at, self.tracer) {
            // After the last user.
            None => Ok(None),
            Some(()) => match User::parse(&line, id) {
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
pub(super) struct NoTables;

impl Lookup for NoTables {
    fn user(&mut self, _: u32) -> io::Result<Option<User>> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn ads(&mut self) -> io::Result<&Ads> {
        Err(io::ErrorKind::NotFound.into())
    }
}
