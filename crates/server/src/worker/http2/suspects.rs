//! Suspects: HTTP/2 clients that send many bytes without effect. Their frames need the most CPU time per byte. So
//! suspects are served after all other clients, and only a few in each iteration of the event loop.
//!
//! A flooding client would open a new connection as soon as its old one closes. So a connection that has flooded goes
//! into a tarpit: for a while it is neither read nor closed. The tarpit has few connections, and their sessions are
//! freed at once.
//!
//! After a flood, new connections of the same address begin as suspects, with HTTP/1.1 and TLS too. Their requests are
//! still answered, because many clients may share one address.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use headway_accept::network;
use headway_event::Token;

/// The time for suspects in an iteration of the event loop. After it, no other suspect is served.
pub(super) const TURN_US_MAX: u64 = 50;
/// The most connections in the tarpit. It also never has more than an eighth of `max-connections`.
const TARPIT_MAX: usize = 128;
/// How long new connections of an address begin as suspects after a flood.
const FLOODED_MS: u64 = 10_000;
/// The most addresses that are remembered after a flood.
const ADDRESSES_MAX: usize = 1024;

/// The suspects of a worker.
#[derive(Default)]
pub(in crate::worker) struct Suspects {
    /// Suspects that wait to be served.
    pub waiting: VecDeque<Token>,
    /// Connections that have flooded, the oldest first.
    tarpit: VecDeque<Token>,
    /// For each address: the time until which it is suspicious. Keyed hashing (SipHash), because clients choose their
    /// addresses.
    flooded_until_ms: HashMap<IpAddr, u64>,
}

impl Suspects {
    /// Puts a connection into the tarpit. Returns the connection that must be closed, if the tarpit is full.
    pub(super) fn hold(&mut self, token: Token, connections_max: u32) -> Option<Token> {
        self.tarpit.push_back(token);
        let tarpit_max = TARPIT_MAX.min(connections_max as usize / 8);
        (self.tarpit.len() > tarpit_max).then(|| self.tarpit.pop_front())?
    }

    /// Remembers that a client of this address has flooded.
    pub(super) fn note(&mut self, address: IpAddr, now_ms: u64) {
        let all = &mut self.flooded_until_ms;
        if all.len() >= ADDRESSES_MAX {
            all.retain(|_, until_ms| *until_ms > now_ms);
        }
        let address = network(address);
        if all.len() < ADDRESSES_MAX || all.contains_key(&address) {
            all.insert(address, now_ms + FLOODED_MS);
        }
    }

    /// Whether a client of this address has flooded lately.
    pub(super) fn has_flooded(&self, address: IpAddr, now_ms: u64) -> bool {
        let until_ms = self.flooded_until_ms.get(&network(address));
        until_ms.is_some_and(|until_ms| *until_ms > now_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_connection_leaves_a_full_tarpit() {
        let token = |slot| Token::new(1, slot, 0);
        let mut suspects = Suspects::default();
        let closed: Vec<_> = (0..5).map(|slot| suspects.hold(token(slot), 24)).collect();
        let expected = [None, None, None, Some(token(0)), Some(token(1))];
        assert_eq!(closed, expected);
        assert_eq!(suspects.hold(token(5), 7), Some(token(2)));
        let mut none = Suspects::default();
        assert_eq!(none.hold(token(9), 7), Some(token(9)));
    }

    #[test]
    fn tarpit_has_a_limit_for_any_number_of_connections() {
        let token = |slot| Token::new(1, slot, 0);
        let mut suspects = Suspects::default();
        for slot in 0..TARPIT_MAX as u32 {
            assert_eq!(suspects.hold(token(slot), 1_000_000), None);
        }
        assert_eq!(suspects.hold(token(1000), 1_000_000), Some(token(0)));
    }

    #[test]
    fn address_and_its_network_are_suspicious_for_ten_seconds() {
        let mut suspects = Suspects::default();
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        suspects.note(address("2001:db8::1"), 5);
        assert!(suspects.has_flooded(address("2001:db8::2"), 6));
        assert!(!suspects.has_flooded(address("2001:db8:0:1::1"), 6));
        assert!(!suspects.has_flooded(address("192.0.2.1"), 6));
        assert!(suspects.has_flooded(address("2001:db8::1"), 5 + FLOODED_MS - 1));
        assert!(!suspects.has_flooded(address("2001:db8::1"), 5 + FLOODED_MS));
    }

    #[test]
    fn number_of_suspicious_addresses_has_a_limit() {
        let mut suspects = Suspects::default();
        let address = |number: u32| IpAddr::from(number.to_be_bytes());
        (0..2000).for_each(|number| suspects.note(address(number), 0));
        assert_eq!(suspects.flooded_until_ms.len(), ADDRESSES_MAX);
        suspects.note(address(0), 1);
        assert!(suspects.has_flooded(address(0), FLOODED_MS));
        // Addresses whose time is over make room.
        suspects.note(address(5000), 2 * FLOODED_MS);
        assert_eq!(suspects.flooded_until_ms.len(), 1);
    }
}
