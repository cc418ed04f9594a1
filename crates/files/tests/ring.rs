//! A pool whose names are resolved, windows read in and files closed by the kernel's workers: the
//! same answers as those of a helper.

use crate::common;
use common::{ROOT, answer_text, directory, limits, open, put, raw_answer_text, roots};
use headway_files::{
    Answer, Done, Outcome, Pool, PoolLimits, RawAnswer, Residency, Roots, Waiter, resolve_blocking,
};
use headway_test_support::skip;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::AsRawFd;
use std::rc::Rc;

/// A pool with a ring; `None`, said where it is looked for, when there is none here.
fn pool(test: &str, limits: PoolLimits, roots: Rc<Roots>) -> Option<Pool> {
    let mut pool = Pool::new(limits, roots);
    match pool.use_ring(256) {
        Ok(()) => Some(pool),
        Err(error) => {
            skip(test, &error.to_string());
            None
        }
    }
}

/// Submits the jobs and waits until this many are done.
fn finish(pool: &mut Pool, jobs: usize) -> Vec<Done> {
    let mut done = Vec::new();
    pool.flush(0);
    while done.len() < jobs {
        if !pool.has_finished() {
            let ring = pool.ring().expect("a ring");
            poll(&mut [PollFd::new(&ring, PollFlags::IN)], None).unwrap();
        }
        pool.on_ring(&mut done);
        pool.flush(0);
    }
    done
}

fn resolved(done: &Done) -> &Answer {
    match &done.outcome {
        Outcome::LookedUp { answer, .. } => answer,
        other => panic!("{other:?}"),
    }
}

