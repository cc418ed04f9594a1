//! File sets on disk: created, interrupted, continued, verified, and the errors.

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;

use headway_load::checksum;
use headway_load::fileset::{
    self, CreateError, Created, MANIFEST_NAME, Manifest, Shape, SiteFiles, Verified,
};

const TWO: NonZeroUsize = NonZeroUsize::new(2).unwrap();

fn create(directory: &Path, shape: Shape, seed: u64) -> Result<Created, CreateError> {
    fileset::create(directory, shape, seed, TWO, &mut |_| ())
}

fn verify(directory: &Path) -> Verified {
    let manifest = Manifest::load(directory).unwrap();
    fileset::verify(&manifest, false, TWO, &mut |_| ()).unwrap()
}

fn specweb() -> Shape {
    Shape::SpecWeb99 { directories: 1 }
}

const LIST_NAME: &str = ".headway-fileset.list";

fn small() -> Shape {
    Shape::uniform(40, 3000).unwrap()
}

fn site() -> Shape {
    let files = [
        ("/index.html", 5000, 9),
        ("/a/b/c%20d.png", 70_000, 3),
        ("/empty", 0, 2),
        ("/caf%E9", 10, 1),
    ];
    let files = files.map(|(path, size, requests)| (path.to_owned(), (size, requests)));
    Shape::Site(SiteFiles::new(files.into()).0)
}

#[test]
fn created_files_have_the_content_of_the_manifest() {
    for shape in [specweb(), small(), site()] {
        let directory = tempfile::tempdir().unwrap();
        let created = create(directory.path(), shape.clone(), 9).unwrap();
        let manifest = Manifest::load(directory.path()).unwrap();
        assert!(manifest.complete() && !created.resumed);
        assert_eq!(created.bytes_written, shape.bytes());
        let checksums = manifest.checksums(TWO);
        for file in manifest.files() {
            let bytes = fs::read(manifest.disk_path(file.index)).unwrap();
            assert_eq!(bytes.len() as u64, file.size_bytes, "{}", file.path);
            assert_eq!(
                checksum::of(&bytes),
                manifest.checksum(file.index),
                "{}",
                file.path
            );
            assert_eq!(
                checksums[file.index as usize],
                manifest.checksum(file.index)
            );
        }
        let verified = verify(directory.path());
        assert!(verified.is_same(), "{verified:?}");
    }
}

#[test]
fn specweb99_directories_and_names_are_those_of_the_benchmark() {
    let directory = tempfile::tempdir().unwrap();
    create(directory.path(), specweb(), 1).unwrap();
    let file = directory.path().join("dir00000/class1_5");
    let text = fs::read_to_string(file).unwrap();
    assert_eq!(text.len(), 5120);
    assert!(text.starts_with("/dir00000/class1_5\n"));
}

#[test]
fn only_missing_files_are_written_when_a_set_is_continued() {
    let directory = tempfile::tempdir().unwrap();
    create(directory.path(), small(), 1).unwrap();
    let inside = directory.path().join("dir00000");
    fs::remove_file(inside.join("file003")).unwrap();
    let cut = inside.join("file017");
    fs::File::options()
        .write(true)
        .open(&cut)
        .unwrap()
        .set_len(100)
        .unwrap();
    fs::write(inside.join("file018"), "").unwrap();
    let again = create(directory.path(), small(), 1).unwrap();
    assert!(again.resumed);
    assert_eq!((again.files_written, again.bytes_written), (3, 9000));
    assert!(verify(directory.path()).is_same());
    let third = create(directory.path(), small(), 1).unwrap();
    assert_eq!(third.files_written, 0);
}

#[test]
fn set_is_incomplete_when_a_foreign_file_is_in_the_way() {
    let directory = tempfile::tempdir().unwrap();
    create(directory.path(), small(), 1).unwrap();
    let taken = directory.path().join("dir00000/file005");
    fs::write(&taken, "mine").unwrap();
    let error = create(directory.path(), small(), 1).unwrap_err();
    assert!(matches!(&error, CreateError::NotOurs(path) if *path == taken));
    assert_eq!(fs::read_to_string(&taken).unwrap(), "mine");
    fs::remove_file(&taken).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", &taken).unwrap();
    assert!(matches!(
        create(directory.path(), small(), 1),
        Err(CreateError::NotOurs(_))
    ));
    assert!(taken.is_symlink());
}

