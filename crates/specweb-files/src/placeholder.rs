//! The placeholders for an advertisement in a document: their text, and where they are.
//!
//! A placeholder is `<img ad src="/dir00000/class0_0">`. The application replaces the name in it by
//! another one of the same length, so a document keeps its length.

/// The text before the name. `<` occurs in it only once, so after a mismatch only that byte can
/// start a new match.
pub const BEGIN: &[u8] = b"<img ad src=\"";

/// The name as it is in the file on disk.
pub const PLACEHOLDER: [u8; PATH_BYTES] = *b"/dir00000/class0_0";

/// The text after the name.
pub const END: &[u8] = b"\">";

/// Length of a name.
pub const PATH_BYTES: usize = 18;

/// Length of a whole placeholder.
pub const PLACEHOLDER_BYTES: usize = BEGIN.len() + PATH_BYTES + END.len();

/// Offset of the first placeholder in a file.
const PLACEHOLDER_FIRST_BYTE: u64 = 512;

/// Distance between placeholders.
const PLACEHOLDER_INTERVAL_BYTES: u64 = 5120;

/// The offsets of the placeholders in a file of this length.
pub fn offsets(size_bytes: u64) -> impl Iterator<Item = u64> {
    let first = (PLACEHOLDER_FIRST_BYTE..).step_by(PLACEHOLDER_INTERVAL_BYTES as usize);
    first.take_while(move |at| at + PLACEHOLDER_BYTES as u64 <= size_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_lie_within_a_short_file() {
        assert_eq!(offsets(100).count(), 0);
        assert_eq!(
            offsets(512 + PLACEHOLDER_BYTES as u64).collect::<Vec<_>>(),
            [512]
        );
        assert_eq!(offsets(512 + PLACEHOLDER_BYTES as u64 - 1).count(), 0);
        assert_eq!(offsets(9216).collect::<Vec<_>>(), [512, 5632]);
    }
}
