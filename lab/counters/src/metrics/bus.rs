//! How busy the way to memory is.
//!
//! Equation 4.1 of the dissertation counts the cycles in which the front-side bus is occupied, in
//! CPU cycles, and divides by the cycles that were not halted; with the two clocks' ratio
//! that is the share of the bus's own cycles. Memory controllers have taken the bus's place: AMD's
//! count their busy cycles and their clock, which is the equation itself, each for all CPUs;
//! Intel's count transfers of 64 bytes, whose rate is compared with the bandwidth that the probe
//! has measured.

use serde::{Deserialize, Serialize};

use super::Served;
use crate::count::Counts;
use crate::events::Meaning;

/// Bytes of a memory transfer.
const LINE_BYTES: f64 = 64.0;

/// Use of the memory bus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// Share of the memory controllers' clocks in which their data bus was in use.
    pub bus_share: Option<f64>,
    /// Bytes per second that the controllers moved.
    pub bytes_per_s: Option<f64>,
    /// The rate as a share of the bandwidth that one CPU could read in the probe; above 1 where
    /// several do.
    pub bandwidth_share: Option<f64>,
    /// Bytes that memory moved for a byte of content.
    pub bytes_per_byte: Option<f64>,
}

/// Equation 4.1: cycles of the bus that were occupied, counted while the given number of unhalted
/// CPU cycles passed.
///
/// ```
/// use headway_counters::metrics::bus::utilisation;
/// // 10^9 cycles at 3.06 GHz, in which a bus of 533 MHz was occupied for 10^8 of its cycles.
/// let share = utilisation(1e8, 3.06e9, 1e9, 533e6);
/// assert!((share - 0.574).abs() < 1e-3);
/// ```
pub fn utilisation(bus_occupied: f64, clock_hz: f64, cycles: f64, bus_hz: f64) -> f64 {
    bus_occupied * clock_hz / (cycles * bus_hz)
}

/// How busy memory was during the count. `bandwidth` is the result of the probe, in bytes per
/// second.
pub fn memory(counts: &Counts, served: &Served, bandwidth: Option<f64>) -> Memory {
    let busy = counts
        .value(Meaning::BusBusy)
        .zip(counts.value(Meaning::BusClocks));
    let lines = counts
        .value(Meaning::MemoryReads)
        .zip(counts.value(Meaning::MemoryWrites));
    let bytes = lines.map(|(reads, writes)| (reads + writes) * LINE_BYTES);
    let bytes_per_s = bytes.map(|bytes| bytes / served.seconds);
    let finite = |value: Option<f64>| value.filter(|value| value.is_finite());
    Memory {
        // The counter counts half clocks, as data moves on both edges.
        bus_share: finite(busy.map(|(busy, clocks)| busy / 2.0 / clocks)),
        bytes_per_s: finite(bytes_per_s),
        bandwidth_share: finite(bytes_per_s.zip(bandwidth).map(|(rate, most)| rate / most)),
        bytes_per_byte: finite(bytes.map(|bytes| bytes / served.bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::counts_of;
    use super::*;

    #[test]
    fn share_is_that_of_the_clocks_when_controllers_count_their_bus() {
        let counts = counts_of(&[
            (Meaning::BusBusy, 1e9),
            (Meaning::BusClocks, 2e9),
            (Meaning::MemoryReads, 3e6),
            (Meaning::MemoryWrites, 1e6),
        ]);
        let served = Served {
            bytes: 64e6,
            requests: 1.0,
            seconds: 2.0,
        };
        let found = memory(&counts, &served, Some(256e6));
        assert_eq!(found.bus_share, Some(0.25));
        assert_eq!(found.bytes_per_s, Some(128e6));
        assert_eq!(found.bandwidth_share, Some(0.5));
        assert_eq!(found.bytes_per_byte, Some(4.0));
    }

    #[test]
    fn bus_figure_is_absent_without_counts() {
        let none = memory(&Counts::default(), &Served::default(), Some(1e9));
        assert_eq!(none, Memory::default());
    }
}