#[test]
fn directory_is_unchanged_when_it_holds_other_files() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("thesis.tex"), "years of work").unwrap();
    let error = create(directory.path(), small(), 1).unwrap_err();
    assert!(matches!(&error, CreateError::Occupied { entry, .. } if entry == "thesis.tex"));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);

    let other = tempfile::tempdir().unwrap();
    create(other.path(), small(), 1).unwrap();
    for (shape, seed) in [(small(), 2), (specweb(), 1)] {
        let error = create(other.path(), shape, seed).unwrap_err();
        assert!(matches!(error, CreateError::Other { .. }));
    }
    assert!(verify(other.path()).is_same());
}

#[test]
fn directory_with_only_lost_and_found_counts_as_empty() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("lost+found")).unwrap();
    create(directory.path(), small(), 1).unwrap();
    assert!(verify(directory.path()).is_same());
}

#[test]
fn each_kind_of_damage_is_named_when_a_set_is_verified() {
    let directory = tempfile::tempdir().unwrap();
    create(directory.path(), small(), 1).unwrap();
    let inside = directory.path().join("dir00000");
    fs::remove_file(inside.join("file000")).unwrap();
    fs::write(inside.join("file001"), "short").unwrap();
    let mut bytes = fs::read(inside.join("file002")).unwrap();
    bytes[2999] ^= 1;
    fs::write(inside.join("file002"), bytes).unwrap();
    // A file in another's place is as long, and begins with its own name.
    fs::copy(inside.join("file004"), inside.join("file003")).unwrap();
    fs::remove_file(inside.join("file005")).unwrap();
    std::os::unix::fs::symlink("file006", inside.join("file005")).unwrap();
    fs::write(inside.join("extra"), "").unwrap();
    fs::create_dir(directory.path().join("more")).unwrap();
    fs::write(directory.path().join("more/file000"), "").unwrap();
    let verified = verify(directory.path());
    assert!(!verified.is_same());
    let names = |found: &fileset::Findings| found.examples.join(" ");
    assert_eq!(names(&verified.missing), "/dir00000/file000");
    assert!(names(&verified.wrong_size).contains("file001: 5 bytes instead of 3000"));
    assert_eq!(
        names(&verified.wrong_content),
        "/dir00000/file002 /dir00000/file003"
    );
    assert!(names(&verified.unreadable).contains("file005: not a regular file"));
    assert_eq!(names(&verified.extra), "/dir00000/extra /more/");
    let manifest = Manifest::load(directory.path()).unwrap();
    let quick = fileset::verify(&manifest, true, TWO, &mut |_| ()).unwrap();
    assert_eq!((quick.wrong_content.count, quick.wrong_size.count), (0, 1));
}

#[test]
fn examples_are_limited_and_counts_are_not_when_everything_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    create(directory.path(), small(), 1).unwrap();
    fs::remove_dir_all(directory.path().join("dir00000")).unwrap();
    let verified = verify(directory.path());
    assert_eq!(verified.missing.count, 40);
    assert_eq!(verified.missing.examples.len(), 20);
    assert_eq!(verified.missing.examples[0], "/dir00000/file000");
}

#[test]
fn manifest_is_an_error_when_edited_or_of_another_format() {
    let directory = tempfile::tempdir().unwrap();
    create(directory.path(), small(), 1).unwrap();
    let path = directory.path().join(MANIFEST_NAME);
    let text = fs::read_to_string(&path).unwrap();
    for (from, to, why) in [
        ("seed = 1", "seed = 2", "has been edited"),
        ("count = 40", "count = 41", "has been edited"),
        ("bytes = 120000", "bytes = 120001", "has been edited"),
        ("count = 40", "count = 0", "at least one file"),
        (
            "count = 40",
            "count = 4294967295",
            "more than a set may have",
        ),
        ("count = 40\n", "", "no `count`"),
        ("version = 1", "version = 2", "newer Headway (format 2"),
        ("headway-fileset\"", "other\"", "its format is other"),
        (
            "profile = \"uniform\"",
            "profile = \"odd\"",
            "not a profile",
        ),
        ("[format]", "[format", "is not a manifest"),
    ] {
        assert!(text.contains(from), "{from} is not in\n{text}");
        fs::write(&path, text.replace(from, to)).unwrap();
        let error = Manifest::load(directory.path()).unwrap_err().to_string();
        assert!(error.contains(why), "{from} → {to}: {error}");
        assert!(create(directory.path(), small(), 1).is_err());
    }
    fs::write(&path, b"\xff\xfe").unwrap();
    let error = Manifest::load(directory.path()).unwrap_err().to_string();
    assert!(error.contains("it is not text"), "{error}");
    fs::write(&path, &text).unwrap();
    assert!(verify(directory.path()).is_same());
}

