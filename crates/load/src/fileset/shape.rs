//! What a file set consists of, computed from a few numbers: how many files, and for each its name,
//! size, class and weight.
//!
//! Nothing here touches a disk, and nothing is stored that can be computed, so a set of any size
//! can be inspected before it is created. SPECweb99's shape is Table 1.1 of Ruan's dissertation
//! (2005): a directory holds 4 classes of 9 files, and directory n has the weight 1/n. SPECweb96's
//! is its public workload description: the same classes and sizes, and a Poisson distribution
//! within each class. Many small files are like the thumbnails or cached pages of a large site. All weights are whole numbers, so floating point cannot change a request
//! stream.

use std::fmt::{self, Write};
use std::str::FromStr;

use headway_base::random::mixed;

use super::site::SiteFiles;

/// A file of a set, counted from 0.
pub type FileIndex = u32;

/// What [`Shape::class`] returns for a file that is in none of SPECweb's classes.
pub(crate) const NO_CLASS: u8 = 255;

/// The most files of a set: 4.8 TB of SPECweb99 files. The names of a loaded set are kept in
/// memory.
pub(crate) const FILES_MAX: u32 = 1 << 25;

/// Files in a SPECweb directory: 4 classes of 9.
pub const FILES_PER_DIRECTORY: u32 = 36;

/// The unit in which disks and memory hold files, in bytes.
pub const PAGE_BYTES: u64 = 4096;

/// Files in one directory of a uniform set: few enough that a lookup stays cheap on any file
/// system.
const UNIFORM_PER_DIRECTORY: u32 = 1000;

/// Files in one directory of a set of many files.
const MANY_PER_DIRECTORY: u32 = 100;

/// The smallest of many files, and how often a size is doubled up to the largest.
const MANY_BYTES_MIN: u64 = 512;
const MANY_DOUBLINGS: u64 = 5;

/// A prime above [`FILES_MAX`]: multiples of it, modulo the number of files, are every file once. So
/// the popular ones of many files are in all directories.
const MANY_RANK_STEP: u64 = (1 << 31) - 1;

/// Shares of the four classes, in percent (Table 1.1).
pub(super) const CLASS_WEIGHTS: [u64; 4] = [35, 50, 14, 1];

/// Shares of the nine files within a SPECweb99 class, in thousandths, as Table 1.1 prints them.
/// They are Zipf's law over the order 5 4 6 3 7 2 8 9 1, rounded; their sum is 999.
pub(super) const FILE_WEIGHTS_99: [u64; 9] = [39, 59, 88, 177, 353, 118, 71, 50, 44];

/// The Poisson distribution with mean 5 over the files 1 to 9 of a SPECweb96 class: 5^k / k!, times
/// 9! / 25 to get whole numbers.
pub(super) const FILE_WEIGHTS_96: [u64; 9] = [
    72_576, 181_440, 302_400, 378_000, 378_000, 315_000, 225_000, 140_625, 78_125,
];

/// The weight of the first directory. 2^36 leaves room for class and file weights in 64 bits, and
/// 1/n of it is exact to one in a million for 60,000 directories.
const DIRECTORY_WEIGHT: u64 = 1 << 36;

/// The kinds of file sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Directories of 36 files, their popularity by Zipf's law.
    SpecWeb99,
    /// SPECweb99 with placeholders for advertisements in the files of classes 1 and 2, and the
    /// files of a SPECweb99-like application.
    SpecWeb99Dynamic,
    /// The files of SPECweb99, all directories equally popular.
    SpecWeb96,
    /// Files of one size, all alike.
    Uniform,
    /// Small files of many sizes, 100 in a directory, their popularity by Zipf's law.
    ManyFiles,
    /// The files and the popularity that an access log shows.
    FromLog,
}

