//! The marks by which programs are known, wherever they and their descendants have gone.
//!
//! A program that has left its group (setsid(2)) is not reached by a signal to it, and one whose
//! parent has ended is not found below its program either. A mark ([`headway_os::spawn::Limits::mark`])
//! goes with every descendant. Those of a worker have a number in common that is drawn by lot when
//! it begins, so that another server's are never taken for them.

use std::hash::{BuildHasher, RandomState};

use headway_os::spawn::MARK_LEAST;

/// The marks that a worker gives.
#[derive(Clone, Copy, Debug)]
pub struct Marks {
    /// What they have in common: the upper half.
    common: u64,
}

impl Marks {
    /// Those of a worker that begins.
    pub fn draw() -> Marks {
        // The lowest 30 bits, so that a mark is below the next power of two: more is no limit any
        // more.
        let lot = RandomState::new().hash_one(std::process::id()) & ((1 << 30) - 1);
        Marks {
            common: MARK_LEAST | lot << 32,
        }
    }

    /// The mark of the program with this number.
    pub fn of(self, id: u64) -> u64 {
        self.common | (id & u64::from(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_different_and_no_limits_when_programs_or_workers_are_others() {
        let (one, other) = (Marks::draw(), Marks::draw());
        let marks = [
            one.of(0),
            one.of(1),
            one.of(u64::MAX),
            other.of(0),
            other.of(1),
        ];
        for (index, mark) in marks.iter().enumerate() {
            assert!(headway_os::spawn::is_mark(*mark), "{mark:#x}");
            assert!(!marks[..index].contains(mark), "{marks:x?}");
        }
        assert_eq!(one.of(1), one.of(1));
    }
}
