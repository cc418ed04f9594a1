//! Number of connections per client address.
//!
//! The table holds only addresses that have a connection now, so it is never longer than the table
//! of connections. Without a limit there is no table. With several workers each publishes its
//! numbers, and the limit is one on the sum ([`AddressBoard`]). An IPv6 network gives each client a whole /64
//! (RFC 6177), so a /64 counts as one address.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv6Addr};

use headway_config::UNIX_CLIENT;

use super::AddressBoard;

/// Connections by address.
pub struct Addresses {
    /// Connections per address; 0 means no limit.
    limit: u32,
    /// Keyed hashing (SipHash), because clients choose their addresses.
    open: HashMap<IpAddr, u32>,
    /// The numbers of all workers, and the number of this one.
    board: Option<(AddressBoard, usize)>,
}

impl Addresses {
    /// An empty table for up to `limit` connections per address. With 0 nothing is limited or
    /// counted.
    pub fn new(limit: u32, board: Option<AddressBoard>, worker: u32) -> Self {
        Self {
            limit,
            open: HashMap::new(),
            board: board.map(|board| (board, worker as usize)),
        }
    }

    /// Counts a new connection of an address; `false`, without counting it, at the limit. Clients of Unix
    /// sockets have no address.
    pub fn enter(&mut self, address: IpAddr) -> bool {
        if self.limit == 0 || address == UNIX_CLIENT {
            return true;
        }
        let network = network(address);
        let own = self.open.get(&network).map_or(1, |open| open + 1);
        if own > self.limit {
            return false;
        }
        // Published before the others are read, so that two workers cannot both take the last
        // place. If both come at once, both may be refused.
        self.publish(network, own);
        let others = self.board.as_ref();
        let others = others.map_or(0, |(board, worker)| board.others(*worker, network));
        if u64::from(own) + others > u64::from(self.limit) {
            self.publish(network, own - 1);
            return false;
        }
        self.open.insert(network, own);
        true
    }

    /// Records that a counted connection has ended.
    pub fn leave(&mut self, address: IpAddr) {
        if self.limit == 0 || address == UNIX_CLIENT {
            return;
        }
        let network = network(address);
        if let Entry::Occupied(mut open) = self.open.entry(network) {
            let left = *open.get() - 1;
            match left {
                0 => drop(open.remove()),
                _ => *open.get_mut() = left,
            }
            self.publish(network, left);
        }
    }

    fn publish(&self, network: IpAddr, own: u32) {
        if let Some((board, worker)) = &self.board {
            board.publish(*worker, network, own);
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
        let mut addresses = Addresses::new(2, None, 0);
        let (one, other) = (address("192.0.2.1"), address("192.0.2.2"));
        assert!(addresses.enter(one) && addresses.enter(one) && !addresses.enter(one));
        assert!(addresses.enter(other), "other addresses are not limited");
        assert!((0..3).all(|_| addresses.enter(UNIX_CLIENT)));
        addresses.leave(UNIX_CLIENT);
        addresses.leave(one);
        assert!(addresses.enter(one) && !addresses.enter(one));
    }

    #[test]
    fn address_is_forgotten_when_its_last_connection_has_ended() {
        let mut addresses = Addresses::new(2, None, 0);
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
        let mut addresses = Addresses::new(1, None, 0);
        assert!(addresses.enter(address("2001:db8::1")));
        assert!(!addresses.enter(address("2001:db8::ffff:2")));
        assert!(addresses.enter(address("2001:db8:0:1::1")));
    }

    #[test]
    fn every_address_is_admitted_and_none_counted_without_a_limit() {
        let mut addresses = Addresses::new(0, None, 0);
        (0..1000).for_each(|_| assert!(addresses.enter(address("192.0.2.1"))));
        assert!(addresses.open.is_empty());
    }

    #[test]
    fn limit_is_one_on_the_connections_of_all_workers() {
        let board = AddressBoard::new(2, 10).unwrap();
        let workers = [0, 1].map(|worker| {
            let file = rustix::io::fcntl_dupfd_cloexec(&board, 0).unwrap();
            let board = AddressBoard::open(file, 2).unwrap();
            Addresses::new(3, Some(board), worker)
        });
        let [mut first, mut second] = workers;
        let (one, other) = (address("192.0.2.1"), address("192.0.2.2"));
        assert!(first.enter(one) && first.enter(one) && second.enter(one));
        assert!(!first.enter(one) && !second.enter(one));
        assert!(second.enter(other), "other addresses are not limited");
        first.leave(one);
        assert!(second.enter(one) && !first.enter(one));
        // The first worker ends with one connection, which the master releases.
        board.clear(0);
        assert!(second.enter(one) && !second.enter(one));
    }
}
