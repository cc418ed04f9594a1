//! A line of text, taken apart by a format of nginx (`$status`) or Apache (`%s`).

use crate::Entry;
use crate::time::{number, scaled_ns, time_ns};

const SECOND_NS: u64 = 1_000_000_000;

/// A format, ready to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Template {
    pieces: Vec<Piece>,
    /// Whether the time is that of the beginning of a request.
    is_start: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Literal(Vec<u8>),
    Field(Field),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Skipped,
    Time,
    /// A number of these nanoseconds.
    Duration(u64),
    /// Seconds with a point, as nginx writes them: Apache's microseconds have none.
    Seconds,
    /// Timers of HAProxy, the last of which is the whole.
    Timers,
    Status,
    Bytes,
}

impl Template {
    /// `None` if there is no time, or no latency, or two fields without anything between them.
    pub fn parse(text: &str) -> Option<Template> {
        let apache = !text.contains('$');
        let mut pieces: Vec<Piece> = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (piece, after) = match apache {
                true => apache_piece(rest)?,
                false => nginx_piece(rest)?,
            };
            rest = after;
            for piece in piece {
                match (pieces.last_mut(), piece) {
                    (Some(Piece::Literal(known)), Piece::Literal(more)) => known.extend(more),
                    (Some(Piece::Field(_)), Piece::Field(_)) => return None,
                    (_, piece) => pieces.push(piece),
                }
            }
        }
        let has = |wanted: fn(&Field) -> bool| {
            (pieces.iter()).any(|piece| matches!(piece, Piece::Field(field) if wanted(field)))
        };
        let is_timed =
            has(|field| matches!(field, Field::Duration(_) | Field::Seconds | Field::Timers));
        (is_timed && has(|field| *field == Field::Time)).then_some(Template {
            is_start: apache || text.contains("$start_time"),
            pieces,
        })
    }

    /// `None` if the line has another form.
    pub fn entry(&self, line: &[u8]) -> Option<Entry> {
        let mut entry = Entry {
            is_start: self.is_start,
            ..Entry::default()
        };
        let mut rest = line;
        for (index, piece) in self.pieces.iter().enumerate() {
            match piece {
                Piece::Literal(text) => rest = rest.strip_prefix(text.as_slice())?,
                Piece::Field(field) => {
                    let end = match self.pieces.get(index + 1) {
                        Some(Piece::Literal(text)) => end_of_field(rest, text)?,
                        _ => memchr::memchr(b' ', rest).unwrap_or(rest.len()),
                    };
                    field.read(&rest[..end], &mut entry)?;
                    rest = &rest[end..];
                }
            }
        }
        Some(entry)
    }
}

/// Where the text behind a field begins. Apache puts a backslash before a quote inside a field.
fn end_of_field(rest: &[u8], behind: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + memchr::memchr(behind[0], &rest[from..])?;
        if !rest[at..].starts_with(behind) {
            from = at + 1;
            continue;
        }
        let slashes = rest[..at]
            .iter()
            .rev()
            .take_while(|byte| **byte == b'\\')
            .count();
        if behind[0] != b'"' || slashes % 2 == 0 {
            return Some(at);
        }
        from = at + 1;
    }
}

impl Field {
    /// `None` if a field that must be a number or a time is neither. A dash is no value.
    fn read(self, text: &[u8], entry: &mut Entry) -> Option<()> {
        if text == b"-" {
            return Some(());
        }
        match self {
            Field::Skipped => {}
            Field::Time => entry.time_ns = Some(time_ns(text)?),
            Field::Duration(unit_ns) => entry.duration_ns = Some(scaled_ns(text, unit_ns)?),
            Field::Seconds => {
                memchr::memchr(b'.', text)?;
                entry.duration_ns = Some(scaled_ns(text, SECOND_NS)?);
            }
            Field::Timers => {
                let last = text.rsplit(|byte| *byte == b'/').next()?;
                // Logged before the end: at least that long.
                let last = last.strip_prefix(b"+").unwrap_or(last);
                entry.duration_ns = scaled_ns(last, 1_000_000);
            }
            Field::Status => entry.status = Some(u16::try_from(number(text)?).ok()?),
            Field::Bytes => {
                let text = text.strip_prefix(b"+").unwrap_or(text);
                entry.bytes = Some(number(text)?);
            }
        }
        Some(())
    }
}

type Pieces<'t> = (Vec<Piece>, &'t str);

fn literal(text: &str) -> Vec<Piece> {
    vec![Piece::Literal(text.as_bytes().to_vec())]
}

/// `$name`, `${name}` or text up to the next one.
fn nginx_piece(text: &str) -> Option<Pieces<'_>> {
    let Some(rest) = text.strip_prefix('$') else {
        let (before, after) = text.split_at(text.find('$').unwrap_or(text.len()));
        return Some((literal(before), after));
    };
    let (name, after) = match rest.strip_prefix('{') {
        Some(braced) => braced.split_once('}')?,
        None => {
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            rest.split_at(rest.find(|c| !is_name(c)).unwrap_or(rest.len()))
        }
    };
    let field = match name {
        "" => return None,
        "time_local" | "time_iso8601" | "msec" | "start_time" => Field::Time,
        "request_time" => Field::Seconds,
        "duration_ms" => Field::Duration(1_000_000),
        "duration_us" => Field::Duration(1_000),
        "timers" => Field::Timers,
        "status" => Field::Status,
        "body_bytes_sent" | "bytes_sent" => Field::Bytes,
        _ => Field::Skipped,
    };
    Some((vec![Piece::Field(field)], after))
}

/// `%D`, `%>s`, `%{ms}T` or text up to the next one. `\"` is a quote, as in a configuration file.
fn apache_piece(text: &str) -> Option<Pieces<'_>> {
    let Some(rest) = text.strip_prefix('%') else {
        let (before, after) = text.split_at(text.find('%').unwrap_or(text.len()));
        return Some((literal(&before.replace("\\\"", "\"")), after));
    };
    if let Some(after) = rest.strip_prefix('%') {
        return Some((literal("%"), after));
    }
    let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit() || "!,<>".contains(c));
    let (argument, rest) = match rest.strip_prefix('{') {
        Some(braced) => braced.split_once('}')?,
        None => ("", rest),
    };
    let rest = rest.trim_start_matches(['<', '>']);
    let letter = rest.chars().next()?;
    // Of two letters, such as ^ti.
    let length = if letter == '^' { 3 } else { letter.len_utf8() };
    let after = rest.get(length..)?;
    let field = match (letter, argument) {
        ('t', "") => {
            let time = vec![
                Piece::Literal(b"[".to_vec()),
                Piece::Field(Field::Time),
                Piece::Literal(b"]".to_vec()),
            ];
            return Some((time, after));
        }
        ('D', _) => Field::Duration(1_000),
        ('T', "" | "s") => Field::Duration(SECOND_NS),
        ('T', "ms") => Field::Duration(1_000_000),
        ('T', "us") => Field::Duration(1_000),
        ('s', _) => Field::Status,
        ('b' | 'B' | 'O', _) => Field::Bytes,
        _ => Field::Skipped,
    };
    Some((vec![Piece::Field(field)], after))
}
