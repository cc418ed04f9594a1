//! Two document roots: files whose every version is known, so that every byte of a reply can be
//! checked. The second one may be reached through a link, which is switched to other releases.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::LazyLock;

use headway_base::random::{Draw, SplitMix64};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};

use crate::clock;

/// The version of a file that existed for a while.
pub struct Version {
    /// `None`: the file did not exist, or could not be read.
    pub content: Option<Rc<Vec<u8>>>,
    pub is_forbidden: bool,
    /// Modification time in seconds since 1970.
    pub modified_s: i64,
    pub until_ns: u64,
    /// The version was changed in place afterwards, so a reply of it may be cut off.
    pub is_rewritten: bool,
}

/// All versions of one path, the oldest first. It begins with the name of its root.
pub type Versions = Vec<Version>;

/// The document root.
pub struct Site {
    directory: tempfile::TempDir,
    files: BTreeMap<String, Versions>,
    /// The number of the release that is served, if the second root is a link.
    release: Option<u32>,
    /// What the second host answers instead of a file that is missing or forbidden.
    pub error_page: Vec<u8>,
    /// No two versions have one modification time.
    next_modified_s: i64,
    /// All files are larger than a chunk, so that buffers for chunks are scarce.
    has_large_files: bool,
    random: SplitMix64,
}

/// Random bytes, a piece of which is a content: no two pieces that begin elsewhere are alike.
fn pool() -> &'static [u8] {
    static POOL: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut random = SplitMix64(1);
        (0..POOL_BYTES / 8)
            .flat_map(|_| random.next_u64().to_le_bytes())
            .collect()
    });
    &POOL
}

/// Directories of the site; one has an index file.
pub const DIRECTORIES: [&str; 2] = ["with", "without"];

/// The document root of the default host, and that of another one.
pub const ROOTS: [&str; 2] = ["root", "other"];

/// Around the limits of reads, pages, chunks and the response cache.
const SIZES: [usize; 16] = [
    0, 1, 17, 700, 4096, 5000, 16_384, 16_385, 65_536, 65_537, 131_073, 262_143, 262_144, 262_145,
    600_000, 1_100_000,
];
/// Larger than the largest file.
const POOL_BYTES: usize = 8 << 20;
/// From here on a file has several chunks.
const LARGE_SIZES_FROM: usize = 13;

impl Site {
    /// A site of a few files.
    pub fn new(seed: u64) -> Site {
        // A file system in memory, if there is one: no test should wear a disk.
        let shared = Path::new("/dev/shm");
        let is_chosen = std::env::var_os("TMPDIR").is_some();
        let directory = match shared.is_dir() && !is_chosen {
            true => tempfile::tempdir_in(shared),
            false => tempfile::tempdir(),
        };
        let mut site = Site {
            directory: directory.expect("a directory"),
            files: BTreeMap::new(),
            release: None,
            error_page: Vec::new(),
            next_modified_s: clock::EPOCH_S - 100_000,
            has_large_files: false,
            random: SplitMix64::for_stream(seed, 2),
        };
        site.has_large_files = site.random.below(8) == 0;
        for name in DIRECTORIES.iter().chain(&["internal"]) {
            fs::create_dir_all(site.path("root").join(name)).expect("a directory");
        }
        fs::write(site.path("root/internal/file.txt"), "internal").expect("an internal file");
        for number in 0..2 + site.random.below(5) {
            site.create(&format!("root/file{number}.txt"));
        }
        site.create("root/with/index.html");
        site.create("root/with/inner.css");
        if site.random.below(2) == 0 {
            site.create("root/file0.txt.gz");
        }
        site.create_second_root();
        site
    }

    fn create_second_root(&mut self) {
        self.error_page = pool()[..1 + self.random.index(3000)].to_vec();
        fs::write(self.error_page_path(), &self.error_page).expect("an error page");
        match self.random.below(2) {
            0 => fs::create_dir(self.path("other")).expect("a document root"),
            _ => {
                fs::create_dir(self.path("release0")).expect("a release");
                symlink("release0", self.path("other")).expect("a link to it");
                self.release = Some(0);
            }
        }
        self.create("other/page0.txt");
        self.create("other/page1.txt");
    }

    /// The number of the release that is served, if there are several.
    pub fn release(&self) -> Option<u32> {
        self.release
    }

    /// Where a path is in the file system.
    pub fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    /// The file with the error page.
    pub fn error_page_path(&self) -> PathBuf {
        self.path("error.html")
    }

    /// The file system's number.
    pub fn device(&self) -> u64 {
        fs::metadata(self.directory.path())
            .expect("a directory")
            .dev()
    }

    /// The paths of all files that exist or have existed.
    pub fn paths(&self) -> impl Iterator<Item = &String> {
        self.files.keys()
    }

    /// All versions of a path, if there was ever one.
    pub fn versions(&self, path: &str) -> &[Version] {
        self.files.get(path).map_or(&[], Vec::as_slice)
    }

    fn create(&mut self, path: &str) {
        let content = self.content();
        self.replace(path, Some(content));
    }

    /// Random bytes of a random length.
    fn content(&mut self) -> Vec<u8> {
        let sizes = match self.has_large_files {
            true => &SIZES[LARGE_SIZES_FROM..],
            false => &SIZES[..],
        };
        let mut length = sizes[self.random.index(sizes.len())];
        if self.random.below(3) == 0 {
            length = length.saturating_add_signed(self.random.below(9) as isize - 4);
        }
        let pool = pool();
        let at = self.random.index(pool.len() - length);
        pool[at..at + length].to_vec()
    }