/// The numbers that decide everything about a set but its contents, which depend on a seed too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// SPECweb99's static files.
    SpecWeb99 {
        /// Directories of 36 files.
        directories: u32,
    },
    /// SPECweb99 with placeholders for advertisements in classes 1 and 2.
    SpecWeb99Dynamic {
        /// Directories of 36 files.
        directories: u32,
    },
    /// SPECweb96's files.
    SpecWeb96 {
        /// Directories of 36 files.
        directories: u32,
    },
    /// Equal files.
    Uniform {
        /// Number of files.
        count: u32,
        /// The size of each.
        file_bytes: u64,
    },
    /// Files of 512 bytes to 16 KiB; each doubling of the size has as many files.
    ManyFiles {
        /// Number of files.
        count: u32,
    },
    /// What an access log showed.
    Site(SiteFiles),
}

/// The set that was asked for cannot be described.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ShapeError {
    /// A set without a file.
    #[error("a file set needs at least one file")]
    Empty,
    /// More than [`FILES_MAX`].
    #[error("{files} files are more than a set may have ({FILES_MAX})")]
    TooMany {
        /// How many were asked for.
        files: u64,
    },
    /// Bytes beyond 2^63.
    #[error("the files would be larger together than any file system")]
    TooLarge,
}

impl Shape {
    /// As many SPECweb99 directories as it takes to fill `bytes` of disk in pages of 4096 bytes;
    /// see [`specweb_directories`].
    pub fn specweb99(bytes: u64) -> Result<Shape, ShapeError> {
        Shape::SpecWeb99 {
            directories: specweb_directories(bytes)?,
        }
        .checked()
    }

    /// A SPECweb99 set with placeholders for advertisements.
    pub fn specweb99_dynamic(bytes: u64) -> Result<Shape, ShapeError> {
        Shape::SpecWeb99Dynamic {
            directories: specweb_directories(bytes)?,
        }
        .checked()
    }

    /// A SPECweb96 set of about this size.
    pub fn specweb96(bytes: u64) -> Result<Shape, ShapeError> {
        Shape::SpecWeb96 {
            directories: specweb_directories(bytes)?,
        }
        .checked()
    }

    /// `count` files of `file_bytes` bytes.
    pub fn uniform(count: u64, file_bytes: u64) -> Result<Shape, ShapeError> {
        let files = u32::try_from(count).map_err(|_| ShapeError::TooMany { files: count })?;
        Shape::Uniform {
            count: files,
            file_bytes,
        }
        .checked()
    }

    /// `count` small files of many sizes.
    pub fn many_files(count: u64) -> Result<Shape, ShapeError> {
        let count = u32::try_from(count).map_err(|_| ShapeError::TooMany { files: count })?;
        Shape::ManyFiles { count }.checked()
    }

    /// The shape itself, if it has a file, not too many files, and a size that can be represented.
    pub fn checked(self) -> Result<Shape, ShapeError> {
        let files = match &self {
            Shape::SpecWeb99 { directories }
            | Shape::SpecWeb99Dynamic { directories }
            | Shape::SpecWeb96 { directories } => {
                u64::from(*directories) * u64::from(FILES_PER_DIRECTORY)
            }
            Shape::Uniform { count, .. } | Shape::ManyFiles { count } => u64::from(*count),
            Shape::Site(site) => site.files().len() as u64,
        };
        if files == 0 {
            return Err(ShapeError::Empty);
        }
        if files > u64::from(FILES_MAX) {
            return Err(ShapeError::TooMany { files });
        }
        // A block may be 64 KiB, and the sum still has to fit.
        let bytes = self.sum(|size| size.saturating_add(1 << 16));
        if bytes > i64::MAX as u128 {
            return Err(ShapeError::TooLarge);
        }
        Ok(self)
    }

    /// The kind of the set.
    pub fn profile(&self) -> Profile {
        match self {
            Shape::SpecWeb99 { .. } => Profile::SpecWeb99,
            Shape::SpecWeb99Dynamic { .. } => Profile::SpecWeb99Dynamic,
            Shape::SpecWeb96 { .. } => Profile::SpecWeb96,
            Shape::Uniform { .. } => Profile::Uniform,
            Shape::ManyFiles { .. } => Profile::ManyFiles,
            Shape::Site(_) => Profile::FromLog,
        }
    }

