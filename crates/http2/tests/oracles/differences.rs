//! Compares outcomes with those of nghttp2, and knows the intended differences. The fuzz target http2_oracle uses this
//! file, too.

use std::collections::BTreeSet;

use headway_http2::frame::{self, Header};

use super::outcome::{Headers, Outcome, Step};

/// Compares step by step, up to the first difference. Returns its name if it is intended. The frames of a header block
/// are one step.
pub fn compare(
    intended: &Intended,
    steps: &[Step],
    ours: &[Outcome],
    theirs: &[Outcome],
) -> Result<Option<&'static str>, String> {
    assert_eq!((ours.len(), theirs.len()), (steps.len(), steps.len()));
    let (mut own, mut other) = (Outcome::default(), Outcome::default());
    let (mut first, mut reset, mut is_too_long) = (None, BTreeSet::new(), false);
    let mut is_begun = false;
    for (at, step) in steps.iter().enumerate() {
        own.extend(&ours[at]);
        other.extend(&theirs[at]);
        first = first.or(first_frame(step));
        is_too_long |= matches!(step, Step::Feed(bytes) if bytes.len() >= frame::PAYLOAD_BYTES_MAX);
        if let Step::Feed(bytes) = step {
            is_begun = is_begun_block(bytes);
        }
        if is_begun {
            continue;
        }
        other = comparable(&own, other);
        let refused = std::mem::take(&mut own.refused);
        if own != other {
            let name = first.and_then(|(header, length)| {
                intended(&Difference {
                    header,
                    length,
                    is_too_long,
                    reset: &reset,
                    refused: &refused,
                    own: &own,
                    other: &other,
                })
            });
            if name.is_some() {
                return Ok(name);
            }
            let steps: Vec<String> = steps[..=at].iter().map(show).collect();
            let (own, other) = (show_outcome(&own), show_outcome(&other));
            return Err(format!(
                "{}\nours:\n{own}theirs:\n{other}",
                steps.join("\n")
            ));
        }
        if own.goaway.is_some() {
            break;
        }
        if first.is_some_and(|(header, _)| header.kind == frame::GOAWAY) {
            return Ok(Some("nothing is read behind a GOAWAY of the client"));
        }
        reset.extend(own.resets.keys());
        first = None;
        (own, other) = (Outcome::default(), Outcome::default());
    }
    Ok(None)
}

/// The first frame of a step: its header, and the length of its payload.
fn first_frame(step: &Step) -> Option<(Header, usize)> {
    let Step::Feed(bytes) = step else {
        return None;
    };
    let (header, rest) = bytes.split_first_chunk()?;
    Some((Header::read(header), rest.len()))
}

/// Whether the last frame is a part of a header block that does not end with it.
fn is_begun_block(mut bytes: &[u8]) -> bool {
    let mut is_begun = false;
    while let Some((header, rest)) = bytes.split_first_chunk() {
        let header = Header::read(header);
        let is_part = matches!(header.kind, frame::HEADERS | frame::CONTINUATION);
        is_begun = is_part && !header.has(frame::END_HEADERS);
        bytes = rest.get(header.length..).unwrap_or_default();
    }
    is_begun
}

/// Without what HTTP/1.1 does not show.
fn comparable(own: &Outcome, mut other: Outcome) -> Outcome {
    // Only the end of a chunked body has a sign of its own, and only behind it is a place for trailers.
    other.ends.retain(|stream| own.ends.contains(stream));
    other
        .trailers
        .retain(|(stream, _)| own.ends.contains(stream));
    if own.goaway.is_some() && own.goaway == other.goaway {
        other.resets.clone_from(&own.resets);
    }
    // What a stream has got with its error is not used.
    let resets = &own.resets;
    other
        .data
        .retain(|stream, data| !data.is_empty() && !resets.contains_key(stream));
    other
}

/// A type of frames that we do not know.
const ALTSVC: u8 = 10;

/// A difference in a group of steps.
pub struct Difference<'d> {
    /// The first frame, and the length of its payload.
    header: Header,
    length: usize,
    /// Whether a frame of the group has its largest size, or a larger one of which the rest is missing.
    is_too_long: bool,
    /// The streams that we have reset before.
    reset: &'d BTreeSet<u32>,
    /// The requests that get the answer 400 or 431 at once.
    refused: &'d [u32],
    own: &'d Outcome,
    other: &'d Outcome,
}

/// The name of a difference, if it is intended.
pub type Intended = dyn Fn(&Difference) -> Option<&'static str> + Sync;

