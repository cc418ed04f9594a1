//! How many connections each client address has.
//!
//! The table holds only addresses that have a connection now, so it is never longer than the table
//! of connections; without a bound there is no table. An IPv6 client is given a whole /64 by its
//! network (RFC 6177), so that is what counts as one address.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv6Addr};

/// Connections by address.
pub struct Addresses {
    /// 0: no bound.
    most: u32,
    /// Keyed hashing (SipHash), because clients choose their addresses.
    open: HashMap<IpAddr, u32>,
}

impl Addresses {
    /// An empty table that lets in `most` connections an address; 0 lets in all and counts nothing.
    pub fn new(most: u32) -> Self {
        Self {
            most,
            open: HashMap::new(),
        }
    }

    /// Counts one more connection of an address; `false`, and not counted, when it has its share.
    pub fn enter(&mut self, address: IpAddr) -> bool {
        if self.most == 0 {
            return true;
        }
        let open = self.open.entry(network(address)).or_default();
        if *open >= self.most {
            return false;
        }
        *open += 1;
        true
    }

    /// A connection that was let in has ended.
    pub fn leave(&mut self, address: IpAddr) {
        if self.most == 0 {
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

fn network(address: IpAddr) -> IpAddr {
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
    fn an_address_is_let_in_again_when_one_of_its_connections_has_ended() {
        let mut addresses = Addresses::new(2);
        let (one, other) = (address("192.0.2.1"), address("192.0.2.2"));
        assert!(addresses.enter(one) && addresses.enter(one) && !addresses.enter(one));
        assert!(addresses.enter(other), "others are not concerned");
        addresses.leave(one);
        assert!(addresses.enter(one) && !addresses.enter(one));
    }

    #[test]
    fn nothing_is_remembered_of_an_address_when_its_last_connection_has_ended() {
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
    fn a_network_of_ipv6_counts_as_one_address_when_its_hosts_come_one_by_one() {
        let mut addresses = Addresses::new(1);
        assert!(addresses.enter(address("2001:db8::1")));
        assert!(!addresses.enter(address("2001:db8::ffff:2")));
        assert!(addresses.enter(address("2001:db8:0:1::1")));
    }

    #[test]
    fn everybody_is_let_in_and_nobody_counted_when_there_is_no_bound() {
        let mut addresses = Addresses::new(0);
        (0..1000).for_each(|_| assert!(addresses.enter(address("192.0.2.1"))));
        assert!(addresses.open.is_empty());
    }
}