    /// Number of files.
    pub fn files(&self) -> u32 {
        match self {
            Shape::SpecWeb99 { directories }
            | Shape::SpecWeb99Dynamic { directories }
            | Shape::SpecWeb96 { directories } => directories * FILES_PER_DIRECTORY,
            Shape::Uniform { count, .. } | Shape::ManyFiles { count } => *count,
            Shape::Site(site) => site.files().len() as u32,
        }
    }

    /// The length of a file in bytes. Panics when there is no such file, like the other functions
    /// of an index.
    pub(crate) fn size(&self, file: FileIndex) -> u64 {
        match self {
            Shape::SpecWeb99 { .. } | Shape::SpecWeb99Dynamic { .. } | Shape::SpecWeb96 { .. } => {
                specweb_size(file % FILES_PER_DIRECTORY)
            }
            Shape::Uniform { file_bytes, .. } => *file_bytes,
            Shape::ManyFiles { .. } => many_size(file),
            Shape::Site(site) => site.files()[file as usize].size_bytes,
        }
    }

    /// SPECweb's class, 0 to 3, or [`NO_CLASS`].
    pub(crate) fn class(&self, file: FileIndex) -> u8 {
        match self {
            Shape::SpecWeb99 { .. } | Shape::SpecWeb99Dynamic { .. } | Shape::SpecWeb96 { .. } => {
                (file % FILES_PER_DIRECTORY / 9) as u8
            }
            Shape::Uniform { .. } | Shape::ManyFiles { .. } | Shape::Site(_) => NO_CLASS,
        }
    }

    /// How often a file is asked for, relative to the others of the set; below 2^63.
    pub(crate) fn weight(&self, file: FileIndex) -> u64 {
        let (directory, class) = (file / FILES_PER_DIRECTORY, file % FILES_PER_DIRECTORY / 9);
        let (class_weight, number) = (CLASS_WEIGHTS[class as usize], (file % 9) as usize);
        match self {
            Shape::SpecWeb99 { .. } | Shape::SpecWeb99Dynamic { .. } => {
                class_weight * FILE_WEIGHTS_99[number] * zipf_weight(u64::from(directory))
            }
            Shape::SpecWeb96 { .. } => class_weight * FILE_WEIGHTS_96[number],
            Shape::Uniform { .. } => 1,
            Shape::ManyFiles { count } => {
                zipf_weight(u64::from(file) * MANY_RANK_STEP % u64::from(*count))
            }
            Shape::Site(site) => site.files()[file as usize].requests,
        }
    }

    /// Appends the path a client asks for: `/dir00042/class1_5`.
    pub(crate) fn write_path(&self, file: FileIndex, path: &mut String) {
        let written = match self {
            Shape::SpecWeb99 { .. } | Shape::SpecWeb99Dynamic { .. } | Shape::SpecWeb96 { .. } => {
                let (directory, inside) = (file / FILES_PER_DIRECTORY, file % FILES_PER_DIRECTORY);
                write!(
                    path,
                    "/dir{directory:05}/class{}_{}",
                    inside / 9,
                    inside % 9 + 1
                )
            }
            Shape::Uniform { .. } => write!(
                path,
                "/dir{:05}/file{:03}",
                file / UNIFORM_PER_DIRECTORY,
                file % UNIFORM_PER_DIRECTORY
            ),
            Shape::ManyFiles { .. } => write!(
                path,
                "/dir{:05}/file{:02}",
                file / MANY_PER_DIRECTORY,
                file % MANY_PER_DIRECTORY
            ),
            Shape::Site(site) => path.write_str(&site.files()[file as usize].path),
        };
        written.expect("a string takes everything");
    }

    /// The sum of all lengths in bytes.
    pub fn bytes(&self) -> u64 {
        self.sum(|size| size) as u64
    }

    /// The sum of all lengths in whole pages of 4096 bytes.
    pub fn page_bytes(&self) -> u64 {
        self.sum(|size| size.next_multiple_of(PAGE_BYTES)) as u64
    }