pub static NGHTTP2: &Intended = &nghttp2;
#[allow(dead_code, reason = "the fuzz target has the other oracle only")]
pub static H2: &Intended = &h2;

/// A stream error that the other one makes a connection error of.
fn common(difference: &Difference) -> Option<&'static str> {
    let Difference {
        header,
        length,
        own,
        other,
        ..
    } = difference;
    let (stream, kind) = (header.stream, header.kind);
    let has_two_errors = match kind {
        // Several settings may have an error each.
        frame::SETTINGS => stream != 0 || *length > 6,
        frame::PING | frame::GOAWAY => stream != 0,
        frame::PRIORITY => stream == 0 && *length != 5,
        frame::RST_STREAM => *length != 4,
        frame::DATA => header.has(frame::PADDED),
        kind => matches!(kind, frame::HEADERS | frame::PUSH_PROMISE),
    };
    let code = own.resets.values().next().copied();
    match (own.goaway, other.goaway) {
        (None, Some(error)) if code == Some(error) => {
            Some("a stream error ends the connection (RFC 9113, 5.4.1)")
        }
        (Some(11), _) | (_, Some(11)) => Some("limits against floods differ"),
        (Some(_), None) if kind == frame::PRIORITY_UPDATE => {
            Some("the oracles do not read PRIORITY_UPDATE")
        }
        (Some(_), Some(_)) if has_two_errors => Some("a frame with two errors has either code"),
        _ => None,
    }
}

fn nghttp2(difference: &Difference) -> Option<&'static str> {
    let Difference {
        header, own, other, ..
    } = difference;
    let (stream, kind) = (header.stream, header.kind);
    let is_quiet = **own == Outcome::default();
    let code = own.resets.values().next().copied();
    let is_utf8 = |headers: &Headers| std::str::from_utf8(&headers[1].1).is_ok();
    let has_user = |headers: &Headers| headers[1].1.contains(&b'@');
    let has_own_scheme = |target: &[u8]| !target.starts_with(b"http");
    common(difference).or(match (own.goaway, other.goaway) {
        (None, Some(5)) if is_quiet && difference.reset.contains(&stream) => {
            Some("a frame on a stream that we have reset is ignored (RFC 9113, 5.1)")
        }
        (None, None)
            if kind == frame::SETTINGS
                && own.resets.is_empty()
                && other.resets.keys().all(|one| difference.reset.contains(one)) =>
        {
            Some("a stream that we have reset is not reset again")
        }
        (None, Some(1)) if is_quiet && kind == frame::SETTINGS && header.has(frame::ACK) => {
            Some("an answer to no SETTINGS is ignored")
        }
        (None, None) if !difference.refused.is_empty() && other.resets.get(&stream) == Some(&1) => {
            Some("no host, or a long list: the answer is 400 or 431")
        }
        (None, None)
            if code == Some(1) && other.requests.iter().any(|one| has_own_scheme(&one.1[1].1)) =>
        {
            Some("the path * is for HTTP only")
        }
        (None, Some(1)) if kind == frame::SETTINGS => {
            Some("a late NO_RFC7540_PRIORITIES is no error (RFC 9218, 2.1)")
        }
        (Some(1 | 6), None) if kind == frame::DATA && header.has(frame::PADDED) => {
            Some("nghttp2 allows one byte of padding too much, and more on a closed stream (RFC 9113, 6.1)")
        }
        (None, None) if code == Some(1) && other.requests.iter().any(|one| has_user(&one.1)) => {
            Some("an authority has no user (RFC 9113, 8.3.1)")
        }
        (None, None) if code == Some(1) && other.requests.iter().any(|one| !is_utf8(&one.1)) => {
            Some("a path is UTF-8")
        }
        (Some(1), None) if kind == frame::SETTINGS => {
            Some("nghttp2 reads only the last one of settings with the same name")
        }
        (Some(3), None) if kind == frame::SETTINGS => {
            Some("a setting that makes a window too large ends the connection (RFC 9113, 6.9.2)")
        }
        (None, Some(1)) if kind == frame::GOAWAY => {
            Some("nghttp2 checks the last stream of a GOAWAY, which means nothing to a server")
        }
        (Some(6), None) if kind == frame::HEADERS && difference.is_too_long => {
            Some("nghttp2 takes CONTINUATION of any length")
        }
        (Some(1), None) if kind == frame::HEADERS => {
            Some("a stream before the last one is an error (RFC 9113, 5.1.1)")
        }
        (None, None) if code == Some(5) && matches!(kind, frame::DATA | frame::CONTINUATION) => {
            Some("data on a closed stream is an error (RFC 9113, 5.1)")
        }
        _ => None,
    })
}

