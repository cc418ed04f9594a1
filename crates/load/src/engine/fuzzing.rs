//! What `fuzz/` reaches and no other crate: the parser of responses, fed in pieces.

use super::response::{Response, ResponseProgress};

/// Reads a response in the pieces that `cuts` make of it. How many bytes were the response's if it
/// ended, its status, and the bytes of its body; `None` if it is malformed.
pub fn read_in_pieces(bytes: &[u8], cuts: &[usize]) -> Option<(Option<usize>, u16, u64)> {
    let mut response = Response::new();
    let (mut server, mut from) = (None, 0);
    for until in cuts.iter().copied().chain([bytes.len()]) {
        let piece = &bytes[from..until];
        match response.feed_with_reader(piece, &mut server, None).ok()? {
            ResponseProgress::More => from = until,
            ResponseProgress::Done(consumed) => {
                return Some((Some(from + consumed), response.status, response.body_bytes));
            }
        }
    }
    Some((None, response.status, response.body_bytes))
}
