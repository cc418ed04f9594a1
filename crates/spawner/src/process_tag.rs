//! Process tags, by which a program's descendants are found wherever they are.
//!
//! A program that has left its group (setsid(2)) is not reached by a signal to that group, and once
//! its parent has exited it is not found below its program either. A tag
//! ([`headway_os::spawn::Limits::process_tag`]) is inherited by every descendant. The tags of a
//! worker share a random number chosen at startup, so that processes of another server are never
//! mistaken for its own.

use std::hash::{BuildHasher, RandomState};

use headway_os::spawn::PROCESS_TAG_MIN;

/// The tags of one worker.
#[derive(Clone, Copy, Debug)]
pub struct ProcessTags {
    /// The upper half, which all of them share.
    common: u64,
}

impl ProcessTags {
    /// Chooses the tags of a new worker at random.
    pub fn draw() -> ProcessTags {
        // The lowest 30 bits, so that a tag stays below the next power of two; above that the
        // kernel treats it as no limit.
        let lot = RandomState::new().hash_one(std::process::id()) & ((1 << 30) - 1);
        ProcessTags {
            common: PROCESS_TAG_MIN | lot << 32,
        }
    }

    /// The tag of the program with this ID.
    pub fn of(self, id: u64) -> u64 {
        self.common | (id & u64::from(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_tags_are_unique_per_program_and_worker() {
        let (one, other) = (ProcessTags::draw(), ProcessTags::draw());
        let process_tags = [
            one.of(0),
            one.of(1),
            one.of(u64::MAX),
            other.of(0),
            other.of(1),
        ];
        for (index, process_tag) in process_tags.iter().enumerate() {
            assert!(
                headway_os::spawn::is_process_tag(*process_tag),
                "{process_tag:#x}"
            );
            assert!(
                !process_tags[..index].contains(process_tag),
                "{process_tags:x?}"
            );
        }
        assert_eq!(one.of(1), one.of(1));
    }
}
