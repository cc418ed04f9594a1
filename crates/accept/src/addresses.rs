//! Number of connections per client address.
//!
//! The table holds only addresses that have a connection now, so it is never longer than the table
//! of connections. Without a limit there is no table. An IPv6 network gives each client a whole /64
//! (RFC 6177), so a /64 counts as one address.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv6Addr};

/// Connections by address.
pub struct Addresses {
    /// Connections per address; 0 means no limit.
    limit: u32,
    /// Keyed hashing (SipHash), because clients choose their addresses.
    open: HashMap<IpAddr, u32>,
}

impl Addresses {
    /// An empty table for up to `limit` connections per address. With 0 nothing is limited or
    /// counted.
    pub fn new(limit: u32) -> Self {
        Self {
            limit,
            open: HashMap::new(),
        }
    }

    /// Counts a new connection of an address; `false`, without counting it, at the limit.
    pub fn enter(&mut self, address: IpAddr) -> bool {
        if self.limit == 0 {
            return true;
        }
        let open = self.open.entry(network(address)).or_default();
        if *open >= self.limit {
            return false;
        }
        *open += 1;
        true
    }

    /// Records that a counted connection has ended.
    pub fn leave(&mut self, address: IpAddr) {
        if self.limit == 0 {
            return;
        }
        if let Entry::Occupied(mut open) = self.open.entry(network(address)) {
            *open.get_mut() -= 1;
            if *open.get() == 0 {
                open.remove();
            }
        }
    }
}

/// What counts as one address.
pub fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(whole) => Ipv6Addr::from_bits(whole.to_bits() & !u128::from(u64::MAX)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn address_is_admitted_again_when_one_of_its_connections_has_ended() {
        let mut addresses = Addresses::new(2);
        let (one, other) = (address("192.0.2.1"), address("192.0.2.2"));
        assert!(addresses.enter(one) && addresses.enter(one) && !addresses.enter(one));
        assert!(addresses.enter(other), "other addresses are not limited");
        addresses.leave(one);
        assert!(addresses.enter(one) && !addresses.enter(one));
    }

    #[test]
    fn address_is_forgotten_when_its_last_connection_has_ended() {
        let mut addresses = Addresses::new(2);
        for last in 0..=255 {
            let one = IpAddr::from([192, 0, 2, last]);
            assert!(addresses.enter(one) && addresses.enter(one));
            addresses.leave(one);
            addresses.leave(one);
        }
        assert!(addresses.open.is_empty());
    }

    #[test]
    fn ipv6_network_counts_as_one_address_when_its_hosts_connect_one_by_one() {
        let mut addresses = Addresses::new(1);
        assert!(addresses.enter(address("2001:db8::1")));
        assert!(!addresses.enter(address("2001:db8::ffff:2")));
        assert!(addresses.enter(address("2001:db8:0:1::1")));
    }

    #[test]
    fn every_address_is_admitted_and_none_counted_without_a_limit() {
        let mut addresses = Addresses::new(0);
        (0..1000).for_each(|_| assert!(addresses.enter(address("192.0.2.1"))));
        assert!(addresses.open.is_empty());
    }
}
