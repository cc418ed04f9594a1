//! How the requests that a worker may answer are shared among the addresses of its HTTP/2 clients.
//!
//! One connection brings many requests. So a limit of connections cannot stop one client from using up
//! `max-connections`. Therefore the requests of an address must be fewer than the free ones. A single address gets one
//! half, each of two equal ones a third, and so on. There is always room for another address (A. Choudhury, E. Hahne,
//! *Dynamic queue length thresholds*, 1998). `http2-max-concurrent-streams` limits each connection in addition.

use std::cell::Cell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;

use headway_accept::network;

/// The number of requests of one address.
pub(in crate::worker) type Share = Rc<Cell<u64>>;

/// The requests of all addresses that have connections.
pub(in crate::worker) struct Shares {
    /// The limit of the requests of all addresses together.
    requests_max: u64,
    /// Keyed hashing (SipHash), because clients choose their addresses.
    by_address: HashMap<IpAddr, Share>,
}

impl Shares {
    pub(in crate::worker) fn new(requests_max: u32) -> Shares {
        Shares {
            requests_max: requests_max.into(),
            by_address: HashMap::new(),
        }
    }

    /// Returns the share of an address, which all its connections hold. Without an address there is none, and only the
    /// limit of all requests counts: a trusted proxy sends the requests of many clients.
    pub(in crate::worker) fn of(&mut self, address: Option<IpAddr>) -> Option<Share> {
        if self.by_address.len() as u64 >= 2 * self.requests_max {
            self.by_address
                .retain(|_, share| Rc::strong_count(share) > 1);
        }
        let address = network(address?);
        Some(self.by_address.entry(address).or_default().clone())
    }

    /// Whether one more request may be answered beside `answered`.
    pub(in crate::worker) fn has_room(&self, share: Option<&Share>, answered: usize) -> bool {
        let free = self.requests_max.saturating_sub(answered as u64);
        free > 0 && share.is_none_or(|share| share.get() < free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([192, 0, 2, last]))
    }

    /// Returns the requests of each address, if all addresses begin as many requests as they may, in turns.
    fn taken(requests_max: u32, addresses: u8) -> Vec<u64> {
        let mut shares = Shares::new(requests_max);
        let all: Vec<Share> = (0..addresses)
            .map(|last| shares.of(address(last)).unwrap())
            .collect();
        let sum = || all.iter().map(|share| share.get()).sum::<u64>() as usize;
        while let Some(share) = all
            .iter()
            .filter(|share| shares.has_room(Some(share), sum()))
            .min_by_key(|share| share.get())
        {
            share.set(share.get() + 1);
        }
        all.iter().map(|share| share.get()).collect()
    }

    #[test]
    fn address_has_fewer_requests_than_remain_free() {
        assert_eq!(taken(10, 1), [5]);
        assert_eq!(taken(12, 2), [4, 4]);
        assert_eq!(taken(100, 4), [20; 4]);
        assert_eq!(taken(1, 1), [1]);
    }

    #[test]
    fn proxy_has_only_the_limit_of_all_requests() {
        let mut shares = Shares::new(10);
        let none = shares.of(None);
        assert!(none.is_none());
        assert!(shares.has_room(none.as_ref(), 9) && !shares.has_room(none.as_ref(), 10));
    }

    #[test]
    fn addresses_without_a_connection_are_forgotten() {
        let mut shares = Shares::new(8);
        let kept = shares.of(address(0)).unwrap();
        kept.set(3);
        (1..=255).for_each(|last| drop(shares.of(address(last))));
        assert!(shares.by_address.len() <= 17);
        assert_eq!(shares.of(address(0)).unwrap().get(), 3);
    }
}
