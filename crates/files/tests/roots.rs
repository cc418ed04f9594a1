//! A root whose path has a symbolic link: it is switched in one step, with all that depends on it.

use crate::common;
use common::{ROOT, Served, directory, limits, put, roots, wait};
use headway_files::protocol::{Reply, Request, decode_request, encode_reply};
use headway_files::{
    Answer, CustomJob, Meta, Outcome, Pool, PoolLimits, RootConfig, Roots, SlotState, Symlinks,
    Tasks, Waiter, helper_main_with,
};
use headway_os::fd_passing::{Wait, pair, receive_with_descriptors, send_with_descriptors};
use headway_test_support::skip;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::IoSlice;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::rc::Rc;
use tempfile::TempDir;

/// Two releases with a file, and a link to the first.
fn releases() -> (TempDir, Rc<Roots>) {
    let tree = directory();
    put(tree.path(), "a/name", b"a");
    put(tree.path(), "b/name", b"b");
    symlink(tree.path().join("a"), tree.path().join("link")).unwrap();
    let roots = roots(&tree.path().join("link"), &[], false);
    (tree, roots)
}

fn switch(tree: &Path, release: &str) {
    symlink(tree.join(release), tree.join("next")).unwrap();
    fs::rename(tree.join("next"), tree.join("link")).unwrap();
}

/// As [`switch`], and waits for the next tick of the file system's clock: in the tick in which a link was made no
/// access time has to be written.
fn switch_a_tick_ago(tree: &Path, release: &str) {
    switch(tree, release);
    std::thread::sleep(std::time::Duration::from_millis(20));
}

fn inode(path: &Path) -> u64 {
    fs::metadata(path).unwrap().ino()
}

#[test]
fn helper_looks_a_name_up_in_the_new_directory_when_the_root_was_switched() {
    let (tree, roots) = releases();
    let mut served = Served::new(&roots);
    for (now_ms, release) in [(1, "a"), (2, "b"), (3, "a")] {
        switch(tree.path(), release);
        roots.follow(ROOT, now_ms, &served.pool.deferred_closes());
        served
            .pool
            .submit_lookup(ROOT, b"name", Waiter::new(1))
            .unwrap();
        let done = served.until_done(1);
        let Outcome::LookedUp {
            answer: Answer::File(found),
            ..
        } = &done[0].outcome
        else {
            panic!("{done:?}");
        };
        let expected = tree.path().join(release).join("name");
        assert_eq!(found.file.meta().inode, inode(&expected));
    }
    assert_eq!((roots.switches(), roots.version(ROOT)), (2, 2));
}

/// Its worker has not noticed a switch, or was stopped meanwhile.
#[test]
fn confined_helper_ends_only_when_it_has_to_open_what_is_beneath_another_root() {
    let (tree, roots) = releases();
    let status = fs::metadata(tree.path().join("b")).unwrap();
    let (worker, socket) = pair().unwrap();
    let helper = std::thread::spawn(move || {
        let tasks = Tasks {
            render: &|_| Vec::new(),
            custom_job: &|payload| Ok(payload.to_vec()),
            confined_to: Some(&[(status.dev(), status.ino())]),
        };
        helper_main_with(socket, tasks)
    });
    let mut pool = Pool::new(limits(), roots);
    let slot = pool.attach(worker, 1);
    let mut done = Vec::new();
    pool.submit_custom(CustomJob::Once, b"words", Waiter::new(1))
        .unwrap();
    while done.is_empty() {
        pool.flush(0);
        wait(&pool, slot);
        assert_eq!(pool.on_ready(slot, 0, &mut done), SlotState::Alive);
    }
    pool.submit_lookup(ROOT, b"name", Waiter::new(2)).unwrap();
    pool.flush(0);
    wait(&pool, slot);
    assert_eq!(pool.on_ready(slot, 0, &mut done), SlotState::Dead);
    assert_eq!(done.len(), 1, "the lookup is for another helper: {done:?}");
    let ended = helper.join().unwrap().unwrap_err();
    assert_eq!(ended.kind(), std::io::ErrorKind::PermissionDenied);
}

