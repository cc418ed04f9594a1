//! The table of servers: what they are called, what they do with a file that is not in memory, what
//! runs them.
//!
//! Rows of servers that cannot run stay in the table with the reason, so that a study can name the
//! servers of the papers. Sources: dissertation sections 2.5 to 2.7 and 4 (Flash, Apache,
//! Haboob, TUX), the 2006 paper (Flashpache), the servers' own sources for what today's do.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A server that studies name; its word in TOML, JSON and on the command line is [`Kind::name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the table below says what each one is")]
pub enum Kind {
    Flash,
    FdPass,
    NoMmap,
    NewFlash,
    Headway,
    ApachePrefork,
    ApacheWorker,
    ApacheEvent,
    Nginx,
    NginxThreads,
    NginxCache,
    NginxOneAccept,
    NginxOpenFiles,
    Lighttpd,
    H2o,
    Civetweb,
    Flashpache,
    FlashpacheEvent,
    Haboob,
    Knot,
    Tux,
}

/// What starts a server, and in whose configuration language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `headway-lab serve`, by the name of its preset.
    Headway,
    /// Apache 2.4 with one of its multi-processing modules.
    Apache {
        /// `prefork`, `worker` or `event`.
        mpm: &'static str,
        /// Our open-file service beside it, and our module in it.
        service: bool,
    },
    /// nginx, its loop sending files itself or by its pool of threads.
    Nginx {
        /// Whether `aio threads` is on.
        threads: bool,
        /// Whether `open_file_cache` is on.
        cache: bool,
        /// `multi_accept`, where there is one worker.
        multi_accept: bool,
    },
    /// lighttpd 1.4.
    Lighttpd,
    /// h2o 2.2.
    H2o,
    /// CivetWeb 1.15.
    Civetweb,
    /// A server that cannot be started, with the reason.
    Absent(&'static str),
}

/// One row of the table.
#[derive(Debug)]
pub struct KindRow {
    /// The server's kind.
    pub kind: Kind,
    /// Name in files and on the command line.
    pub name: &'static str,
    /// How a table or figure calls it.
    pub title: &'static str,
    /// What starts it.
    pub family: Family,
    /// Which part of the server waits when a file is not in memory.
    pub waits: &'static str,
}

const fn row(
    kind: Kind,
    name: &'static str,
    title: &'static str,
    family: Family,
    waits: &'static str,
) -> KindRow {
    KindRow {
        kind,
        name,
        title,
        family,
        waits,
    }
}

const fn apache(mpm: &'static str, service: bool) -> Family {
    Family::Apache { mpm, service }
}

const fn nginx(threads: bool, cache: bool) -> Family {
    Family::Nginx {
        threads,
        cache,
        multi_accept: true,
    }
}

