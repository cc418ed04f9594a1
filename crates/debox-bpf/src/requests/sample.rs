//! Which connections are observed at a high rate (`is_sampled` of the kernel's part).

/// Those whose hash has this value in these bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sample {
    mask: u32,
    value: u32,
}

/// The hash of a connection, whose number is in the upper half of its flags.
pub(super) fn hash(flags: u64) -> u32 {
    let hash = ((flags >> 32) as u32).wrapping_mul(0x9e37_79b1);
    hash ^ (hash >> 16)
}

impl Sample {
    /// As the kernel's part wants it.
    pub fn word(self) -> u64 {
        u64::from(self.mask) | u64::from(self.value) << 32
    }

    /// Whether a connection with this hash is observed.
    pub fn has(self, hash: u32) -> bool {
        hash & self.mask == self.value
    }

    /// A part of this sample: one in 2^`halvings` of all connections. Of the possible parts, the one whose share of the
    /// known connections is nearest to what it should be, and not nothing.
    pub fn narrowed(self, halvings: u32, known: &[u32]) -> Sample {
        let bits = halvings.min(16);
        let mask = ((1_u64 << bits) - 1) as u32 | self.mask;
        let parts = 1_u32 << (mask.count_ones() - self.mask.count_ones());
        let inside = known.iter().filter(|hash| self.has(**hash)).count();
        let wanted = inside as f64 / f64::from(parts);
        let first = Sample {
            mask,
            value: self.value,
        };
        // A mask is of the lowest bits.
        let step = self.mask + 1;
        let all = (0..parts).map(|part| Sample {
            mask,
            value: self.value + part * step,
        });
        let off = |sample: &Sample| {
            let count = known.iter().filter(|hash| sample.has(**hash)).count();
            (count > 0).then(|| (count as f64 - wanted).abs())
        };
        (all.filter_map(|sample| Some((off(&sample)?, sample))))
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .map_or(first, |(_, sample)| sample)
    }
}

#[cfg(test)]
mod tests {
    use super::{Sample, hash};

    /// A client's port, as the socket has it.
    fn number(port: u16) -> u64 {
        u64::from(port.to_be()) << 32 | 1
    }

    #[test]
    fn sample_keeps_its_share_of_the_known_connections_and_at_least_one() {
        let hashes: Vec<u32> = (0..64).map(|port| hash(number(40_000 + port))).collect();
        let count = |sample: Sample| hashes.iter().filter(|hash| sample.has(**hash)).count();
        let all = Sample::default();
        assert_eq!((all.word(), count(all)), (0, 64));
        let eighth = all.narrowed(3, &hashes);
        assert!((4..=12).contains(&count(eighth)), "{}", count(eighth));
        let few = eighth.narrowed(5, &hashes);
        assert!((1..=4).contains(&count(few)), "{}", count(few));
        // It is a part of the one before.
        assert!(
            hashes
                .iter()
                .all(|hash| !few.has(*hash) || eighth.has(*hash))
        );
        assert!(count(few.narrowed(12, &hashes)) >= 1);
        assert_eq!(few.narrowed(5, &hashes), few);
        assert_eq!(all.narrowed(4, &[]).word(), 15);
    }

    #[test]
    fn connections_are_spread_over_the_parts() {
        let ports = (32_768..61_000).step_by(2);
        let part = |sample: Sample| {
            ports
                .clone()
                .filter(|port| sample.has(hash(number(*port))))
                .count()
        };
        let all = part(Sample::default());
        for value in 0..16 {
            let seen = part(Sample { mask: 15, value });
            assert!(
                seen * 16 > all / 2 && seen * 16 < all * 2,
                "{value}: {seen} of {all}"
            );
        }
    }
}
