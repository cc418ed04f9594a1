//! Limits how many requests of one client address a location answers at the same time.

use std::cell::Cell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;

use headway_accept::network;
use headway_config::UNIX_CLIENT;
use headway_request::Charge;
use headway_respond::handlers::Routes;

/// The requests that a location answers, by client address; empty without a limit.
pub(super) struct AddressSlots {
    /// Requests of one address; 0 means no limit.
    limit: u32,
    /// Keyed hashing (SipHash), because clients choose their addresses.
    taken: HashMap<IpAddr, Rc<Cell<u64>>>,
    /// Entries after which those without a request are removed.
    entries_max: usize,
}

impl AddressSlots {
    /// Of all locations.
    pub(super) fn all(routes: &Routes) -> Vec<AddressSlots> {
        let locations = (0..routes.len()).map(|number| &routes.get(number).location);
        let slots = locations.map(|location| AddressSlots {
            limit: location.concurrency_per_address,
            taken: HashMap::new(),
            entries_max: 2 * location.concurrency as usize,
        });
        slots.collect()
    }

    /// Whether one more request of this address may be answered.
    pub(super) fn has_free(&self, address: IpAddr) -> bool {
        let taken = self.taken.get(&network(address));
        self.limit == 0
            || address == UNIX_CLIENT
            || taken.is_none_or(|taken| taken.get() < u64::from(self.limit))
    }

    /// Counts a request of this address until the value is dropped. `None` without a limit.
    pub(super) fn take(&mut self, address: IpAddr) -> Option<Charge> {
        if self.limit == 0 || address == UNIX_CLIENT {
            return None;
        }
        if self.taken.len() >= self.entries_max {
            self.taken.retain(|_, taken| taken.get() > 0);
        }
        let taken = self.taken.entry(network(address)).or_default();
        Some(Charge::new(taken, 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_has_a_slot_again_when_one_of_its_requests_has_ended() {
        let mut slots = AddressSlots {
            limit: 2,
            taken: HashMap::new(),
            entries_max: 4,
        };
        let address = |last: u8| IpAddr::from([192, 0, 2, last]);
        let (first, _second) = (slots.take(address(1)), slots.take(address(1)));
        assert!(!slots.has_free(address(1)) && slots.has_free(address(2)));
        drop(first);
        assert!(slots.has_free(address(1)));
        let unix = [(); 3].map(|()| slots.take(UNIX_CLIENT).is_some());
        assert!(unix == [false; 3] && slots.has_free(UNIX_CLIENT));
        (0..=255).for_each(|last| drop(slots.take(address(last))));
        assert!(slots.taken.len() <= 5, "addresses without a request go");
    }
}
