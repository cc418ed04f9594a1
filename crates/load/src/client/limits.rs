//! Descriptors and local ports: raised where that is allowed, counted, and named when they do not
//! suffice.
//!
//! A load generator that meets one of these limits measures itself. So it is checked before the
//! run; what is met all the same during the run is counted by the engine and judged by the verdict.
//! Sources: getrlimit(2), ip(7) (`ip_local_port_range`, `ip_local_reserved_ports`).

use std::fmt;

/// What this program needs besides its connections: standard streams, event queue, timers, run
/// directory.
const OTHER_DESCRIPTORS: u64 = 32;
const PORT_RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
const PORTS_RESERVED: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";

/// The limits of this process and machine that connections meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// Descriptors this process may have open, after raising.
    pub descriptors: u64,
    /// Local ports that one source address has towards one server.
    pub ports: u64,
}

/// A limit is too low for what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// There are not enough descriptors.
    Descriptors {
        /// Connections asked for.
        connections: u64,
        /// Descriptors allowed.
        limit: u64,
    },
    /// There are not enough local ports.
    Ports {
        /// Connections asked for.
        connections: u64,
        /// Ports of one source address.
        ports: u64,
        /// Source addresses that may be used.
        sources: u64,
    },
}

impl fmt::Display for Shortage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shortage::Descriptors { connections, limit } => write!(
                out,
                "{connections} connections need {} descriptors, and this process may open {limit} \
                 (RLIMIT_NOFILE, the hard limit); raise it with `ulimit -Hn {0}`, LimitNOFILE= in systemd \
                 or /etc/security/limits.conf, or take fewer --connections",
                connections + OTHER_DESCRIPTORS
            ),
            Shortage::Ports {
                connections,
                ports,
                sources,
            } => write!(
                out,
                "{connections} connections need as many local ports, and {sources} source address{} with {ports} \
                 ports (net.ipv4.ip_local_port_range) give {}; name more addresses with --source, widen the \
                 range with `sysctl -w net.ipv4.ip_local_port_range=\"1024 65535\"`, or take fewer --connections",
                if *sources == 1 { "" } else { "es" },
                sources * ports,
            ),
        }
    }
}

impl std::error::Error for Shortage {}

impl ClientLimits {
    /// Raises the soft limit of descriptors to the hard one, and reads the effective ones.
    pub fn raise() -> ClientLimits {
        ClientLimits {
            descriptors: raise_descriptors(),
            ports: read_ports(),
        }
    }

    /// Checks that this many connections can be open at once.
    ///
    /// `sources` is the number of source addresses, 0 when ports do not matter: a server behind a
    /// socket in the filesystem, or one on this machine, which can be asked from all of
    /// 127.0.0.0/8.
    pub(crate) fn check(&self, connections: u64, sources: u64) -> Result<(), Shortage> {
        if connections + OTHER_DESCRIPTORS > self.descriptors {
            return Err(Shortage::Descriptors {
                connections,
                limit: self.descriptors,
            });
        }
        let (ports, short) = (self.ports, connections > sources * self.ports);
        match sources > 0 && short {
            true => Err(Shortage::Ports {
                connections,
                ports,
                sources,
            }),
            false => Ok(()),
        }
    }

    /// Connections that the descriptors leave room for.
    pub(crate) fn connections_max(&self) -> u64 {
        self.descriptors.saturating_sub(OTHER_DESCRIPTORS)
    }
}

/// The soft limit after an attempt to raise it. Failing is no error: the check speaks where it
/// matters.
fn raise_descriptors() -> u64 {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let before = getrlimit(Resource::Nofile);
    let mut wanted = before;
    wanted.current = wanted.maximum;
    let now = match setrlimit(Resource::Nofile, wanted) {
        Ok(()) => wanted,
        Err(_) => before,
    };
    now.current.unwrap_or(u64::MAX)
}

/// The ports for one pair of addresses. Where the kernel does not say, its default range.
fn read_ports() -> u64 {
    let range = std::fs::read_to_string(PORT_RANGE).unwrap_or_default();
    let reserved = std::fs::read_to_string(PORTS_RESERVED).unwrap_or_default();
    count_ports(&range, &reserved)
}

fn count_ports(range: &str, reserved: &str) -> u64 {
    let mut numbers = range.split_whitespace().map(str::parse::<u64>);
    let (first, last) = match (numbers.next(), numbers.next()) {
        (Some(Ok(first)), Some(Ok(last))) if first <= last => (first, last),
        _ => (32_768, 60_999),
    };
    let taken: u64 = reserved
        .trim()
        .split(',')
        .filter_map(|part| {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            let from = from.parse::<u64>().ok()?.max(first);
            let to = to.parse::<u64>().ok()?.min(last);
            (from <= to).then(|| to - from + 1)
        })
        .sum();
    last - first + 1 - taken
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ClientLimits = ClientLimits {
        descriptors: 1024,
        ports: 500,
    };

    #[test]
    fn shortage_error_names_limit_and_remedy() {
        assert_eq!(LIMITS.check(500, 1), Ok(()));
        let ports = LIMITS.check(600, 1).unwrap_err().to_string();
        assert!(ports.contains("ip_local_port_range"), "{ports}");
        assert!(ports.contains("--source"), "{ports}");
        assert_eq!(LIMITS.check(600, 2), Ok(()));
        let descriptors = LIMITS.check(2000, 9).unwrap_err().to_string();
        assert!(descriptors.contains("ulimit -Hn 2032"), "{descriptors}");
        // The program needs some itself.
        assert_eq!(LIMITS.check(1024 - OTHER_DESCRIPTORS, 9), Ok(()));
        assert!(LIMITS.check(1025 - OTHER_DESCRIPTORS, 9).is_err());
    }

    #[test]
    fn ports_are_no_limit_when_the_sources_are_unknown() {
        assert_eq!(LIMITS.check(900, 0), Ok(()));
    }

    #[test]
    fn reserved_ports_are_left_out_when_they_are_in_the_range() {
        assert_eq!(count_ports("32768\t60999\n", ""), 28_232);
        assert_eq!(count_ports("1000 1099", "1010,1050-1059,5000\n"), 89);
        assert_eq!(count_ports("1000 1099", "990-1009"), 90);
        assert_eq!(count_ports("", ""), 28_232);
    }
}
