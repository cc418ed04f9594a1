//! A line of [`super::AddressBoard`]: each word holds an address and how many connections it has.
//!
//! One worker writes a line, all read it. The models in `loom/` try every order in which that can happen.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Low bits of a word that count connections; the others are the tag, a part of the hash.
pub(crate) const COUNT_BITS: u32 = 24;
pub(crate) const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;

/// Stores the number of connections of an address, if the line has a word for it. Only for the worker whose line it
/// is.
pub(crate) fn publish(words: &[AtomicU64], tag: u64, count: u32) {
    let holds = |word: &&AtomicU64, wanted| word.load(Ordering::Relaxed) & !COUNT_MAX == wanted;
    let own = words.iter().find(|word| holds(word, tag));
    if let Some(word) = own.or_else(|| words.iter().find(|word| holds(word, 0))) {
        let value = match count {
            0 => 0,
            _ => tag | u64::from(count).min(COUNT_MAX),
        };
        word.store(value, Ordering::Relaxed);
    }
    // Each worker first publishes its own number and then reads those of the others. Of two which do it at once, the one
    // with the later fence sees the other's.
    fence(Ordering::SeqCst);
}

/// The number of connections of an address which is published in a line, or 0.
pub(crate) fn count(words: &[AtomicU64], tag: u64) -> u64 {
    // Each word is loaded once: between two loads its worker may give it to another address.
    let mut values = words.iter().map(|word| word.load(Ordering::Relaxed));
    let found = values.find(|value| value & !COUNT_MAX == tag);
    found.map_or(0, |value| value & COUNT_MAX)
}