#[test]
fn lookups_wait_until_the_directory_of_a_silent_root_is_found() {
    let tree = directory();
    put(tree.path(), "name", b"a");
    let config = RootConfig {
        directory: tree.path().to_path_buf(),
        index: Vec::new(),
        siblings: false,
        dotfiles: false,
        symlinks: Symlinks::default(),
        rules: Vec::new(),
    };
    let roots = Roots::open_with(&[config], &|_| None, &|_| true).unwrap();
    let roots = Rc::new(roots);
    assert!(roots.is_silent(ROOT) && roots.awaits_helper(ROOT));
    let mut pool = Pool::new(PoolLimits::default(), Rc::clone(&roots));
    let (worker, helper) = pair().unwrap();
    pool.attach(worker, 7);
    pool.submit_lookup(ROOT, b"name", Waiter::new(1)).unwrap();
    pool.flush(1);
    let messages = [(); 3].map(|()| message(&helper).unwrap());
    assert!(messages[2].starts_with("OpenRoot"), "{messages:?}");
    assert_eq!(message(&helper), None, "the lookup waits");
    roots.follow(ROOT, 2, &pool.deferred_closes());
    assert!(!roots.is_silent(ROOT) && !roots.awaits_helper(ROOT));
    assert_eq!(roots.version(ROOT), 1);
}

/// A new link has its access time written when it is first followed, which the loop leaves to a helper.
///
/// Needs: a file system that writes access times
#[test]
fn helper_does_not_switch_back_when_the_loop_has_found_a_newer_directory() {
    let (tree, roots) = releases();
    let mut pool = Pool::new(PoolLimits::default(), Rc::clone(&roots));
    let (worker, helper) = pair().unwrap();
    let slot = pool.attach(worker, 7);
    switch_a_tick_ago(tree.path(), "b");
    roots.follow(ROOT, 1, &pool.deferred_closes());
    if !roots.awaits_helper(ROOT) {
        return skip(
            "helper_does_not_switch_back_when_the_loop_has_found_a_newer_directory",
            "the file system writes no access times",
        );
    }
    pool.submit_lookup(ROOT, b"name", Waiter::new(1)).unwrap();
    pool.flush(1);
    let messages = [(); 3].map(|()| message(&helper).unwrap());
    assert!(messages[2].starts_with("OpenRoot"), "{messages:?}");
    assert_eq!(message(&helper), None, "the lookup waits");

    // The link is followed by another process, so the loop can follow it, too.
    inode(&tree.path().join("link"));
    roots.follow(ROOT, 2, &pool.deferred_closes());
    assert_eq!(roots.version(ROOT), 1);
    let old: OwnedFd = File::open(tree.path().join("a")).unwrap().into();
    let meta = Meta::from(headway_os::open::status(&old).unwrap());
    let reply = Reply::RootOpened {
        job: 0,
        directory: Ok(meta),
    };
    let mut bytes = Vec::new();
    encode_reply(&reply, &mut bytes);
    let parts = [IoSlice::new(&bytes)];
    send_with_descriptors(&helper, &parts, &[old.as_fd()], Wait::Never).unwrap();
    pool.on_ready(slot, 3, &mut Vec::new());
    assert_eq!(roots.version(ROOT), 1);

    // The helper gets the new directory before the lookup.
    pool.flush(3);
    let messages = [(); 2].map(|()| message(&helper).unwrap());
    assert!(
        messages[0].starts_with("Root {") && messages[1].starts_with("Lookup"),
        "{messages:?}"
    );
}

/// Needs: a file system that writes access times
#[test]
fn lookup_that_waits_for_a_helper_starts_when_the_loop_has_found_the_root_itself() {
    let (tree, roots) = releases();
    let mut pool = Pool::new(PoolLimits::default(), Rc::clone(&roots));
    let (worker, helper) = pair().unwrap();
    pool.attach(worker, 7);
    switch_a_tick_ago(tree.path(), "b");
    roots.follow(ROOT, 1, &pool.deferred_closes());
    if !roots.awaits_helper(ROOT) {
        return skip(
            "lookup_that_waits_for_a_helper_starts_when_the_loop_has_found_the_root_itself",
            "the file system writes no access times",
        );
    }
    pool.submit_lookup(ROOT, b"name", Waiter::new(1)).unwrap();

    // No helper has been asked yet, and none has to be any more.
    inode(&tree.path().join("link"));
    roots.follow(ROOT, 2, &pool.deferred_closes());
    assert!(!roots.awaits_helper(ROOT));
    assert!(pool.has_work());
    pool.flush(2);
    let messages: Vec<String> = std::iter::from_fn(|| message(&helper)).collect();
    let last = messages.last().map(String::as_str).unwrap_or_default();
    assert!(last.starts_with("Lookup"), "{messages:?}");
}

fn message(helper: &OwnedFd) -> Option<String> {
    let mut bytes = vec![0; 20_000];
    let got = receive_with_descriptors(helper, &mut bytes, 64, Wait::Never).unwrap()?;
    let message: Request<'_> = decode_request(&bytes[..got.length]).unwrap();
    Some(format!("{message:?}"))
}
