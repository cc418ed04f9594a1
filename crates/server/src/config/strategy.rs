//! The two methods in which the servers of the papers differ: how a file is opened, and how its
//! bytes are found resident and sent.
//!
//! A [`Preset`] is a pair of these methods, so it needs no code of its own. The few defaults that
//! depend on a method are here as well.
//!
//! How connections are accepted is the subject of [`accept`](super::accept). Its presets are in the
//! same list, because one name describes one server.
//!
//! Sources: 2006 paper, sections 2.1, 3 and 5; dissertation 2.5 and Table 3.3.

use std::fmt::{self, Display};
use std::ops::Range;
use std::str::FromStr;

use headway_files::{CHUNK_BYTES, PREFETCH_BYTES};
use serde::{Deserialize, Serialize};

/// Declares an enumeration that has the same names on the command line, in TOML and in JSON.
macro_rules! words {
    ($(#[$attribute:meta])* $name:ident, $what:literal { $( $(#[$doc:meta])* $variant:ident = $word:literal, )* }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name { $( $(#[$doc])* #[serde(rename = $word)] $variant, )* }

        impl $name {
            /// All values.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];
        }

        impl Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str(match self { $( $name::$variant => $word, )* })
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(word: &str) -> Result<$name, String> {
                let known = [$($word),*];
                let at = known.iter().position(|one| *one == word);
                at.map(|at| $name::ALL[at])
                    .ok_or_else(|| format!("`{word}` is not a {}; write one of {}", $what, known.join(", ")))
            }
        }
    };
}

pub(super) use words;

words! {
    /// How a file that is not in the file cache is opened.
    Opening, "method of opening" {
        /// A helper looks up and opens the file, so that the kernel has its metadata in memory.
        /// Then the event loop opens it again, and blocks if the metadata was evicted or is locked.
        Touch = "touch-and-reopen",
        /// A helper looks up and opens the file, and passes the descriptor.
        Pass = "pass-descriptor",
        /// The event loop asks the name cache of the kernel. Only where that would block, a helper
        /// passes the descriptor.
        #[default]
        Probe = "probe-then-pass",
    }
}

words! {
    /// How bytes are found resident and sent.
    SendMethod, "method of sending" {
        /// Small files come from the response cache. Larger ones are read without blocking,
        /// compared with what was opened, then sent: a body never mixes two versions.
        #[default]
        Copy = "copy",
        /// Small files as with `copy`, larger ones by `sendfile`. The socket refers to the pages of
        /// the file, so a file that is rewritten in place changes there. The next chunk is read
        /// ahead.
        Sendfile = "sendfile",
        /// All files by `sendfile`, each chunk after a residency check.
        SendfileResident = "sendfile-resident",
        /// All files by `sendfile`, each chunk if it was used lately. The guess may be wrong, and
        /// then the event loop blocks.
        SendfileRecent = "sendfile-recent",
        /// All files from mappings, each chunk when `mincore` reports it resident, with the header
        /// in one `writev`.
        Mmap = "mmap",
    }
}

words! {
    /// What does the work that may block.
    HelperBackend, "kind of helper" {
        /// Helper processes.
        #[default]
        Processes = "processes",
        /// Threads of the kernel (io_uring), and one process for listings and copies.
        IoUring = "io_uring",
    }
}

words! {
    /// A server of the papers, or Headway: a pair of methods.
    Preset, "preset" {
        /// Flash as it was published.
        Flash = "flash",
        /// Flash with helpers that pass descriptors.
        FdPass = "fd-pass",
        /// As fd-pass, without mappings.
        NoMmap = "no-mmap",
        /// As no-mmap, with a residency check that needs no mapping: New-Flash.
        NewFlash = "new-flash",
        /// Headway.
        #[default]
        Headway = "headway",
        /// The micro-server that accepts one connection per wakeup.
        Accept1 = "accept1",
        /// The micro-server that accepts all waiting connections.
        AcceptInf = "accept-inf",
        /// The micro-server that accepts at most 25.
        Accept25 = "accept25",
        /// As accept-inf, and each connection is read from and answered at once.
        Eager = "eager",
        /// As eager, and read until no data is left.
        EagerFull = "eager+full",
        /// As eager, and accepting also after each close.
        EagerClose = "eager+close",
        /// As eager+full and eager+close: the server of Chandra and Mosberger.
        Cm = "cm",
        /// As accept25, with the cache.
        Accept25Cache = "accept25+cache",
    }
}

impl Preset {
    /// Returns its pair of methods.
    pub fn methods(self) -> (Opening, SendMethod) {
        match self {
            Preset::Flash => (Opening::Touch, SendMethod::Mmap),
            Preset::FdPass => (Opening::Pass, SendMethod::Mmap),
            Preset::NoMmap => (Opening::Pass, SendMethod::SendfileRecent),
            Preset::NewFlash => (Opening::Pass, SendMethod::SendfileResident),
            // The micro-servers differ only in how they accept.
            _ => (Opening::Probe, SendMethod::Copy),
        }
    }
}

impl Opening {
    /// Default of `revalidate`. Another check costs a probe one system call; without probes it
    /// costs the job of a helper.
    pub(super) fn default_revalidate_ms(self) -> u64 {
        match self {
            Opening::Probe => 1000,
            Opening::Touch | Opening::Pass => 60_000,
        }
    }
}

impl SendMethod {
    /// Default of `small-file-max`.
    pub(super) fn default_small_file_bytes(self) -> u64 {
        match self {
            SendMethod::Copy | SendMethod::Sendfile => 128 << 10,
            SendMethod::SendfileResident | SendMethod::SendfileRecent | SendMethod::Mmap => 0,
        }
    }

    /// Bytes of `owed` that a helper reads at a time. The methods of the papers check and read each
    /// chunk by itself.
    pub(crate) fn read_in_bytes(self, owed: Range<u64>) -> u64 {
        match self {
            SendMethod::Copy | SendMethod::Sendfile => PREFETCH_BYTES.min(owed.end - owed.start),
            SendMethod::SendfileResident | SendMethod::SendfileRecent | SendMethod::Mmap => {
                CHUNK_BYTES
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategy_names_parse_back_as_printed() {
        for preset in Preset::ALL {
            assert_eq!(preset.to_string().parse(), Ok(*preset));
            let json = serde_json::to_string(preset).unwrap();
            assert_eq!(json, format!("\"{preset}\""));
        }
        for method in SendMethod::ALL {
            assert_eq!(method.to_string().parse(), Ok(*method));
        }
        let error = "apache".parse::<Preset>().unwrap_err();
        assert!(
            error.contains("flash, fd-pass, no-mmap, new-flash, headway, accept1"),
            "{error}"
        );
    }

    #[test]
    fn presets_differ_in_one_step_each() {
        let steps: Vec<_> = Preset::ALL.iter().map(|preset| preset.methods()).collect();
        assert_eq!(steps[0].1, steps[1].1, "fd-pass changes the opening alone");
        for pair in steps[1..4].windows(2) {
            assert_eq!(pair[0].0, pair[1].0, "then the sending alone");
            assert_ne!(pair[0].1, pair[1].1);
        }
    }
}
