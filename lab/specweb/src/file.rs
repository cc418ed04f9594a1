//! The name of a file in the file set: `/dir00042/class1_5`. A name can be nothing else, so no path
//! leads out of the set.

use std::fmt;

/// Classes of files: 100 bytes, 1 KB, 10 KB and 100 KB, times one to nine.
pub const CLASSES: u8 = 4;

/// Files per class and directory, counted from 1.
pub const FILES_PER_CLASS: u8 = 9;

/// Most directories of a set, the same limit as in `fileset`.
const DIRECTORIES_MAX: u32 = 1 << 20;

/// The name of a file of the set.
///
/// ```
/// use headway_specweb::FileName;
///
/// let name = FileName::parse("/dir00042/class1_5").expect("a name of the set");
/// assert_eq!((name.directory(), name.class(), name.number()), (42, 1, 5));
/// assert_eq!(FileName::parse("/dir00042/../../etc/passwd"), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileName {
    directory: u32,
    class: u8,
    number: u8,
}

impl FileName {
    /// A directory from 0, a class from 0 to 3, a number from 1 to 9; `None` out of range.
    pub fn new(directory: u32, class: u8, number: u8) -> Option<FileName> {
        let fits = directory < DIRECTORIES_MAX
            && class < CLASSES
            && (1..=FILES_PER_CLASS).contains(&number);
        fits.then_some(FileName {
            directory,
            class,
            number,
        })
    }

    /// Parses a name as [`fmt::Display`] writes it, and no other spelling.
    pub fn parse(text: &str) -> Option<FileName> {
        let (directory, rest) = text.strip_prefix("/dir")?.split_once("/class")?;
        let (class, number) = rest.split_once('_')?;
        let name = FileName::new(
            directory.parse().ok()?,
            class.parse().ok()?,
            number.parse().ok()?,
        )?;
        // Numbers have other spellings (`+1`, `01`), which name no file.
        (name.to_string() == text).then_some(name)
    }

    /// The directory, from 0.
    pub fn directory(self) -> u32 {
        self.directory
    }

    /// The class, 0 to 3.
    pub fn class(self) -> u8 {
        self.class
    }

    /// The file within its class, 1 to 9.
    pub fn number(self) -> u8 {
        self.number
    }

    /// Whether the file may contain placeholders for an advertisement: classes 1 and 2.
    pub fn has_placeholders(self) -> bool {
        matches!(self.class, 1 | 2)
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FileName {
            directory,
            class,
            number,
        } = self;
        write!(out, "/dir{directory:05}/class{class}_{number}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn file_name_is_rejected_unless_canonical() {
        for text in [
            "",
            "/dir42/class1_5",
            "/dir000042/class1_5",
            "/dir+0042/class1_5",
            "/dir00042/class4_5",
            "/dir00042/class1_0",
            "/dir00042/class1_10",
            "/dir00042/class1_5/",
            "/dir00042/class1_5?x",
            "dir00042/class1_5",
            "/dir99999999999/class1_5",
            "//dir00042/class1_5",
            "/dir00042/class1_5\n",
        ] {
            assert_eq!(FileName::parse(text), None, "{text:?}");
        }
        assert!(FileName::parse("/dir123456/class3_9").is_some());
    }

    proptest! {
        #[test]
        fn file_name_reads_back_as_written(
            directory in 0..DIRECTORIES_MAX, class in 0..CLASSES, number in 1..=FILES_PER_CLASS
        ) {
            let name = FileName::new(directory, class, number).expect("within the bounds");
            prop_assert_eq!(FileName::parse(&name.to_string()), Some(name));
        }
    }
}