    /// What the set takes on a file system with blocks of `block` bytes: files and directories
    /// rounded up.
    pub(crate) fn disk_bytes(&self, block: u64) -> u64 {
        let files = self.sum(|size| size.next_multiple_of(block));
        let directories = self.directories() * block.max(PAGE_BYTES);
        // A name and its number take some 30 bytes of a directory; the first block was counted
        // above.
        let names = u64::from(self.files()) * 32;
        let names = if self.profile() == Profile::Uniform {
            names
        } else {
            0
        };
        (files + u128::from(directories + names)) as u64
    }

    /// How many directories there are below the set's own.
    pub fn directories(&self) -> u64 {
        match self {
            Shape::SpecWeb99 { directories }
            | Shape::SpecWeb99Dynamic { directories }
            | Shape::SpecWeb96 { directories } => u64::from(*directories),
            Shape::Uniform { count, .. } => u64::from(count.div_ceil(UNIFORM_PER_DIRECTORY)),
            Shape::ManyFiles { count } => u64::from(count.div_ceil(MANY_PER_DIRECTORY)),
            Shape::Site(site) => site.directories(),
        }
    }

    /// Whether a file has places for an advertisement.
    pub(crate) fn has_placeholders(&self, file: FileIndex) -> bool {
        let dynamic = matches!(self, Shape::SpecWeb99Dynamic { .. });
        dynamic && matches!(self.class(file), 1 | 2)
    }

    /// A set of the same kind with this many directories of 36 files; `None` if it is not a SPECweb
    /// set.
    pub(crate) fn with_directories(&self, directories: u32) -> Option<Shape> {
        match self {
            Shape::SpecWeb99 { .. } => Some(Shape::SpecWeb99 { directories }),
            Shape::SpecWeb99Dynamic { .. } => Some(Shape::SpecWeb99Dynamic { directories }),
            Shape::SpecWeb96 { .. } => Some(Shape::SpecWeb96 { directories }),
            Shape::Uniform { .. } | Shape::ManyFiles { .. } | Shape::Site(_) => None,
        }
    }

    /// The sum of a function of each length, without visiting the files of a regular set one by
    /// one.
    fn sum(&self, of: impl Fn(u64) -> u64) -> u128 {
        match self {
            Shape::SpecWeb99 { directories }
            | Shape::SpecWeb99Dynamic { directories }
            | Shape::SpecWeb96 { directories } => {
                let one: u128 = (0..FILES_PER_DIRECTORY)
                    .map(|file| u128::from(of(specweb_size(file))))
                    .sum();
                one * u128::from(*directories)
            }
            Shape::Uniform { count, file_bytes } => {
                u128::from(of(*file_bytes)) * u128::from(*count)
            }
            Shape::ManyFiles { count } => (0..*count)
                .map(|file| u128::from(of(many_size(file))))
                .sum(),
            Shape::Site(site) => site
                .files()
                .iter()
                .map(|file| u128::from(of(file.size_bytes)))
                .sum(),
        }
    }
}

/// How many SPECweb directories fill `bytes` of disk or memory, in whole pages of 4096 bytes:
/// 5,177,344 bytes a directory. With this reading, and no other we tried, 1, 2, 3 and 4 GB give the
/// dissertation's Table 1.2 within 0.07 MB (`popularity` tests it). One directory at least.
pub fn specweb_directories(bytes: u64) -> Result<u32, ShapeError> {
    if bytes == 0 {
        return Err(ShapeError::Empty);
    }
    let one: u64 = (0..FILES_PER_DIRECTORY)
        .map(|file| specweb_size(file).next_multiple_of(PAGE_BYTES))
        .sum();
    let directories = bytes.div_ceil(one);
    u32::try_from(directories)
        .ok()
        .filter(|&number| number <= FILES_MAX / FILES_PER_DIRECTORY)
        .ok_or(ShapeError::TooMany {
            files: directories.saturating_mul(u64::from(FILES_PER_DIRECTORY)),
        })
}

