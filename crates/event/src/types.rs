//! Types that all mechanisms share: token, interest, readiness, and the mechanisms' names.
//!
//! [`Registration::ready`] is the one rule here: it translates what the kernel reports into what
//! the caller gets, so that it cannot differ between mechanisms.

use std::fmt;
use std::str::FromStr;

/// 64 bits that the caller gets back with each event. They mean nothing to this crate.
///
/// [`Token::new`] packs the usual three parts. The generation is there because slots are reused: an
/// event from the same wait in which its connection was closed must not reach the next connection
/// in that slot.
///
/// ```
/// use headway_event::Token;
/// let token = Token::new(1, 7, 3);
/// assert_eq!((token.kind(), token.slot(), token.generation()), (1, 7, 3));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Token(pub u64);

impl Token {
    const GENERATION_MASK: u32 = (1 << 24) - 1;

    /// Packs a kind, a slot and the low 24 bits of a generation. Wrapping after 16 million reuses
    /// of a slot is harmless, because only events of the same wait can be confused.
    pub const fn new(kind: u8, slot: u32, generation: u32) -> Token {
        let generation = (generation & Token::GENERATION_MASK) as u64;
        Token((kind as u64) << 56 | generation << 32 | slot as u64)
    }

    /// The generation after this one, within the bits that a token has for it.
    pub(crate) const fn next_generation(generation: u32) -> u32 {
        (generation + 1) & Token::GENERATION_MASK
    }

    /// Returns the kind of file descriptor: a listener, a connection, a helper …
    pub const fn kind(self) -> u8 {
        (self.0 >> 56) as u8
    }

    /// Returns the number within its kind.
    pub const fn slot(self) -> u32 {
        self.0 as u32
    }

    /// Returns the generation of the slot: 24 bits.
    pub const fn generation(self) -> u32 {
        (self.0 >> 32) as u32 & Token::GENERATION_MASK
    }
}

/// The directions in which a caller is interested.
///
/// ```
/// use headway_event::Interest;
/// assert!(Interest::BOTH.reads() && Interest::BOTH.writes());
/// assert!(!Interest::NONE.reads());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interest(u8);

impl Interest {
    /// Nothing: the file descriptor stays registered, and only a hang-up is reported.
    pub const NONE: Interest = Interest(0);
    /// Interest in input.
    pub const READ: Interest = Interest(1);
    /// Room for output.
    pub const WRITE: Interest = Interest(2);
    /// Input and room for output.
    pub const BOTH: Interest = Interest(3);

    /// Returns whether input is of interest.
    pub const fn reads(self) -> bool {
        self.0 & Interest::READ.0 != 0
    }

    /// Returns whether room for output is of interest.
    pub const fn writes(self) -> bool {
        self.0 & Interest::WRITE.0 != 0
    }
}

/// A file descriptor that can make progress.
///
/// `readable` and `writable` are hints, true only for directions of interest: a read or write may
/// still fail with `EWOULDBLOCK` (a spurious wakeup), which the caller must handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ready {
    /// The token given to `add` or `modify`.
    pub token: Token,
    /// Whether a read would not block: it finds data, the end of the stream, or an error.
    pub readable: bool,
    /// Whether a write would not block: it finds room, or an error.
    pub writable: bool,
    /// Whether the peer closed both directions, or an error is pending (`POLLHUP`, `POLLERR`). A
    /// half-close is not a hang-up: a read finds the end of the stream. select cannot detect
    /// hang-ups and never sets this.
    pub hangup: bool,
}

impl Ready {
    /// There is something to read.
    pub fn readable(token: Token) -> Ready {
        Ready {
            token,
            readable: true,
            writable: false,
            hangup: false,
        }
    }
}

/// The token and interest of a file descriptor, kept until it is removed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registration {
    pub token: Token,
    pub interest: Interest,
}

/// What the kernel reports about a file descriptor: `POLLIN`, `POLLOUT`, `POLLHUP`, `POLLERR`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Condition {
    pub input: bool,
    pub output: bool,
    pub hangup: bool,
    pub error: bool,
}

impl Condition {
    /// A condition in which nothing is ready.
    pub const NOTHING: Condition = Condition {
        input: false,
        output: false,
        hangup: false,
        error: false,
    };
}

