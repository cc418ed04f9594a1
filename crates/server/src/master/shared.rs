//! What workers know of each other, in shared memory of the master: it outlives a worker, and what an
//! ended worker has counted is released here.

use std::io;
use std::sync::atomic::Ordering;

use headway_accept::{AddressBoard, NOT_ACCEPTING};
use headway_config::Config;
use headway_os::shared_lines::SharedLines;

/// The shared tables which the configuration needs.
pub(super) struct SharedTables {
    /// Numbers of connections of workers that share a listener.
    pub(super) counters: Option<SharedLines>,
    /// Connections per address, where there is a limit.
    pub(super) addresses: Option<AddressBoard>,
}

impl SharedTables {
    pub(super) fn new(config: &Config) -> io::Result<SharedTables> {
        let counters = config.is_balanced();
        let counters = counters.then(|| SharedLines::new(config.workers));
        let addresses = config.shares_addresses();
        let addresses =
            addresses.then(|| AddressBoard::new(config.workers, config.max_connections));
        let tables = SharedTables {
            counters: counters.transpose()?,
            addresses: addresses.transpose()?,
        };
        (0..config.workers).for_each(|number| tables.release(number));
        Ok(tables)
    }

    /// Releases what a worker has published that does not run any more.
    pub(super) fn release(&self, number: usize) {
        if let Some(counters) = &self.counters {
            counters.lines()[number].words[0].store(NOT_ACCEPTING, Ordering::Relaxed);
        }
        if let Some(addresses) = &self.addresses {
            addresses.clear(number);
        }
    }
}
