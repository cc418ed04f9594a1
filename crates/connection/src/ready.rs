//! The streams of an HTTP/2 connection that can continue, in the order of their turns.

use std::cmp::Reverse;

use headway_event::Token;

/// The sort key of a stream that has something to send: the most urgent first, then the shortest. Incremental ones
/// take turns: the one that has sent least is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Order {
    /// The urgency of RFC 9218.
    pub urgency: u8,
    /// Bytes of the response that are left to send, or of an incremental one, that were sent.
    pub bytes: u64,
    /// Whether parts of the response are useful, so that others may be sent between them.
    pub is_incremental: bool,
}

/// Streams that can continue. Streams without a sort key have input, and come first.
///
/// To ask all streams takes more time than to send a short response, so the list is kept between the turns.
#[derive(Debug, Default)]
pub struct ReadyStreams {
    /// The next one is the last.
    streams: Vec<(Option<Order>, Token)>,
    /// Others may be ready, so that all must be asked.
    pub is_stale: bool,
}

impl ReadyStreams {
    /// The stream whose turn is next.
    pub fn next(&self) -> Option<(Option<Order>, Token)> {
        self.streams.last().copied()
    }

    /// Removes the stream whose turn is next.
    pub fn remove_next(&mut self) {
        self.streams.pop();
    }

    /// Replaces all streams. Among equal ones, the first remains the first.
    pub fn replace(&mut self, found: impl Iterator<Item = (Option<Order>, Token)>) {
        self.is_stale = false;
        self.streams.clear();
        self.streams.extend(found);
        self.streams.reverse();
        self.streams.sort_by_key(|(order, _)| Reverse(*order));
    }

    /// Adds a stream behind the others with the same key.
    pub fn insert(&mut self, order: Option<Order>, token: Token) {
        if self.streams.iter().all(|(_, other)| *other != token) {
            let at = self.streams.partition_point(|(other, _)| *other > order);
            self.streams.insert(at, (order, token));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(slot: u32) -> Token {
        Token::new(1, slot, 0)
    }

    fn order(urgency: u8, bytes: u64) -> Option<Order> {
        Some(Order {
            urgency,
            bytes,
            is_incremental: false,
        })
    }

    fn turns(mut ready: ReadyStreams) -> Vec<Token> {
        let mut turns = Vec::new();
        while let Some((_, next)) = ready.next() {
            turns.push(next);
            ready.remove_next();
        }
        turns
    }

    #[test]
    fn input_comes_first_then_urgency_then_the_shortest() {
        let found = [order(3, 10), order(3, 5), None, order(1, 99)];
        let found = found.into_iter().zip((0..).map(token));
        let mut ready = ReadyStreams::default();
        ready.replace(found);
        assert_eq!(turns(ready), [2, 3, 1, 0].map(token));
    }

    #[test]
    fn response_that_is_of_use_when_complete_comes_before_an_equal_incremental_one() {
        let incremental = |bytes| {
            order(3, bytes).map(|order| Order {
                is_incremental: true,
                ..order
            })
        };
        let found = [incremental(5), order(3, 5), incremental(4), order(3, 6)];
        let found = found.into_iter().zip((0..).map(token));
        let mut ready = ReadyStreams::default();
        ready.replace(found);
        assert_eq!(turns(ready), [2, 1, 0, 3].map(token));
    }

    #[test]
    fn stream_is_added_once_and_behind_equal_ones() {
        let mut ready = ReadyStreams::default();
        ready.replace([(order(3, 5), token(0)), (order(3, 5), token(1))].into_iter());
        ready.insert(order(3, 5), token(2));
        ready.insert(order(3, 4), token(3));
        ready.insert(order(0, 9), token(1));
        ready.insert(order(4, 1), token(4));
        assert_eq!(turns(ready), [3, 0, 1, 2, 4].map(token));
    }
}
