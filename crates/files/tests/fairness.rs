//! Helpers that are left for others when a directory, a file system or the refreshing of names would
//! take all of them.

use crate::common::{ROOT, directory};
use crate::pool::Puppet;
use headway_files::{Full, Pool, PoolLimits, RootConfig, RootId, Roots, Symlinks, Waiter};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

const OTHER: RootId = RootId(1);

fn pool(max: usize, queue_max: usize, directories: &[&Path]) -> Pool {
    let config = |directory: &&Path| RootConfig {
        directory: directory.to_path_buf(),
        index: Vec::new(),
        siblings: false,
        dotfiles: false,
        symlinks: Symlinks::default(),
        rules: Vec::new(),
    };
    let roots: Vec<RootConfig> = directories.iter().map(config).collect();
    let limits = PoolLimits {
        min: 1,
        max,
        queue_max,
        grow_after: Duration::from_millis(10),
        ..PoolLimits::default()
    };
    Pool::new(limits, Rc::new(Roots::open(&roots).unwrap()))
}

/// Attaches helpers as long as the pool wants more of them, and gives each a job.
fn attach_wanted(pool: &mut Pool, helpers: &mut Vec<Puppet>) {
    pool.flush(0);
    while pool.wanted(1000) > helpers.len() {
        let helper = Puppet::attach(pool);
        // The greetings of further roots.
        while helper.message().is_some() {}
        helpers.push(helper);
        pool.flush(0);
    }
}

fn submit(pool: &mut Pool, root: RootId, path: &str, waiter: u64) -> Result<(), Full> {
    pool.submit_lookup(root, path.as_bytes(), Waiter::new(waiter))
}

/// The paths that the helpers beyond the first `known` got.
fn given(helpers: &[Puppet], known: usize) -> Vec<String> {
    let jobs = helpers[known..].iter().filter_map(Puppet::resolve);
    jobs.map(|(_, path)| path).collect()
}

#[test]
fn lookup_in_another_directory_gets_a_helper_when_one_directory_holds_all() {
    let tree = directory();
    let (mut pool, mut helpers) = (pool(8, 100, &[tree.path()]), Vec::new());
    for number in 0..20 {
        submit(&mut pool, ROOT, &format!("slow/{number}"), number).unwrap();
    }
    attach_wanted(&mut pool, &mut helpers);
    assert_eq!((helpers.len(), pool.statistics().busy), (8, 8));
    assert_eq!(given(&helpers[1..], 0).len(), 7);
    submit(&mut pool, ROOT, "fast/a", 100).unwrap();
    attach_wanted(&mut pool, &mut helpers);
    assert_eq!(helpers.len(), 9);
    assert_eq!(helpers[8].answer(&mut pool, 0)[0].waiters, [100]);
    pool.flush(0);
    assert_eq!(
        helpers[8].resolve(),
        None,
        "the slow directory gets no more"
    );
    assert!(!pool.has_work());
    assert_eq!(pool.wanted(1000), 9);
    submit(&mut pool, ROOT, "fast/b", 101).unwrap();
    assert!(pool.has_work());
    pool.flush(0);
    assert_eq!(helpers[8].answer(&mut pool, 0)[0].waiters, [101]);
    helpers[0].answer(&mut pool, 0);
    pool.flush(0);
    assert_eq!(pool.statistics().busy, 8, "it keeps what any job may take");
}

#[test]
fn lookup_on_another_file_system_gets_a_helper_when_one_holds_all() {
    let (slow, fast) = (directory(), tempfile::tempdir_in("/dev/shm").unwrap());
    let (mut pool, mut helpers) = (pool(8, 8, &[slow.path(), fast.path()]), Vec::new());
    let mut number = 0;
    let mut fill = |pool: &mut Pool| {
        while submit(pool, ROOT, &format!("{number}/file"), number).is_ok() {
            number += 1;
        }
    };
    fill(&mut pool);
    attach_wanted(&mut pool, &mut helpers);
    fill(&mut pool);
    attach_wanted(&mut pool, &mut helpers);
    let statistics = pool.statistics();
    assert_eq!(
        (helpers.len(), statistics.busy, statistics.queue),
        (8, 8, 8)
    );
    // The queue is full of what must not start.
    submit(&mut pool, OTHER, "file", 1000).unwrap();
    attach_wanted(&mut pool, &mut helpers);
    assert_eq!(helpers.len(), 9);
    assert_eq!(helpers[8].answer(&mut pool, 0)[0].waiters, [1000]);
    assert_eq!(submit(&mut pool, ROOT, "another/file", 1001), Err(Full));
}

#[test]
fn half_of_the_helpers_are_left_when_two_thousand_names_are_due() {
    let tree = directory();
    let (mut pool, mut helpers) = (pool(16, 4096, &[tree.path()]), Vec::new());
    for number in 0..2000 {
        pool.submit_refresh(ROOT, format!("known/{number}").as_bytes())
            .unwrap();
    }
    attach_wanted(&mut pool, &mut helpers);
    assert_eq!((helpers.len(), pool.statistics().busy), (8, 8));
    for number in 0..8 {
        submit(&mut pool, ROOT, &format!("cold/{number}"), number).unwrap();
    }
    attach_wanted(&mut pool, &mut helpers);
    let cold: Vec<String> = (0..8).map(|number| format!("cold/{number}")).collect();
    assert_eq!((helpers.len(), pool.statistics().queue), (16, 1992));
    assert_eq!(given(&helpers, 8).len(), cold.len());
    // A request for one of these names does not wait behind the others.
    submit(&mut pool, ROOT, "known/1999", 100).unwrap();
    assert_eq!(helpers[0].answer(&mut pool, 0)[0].waiters, [0_u64; 0]);
    pool.flush(0);
    assert_eq!(helpers[0].resolve().unwrap().1, "known/1999");
}