/// The data set of SPECweb99 for a number of simultaneous connections, in bytes: 122 + 3.22 n MB
/// (dissertation, equation 1.1).
pub fn specweb_bytes(connections: u64) -> u64 {
    connections
        .saturating_mul(3_220_000)
        .saturating_add(122_000_000)
}

/// The largest number of connections whose data set is not larger than this.
pub(crate) fn specweb_connections(bytes: u64) -> u64 {
    bytes.saturating_sub(122_000_000) / 3_220_000
}

/// The length of one of the 36: 102.4, 1024, 10,240 or 102,400 bytes, 1 to 9 times, without the
/// fraction.
fn specweb_size(file: u32) -> u64 {
    let (class, number) = (file / 9, u64::from(file % 9 + 1));
    1024 * number * 10_u64.pow(class) / 10
}

/// The weight of the `above` + first of many by Zipf's law.
fn zipf_weight(above: u64) -> u64 {
    let rank = above + 1;
    (DIRECTORY_WEIGHT + rank / 2) / rank
}

/// The length of one of many files.
fn many_size(file: u32) -> u64 {
    let number = mixed(u64::from(file));
    let least = MANY_BYTES_MIN << (number % MANY_DOUBLINGS);
    least + (number >> 8) % least
}

const PROFILES: [(Profile, &str); 6] = [
    (Profile::SpecWeb99, "specweb99"),
    (Profile::SpecWeb99Dynamic, "specweb99-dynamic"),
    (Profile::SpecWeb96, "specweb96"),
    (Profile::Uniform, "uniform"),
    (Profile::ManyFiles, "many-files"),
    (Profile::FromLog, "from-log"),
];

impl fmt::Display for Profile {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = PROFILES.iter().find(|(profile, _)| profile == self);
        out.write_str(name.map_or("", |(_, name)| name))
    }
}

impl FromStr for Profile {
    type Err = String;