impl Registration {
    /// Returns the event to report, if any of it is of interest.
    ///
    /// The rule is select's (`POLLIN_SET` and `POLLOUT_SET` in the kernel's `fs/select.c`), so that
    /// all mechanisms agree: a pipe whose writer left is `POLLHUP` alone to poll and epoll, yet a
    /// read would find its end at once, so it is readable.
    pub fn ready(self, condition: Condition) -> Option<Ready> {
        let Condition {
            input,
            output,
            hangup,
            error,
        } = condition;
        let readable = self.interest.reads() && (input || hangup || error);
        let writable = self.interest.writes() && (output || error);
        let hangup = hangup || error;
        (readable || writable || hangup).then_some(Ready {
            token: self.token,
            readable,
            writable,
            hangup,
        })
    }
}

/// The kernel's ways to wait for many file descriptors. Others may follow, so a `match` needs a
/// default.
///
/// ```
/// use headway_event::Mechanism;
/// assert_eq!("epoll-edge".parse(), Ok(Mechanism::EpollEdge));
/// assert_eq!(Mechanism::IoUring.to_string(), "io_uring");
/// assert!("kqueue".parse::<Mechanism>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Mechanism {
    /// select(2): cost grows with the highest file descriptor.
    Select,
    /// poll(2): cost grows with the number of file descriptors.
    Poll,
    /// epoll(7): cost grows with the number of ready file descriptors.
    Epoll,
    /// epoll(7), edge-triggered: like epoll, but changes make no system call, and unread input
    /// costs a poll(2).
    EpollEdge,
    /// io_uring(7) with multishot polls: like edge-triggered epoll, but registrations and changes
    /// make no system call of their own.
    IoUring,
}

impl Mechanism {
    /// Every mechanism, oldest first.
    pub const ALL: &'static [Mechanism] = &[
        Mechanism::Select,
        Mechanism::Poll,
        Mechanism::Epoll,
        Mechanism::EpollEdge,
        Mechanism::IoUring,
    ];

    /// Returns the name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Mechanism::Select => "select",
            Mechanism::Poll => "poll",
            Mechanism::Epoll => "epoll",
            Mechanism::EpollEdge => "epoll-edge",
            Mechanism::IoUring => "io_uring",
        }
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Mechanism {
    type Err = UnknownMechanism;

    fn from_str(name: &str) -> Result<Mechanism, UnknownMechanism> {
        let known = Mechanism::ALL
            .iter()
            .find(|mechanism| mechanism.name() == name);
        known
            .copied()
            .ok_or_else(|| UnknownMechanism(name.to_owned()))
    }
}

/// Error of a name that is no [`Mechanism`]. Its message lists the valid ones.
///
/// ```
/// let error = "kqueue".parse::<headway_event::Mechanism>().unwrap_err();
/// assert!(error.to_string().contains("io_uring"));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownMechanism(String);

impl fmt::Display for UnknownMechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let valid: Vec<&str> = Mechanism::ALL
            .iter()
            .map(|mechanism| mechanism.name())
            .collect();
        write!(
            f,
            "unknown event mechanism \"{}\": valid are {}",
            self.0,
            valid.join(", ")
        )
    }
}

impl std::error::Error for UnknownMechanism {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_gives_its_parts_back_when_each_is_at_its_limit() {
        let token = Token::new(u8::MAX, 0, 0x00ff_ffff);
        assert_eq!(
            (token.kind(), token.slot(), token.generation()),
            (u8::MAX, 0, 0x00ff_ffff)
        );
        let token = Token::new(0, u32::MAX, 0);
        assert_eq!(
            (token.kind(), token.slot(), token.generation()),
            (0, u32::MAX, 0)
        );
    }

    #[test]
    fn token_keeps_24_bits_when_a_generation_is_longer() {
        let token = Token::new(3, 7, 0xab00_0001);
        assert_eq!((token.kind(), token.slot(), token.generation()), (3, 7, 1));
    }

    #[test]
    fn mechanism_is_read_back_when_displayed() {
        for mechanism in Mechanism::ALL {
            assert_eq!(mechanism.to_string().parse(), Ok(*mechanism));
        }
    }

    #[test]
    fn error_lists_the_valid_mechanisms_when_one_is_unknown() {
        let error = "kqueue".parse::<Mechanism>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown event mechanism \"kqueue\": valid are select, poll, epoll, epoll-edge, io_uring"
        );
    }

    #[test]
    fn hangup_is_readable_only_when_reading_is_of_interest() {
        let condition = Condition {
            input: false,
            output: false,
            hangup: true,
            error: false,
        };
        let ready = |interest| {
            Registration {
                token: Token(1),
                interest,
            }
            .ready(condition)
            .unwrap()
        };
        assert!(ready(Interest::READ).readable);
        assert!(!ready(Interest::NONE).readable && ready(Interest::NONE).hangup);
        assert!(!ready(Interest::WRITE).writable && ready(Interest::WRITE).hangup);
    }
}
