//! Windows of files in memory of our own: read once, sent to whoever asks for them.
//!
//! A window is read by a call that cannot wait, and its file is compared with what was opened
//! *after* that. So whatever stands here is one version of an open file, and stays it: sending it
//! needs no further question to the kernel, however often and whatever becomes of the file.
//!
//! The number of windows is fixed and nobody holds one across turns. What a socket has not taken is
//! most often still here when it has room again; if not, it is read again. When all places are
//! taken the one leaves that was not asked for since the hand of the clock last passed it (second
//! chance).
//!
//! Sources: preadv2(2) `RWF_NOWAIT`; Corbató 1968 for the clock.

use std::ops::Range;
use std::rc::{Rc, Weak};

use headway_debox::{Call, Tracer};
use headway_files::{OpenFile, Residency, WINDOW_BYTES};

/// Windows that one call to [`Windows::fill`] may be told to spare. Fewer places than twice as many
/// would leave nothing to replace.
pub const SPARED_MAX: usize = 4;

/// Which place a window has, until the next [`Windows::fill`] that is not told to spare it.
pub type Place = usize;

/// The windows at hand.
pub struct Windows {
    places: Vec<Window>,
    places_max: usize,
    hand: Place,
}

struct Window {
    /// Weak, because an open file is given up when nobody serves it; its address stays taken, so
    /// that no other file is taken for it.
    file: Weak<OpenFile>,
    /// Where in the file the bytes begin.
    start: u64,
    /// Always as long as a window, so that nothing is taken or cleared for reading.
    bytes: Vec<u8>,
    /// How many of them have been read.
    length: usize,
    /// Asked for since the hand last passed.
    used: bool,
}

impl Default for Window {
    fn default() -> Self {
        Self {
            file: Weak::new(),
            start: 0,
            bytes: vec![0; WINDOW_BYTES as usize],
            length: 0,
            used: false,
        }
    }
}

impl Window {
    fn end(&self) -> u64 {
        self.start + self.length as u64
    }

    fn is_of(&self, file: &Rc<OpenFile>, offset: u64) -> bool {
        self.file.as_ptr() == Rc::as_ptr(file) && self.start / WINDOW_BYTES == offset / WINDOW_BYTES
    }
}

/// What became of reading a window.
pub enum Filled {
    /// It is there, or some of its first bytes are.
    Here(Place),
    /// Its first byte is not in memory.
    Cold,
    /// The file is not the one that was opened any more.
    Changed,
    /// It could not be read, or not compared.
    Failed(std::io::Error),
}

impl Windows {
    /// No window yet, and at most `bytes_max` of them; memory is taken as they come.
    pub fn new(bytes_max: u64) -> Self {
        let places_max = (bytes_max / WINDOW_BYTES) as usize;
        Self {
            places: Vec::new(),
            places_max: places_max.max(2 * SPARED_MAX),
            hand: 0,
        }
    }

    /// The window that holds the byte at `offset`.
    pub fn find(&mut self, file: &Rc<OpenFile>, offset: u64) -> Option<Place> {
        let holds = |window: &Window| {
            window.is_of(file, offset) && (window.start..window.end()).contains(&offset)
        };
        let place = self.places.iter().position(holds)?;
        self.places[place].used = true;
        Some(place)
    }

    /// The bytes from `offset` on, no more than `length`, of the window at `place`.
    pub fn bytes(&self, place: Place, offset: u64, length: u64) -> &[u8] {
        let window = &self.places[place];
        let at = offset - window.start;
        let end = (at + length).min(window.length as u64);
        &window.bytes[at as usize..end as usize]
    }

    /// Reads `range`, which lies within one window and is not here, in place of any window but
    /// `spared`.
    pub fn fill(
        &mut self,
        file: &Rc<OpenFile>,
        range: Range<u64>,
        spared: &[Place],
        (residency, tracer): (&Residency, &Tracer),
    ) -> Filled {
        let before =
            |window: &Window| window.is_of(file, range.start) && window.end() == range.start;
        let place = match self.places.iter().position(before) {
            Some(place) => place,
            None => self.clear(file, range.start, spared),
        };
        let window = &mut self.places[place];
        let room = window.length..window.length + (range.end - range.start) as usize;
        let read = tracer.call(Call::ReadNowait, || {
            residency.read(file, &mut window.bytes[room], range.start)
        });
        // Only now: what was read before the comparison is of the version that was opened, if that
        // is still the version.
        let same = tracer.call(Call::Status, || file.unchanged());
        match (read, same) {
            // Or shorter than its size says.
            (_, Ok(false)) | (Ok(Some(0)), _) => Filled::Changed,
            (Err(error), _) | (_, Err(error)) => Filled::Failed(error),
            (Ok(None), Ok(true)) => Filled::Cold,
            (Ok(Some(count)), Ok(true)) => {
                window.length += count;
                window.used = true;
                Filled::Here(place)
            }
        }
    }

    /// An empty window for what begins at `start`.
    fn clear(&mut self, file: &Rc<OpenFile>, start: u64, spared: &[Place]) -> Place {
        let place = match self.places.len() < self.places_max {
            true => {
                self.places.push(Window::default());
                self.places.len() - 1
            }
            false => self.turn_hand(spared),
        };
        let window = &mut self.places[place];
        window.file = Rc::downgrade(file);
        window.start = start;
        window.length = 0;
        place
    }