fn h2(difference: &Difference) -> Option<&'static str> {
    let Difference {
        header, own, other, ..
    } = difference;
    let (stream, kind) = (header.stream, header.kind);
    let is_quiet = **own == Outcome::default();
    let code = own.resets.values().next().copied();
    let has_empty_cookie = |headers: &Headers| {
        let is_it = |one: &(Vec<u8>, Vec<u8>)| one.0 == b"cookie" && one.1.ends_with(b"; ");
        headers.iter().any(is_it)
    };
    let is_quiet_of = |outcome: &Outcome| outcome.requests.is_empty() && outcome.resets.is_empty();
    let is_server = |headers: &Headers| {
        let target = &headers[1].1;
        target == b"*" || target.ends_with(b"://test")
    };
    common(difference).or(match (own.goaway, other.goaway) {
        (None, _) if is_quiet && difference.reset.contains(&stream) => {
            Some("a frame on a stream that we have reset is ignored (RFC 9113, 5.1)")
        }
        (None, None) if code == Some(1) && other.requests.iter().any(|one| is_server(&one.1)) => {
            Some("the path * is for OPTIONS only (RFC 9113, 8.3.1)")
        }
        (None, Some(1)) if !difference.refused.is_empty() => Some("no host: the answer is 400"),
        (Some(1), None) if kind == frame::CONTINUATION => {
            Some("h2 resets a closed stream when it gets a CONTINUATION alone")
        }
        (None, Some(_)) if is_quiet && kind == ALTSVC => Some("h2 reads ALTSVC (RFC 7838, 4)"),
        (None, Some(1)) if kind == frame::WINDOW_UPDATE => {
            Some("h2 reads the reserved bit of WINDOW_UPDATE")
        }
        (Some(_), _) if difference.is_too_long => {
            Some("h2 waits for the end of a frame that is too long")
        }
        (None, Some(1)) if own.requests.iter().any(|one| has_empty_cookie(&one.1)) => {
            Some("h2 refuses an empty cookie behind another one")
        }
        (None, None) if code == Some(1) && kind == frame::HEADERS && is_quiet_of(other) => {
            Some("h2 does not compare trailers with the content-length")
        }
        (None, None) if code == Some(1) && !other.requests.is_empty() => {
            Some("h2 reads some content-lengths that are no numbers")
        }
        (Some(1), None) if kind == frame::RST_STREAM => Some("h2 allows to reset an idle stream"),
        (Some(1), None) if kind == frame::SETTINGS => {
            Some("h2 does not know NO_RFC7540_PRIORITIES")
        }
        _ => None,
    })
}

/// Without the empty parts.
fn show_outcome(outcome: &Outcome) -> String {
    let mut text = String::new();
    for (kind, messages) in [
        ("request", &outcome.requests),
        ("trailers", &outcome.trailers),
    ] {
        for (stream, headers) in messages {
            text += &format!("  {kind} {stream}");
            for (name, value) in headers {
                text += &format!(" [{}: {}]", name.escape_ascii(), value.escape_ascii());
            }
            text += "\n";
        }
    }
    for (stream, data) in &outcome.data {
        text += &format!("  data {stream} {}\n", data.escape_ascii());
    }
    let (ends, resets, goaway) = (&outcome.ends, &outcome.resets, outcome.goaway);
    let (pongs, acks, failed) = (&outcome.pongs, outcome.acks, &outcome.failed);
    text + &format!(
        "  ends {ends:?} resets {resets:?} goaway {goaway:?} pongs {pongs:?} acks {acks} failed {failed:?}\n"
    )
}

fn show(step: &Step) -> String {
    match step {
        Step::Answer(stream) => format!("answer {stream}"),
        Step::Feed(bytes) => {
            let mut text = String::new();
            let mut rest = &bytes[..];
            while let Some((header, more)) = rest.split_first_chunk() {
                let header = Header::read(header);
                let (payload, more) = more.split_at(more.len().min(header.length));
                text += &format!(
                    "kind {} flags {} stream {}: {}\n",
                    header.kind,
                    header.flags,
                    header.stream,
                    payload.escape_ascii()
                );
                rest = more;
            }
            text
        }
    }
}
