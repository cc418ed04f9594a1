//! Which symbolic links are followed, where that depends on owners.

use crate::common;
use common::{ROOT, directory, put, raw_answer_text};
use headway_files::{
    DeferredCloses, LoopResolver, Probe, RootConfig, Roots, Symlinks, resolve_blocking,
};
use headway_test_support::{is_root, skip};
use std::fs;
use std::os::unix::fs::{MetadataExt, lchown, symlink};
use std::path::Path;

/// A file that was found, in words.
fn file(tree: &Path, name: &str) -> String {
    let inode = fs::metadata(tree.join(name)).unwrap().ino();
    format!("file {inode} None [None, None, None]")
}

/// As for shared hosting: a user's link leads to what is this user's, and to nothing else.
///
/// Needs: root, to give files to other users
#[test]
fn link_is_followed_by_owner_only_when_it_leads_to_a_file_of_the_same_user() {
    const TEST: &str = "link_is_followed_by_owner_only_when_it_leads_to_a_file_of_the_same_user";
    if !is_root() {
        return skip(TEST, "giving a file to another user needs root");
    }
    let tree = directory();
    put(tree.path(), "root/own", b"x");
    put(tree.path(), "root/dir/own", b"x");
    put(tree.path(), "elsewhere/own", b"x");
    put(tree.path(), "elsewhere/other", b"x");
    let outside = tree.path().join("elsewhere");
    for (link, target) in [
        ("to-own", outside.join("own")),
        ("to-other", outside.join("other")),
        ("relative", "../elsewhere/own".into()),
        ("in-dir", "dir".into()),
        ("twice", "to-own".into()),
        ("twice-other", "to-other".into()),
        ("loop", "loop".into()),
    ] {
        symlink(target, tree.path().join("root").join(link)).unwrap();
    }
    let all = [
        "root/to-own",
        "root/to-other",
        "root/relative",
        "root/in-dir",
        "root/twice",
        "root/twice-other",
    ];
    for name in all.iter().chain(&["root/dir", "elsewhere/own"]) {
        lchown(tree.path().join(name), Some(4321), None).unwrap();
    }
    let config = RootConfig {
        directory: tree.path().join("root"),
        index: vec![],
        siblings: false,
        dotfiles: false,
        symlinks: Symlinks::Owner,
        rules: Vec::new(),
    };
    let roots = Roots::open(&[config]).unwrap();
    let found = |name: &str| raw_answer_text(&resolve_blocking(&roots, ROOT, name.as_bytes()));
    let own = file(tree.path(), "elsewhere/own");
    for name in ["to-own", "relative", "twice"] {
        assert_eq!(found(name), own, "{name}");
    }
    assert_eq!(found("in-dir/own"), file(tree.path(), "root/dir/own"));
    assert_eq!(found("in-dir"), "redirect");
    for name in ["to-other", "twice-other", "loop"] {
        assert_eq!(found(name), "Forbidden", "{name}");
    }
    let resolver = LoopResolver {
        roots: &roots,
        deferred: &DeferredCloses::new(),
    };
    // Nor does the loop follow them, once the names are in the kernel's cache.
    for name in all {
        let name = name.trim_start_matches("root/").as_bytes();
        let probe = resolver.resolve_cached(ROOT, name);
        assert!(matches!(probe, Probe::WouldBlock), "{probe:?}");
    }
}

#[test]
fn link_that_is_written_absolutely_is_followed_when_it_leads_into_the_root() {
    let tree = directory();
    put(tree.path(), "site/d/f", b"x");
    put(tree.path(), "other/f", b"x");
    put(tree.path(), "site-of-another/f", b"x");
    let site = tree.path().join("site");
    // The root has another name, too, by which a link may be written.
    symlink(&site, tree.path().join("alias")).unwrap();
    for (link, target) in [
        ("to-d", site.join("d")),
        ("to-f", site.join("d/f")),
        ("by-alias", tree.path().join("alias/d/f")),
        ("around", site.join("../other/../site/d/f")),
        ("to-root", site.clone()),
        ("out", tree.path().join("other/f")),
        ("beside", tree.path().join("site-of-another/f")),
        ("gone", site.join("none")),
    ] {
        symlink(target, site.join(link)).unwrap();
    }
    for root in ["site", "alias"] {
        let roots = common::roots(&tree.path().join(root), &[], false);
        let found = |name: &str| raw_answer_text(&resolve_blocking(&roots, ROOT, name.as_bytes()));
        let own = file(tree.path(), "site/d/f");
        for name in [
            "to-f",
            "by-alias",
            "around",
            "to-d/f",
            "to-root/d/f",
            "to-root/to-f",
        ] {
            assert_eq!(found(name), own, "{name}");
        }
        assert_eq!(
            (&*found("to-d"), &*found("to-d/")),
            ("redirect", "directory")
        );
        for name in ["to-d/none", "to-d/none/x", "to-root/to-d/none/"] {
            assert_eq!(found(name), "NotFound", "{name}");
        }
        for name in ["out", "beside", "gone", "to-f/"] {
            assert_eq!(found(name), "Forbidden", "{name}");
        }
    }
}