    /// The next place that was not asked for lately. Ends: a round clears every mark, and fewer
    /// places are spared than there are.
    fn turn_hand(&mut self, spared: &[Place]) -> Place {
        loop {
            let place = self.hand;
            self.hand = (place + 1) % self.places.len();
            if !spared.contains(&place) && !std::mem::take(&mut self.places[place].used) {
                return place;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    const WINDOW: usize = WINDOW_BYTES as usize;
    /// As few as there can be.
    const PLACES: u64 = 2 * SPARED_MAX as u64;

    fn open(path: &Path) -> Rc<OpenFile> {
        let file = fs::File::open(path).unwrap();
        let meta = headway_os::open::status(&file).unwrap().into();
        Rc::new(OpenFile::new(file.into(), meta))
    }

    struct Fixture {
        windows: Windows,
        file: Rc<OpenFile>,
        directory: tempfile::TempDir,
    }

    impl Fixture {
        /// A file of so many windows, each full of its number.
        fn of(windows: u64) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("file");
            let content: Vec<u8> = (0..windows)
                .flat_map(|one| vec![one as u8; WINDOW])
                .collect();
            fs::write(&path, content).unwrap();
            Self {
                windows: Windows::new(0),
                file: open(&path),
                directory,
            }
        }

        fn fill(&mut self, range: Range<u64>, spared: &[Place]) -> Place {
            let file = self.file.clone();
            match self.windows.fill(
                &file,
                range,
                spared,
                (&Residency::detect(), &Tracer::disabled()),
            ) {
                Filled::Here(place) => place,
                _ => panic!("it has just been written"),
            }
        }

        fn fill_whole(&mut self, number: u64) -> Place {
            self.fill(number * WINDOW_BYTES..(number + 1) * WINDOW_BYTES, &[])
        }

        fn holds(&mut self, number: u64) -> bool {
            let place = self.windows.find(&self.file, number * WINDOW_BYTES);
            place.is_some_and(|place| {
                let bytes = self.windows.bytes(place, number * WINDOW_BYTES, 10);
                bytes == [number as u8; 10]
            })
        }
    }

    #[test]
    fn window_is_found_by_any_of_its_bytes_and_no_other() {
        let mut all = Fixture::of(2);
        let place = all.fill(10..100, &[]);
        for (offset, found) in [(9, false), (10, true), (99, true), (100, false)] {
            assert_eq!(
                all.windows.find(&all.file, offset).is_some(),
                found,
                "{offset}"
            );
        }
        assert!(all.windows.find(&all.file, WINDOW_BYTES + 10).is_none());
        assert_eq!(all.windows.bytes(place, 90, 1000).len(), 10);
    }

    #[test]
    fn window_grows_when_its_next_bytes_are_read() {
        let mut all = Fixture::of(2);
        let first = all.fill(0..100, &[]);
        assert_eq!(all.fill(100..WINDOW_BYTES, &[]), first);
        assert_eq!(all.windows.bytes(first, 0, u64::MAX / 2).len(), WINDOW);
        assert_ne!(all.fill_whole(1), first);
    }

    #[test]
    fn window_that_was_asked_for_stays_when_another_one_needs_the_place() {
        let mut all = Fixture::of(PLACES + 2);
        for number in 0..=PLACES {
            all.fill_whole(number);
        }
        // The hand has been round once and has taken every mark but the last.
        assert!(!all.holds(0) && all.holds(1));
        all.fill_whole(PLACES + 1);
        assert!(all.holds(1) && !all.holds(2));
    }

    #[test]
    fn spared_windows_stay_when_all_others_are_replaced() {
        let mut all = Fixture::of(3 * PLACES);
        let spared: Vec<Place> = (0..3).map(|number| all.fill_whole(number)).collect();
        for number in 3..3 * PLACES {
            let start = number * WINDOW_BYTES;
            all.fill(start..start + 1, &spared);
        }
        assert!((0..3).all(|number| all.holds(number)));
    }

    #[test]
    fn nothing_is_kept_when_the_file_was_rewritten_before_it_was_read() {
        let mut all = Fixture::of(2);
        all.fill_whole(0);
        let path = all.directory.path().join("file");
        fs::write(path, vec![9; 2 * WINDOW]).unwrap();
        let file = all.file.clone();
        let next = WINDOW_BYTES..2 * WINDOW_BYTES;
        let filled = all.windows.fill(
            &file,
            next,
            &[],
            (&Residency::detect(), &Tracer::disabled()),
        );
        assert!(matches!(filled, Filled::Changed));
        assert!(all.windows.find(&file, WINDOW_BYTES).is_none());
        assert!(
            all.holds(0),
            "what was read in time is of the first version"
        );
    }

    #[test]
    fn window_is_not_taken_for_one_of_another_file_when_its_own_is_closed() {
        let mut all = Fixture::of(1);
        all.fill_whole(0);
        let path = all.directory.path().join("file");
        for _ in 0..100 {
            all.file = open(&path);
            assert!(!all.holds(0), "it was read through another descriptor");
        }
    }
}
