//! What a slow client may read: bytes are earned over time, as on a modem line.
//!
//! The limit is on reading, with a small receive buffer, so the server sees a full TCP window, as
//! it does with SPECweb99's clients of 400,000 bit/s. Unused bytes accumulate for at most a tenth
//! of a second, so a pause is not followed by a burst.

/// The rate all connections of a run share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionBandwidth {
    bytes_per_s: u64,
}

/// One connection's account.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bucket {
    earned_bytes: u64,
    /// Until when `earned_bytes` has been counted.
    counted_ns: u64,
}

const NS_PER_S: u128 = 1_000_000_000;

impl ConnectionBandwidth {
    pub(super) fn new(bits_per_s: u64) -> ConnectionBandwidth {
        ConnectionBandwidth {
            bytes_per_s: (bits_per_s / 8).max(1),
        }
    }

    /// A tenth of a second's bytes, but at least a whole segment if that is not much more than a
    /// second's.
    pub(super) fn burst_bytes(self) -> u64 {
        (self.bytes_per_s / 10).max(self.bytes_per_s.min(1460))
    }

    /// What to ask for as receive buffer: two bursts, which the kernel doubles for its own needs.
    pub(super) fn receive_buffer_bytes(self) -> usize {
        (2 * self.burst_bytes()).clamp(4096, 4 << 20) as usize
    }

    /// An account that begins full.
    pub(super) fn open(self, now_ns: u64) -> Bucket {
        Bucket {
            earned_bytes: self.burst_bytes(),
            counted_ns: now_ns,
        }
    }

    /// What may be read now.
    pub(super) fn available(self, bucket: &mut Bucket, now_ns: u64) -> u64 {
        let since_ns = now_ns.saturating_sub(bucket.counted_ns);
        let earned = u128::from(since_ns) * u128::from(self.bytes_per_s) / NS_PER_S;
        if earned > 0 {
            // What is less than a byte stays uncounted.
            let spent_ns = earned * NS_PER_S / u128::from(self.bytes_per_s);
            bucket.counted_ns += spent_ns as u64;
            let total = u128::from(bucket.earned_bytes) + earned;
            bucket.earned_bytes = total.min(self.burst_bytes().into()) as u64;
        }
        bucket.earned_bytes
    }

    /// Takes the bytes that were read from the bucket.
    pub(super) fn spend(self, bucket: &mut Bucket, bytes: u64) {
        bucket.earned_bytes = bucket.earned_bytes.saturating_sub(bytes);
    }

    /// How long until a burst has been earned again.
    pub(super) fn pause_ns(self, bucket: &Bucket) -> u64 {
        let missing = self.burst_bytes().saturating_sub(bucket.earned_bytes);
        (u128::from(missing) * NS_PER_S).div_ceil(self.bytes_per_s.into()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_the_limit_when_all_available_bytes_are_read() {
        let bandwidth = ConnectionBandwidth::new(400_000);
        let mut bucket = bandwidth.open(0);
        let (mut now_ns, mut read) = (0, 0);
        while now_ns < 10_000_000_000 {
            let bytes = bandwidth.available(&mut bucket, now_ns);
            bandwidth.spend(&mut bucket, bytes);
            read += bytes;
            now_ns += bandwidth.pause_ns(&bucket);
        }
        // 50,000 bytes per second, and the initial burst.
        assert!((500_000..=505_100).contains(&read), "{read}");
    }

    #[test]
    fn read_budget_is_capped_at_a_burst_when_nothing_is_read() {
        let bandwidth = ConnectionBandwidth::new(400_000);
        let mut bucket = bandwidth.open(0);
        assert_eq!(bandwidth.available(&mut bucket, 60_000_000_000), 5_000);
    }

    #[test]
    fn read_budget_grows_even_when_the_clock_is_read_too_often() {
        let bandwidth = ConnectionBandwidth::new(8_000);
        let mut bucket = Bucket::default();
        let looked = (1..=1_000_000).map(|step| bandwidth.available(&mut bucket, step * 1_000));
        assert_eq!(looked.last(), Some(bandwidth.burst_bytes()));
        assert_eq!(bandwidth.burst_bytes(), 1_000);
    }
}
