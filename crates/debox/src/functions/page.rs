//! A page of the kernel's trace ring, as `trace_pipe_raw` gives it: its events with their times.
//!
//! Pure: bytes in, events out. It trusts no length it reads; a page that contradicts itself ends
//! where it does.
//!
//! Sources: `events/header_page` and `events/header_event` of tracefs, which describe the layout;
//! include/linux/ring_buffer.h (`enum ring_buffer_type`);
//! Documentation/trace/ring-buffer-design.rst.

/// Places in the head of a page; the events follow.
const COMMIT_AT: usize = 8;
const EVENTS_AT: usize = 16;

/// Bits of the commit word next to the number of bytes: events are missing before this page, and
/// their number follows its events.
const EVENTS_MISSED: u64 = 1 << 31;
const EVENTS_MISSED_STORED: u64 = 1 << 30;
const LENGTH_MASK: u64 = (1 << 20) - 1;

/// Kinds of events that are none of a tracer's (`type_len`).
const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;

/// Bits of the first word of an event: its kind or length, and the time since the previous event.
const TYPE_BITS: u32 = 5;
const DELTA_BITS: u32 = 27;

/// High bits of an absolute time that do not fit into an event; they are those of the previous
/// time.
const TIME_STAMP_HIGH: u64 = !((1 << (DELTA_BITS + 32)) - 1);

/// An event of a tracer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'p> {
    /// On the clock of the ring.
    pub time_ns: u64,
    /// The fields of the event, as its format describes them.
    pub bytes: &'p [u8],
}

/// Calls `each` for every event of a page. Returns how many events are missing before the page, at
/// least 1 if some are.
pub fn read<'p>(page: &'p [u8], mut each: impl FnMut(Event<'p>)) -> u64 {
    let (Some(mut time_ns), Some(commit)) = (long(page, 0), long(page, COMMIT_AT)) else {
        return 0;
    };
    let end = (EVENTS_AT + (commit & LENGTH_MASK) as usize).min(page.len());
    let mut at = EVENTS_AT;
    while at < end {
        let Some((kind, next)) = event(&page[..end], at, &mut time_ns) else {
            break;
        };
        if let Some(bytes) = kind {
            each(Event { time_ns, bytes });
        }
        at = next;
    }
    match (commit & EVENTS_MISSED, commit & EVENTS_MISSED_STORED) {
        (0, _) => 0,
        (_, 0) => 1,
        _ => long(page, end).unwrap_or(1).max(1),
    }
}

/// The event at a position: its bytes if it belongs to a tracer, and where the next one begins.
/// `None` at the end.
fn event<'p>(page: &'p [u8], at: usize, time_ns: &mut u64) -> Option<(Option<&'p [u8]>, usize)> {
    let head = word(page, at)?;
    let (kind, delta) = (head & ((1 << TYPE_BITS) - 1), u64::from(head >> TYPE_BITS));
    let data = at + 4;
    match kind {
        // Nothing follows a padding without a time.
        PADDING if delta == 0 => None,
        PADDING => {
            *time_ns += delta;
            Some((None, data + word(page, data)? as usize))
        }
        TIME_EXTEND | TIME_STAMP => {
            let long = (u64::from(word(page, data)?) << DELTA_BITS) + delta;
            *time_ns = match kind {
                TIME_EXTEND => time_ns.wrapping_add(long),
                _ => (*time_ns & TIME_STAMP_HIGH) | long,
            };
            Some((None, data + 4))
        }
        // The length is in a word of its own, which it includes.
        0 => {
            *time_ns += delta;
            let next = data + (word(page, data)? as usize).max(4);
            Some((Some(page.get(data + 4..next)?), next))
        }
        words => {
            *time_ns += delta;
            let next = data + 4 * words as usize;
            Some((Some(page.get(data..next)?), next))
        }
    }
}

fn word(page: &[u8], at: usize) -> Option<u32> {
    let bytes = page.get(at..at + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

fn long(page: &[u8], at: usize) -> Option<u64> {
    let bytes = page.get(at..at + 8)?;
    Some(u64::from_ne_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::read;
    use proptest::prelude::*;

    /// A page at time 1000 with these words as events.
    fn page(words: &[u32], flags: u64) -> Vec<u8> {
        let mut page = 1000_u64.to_ne_bytes().to_vec();
        page.extend(((words.len() as u64 * 4) | flags).to_ne_bytes());
        page.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        page
    }

    fn head(kind: u32, delta: u32) -> u32 {
        kind | (delta << 5)
    }

    fn events(page: &[u8]) -> (Vec<(u64, usize)>, u64) {
        let mut events = Vec::new();
        let missed = read(page, |event| {
            events.push((event.time_ns, event.bytes.len()))
        });
        (events, missed)
    }

    #[test]
    fn times_add_up_when_events_are_of_every_kind() {
        let words = [
            // Two words of data, 5 later; three, preceded by their length; a discarded one of one
            // word.
            [head(2, 5), 1, 2].as_slice(),
            &[head(0, 7), 16, 1, 2, 3],
            &[head(29, 1), 8, 0],
            // 2^27 + 3 later; then an absolute time.
            &[head(30, 3), 1, head(1, 0), 9],
            &[head(31, 11), 2, head(1, 1), 9],
            // The end, whatever follows.
            &[head(29, 0), 0, head(1, 0), 9],
        ]
        .concat();
        let far = (1 << 27) + 3;
        let expected = vec![(1005, 8), (1012, 12), (1013 + far, 4), ((2 << 27) + 12, 4)];
        assert_eq!(events(&page(&words, 0)), (expected, 0));
    }

    #[test]
    fn missing_events_are_counted_when_the_ring_overwrote_them() {
        let one = [head(1, 0), 7];
        let mut with_count = page(&one, 3 << 30);
        with_count.extend(42_u64.to_ne_bytes());
        assert_eq!(events(&with_count), (vec![(1000, 4)], 42));
        assert_eq!(events(&page(&one, 1 << 31)).1, 1);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = events(&bytes);
        }

        #[test]
        fn any_events_are_read_without_a_panic(words in proptest::collection::vec(any::<u32>(), 0..200)) {
            let _ = events(&page(&words, 0));
        }
    }
}
