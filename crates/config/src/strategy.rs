//! How a file is opened, how its bytes are sent, and what does the work that may block.
//!
//! Sources: 2006 paper, sections 2.1, 3 and 5; dissertation 2.5 and Table 3.3.

/// Declares an enumeration that has the same names on the command line, in TOML and in JSON.
macro_rules! named_values {
    ($(#[$attribute:meta])* $name:ident, $what:literal { $( $(#[$doc:meta])* $variant:ident = $word:literal, )* }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub enum $name { $( $(#[$doc])* #[serde(rename = $word)] $variant, )* }

        impl $name {
            /// All values.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str(match self { $( $name::$variant => $word, )* })
            }
        }

        impl std::str::FromStr for $name {
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

pub(crate) use named_values;

named_values! {
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

named_values! {
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
        /// As with `sendfile`, until the event loop's record shows that one slept. Then the worker
        /// copies for ten seconds.
        Auto = "auto",
    }
}

named_values! {
    /// Whether processes are confined to what their work needs.
    Sandbox, "value of sandbox" {
        /// As far as the kernel can.
        #[default]
        On = "on",
        /// Not at all.
        Off = "off",
        /// Entirely, or the server does not start.
        Required = "required",
    }
}

named_values! {
    /// What does the work that may block.
    HelperBackend, "kind of helper" {
        /// Helper processes.
        #[default]
        Processes = "processes",
        /// Threads of the kernel (io_uring), and one process for listings and copies.
        IoUring = "io_uring",
    }
}