    /// Changes one file in a random way.
    pub fn change(&mut self) -> String {
        let names: Vec<String> = self.files.keys().cloned().collect();
        let path = names[self.random.index(names.len())].clone();
        let exists = self
            .current(&path)
            .is_some_and(|version| version.content.is_some());
        match self.random.below(9) {
            7 if self.release.is_some() => self.switch(),
            5 if exists => {
                self.replace(&path, None);
                format!("forbade {path}")
            }
            0 if exists => {
                fs::remove_file(self.path(&path)).expect("a file that exists");
                self.date_directory(&path);
                self.add(&path, None);
                format!("removed {path}")
            }
            1 if exists => {
                let content = self.content();
                self.rewrite(&path, content);
                format!("rewrote {path}")
            }
            2 if exists => {
                let mut content = self.current_content(&path);
                let more = self.content();
                content.extend_from_slice(&more[..more.len().min(50_000)]);
                self.rewrite(&path, content);
                format!("appended to {path}")
            }
            3 if exists => {
                let content = self.current_content(&path);
                self.changed_in_place(&path, content);
                format!("touched {path}")
            }
            4 if exists => {
                let mut content = self.current_content(&path);
                content.iter_mut().for_each(|byte| *byte = !*byte);
                self.rewrite(&path, content);
                format!("rewrote {path} with the same length")
            }
            _ => {
                self.create(&path);
                format!("replaced {path}")
            }
        }
    }

    /// Switches the second root to another release, and perhaps deletes the last one.
    fn switch(&mut self) -> String {
        let last = self.release.expect("a release");
        let release = last + 1;
        let directory = self.path(&format!("release{release}"));
        fs::create_dir(&directory).expect("a release");
        let paths: Vec<String> = self.paths().cloned().collect();
        let paths = paths.iter().filter_map(|path| path.strip_prefix("other/"));
        for name in paths {
            let content = (self.random.below(8) > 0).then(|| self.content());
            if let Some(content) = &content {
                fs::write(directory.join(name), content).expect("a file of it");
                self.date(&directory.join(name));
            }
            self.add(&format!("other/{name}"), content);
        }
        let link = self.path("link");
        symlink(format!("release{release}"), &link).expect("a link to it");
        fs::rename(&link, self.path("other")).expect("its place");
        let is_deleted = self.random.below(2) == 0;
        if is_deleted {
            fs::remove_dir_all(self.path(&format!("release{last}"))).expect("a release");
        }
        self.release = Some(release);
        format!("switched to release {release}, the last one is deleted: {is_deleted}")
    }

    fn current(&self, path: &str) -> Option<&Version> {
        self.files.get(path)?.last()
    }

    fn current_content(&self, path: &str) -> Vec<u8> {
        let content = self
            .current(path)
            .and_then(|version| version.content.clone());
        content.map_or_else(Vec::new, |content| content.to_vec())
    }

    /// Puts a new file in the place of an old one. Without a content it may not be read.
    fn replace(&mut self, path: &str, content: Option<Vec<u8>>) {
        let (file, new) = (self.path(path), self.path("new"));
        fs::write(&new, content.as_deref().unwrap_or(b"secret")).expect("a new file");
        if content.is_none() {
            fs::set_permissions(&new, fs::Permissions::from_mode(0o000)).expect("no rights");
        }
        self.date(&new);
        fs::rename(&new, &file).expect("a name for it");
        self.date_directory(path);
        let is_forbidden = content.is_none();
        self.add(path, content);
        if let Some(last) = self.files.get_mut(path).and_then(|all| all.last_mut()) {
            last.is_forbidden = is_forbidden;
        }
    }

    /// Writes a file in place, which a reply in progress notices.
    fn rewrite(&mut self, path: &str, content: Vec<u8>) {
        fs::write(self.path(path), &content).expect("a file that exists");
        self.changed_in_place(path, content);
    }

    fn changed_in_place(&mut self, path: &str, content: Vec<u8>) {
        self.date(&self.path(path));
        if let Some(last) = self
            .files
            .get_mut(path)
            .and_then(|versions| versions.last_mut())
        {
            last.is_rewritten = true;
        }
        self.add(path, Some(content));
    }

    fn add(&mut self, path: &str, content: Option<Vec<u8>>) {
        let now = clock::now_ns();
        let versions = self.files.entry(path.to_owned()).or_default();
        if let Some(last) = versions.last_mut() {
            last.until_ns = now;
        }
        versions.push(Version {
            content: content.map(Rc::new),
            is_forbidden: false,
            modified_s: self.next_modified_s,
            until_ns: u64::MAX,
            is_rewritten: false,
        });
        self.next_modified_s += 2;
    }

    fn date_directory(&self, path: &str) {
        for parent in Path::new(path).ancestors().skip(1) {
            if parent != Path::new("") {
                self.date(&self.directory.path().join(parent).join("."));
            }
        }
    }

    /// Gives a file the modification time of its version, and not that of the machine.
    fn date(&self, path: &Path) {
        let time = Timespec {
            tv_sec: self.next_modified_s,
            tv_nsec: 0,
        };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("a time");
    }
}
