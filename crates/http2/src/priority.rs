//! The `Priority` header (RFC 9218): which response is the next.

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
    /// Reads the header. What is not understood is ignored.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priority_is_read_and_the_rest_ignored() {
        let read = |text: &str| {
            let priority = Priority::read(text.as_bytes());
            (priority.urgency, priority.is_incremental)
        };
        assert_eq!(read(""), (3, false));
        assert_eq!(read("u=1, i"), (1, true));
        assert_eq!(read("i=?0,u=7;x=1, u=0"), (0, false));
        assert_eq!(read("u=8, u=-1, u=1.5, U=2, i=?2"), (3, false));
    }
}
