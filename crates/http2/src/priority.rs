//! Priorities (RFC 9218): which response is sent next. A request has its priority in the `Priority` header, and a
//! client changes it by a PRIORITY_UPDATE frame.
//!
//! An update may arrive before its request.

use crate::frame::Reason;

/// A longer PRIORITY_UPDATE frame is ignored. Valid priorities are much shorter.
const FRAME_BYTES_MAX: usize = 256;
/// The most updates that are stored until their streams read them. With more, the oldest update is dropped. The usual
/// limit of streams is lower.
const UPDATES_MAX: usize = 128;

/// How urgent a response is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Priority {
    /// From 0, the most urgent, to 7.
    pub urgency: u8,
    /// Whether parts of it are of use before the rest.
    pub is_incremental: bool,
}

impl Default for Priority {
    fn default() -> Priority {
        Priority {
            urgency: 3,
            is_incremental: false,
        }
    }
}

impl Priority {
    /// Parses the header. Unknown parts are ignored.
    pub fn read(header: &[u8]) -> Priority {
        let mut priority = Priority::default();
        for member in header.split(|byte| *byte == b',') {
            match member.trim_ascii() {
                [b'u', b'=', digit @ b'0'..=b'7'] => priority.urgency = digit - b'0',
                b"i" | b"i=?1" => priority.is_incremental = true,
                b"i=?0" => priority.is_incremental = false,
                _ => {}
            }
        }
        priority
    }
}

/// The stored PRIORITY_UPDATE frames.
#[derive(Debug, Default)]
pub(crate) struct PriorityUpdates(Vec<(u32, Priority)>);

impl PriorityUpdates {
    /// Stores the update of a frame.
    pub(crate) fn on_frame(&mut self, stream: u32, payload: &[u8]) -> Result<(), Reason> {
        if stream != 0 {
            return Err(Reason::Protocol);
        }
        let (id, value) = payload.split_first_chunk().ok_or(Reason::FrameSize)?;
        let id = u32::from_be_bytes(*id) & (u32::MAX >> 1);
        // There are no pushed streams, which have even numbers.
        if id.is_multiple_of(2) {
            return Err(Reason::Protocol);
        }
        if payload.len() > FRAME_BYTES_MAX {
            return Ok(());
        }
        self.take(id);
        if self.0.len() == UPDATES_MAX {
            self.0.remove(0);
        }
        self.0.push((id, Priority::read(value)));
        Ok(())
    }

    /// Removes and returns the update of a stream.
    pub(crate) fn take(&mut self, id: u32) -> Option<Priority> {
        let at = self.0.iter().position(|(of, _)| *of == id)?;
        Some(self.0.remove(at).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priority_is_parsed_and_unknown_parts_are_ignored() {
        let read = |text: &str| {
            let priority = Priority::read(text.as_bytes());
            (priority.urgency, priority.is_incremental)
        };
        assert_eq!(read(""), (3, false));
        assert_eq!(read("u=1, i"), (1, true));
        assert_eq!(read("i=?0,u=7;x=1, u=0"), (0, false));
        assert_eq!(read("u=8, u=-1, u=1.5, U=2, i=?2"), (3, false));
    }

    fn update(id: u32, value: &str) -> Vec<u8> {
        [&id.to_be_bytes(), value.as_bytes()].concat()
    }

    #[test]
    fn last_update_of_a_stream_is_returned_once() {
        let mut updates = PriorityUpdates::default();
        for payload in [
            update(1, "u=0"),
            update(5, "i"),
            update(1, "u=2, i"),
            update(7, &"x".repeat(FRAME_BYTES_MAX)),
        ] {
            assert_eq!(updates.on_frame(0, &payload), Ok(()));
        }
        let mut read = |id| {
            let found = updates.take(id)?;
            Some((found.urgency, found.is_incremental))
        };
        assert_eq!([read(1), read(5)], [Some((2, true)), Some((3, true))]);
        assert_eq!([read(1), read(3), read(7)], [None; 3]);
    }

    #[test]
    fn invalid_updates_are_errors() {
        for (stream, payload, expected) in [
            (3, vec![0, 0, 0, 3], Reason::Protocol),
            (0, vec![0, 0, 3], Reason::FrameSize),
            (0, Vec::new(), Reason::FrameSize),
            (0, update(0, "u=1"), Reason::Protocol),
            (0, update(4, "u=1"), Reason::Protocol),
        ] {
            let mut updates = PriorityUpdates::default();
            assert_eq!(
                updates.on_frame(stream, &payload),
                Err(expected),
                "{payload:?}"
            );
        }
    }

    #[test]
    fn number_of_stored_updates_has_a_limit() {
        let mut updates = PriorityUpdates::default();
        for at in 0..1000 {
            updates.on_frame(0, &update(2 * at + 1, "u=1")).unwrap();
        }
        assert_eq!(updates.0.len(), UPDATES_MAX);
        assert!(updates.take(1).is_none() && updates.take(1999).is_some());
        assert!(updates.0.capacity() <= 2 * UPDATES_MAX);
    }
}
