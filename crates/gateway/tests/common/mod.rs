//! Runs a codec over bytes in pieces and describes what came out.

#![allow(dead_code)] // Each test program uses its part.

use headway_gateway::{Codec, ResponseAction, ResponseEvent};

/// The output of a codec.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Head, body and end as text: `200 [A: b] body=x err=y | end`.
    pub text: String,
    /// Whether the connection can be reused.
    pub reusable: bool,
}

/// Feeds the pieces, then the end of the connection if the response has not ended by itself.
pub fn seen(codec: &mut dyn Codec, pieces: &[&[u8]]) -> Seen {
    let (mut head, mut body, mut stderr) = (String::new(), Vec::new(), Vec::new());
    let mut ended = None;
    'pieces: for piece in pieces {
        let mut input = *piece;
        loop {
            match codec.feed(&mut input) {
                Ok(None) => break,
                Ok(Some(ResponseEvent::Head(answer))) => head = described(&answer),
                Ok(Some(ResponseEvent::Body(bytes))) => body.extend_from_slice(bytes),
                Ok(Some(ResponseEvent::Stderr(bytes))) => stderr.extend_from_slice(bytes),
                Ok(Some(ResponseEvent::End(end))) => {
                    let excess = if end.excess { " too much" } else { "" };
                    ended = Some((format!("end {}{excess}", end.exit_status), end.reusable));
                }
                Err(fault) => {
                    ended = Some((fault.to_string(), false));
                    break 'pieces;
                }
            }
        }
        if ended.is_some() {
            break;
        }
    }
    let (end, reusable) = ended.unwrap_or_else(|| match codec.finish() {
        Ok(end) if end.excess => ("closed too much".to_owned(), end.reusable),
        Ok(end) => ("closed".to_owned(), end.reusable),
        Err(fault) => (fault.to_string(), false),
    });
    let mut text = head;
    for (name, bytes) in [("body", body), ("err", stderr)] {
        if !bytes.is_empty() {
            text += &format!(" {name}={}", bytes.escape_ascii());
        }
    }
    Seen {
        text: format!("{text} | {end}").trim_start().to_owned(),
        reusable,
    }
}

/// The head as text.
pub fn described(answer: &ResponseAction) -> String {
    let response = match answer {
        ResponseAction::LocalRedirect(to) => return format!("local {}", to.escape_ascii()),
        ResponseAction::Response(response) => response,
    };
    let mut text = response.status.to_string();
    if !response.reason.is_empty() {
        text += &format!(" {}", response.reason.escape_ascii());
    }
    for (name, value) in response.fields.iter() {
        text += &format!(" [{}: {}]", name.escape_ascii(), value.escape_ascii());
    }
    if let Some(length) = response.length {
        text += &format!(" length={length}");
    }
    if let Some(accel_redirect) = &response.accel_redirect {
        text += &format!(" {accel_redirect:?}");
    }
    text
}

/// Feeds the same bytes whole, in two pieces at every position, and byte by byte: the output must
/// be the same.
pub fn seen_however_cut<E: Codec>(bytes: &[u8], make: impl Fn() -> E) -> Seen {
    let whole = seen(&mut make(), &[bytes]);
    for cut in 0..=bytes.len() {
        let (front, back) = bytes.split_at(cut);
        let parts = seen(&mut make(), &[front, back]);
        assert_eq!(
            parts.text,
            whole.text,
            "{} cut at {cut}",
            bytes.escape_ascii()
        );
    }
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    let parts = seen(&mut make(), &single);
    assert_eq!(
        parts.text,
        whole.text,
        "{} byte by byte",
        bytes.escape_ascii()
    );
    whole
}

/// Everything a codec sends, over a socket that accepts `at_once` bytes at a time.
pub fn sent(codec: &mut dyn Codec, at_once: usize) -> Vec<u8> {
    let mut out = Vec::new();
    while !codec.unsent().is_empty() {
        let taken = codec.unsent().len().min(at_once);
        out.extend_from_slice(&codec.unsent()[..taken]);
        codec.sent(taken);
    }
    out
}