/// Needs: io_uring, which a kernel or a container may forbid
#[test]
fn answers_are_those_of_a_helper_when_the_kernel_walks() {
    let test = "answers_are_those_of_a_helper_when_the_kernel_walks";
    let tree = directory();
    let at = tree.path();
    put(at, "a.html", b"hello");
    put(at, "a.html.gz", b"small");
    put(at, "site/index.htm", b"index");
    put(at, "site/index.htm.br", b"br");
    put(at, "empty/x", b"");
    put(at, "large", &vec![7; 700_000]);
    std::fs::create_dir(at.join("odd")).unwrap();
    std::fs::create_dir(at.join("odd/index.html")).unwrap();
    std::os::unix::fs::symlink("a.html", at.join("link")).unwrap();
    std::os::unix::fs::symlink("loop", at.join("loop")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        at.join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    let long = "n".repeat(300);
    let paths = [
        "a.html", "none", "site", "site/", "empty/", "empty/x", "odd/", "link", "loop", "fifo",
        "a.html/x", "a.html/", "large", "", &long,
    ];
    let roots = roots(at, &["index.html", "index.htm"], true);
    let Some(mut pool) = pool(test, limits(), roots.clone()) else {
        return;
    };
    for (token, path) in (0..).zip(paths) {
        pool.submit_lookup(ROOT, path.as_bytes(), Waiter::new(token))
            .unwrap();
    }
    let done = finish(&mut pool, paths.len());
    for one in &done {
        let path = paths[one.waiters[0] as usize];
        let expected = raw_answer_text(&resolve_blocking(&roots, ROOT, path.as_bytes()));
        assert_eq!(answer_text(resolved(one)), expected, "{path}");
    }
    let statistics = pool.statistics();
    assert_eq!(statistics.ring_jobs, paths.len() as u64);
    assert_eq!(
        (statistics.helpers, statistics.busy, statistics.queue),
        (0, 0, 0)
    );
}

/// Where such a link leads takes several calls.
///
/// Needs: io_uring, which a kernel or a container may forbid
#[test]
fn helper_process_looks_up_a_link_that_the_kernel_refuses() {
    let test = "helper_process_looks_up_a_link_that_the_kernel_refuses";
    let tree = directory();
    put(tree.path(), "a.html", b"hello");
    let inside = tree.path().join("a.html");
    std::os::unix::fs::symlink(inside, tree.path().join("inside")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", tree.path().join("out")).unwrap();
    let roots = roots(tree.path(), &[], false);
    let Some(mut pool) = pool(test, limits(), roots.clone()) else {
        return;
    };
    let (worker, helper) = headway_os::fd_passing::pair().unwrap();
    let helper = std::thread::spawn(move || headway_files::helper_main(helper, &|_| Vec::new()));
    let slot = pool.attach(worker, 7);
    for path in ["inside", "out"] {
        pool.submit_lookup(ROOT, path.as_bytes(), Waiter::new(1))
            .unwrap();
        let mut done = Vec::new();
        while done.is_empty() {
            pool.flush(0);
            pool.on_ring(&mut done);
            pool.on_ready(slot, 0, &mut done);
        }
        let expected = raw_answer_text(&resolve_blocking(&roots, ROOT, path.as_bytes()));
        assert_eq!(answer_text(resolved(&done[0])), expected, "{path}");
    }
    drop(pool);
    helper.join().unwrap().unwrap();
}

/// Needs: io_uring, which a kernel or a container may forbid
#[test]
fn files_and_chunks_are_in_memory_when_the_kernel_has_read_them() {
    let test = "files_and_chunks_are_in_memory_when_the_kernel_has_read_them";
    let tree = directory();
    put(tree.path(), "small", &vec![1; 20_000]);
    put(tree.path(), "large", &vec![2; 2_000_000]);
    for name in ["small", "large"] {
        let file = std::fs::File::open(tree.path().join(name)).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }
    let roots = roots(tree.path(), &[], false);
    let Some(mut pool) = pool(test, limits(), roots) else {
        return;
    };
    let residency = Residency::detect();
    pool.submit_lookup(ROOT, b"small", Waiter::new(1)).unwrap();
    let done = finish(&mut pool, 1);
    let Answer::File(found) = resolved(&done[0]) else {
        panic!("{done:?}");
    };
    assert!(
        residency
            .cached(&found.file.open().unwrap(), 0, 20_000)
            .unwrap()
    );
    let large = open(tree.path(), "large");
    pool.submit_read_in(&large, 1_000_000, 600_000, Some(Waiter::new(2)))
        .unwrap();
    pool.submit_read_in(&large, 5_000_000, 1_000, None).unwrap();
    let done = finish(&mut pool, 2);
    for one in &done {
        let Outcome::ReadIn { result, .. } = one.outcome else {
            panic!("{one:?}");
        };
        assert_eq!(result, Ok(()), "also beyond the end");
    }
    assert!(residency.cached(&large, 1_000_000, 600_000).unwrap());
}

/// Needs: io_uring, which a kernel or a container may forbid
#[test]
fn all_requests_are_answered_when_they_exceed_the_ring() {
    let test = "all_requests_are_answered_when_they_exceed_the_ring";
    let tree = directory();
    for number in 0..200 {
        put(tree.path(), &format!("d{number}/f"), b"x");
    }
    let many = PoolLimits {
        queue_max: 1_000,
        ..limits()
    };
    let Some(mut pool) = pool(test, many, roots(tree.path(), &["f"], false)) else {
        return;
    };
    for number in 0..200 {
        let path = format!("d{number}/");
        pool.submit_lookup(ROOT, path.as_bytes(), Waiter::new(number))
            .unwrap();
        // Equal jobs are joined.
        pool.submit_lookup(ROOT, path.as_bytes(), Waiter::new(1_000 + number))
            .unwrap();
    }
    let done = finish(&mut pool, 200);
    assert!(done.iter().all(|one| one.waiters.len() == 2));
    assert!(
        done.iter()
            .all(|one| matches!(resolved(one), Answer::File(_)))
    );
    // No process is wanted for any of this.
    assert_eq!(pool.wanted(1_000_000), limits().min);
}

/// Needs: io_uring, which a kernel or a container may forbid
#[test]
fn deferred_closes_are_done_by_the_kernel() {
    let test = "deferred_closes_are_done_by_the_kernel";
    let tree = directory();
    put(tree.path(), "a", b"hello");
    let Some(mut pool) = pool(test, limits(), roots(tree.path(), &[], false)) else {
        return;
    };
    let deferred = pool.deferred_closes();
    let mut numbers = Vec::new();
    for _ in 0..100 {
        let file: rustix::fd::OwnedFd = std::fs::File::open(tree.path().join("a")).unwrap().into();
        numbers.push(file.as_raw_fd());
        deferred.push(file);
    }
    let open = |number: &i32| {
        let link = std::fs::read_link(format!("/proc/self/fd/{number}"));
        link.is_ok_and(|link| link == tree.path().join("a"))
    };
    let mut now_ms = 0;
    while numbers.iter().any(open) {
        now_ms += 100;
        pool.flush(now_ms);
        pool.on_ring(&mut Vec::new());
        std::thread::yield_now();
    }
    assert_eq!(pool.statistics().deferred_closes, 100);
    assert!(deferred.is_empty());
}

/// Needs: io_uring, which a kernel or a container may forbid
#[test]
fn names_are_resolved_when_deferred_closes_fill_the_ring() {
    let test = "names_are_resolved_when_deferred_closes_fill_the_ring";
    let tree = directory();
    put(tree.path(), "a/b", b"hello");
    let Some(mut pool) = pool(test, limits(), roots(tree.path(), &["b"], true)) else {
        return;
    };
    let deferred = pool.deferred_closes();
    for round in 0..5 {
        for _ in 0..120 {
            deferred.push(std::fs::File::open(tree.path().join("a/b")).unwrap().into());
        }
        pool.submit_lookup(ROOT, b"a/", Waiter::new(1)).unwrap();
        pool.submit_lookup(ROOT, b"a/b", Waiter::new(2)).unwrap();
        for one in finish(&mut pool, 2) {
            assert!(
                matches!(resolved(&one), Answer::File(_)),
                "round {round}: {one:?}"
            );
        }
    }
}

/// Needs: io_uring, which a kernel or a container may forbid
#[test]
fn listings_and_copies_wait_for_a_process_without_delaying_other_jobs() {
    let test = "listings_and_copies_wait_for_a_process_without_delaying_other_jobs";
    let tree = directory();
    put(tree.path(), "a", b"hello");
    let Some(mut pool) = pool(test, limits(), roots(tree.path(), &[], false)) else {
        return;
    };
    pool.submit_listing(ROOT, b"", None, Waiter::new(1))
        .unwrap();
    pool.submit_lookup(ROOT, b"a", Waiter::new(2)).unwrap();
    let done = finish(&mut pool, 1);
    assert_eq!(done[0].waiters, [2]);
    assert_eq!(pool.statistics().queue, 1, "the listing");
    assert!(pool.wanted(1_000_000) >= 1);
}

/// Needs: io_uring, which a kernel or a container may forbid
#[test]
fn nothing_is_left_when_a_pool_is_dropped_with_running_jobs() {
    let test = "nothing_is_left_when_a_pool_is_dropped_with_running_jobs";
    let tree = directory();
    put(tree.path(), "a", b"hello");
    let roots = roots(tree.path(), &[], false);
    for _ in 0..20 {
        let Some(mut pool) = pool(test, limits(), roots.clone()) else {
            return;
        };
        for token in 0..30 {
            let path = format!("{token}/a");
            pool.submit_lookup(ROOT, path.as_bytes(), Waiter::new(token))
                .unwrap();
        }
        pool.flush(0);
    }
    let answer = resolve_blocking(&roots, ROOT, b"a");
    assert!(matches!(answer, RawAnswer::File { .. }));
}
