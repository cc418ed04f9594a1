//! The system calls of a traced loop, as the keys that sleeps are attributed to. The program which
//! is traced says what they are.

/// The most kinds of calls that a program can have.
pub(crate) const KINDS_MAX: usize = 64;

/// The kinds of system calls that a program makes on its loop. [`call_kinds`](crate::call_kinds)
/// defines one.
pub trait CallKind: Copy + Eq + 'static {
    /// Every kind, in the order of [`CallKind::index`]; at most 64.
    const ALL: &'static [Self];

    /// The call that sleeps because that is its purpose. Its sleeps are waits.
    const WAIT: Self;

    /// The name users know: that of the system call, with its purpose where one name is not
    /// enough. Unique among the kinds.
    fn name(self) -> &'static str;

    /// The number of the kind, from 0.
    fn index(self) -> usize;
}

/// Defines an enumeration of [`CallKind`]s, each with its name. A call with several uses in a
/// program, such as `sendmsg`, has a kind for each use. The last line says which call is the wait
/// for events.
///
/// ```
/// headway_debox::call_kinds! {
///     /// The calls of an echo server.
///     pub enum Call {
///         /// Waiting for a client.
///         Wait = "poll",
///         /// Reading from a client.
///         Receive = "recvfrom",
///         /// Writing to a client.
///         Send = "sendto",
///     }
///     wait = Wait
/// }
/// assert_eq!(Call::Receive.name(), "recvfrom");
/// ```
#[macro_export]
macro_rules! call_kinds {
    (
        $(#[$meta:meta])*
        $visibility:vis enum $Call:ident {
            $($(#[$note:meta])* $Kind:ident = $name:literal,)*
        }
        wait = $Wait:ident
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        $visibility enum $Call {
            $($(#[$note])* $Kind,)*
        }

        impl $Call {
            /// Every kind, in the order of the values.
            pub const ALL: &[$Call] = &[$($Call::$Kind),*];

            /// The name users know.
            pub const fn name(self) -> &'static str {
                match self {
                    $($Call::$Kind => $name,)*
                }
            }
        }

        impl $crate::CallKind for $Call {
            const ALL: &'static [$Call] = $Call::ALL;
            const WAIT: $Call = $Call::$Wait;

            fn name(self) -> &'static str {
                $Call::name(self)
            }

            #[inline(always)]
            fn index(self) -> usize {
                self as usize
            }
        }
    };
}