/// Every server, ours first; in the order of [`Kind`].
pub const TABLE: &[KindRow] = &[
    row(
        Kind::Flash,
        "flash",
        "Flash",
        Family::Headway,
        "the loop where it opens again what a helper has touched; a helper for pages",
    ),
    row(
        Kind::FdPass,
        "fd-pass",
        "Flash, fd pass",
        Family::Headway,
        "a helper, and the loop in page faults that mincore did not foresee",
    ),
    row(
        Kind::NoMmap,
        "no-mmap",
        "Flash, no mmap",
        Family::Headway,
        "a helper, and the loop in sendfile where the guess of residency was wrong",
    ),
    row(
        Kind::NewFlash,
        "new-flash",
        "New-Flash",
        Family::Headway,
        "a helper",
    ),
    row(
        Kind::Headway,
        "headway",
        "Headway",
        Family::Headway,
        "a helper",
    ),
    row(
        Kind::ApachePrefork,
        "apache-prefork",
        "Apache (prefork)",
        apache("prefork", false),
        "the process of that connection",
    ),
    row(
        Kind::ApacheWorker,
        "apache-worker",
        "Apache (worker)",
        apache("worker", false),
        "the thread of that connection",
    ),
    row(
        Kind::ApacheEvent,
        "apache-event",
        "Apache (event)",
        apache("event", false),
        "a thread of the pool; idle connections wait in a listener",
    ),
    row(
        Kind::Nginx,
        "nginx",
        "nginx (sendfile)",
        nginx(false, false),
        "the loop, in open and in sendfile",
    ),
    row(
        Kind::NginxThreads,
        "nginx-threads",
        "nginx (aio threads)",
        nginx(true, false),
        "the loop in open; a thread of the pool in sendfile",
    ),
    row(
        Kind::NginxCache,
        "nginx-cache",
        "nginx (aio threads, open_file_cache)",
        nginx(true, true),
        "the loop in an open that its cache does not save; a thread of the pool in sendfile",
    ),
    row(
        Kind::NginxOneAccept,
        "nginx-one-accept",
        "nginx (sendfile, multi_accept off)",
        Family::Nginx {
            threads: false,
            cache: false,
            multi_accept: false,
        },
        "the loop, in open and in sendfile",
    ),
    row(
        Kind::NginxOpenFiles,
        "nginx-open-files",
        "nginx (sendfile, open_file_cache)",
        nginx(false, true),
        "the loop, in an open that its cache does not save and in sendfile",
    ),
    row(
        Kind::Lighttpd,
        "lighttpd",
        "lighttpd",
        Family::Lighttpd,
        "the loop, in open and in sendfile",
    ),
    row(
        Kind::H2o,
        "h2o",
        "h2o",
        Family::H2o,
        "the loop, in open and in pread",
    ),
    row(
        Kind::Civetweb,
        "civetweb",
        "CivetWeb",
        Family::Civetweb,
        "the thread of that connection",
    ),
    row(
        Kind::Flashpache,
        "flashpache",
        "Flashpache",
        apache("prefork", true),
        "a helper of the open-file service, for names and the beginnings of files",
    ),
    row(
        Kind::FlashpacheEvent,
        "flashpache-event",
        "Flashpache (event)",
        apache("event", true),
        "a helper of the open-file service, for names and the beginnings of files",
    ),
    row(
        Kind::Haboob,
        "haboob",
        "Haboob",
        Family::Absent(
            "the SEDA research server of 2001 needs the Java of its time and its own native library \
             for non-blocking I/O; no distribution packages it, nor another staged server",
        ),
        "a stage's pool of threads",
    ),
    row(
        Kind::Knot,
        "knot",
        "Knot",
        Family::Absent(
            "the server of Capriccio (2003) replaces parts of a 32-bit C library of its time. No distribution \
             packages it; Debian's package of that name is a name server. CivetWeb is a packaged server with \
             a thread per connection",
        ),
        "the user-level thread of that connection",
    ),
    row(
        Kind::Tux,
        "tux",
        "TUX",
        Family::Absent(
            "a web server inside the kernel, maintained as a patch up to Linux 2.6; no patch applies to \
             the kernels of today",
        ),
        "a kernel thread",
    ),
];

impl Kind {
    /// All of them, in the order of the table.
    pub fn all() -> impl Iterator<Item = Kind> {
        TABLE.iter().map(|row| row.kind)
    }

    /// The row of the kind in the table.
    pub fn row(self) -> &'static KindRow {
        &TABLE[self as usize]
    }

    /// The name of the kind: `apache-prefork`.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// How a table or figure calls it: `Apache (prefork)`.
    pub fn title(self) -> &'static str {
        self.row().title
    }

    /// What starts it.
    pub fn family(self) -> Family {
        self.row().family
    }

    /// Apache with our open-file service: ours in part, so no peer that we are compared with.
    pub fn has_service(self) -> bool {
        matches!(self.family(), Family::Apache { service: true, .. })
    }

    /// Whether the server is of others, and has nothing of ours in it.
    pub fn is_peer(self) -> bool {
        !self.is_ours() && !self.has_service()
    }

    /// Whether the server is ours, a preset of `headway-lab serve`.
    pub fn is_ours(self) -> bool {
        self.family() == Family::Headway
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

/// No server has this name.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is no server the lab knows; it knows {known}", known = known_names())]
pub struct UnknownKind(String);

fn known_names() -> String {
    let names: Vec<&str> = TABLE.iter().map(|row| row.name).collect();
    names.join(", ")
}

impl FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Kind, UnknownKind> {
        let found = TABLE.iter().find(|row| row.name == text);
        found.map(|row| row.kind).ok_or(UnknownKind(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_row_is_that_of_its_kind() {
        for (index, row) in TABLE.iter().enumerate() {
            assert_eq!(row.kind as usize, index, "{}", row.name);
            assert_eq!(row.kind.row().name, row.name);
        }
        assert_eq!(TABLE.len(), Kind::Tux as usize + 1);
    }

    #[test]
    fn kind_name_is_the_same_when_written_and_read() {
        for kind in Kind::all() {
            let json = serde_json::to_string(&kind).expect("a name");
            assert_eq!(json, format!("\"{kind}\""));
            assert_eq!(
                serde_json::from_str::<Kind>(&json).expect("its own word"),
                kind
            );
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        let error = "apache".parse::<Kind>().expect_err("no such server");
        assert!(error.to_string().contains("apache-prefork"), "{error}");
    }
}
