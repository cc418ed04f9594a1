//! The words every mechanism shares: token, interest, readiness, and the mechanisms' names.
//!
//! Pure data, except for one rule that lives here so that it cannot differ between mechanisms:
//! [`Registration::ready`] translates what the kernel said into what the caller is told.

use std::fmt;
use std::str::FromStr;

/// What a caller gets back with each event: 64 bits that mean nothing to this crate.
///
/// [`Token::new`] packs the usual three parts. The generation is there because slots are reused: an
/// event taken in the same batch as the closing of its connection must not reach the connection
/// that follows it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Token(pub u64);

impl Token {
    const GENERATION_MASK: u32 = (1 << 24) - 1;

    /// Packs a kind, a slot and the low 24 bits of a generation. A generation that wraps after 16
    /// million reuses of one slot is fine, since only events of one batch can be mistaken for one
    /// another.
    pub const fn new(kind: u8, slot: u32, generation: u32) -> Token {
        let generation = (generation & Token::GENERATION_MASK) as u64;
        Token((kind as u64) << 56 | generation << 32 | slot as u64)
    }

    /// What the descriptor is to the caller: a listener, a connection, a helper …
    pub const fn kind(self) -> u8 {
        (self.0 >> 56) as u8
    }

    /// Which one of its kind.
    pub const fn slot(self) -> u32 {
        self.0 as u32
    }

    /// Which user of the slot: 24 bits.
    pub const fn generation(self) -> u32 {
        (self.0 >> 32) as u32 & Token::GENERATION_MASK
    }
}

/// The directions a caller wants to hear about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interest(u8);

impl Interest {
    /// Nothing: the descriptor stays registered, and at most its hang-up is delivered.
    pub const NONE: Interest = Interest(0);
    /// Input.
    pub const READ: Interest = Interest(1);
    /// Room for output.
    pub const WRITE: Interest = Interest(2);
    /// Input and room for output.
    pub const BOTH: Interest = Interest(3);

    /// Whether input is of interest.
    pub const fn reads(self) -> bool {
        self.0 & Interest::READ.0 != 0
    }

    /// Whether room for output is of interest.
    pub const fn writes(self) -> bool {
        self.0 & Interest::WRITE.0 != 0
    }
}

/// One descriptor that can make progress.
///
/// `readable` and `writable` are hints, true only for directions of interest: a read or write may
/// still say would-block (a spurious wake-up), and the caller must cope.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ready {
    /// As given to `add` or `modify`.
    pub token: Token,
    /// A read would not wait: it finds data, the end of the stream, or an error.
    pub readable: bool,
    /// A write would not wait: it finds room, or an error.
    pub writable: bool,
    /// The peer closed both ways, or an error is pending (`POLLHUP`, `POLLERR`). A half-close is
    /// not a hang-up: it is read as the end of the stream. select cannot see hang-ups, and never
    /// sets this.
    pub hangup: bool,
}

/// What was asked of a descriptor, kept until it is removed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registration {
    pub token: Token,
    pub interest: Interest,
}

/// What the kernel said about a descriptor: `POLLIN`, `POLLOUT`, `POLLHUP`, `POLLERR`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Condition {
    pub input: bool,
    pub output: bool,
    pub hangup: bool,
    pub error: bool,
}

impl Condition {
    /// Nothing holds.
    pub const NOTHING: Condition = Condition {
        input: false,
        output: false,
        hangup: false,
        error: false,
    };
}

impl Registration {
    /// The event to deliver, if any of it is of interest.
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

/// The kernel's ways to wait for many descriptors. Others will follow, so a `match` needs a
/// default.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Mechanism {
    /// select(2): cost grows with the highest descriptor number.
    Select,
    /// poll(2): cost grows with the number of descriptors.
    Poll,
    /// epoll(7): cost grows with the number of ready descriptors.
    Epoll,
    /// epoll(7), edge-triggered: as epoll, and what is changed costs no call; who is not drained
    /// costs a look.
    EpollEdge,
    /// io_uring(7), its multishot polls: as epoll, edge-triggered, and what is registered or
    /// changed costs no call of its own.
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

    /// The name on the command line.
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

/// A name that is no [`Mechanism`]; its message lists the valid ones.
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
    fn message_names_the_valid_ones_when_a_mechanism_is_unknown() {
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