#[test]
fn list_is_an_error_when_edited_or_missing() {
    let directory = tempfile::tempdir().unwrap();
    create(directory.path(), site(), 1).unwrap();
    let path = directory.path().join(LIST_NAME);
    let list = fs::read_to_string(&path).unwrap();
    fs::write(&path, list.replace("/empty", "/../../x")).unwrap();
    let error = Manifest::load(directory.path()).unwrap_err().to_string();
    assert!(error.contains("has been edited"), "{error}");
    fs::remove_file(&path).unwrap();
    let error = Manifest::load(directory.path()).unwrap_err().to_string();
    assert!(error.contains(LIST_NAME), "{error}");
}

#[test]
fn second_process_fails_when_a_set_is_being_created() {
    let directory = tempfile::tempdir().unwrap();
    let held = fs::File::open(directory.path()).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let error = create(directory.path(), small(), 1).unwrap_err();
    assert!(matches!(error, CreateError::Busy(_)), "{error}");
}

#[test]
fn nothing_is_written_when_there_is_too_little_room() {
    let directory = tempfile::tempdir().unwrap();
    let shape = Shape::uniform(1 << 20, 1 << 40).unwrap();
    let error = create(directory.path(), shape, 1).unwrap_err();
    assert!(matches!(error, CreateError::NoSpace { .. }), "{error}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn dynamic_set_is_unchanged_by_use_and_can_grow() {
    let directory = tempfile::tempdir().unwrap();
    let shape = |directories| Shape::SpecWeb99Dynamic { directories };
    let created = create(directory.path(), shape(1), 7).unwrap();
    assert_eq!(created.files_written, 36);
    let state = directory
        .path()
        .join(headway_specweb_files::state_directory::STATE_NAME);
    let made = fs::read(state.join(headway_specweb_files::state_directory::USERS_NAME)).unwrap();
    assert!(!made.is_empty());
    fs::write(
        state.join(headway_specweb_files::state_directory::LOG_NAME),
        "posted",
    )
    .unwrap();
    assert!(
        verify(directory.path()).is_same(),
        "the application's files are its own"
    );

    let grown = fileset::grow(directory.path(), 3, NonZeroUsize::MIN, &mut |_| ()).unwrap();
    assert_eq!((grown.files_written, grown.manifest.len()), (72, 108));
    assert!(verify(directory.path()).is_same());
    let log =
        fs::read_to_string(state.join(headway_specweb_files::state_directory::LOG_NAME)).unwrap();
    assert_eq!(log, "posted", "what is there is left alone");
    let same = fileset::grow(directory.path(), 2, NonZeroUsize::MIN, &mut |_| ()).unwrap();
    assert_eq!((same.files_written, same.manifest.len()), (0, 108));

    // A smaller set is the beginning of the larger one.
    let small = tempfile::tempdir().unwrap();
    let alone = create(small.path(), shape(1), 7).unwrap().manifest;
    let part = grown.manifest.part(1).unwrap();
    assert_eq!(part.parameters_checksum(), alone.parameters_checksum());
    assert!(
        alone
            .files()
            .all(|file| part.checksum(file.index) == grown.manifest.checksum(file.index))
    );
}

#[test]
fn only_two_classes_have_placeholders_in_a_dynamic_set() {
    let set = |shape| Manifest::new("/nowhere", shape, 1);
    let plain = set(Shape::SpecWeb99 { directories: 2 });
    let dynamic = set(Shape::SpecWeb99Dynamic { directories: 2 });
    for (one, other) in plain.files().zip(dynamic.files()) {
        assert_eq!(one, other, "names, sizes and classes are the same");
        let differs = plain.checksum(one.index) != dynamic.checksum(one.index);
        assert_eq!(differs, matches!(one.class, 1 | 2), "{}", one.path);
    }
    assert_ne!(plain.parameters_checksum(), dynamic.parameters_checksum());
    assert!(set(Shape::uniform(3, 5).unwrap()).part(1).is_none());
}
