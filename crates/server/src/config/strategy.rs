//! The two axes on which servers of this kind differ: how a name becomes an open file, and how a
//! file's bytes become known to be in memory and leave.
//!
//! A [`Preset`] is a pair of values on them, and so one of the servers of the papers, or ours. It
//! is no code of its own: whatever is not on these axes is the same in all of them. The few bounds
//! whose sensible defaults follow from an axis stand here, too.
//!
//! How new clients are taken is a third matter, of [`accept`](super::accept); the presets named
//! after it stand in the same list, because a person names one server.
//!
//! Sources: 2006 paper, sections 2.1, 3 and 5; dissertation 2.5 and Table 3.3.

use std::fmt::{self, Display};
use std::ops::Range;
use std::str::FromStr;

use headway_files::{READ_IN_BYTES, WINDOW_BYTES};
use serde::{Deserialize, Serialize};

/// An enumeration that is written with the same words on the command line, in TOML and in JSON.
macro_rules! words {
    ($(#[$attribute:meta])* $name:ident, $what:literal { $( $(#[$doc:meta])* $variant:ident = $word:literal, )* }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name { $( $(#[$doc])* #[serde(rename = $word)] $variant, )* }

        impl $name {
            /// All of them.
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
                    .ok_or_else(|| format!("`{word}` is no {}: it is one of {}", $what, known.join(", ")))
            }
        }
    };
}

pub(super) use words;

words! {
    /// How a name that is not in the name cache becomes an open file.
    Opening, "way of opening" {
        /// A helper looks the name up and opens it, so that the kernel has all of it in memory;
        /// then the loop does the same again, and waits where that is not in memory any more, or is
        /// locked.
        Touch = "touch-and-reopen",
        /// A helper looks the name up, opens it and passes the open file.
        Pass = "pass-descriptor",
        /// The loop asks the kernel's name cache; only where that would wait a helper passes the
        /// file.
        #[default]
        Probe = "probe-then-pass",
    }
}

words! {
    /// How it is known that bytes are in memory, and how they reach the socket.
    SendMethod, "way of sending" {
        /// Small files are kept in memory with their head; larger ones are read without waiting,
        /// compared with what was opened, then sent: never two versions in one body.
        #[default]
        Copy = "copy",
        /// Small files as with `copy`; larger ones by `sendfile`: pages are lent to the socket, and
        /// change there when the file is rewritten in place. The next window is read in ahead of
        /// need.
        Sendfile = "sendfile",
        /// All files by `sendfile`, each window when it is found resident.
        SendfileResident = "sendfile-resident",
        /// All files by `sendfile`, each window when it was used lately: a guess that may be wrong,
        /// and then the loop waits.
        SendfileRecent = "sendfile-recent",
        /// All files from mappings, each window when `mincore` finds it resident, with the head in
        /// one `writev`.
        Mmap = "mmap",
    }
}

words! {
    /// Who does what may wait.
    HelperBackend, "kind of helper" {
        /// Helper processes.
        #[default]
        Processes = "processes",
        /// The kernel's own workers (io_uring), and a process for listings and copies.
        IoUring = "io_uring",
    }
}

words! {
    /// A server of the papers, or ours: a pair of values on the two axes.
    Preset, "preset" {
        /// Flash as it was published.
        Flash = "flash",
        /// Flash with helpers that pass descriptors.
        FdPass = "fd-pass",
        /// And without mappings.
        NoMmap = "no-mmap",
        /// And with a residency check that needs none: New-Flash.
        NewFlash = "new-flash",
        /// Headway.
        #[default]
        Headway = "headway",
        /// The micro-server that takes one client a wake-up.
        Accept1 = "accept1",
        /// All that wait.
        AcceptInf = "accept-inf",
        /// At most 25.
        Accept25 = "accept25",
        /// All that wait, and each is read from and answered as soon as it is taken.
        Eager = "eager",
        /// And read until there is nothing more.
        EagerFull = "eager+full",
        /// And more are taken whenever a connection has closed.
        EagerClose = "eager+close",
        /// Both: the server of Chandra and Mosberger.
        Cm = "cm",
        /// At most 25, from memory.
        Accept25Cache = "accept25+cache",
    }
}

impl Preset {
    /// Its place on the two axes.
    pub fn axes(self) -> (Opening, SendMethod) {
        match self {
            Preset::Flash => (Opening::Touch, SendMethod::Mmap),
            Preset::FdPass => (Opening::Pass, SendMethod::Mmap),
            Preset::NoMmap => (Opening::Pass, SendMethod::SendfileRecent),
            Preset::NewFlash => (Opening::Pass, SendMethod::SendfileResident),
            // The micro-servers differ in how they take clients, and in nothing else.
            _ => (Opening::Probe, SendMethod::Copy),
        }
    }
}

impl Opening {
    /// How long a cached name is believed where nobody has said. Looking again costs a probe
    /// nothing but the call; without probes it costs a helper's job and somebody's wait.
    pub(super) fn default_revalidate_ms(self) -> u64 {
        match self {
            Opening::Probe => 1000,
            Opening::Touch | Opening::Pass => 60_000,
        }
    }
}

impl SendMethod {
    /// Files up to this size are sent from memory where nobody has said otherwise.
    pub(super) fn default_small_file_bytes(self) -> u64 {
        match self {
            SendMethod::Copy | SendMethod::Sendfile => 128 << 10,
            SendMethod::SendfileResident | SendMethod::SendfileRecent | SendMethod::Mmap => 0,
        }
    }

    /// How much of `owed` a helper reads in at a time. The papers' ways check and read each window
    /// by itself.
    pub(crate) fn read_in_bytes(self, owed: Range<u64>) -> u64 {
        match self {
            SendMethod::Copy | SendMethod::Sendfile => READ_IN_BYTES.min(owed.end - owed.start),
            SendMethod::SendfileResident | SendMethod::SendfileRecent | SendMethod::Mmap => {
                WINDOW_BYTES
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_back_as_they_are_written() {
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
        let steps: Vec<_> = Preset::ALL.iter().map(|preset| preset.axes()).collect();
        assert_eq!(steps[0].1, steps[1].1, "fd-pass changes the opening alone");
        for pair in steps[1..4].windows(2) {
            assert_eq!(pair[0].0, pair[1].0, "then the sending alone");
            assert_ne!(pair[0].1, pair[1].1);
        }
    }
}
