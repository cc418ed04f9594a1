//! What goes wrong under a seed, and how often.

use headway_base::random::{Draw, SplitMix64};

/// How often a fault happens, in a thousandth of the calls that it can hit.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// A call is interrupted by a signal.
    pub interrupted: u64,
    /// A socket takes or gives nothing although it is ready.
    pub would_block: u64,
    /// A call moves fewer bytes than it could.
    pub short: u64,
    /// A page or a name is not in memory.
    pub cold: u64,
    /// A client's connection breaks.
    pub reset: u64,
    /// Descriptors or memory have run out.
    pub exhausted: u64,
    /// The kernel has no memory for a call.
    pub no_memory: u64,
    /// Which calls these are; `None`: any.
    pub no_memory_for: Option<&'static [i64]>,
    /// The disk fails.
    pub disk: u64,
    /// A helper dies on its job.
    pub helper_death: u64,
    /// A process is not scheduled for a while before a call, and the others go on.
    pub preempted: u64,
}

impl Faults {
    /// The faults of a seed. A third of the seeds have only what a caller must not notice, so that
    /// their model excuses nothing.
    pub fn draw(random: &mut SplitMix64) -> Faults {
        // Seldom nearly nothing is in memory, and nearly every call is cut short.
        let rates = [500, 400].map(|most| match random.below(6) {
            0 => 950,
            _ => most,
        });
        let mut rate = |of: u64, most: u64| match random.below(of) {
            0 => 1 + random.below(most),
            _ => 0,
        };
        let mut faults = Faults {
            interrupted: rate(2, 100),
            would_block: rate(2, 200),
            short: rate(2, rates[0]),
            cold: rate(2, rates[1]),
            helper_death: rate(4, 100),
            preempted: rate(3, 30),
            ..Faults::default()
        };
        if rate(3, 1) == 0 {
            faults.reset = rate(3, 20);
            faults.exhausted = rate(3, 100);
            faults.no_memory = rate(3, 50);
            faults.disk = rate(3, 100);
        }
        faults
    }

    /// Whether a fault of this rate happens now.
    pub fn happens(rate: u64, random: &mut SplitMix64) -> bool {
        // No number is drawn for what never happens.
        rate > 0 && random.below(1000) < rate
    }
}

/// A random number, as likely small as large: below a power of two from `least` on, under `most`.
pub fn span(random: &mut SplitMix64, least: u64, most: u64) -> u64 {
    let power = least + random.below(most - least);
    random.below(1 << power)
}