    fn from_str(text: &str) -> Result<Profile, String> {
        PROFILES
            .iter()
            .find(|(_, name)| *name == text)
            .map(|(profile, _)| *profile)
            .ok_or_else(|| {
                format!(
                    "`{text}` is not a profile: specweb99, specweb99-dynamic, specweb96, uniform, many-files or from-log"
                )
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specweb99_directory_has_the_36_files_of_table_1_1() {
        let shape = Shape::SpecWeb99 { directories: 2 };
        assert_eq!(shape.files(), 72);
        let sizes: Vec<u64> = (36..45).map(|file| shape.size(file)).collect();
        assert_eq!(sizes, [102, 204, 307, 409, 512, 614, 716, 819, 921]);
        assert_eq!((shape.size(9), shape.size(17)), (1024, 9216));
        assert_eq!((shape.size(27), shape.size(35)), (102_400, 921_600));
        assert_eq!(shape.bytes(), 2 * 5_119_484);
        let mut path = String::new();
        shape.write_path(36 + 9 + 4, &mut path);
        assert_eq!(path, "/dir00001/class1_5");
        assert_eq!(shape.class(36 + 9 + 4), 1);
    }

    /// The share of the requests for files that a condition picks.
    fn share(shape: &Shape, picked: impl Fn(u32) -> bool) -> f64 {
        let sum = |picked: &dyn Fn(u32) -> bool| -> f64 {
            (0..shape.files())
                .filter(|&file| picked(file))
                .map(|file| shape.weight(file) as f64)
                .sum()
        };
        sum(&picked) / sum(&|_| true)
    }

    #[test]
    fn classes_and_files_have_the_weights_of_table_1_1_when_added_up() {
        let printed = [3.9, 5.9, 8.8, 17.7, 35.3, 11.8, 7.1, 5.0, 4.4];
        let shape = Shape::SpecWeb99 { directories: 100 };
        for (class, percent) in [35.0, 50.0, 14.0, 1.0].into_iter().enumerate() {
            let found = share(&shape, |file| shape.class(file) as usize == class);
            assert!((found * 100.0 - percent).abs() < 1e-6, "class {class}");
        }
        for (number, percent) in printed.into_iter().enumerate() {
            let found = share(&shape, |file| file % 9 == number as u32) * 100.0;
            // The printed percentages add up to 99.9, so each is a thousandth short.
            assert!((found - percent).abs() < 0.05, "file {number}: {found}");
        }
        let poisson = Shape::SpecWeb96 { directories: 3 };
        let five = share(&poisson, |file| file % 9 == 4);
        let six = share(&poisson, |file| file % 9 == 5);
        assert!((six / five - 5.0 / 6.0).abs() < 1e-12, "5^6/6! over 5^5/5!");
    }

    #[test]
    fn specweb99_directory_n_has_the_weight_one_in_n() {
        let shape = Shape::SpecWeb99 { directories: 600 };
        let first = share(&shape, |file| file / 36 == 0);
        for rank in [2, 3, 10, 600] {
            let found = share(&shape, |file| file / 36 == rank - 1);
            assert!((first / found - f64::from(rank)).abs() < 1e-4, "{rank}");
        }
        let alike = Shape::SpecWeb96 { directories: 600 };
        assert!((share(&alike, |file| file / 36 == 599) - 1.0 / 600.0).abs() < 1e-12);
    }

    #[test]
    fn many_files_have_100_in_a_directory_and_popular_ones_in_all() {
        let shape = Shape::many_files(30_000).unwrap();
        assert_eq!((shape.files(), shape.directories()), (30_000, 300));
        let mut path = String::new();
        shape.write_path(29_999, &mut path);
        assert_eq!(path, "/dir00299/file99");
        let sizes = 0..shape.files();
        assert!(
            sizes
                .clone()
                .all(|file| (512..16_384).contains(&shape.size(file)))
        );
        let small = sizes.filter(|&file| shape.size(file) < 1024).count();
        assert!((5_500..6_500).contains(&small), "a fifth, not {small}");
        // Each rank once: the harmonic number of 30,000 is 10.886.
        let first = share(&shape, |file| shape.weight(file) == DIRECTORY_WEIGHT);
        assert!((first - 1.0 / 10.886).abs() < 1e-4, "{first}");
        let popular = |file: &u32| shape.weight(*file) > DIRECTORY_WEIGHT / 1000;
        let directories = (0..shape.files()).filter(popular).map(|file| file / 100);
        let directories: std::collections::BTreeSet<u32> = directories.collect();
        assert!(directories.len() > 200, "{}", directories.len());
    }

    #[test]
    fn specweb99_size_in_bytes_or_connections_becomes_directories() {
        for (bytes, directories) in [(1, 1), (5_177_344, 1), (5_177_345, 2), (3_000_000_000, 580)] {
            assert_eq!(specweb_directories(bytes), Ok(directories), "{bytes}");
        }
        assert_eq!(specweb_directories(0), Err(ShapeError::Empty));
        assert_eq!(specweb_bytes(0), 122_000_000);
        assert_eq!(specweb_bytes(1000), 3_342_000_000);
    }

    #[test]
    fn set_is_an_error_when_it_has_no_file_or_too_many() {
        assert_eq!(Shape::uniform(0, 5), Err(ShapeError::Empty));
        let files = u64::from(FILES_MAX) + 1;
        assert_eq!(Shape::uniform(files, 5), Err(ShapeError::TooMany { files }));
        assert_eq!(Shape::uniform(2, u64::MAX), Err(ShapeError::TooLarge));
        assert!(matches!(
            Shape::specweb99(u64::MAX),
            Err(ShapeError::TooMany { .. })
        ));
        assert!(specweb_bytes(u64::MAX) == u64::MAX);
    }

    #[test]
    fn number_of_connections_is_that_of_the_rule_when_it_is_taken_from_a_size() {
        for connections in [1, 100, 820, 12_345] {
            let bytes = specweb_bytes(connections);
            assert_eq!(specweb_connections(bytes), connections);
            let shape = Shape::specweb99_dynamic(bytes).unwrap();
            assert!(specweb_connections(shape.page_bytes()) >= connections);
        }
        assert_eq!(specweb_connections(5), 0);
    }
}
