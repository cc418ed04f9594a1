//! Descriptors are closed by helpers, also while these have other jobs.

use crate::pool::{Puppet, pool, submit};
use headway_files::Pool;
use headway_files::protocol::Reply;

#[test]
fn closes_get_their_turn_when_jobs_never_end() {
    let mut pool = pool(|limits| limits.max = 1);
    let helper = Puppet::attach(&mut pool);
    let deferred = pool.deferred_closes();
    let push = |count| {
        let null = || std::fs::File::open("/dev/null").unwrap();
        (0..count).for_each(|_| deferred.push(null().into()));
    };
    let close = |pool: &mut Pool| {
        assert!(helper.message().unwrap().starts_with("DeferClose"));
        assert!(helper.message().unwrap().starts_with("Release"));
        helper.reply(&Reply::Closed { job: 0 }, &[]);
        pool.on_ready(helper.slot, 0, &mut Vec::new());
    };
    for (waiter, path) in ["a", "b", "c"].into_iter().enumerate() {
        submit(&mut pool, path, waiter as u64);
    }
    // A full message goes first.
    push(64);
    pool.flush(0);
    assert_eq!(deferred.len(), 0);
    close(&mut pool);
    // A few wait for jobs, but not for all that will ever come.
    push(2);
    for now_ms in [0, 100] {
        pool.flush(now_ms);
        assert_eq!(deferred.len(), 2);
        helper.answer(&mut pool, now_ms);
    }
    pool.flush(600);
    assert_eq!(deferred.len(), 0);
    close(&mut pool);
    pool.flush(700);
    helper.answer(&mut pool, 700);
}
