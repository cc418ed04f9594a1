//! The pool's decisions, with helpers that are only a socket's other end and a clock that is only a
//! number.

use crate::common;
use common::{ROOT, answer_text, directory, open, put, roots};
use headway_files::protocol::{Reply, Request, decode_request, encode_reply};
use headway_files::{
    CustomJob, Done, Failure, Full, HelperSlot, Outcome, Pool, PoolLimits, RawAnswer, SlotState,
    Waiter,
};
use headway_os::fd_passing::{Wait, pair, receive_with_descriptors, send_with_descriptors};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::IoSlice;
use std::time::Duration;

/// The helper's end of a socket, worked by the test.
pub(crate) struct Puppet {
    pub(crate) slot: HelperSlot,
    socket: OwnedFd,
}

impl Puppet {
    pub(crate) fn attach(pool: &mut Pool) -> Puppet {
        let (worker, socket) = pair().unwrap();
        let slot = pool.attach(worker, 7);
        let puppet = Puppet { slot, socket };
        assert!(puppet.message().unwrap().starts_with("Hello"));
        assert!(puppet.message().unwrap().starts_with("Root"));
        puppet
    }

    /// The next message from the pool, in words.
    pub(crate) fn message(&self) -> Option<String> {
        let mut bytes = vec![0; 20_000];
        let got = receive_with_descriptors(&self.socket, &mut bytes, 64, Wait::Never).unwrap()?;
        Some(format!(
            "{:?}",
            decode_request(&bytes[..got.length]).unwrap()
        ))
    }

    /// The job and path of the next resolve.
    pub(crate) fn resolve(&self) -> Option<(u64, String)> {
        let mut bytes = vec![0; 20_000];
        let got = receive_with_descriptors(&self.socket, &mut bytes, 0, Wait::Never).unwrap()?;
        match decode_request(&bytes[..got.length]).unwrap() {
            Request::Lookup { job, path, .. } => Some((job, String::from_utf8_lossy(path).into())),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn reply(&self, reply: &Reply, files: &[BorrowedFd<'_>]) {
        let mut bytes = Vec::new();
        encode_reply(reply, &mut bytes);
        send_with_descriptors(&self.socket, &[IoSlice::new(&bytes)], files, Wait::Never).unwrap();
    }

    /// Answer the resolve that the helper was given, and let the pool take the answer.
    pub(crate) fn answer(&self, pool: &mut Pool, now_ms: u64) -> Vec<Done> {
        let (job, _) = self.resolve().expect("no job");
        self.reply(
            &Reply::LookedUp {
                job,
                answer: RawAnswer::Directory,
                content: None,
            },
            &[],
        );
        let mut done = Vec::new();
        assert_eq!(
            pool.on_ready(self.slot, now_ms, &mut done),
            SlotState::Alive
        );
        done
    }

    fn die(self, pool: &mut Pool) -> Vec<Done> {
        drop(self.socket);
        let mut done = Vec::new();
        assert_eq!(pool.on_ready(self.slot, 0, &mut done), SlotState::Dead);
        pool.detach(self.slot);
        done
    }
}

pub(crate) fn pool(change: impl FnOnce(&mut PoolLimits)) -> Pool {
    let mut limits = PoolLimits {
        min: 1,
        max: 3,
        queue_max: 4,
        idle: Duration::from_millis(1000),
        grow_after: Duration::from_millis(10),
        ..PoolLimits::default()
    };
    change(&mut limits);
    let tree = directory();
    Pool::new(limits, roots(tree.path(), &["index.html"], false))
}

pub(crate) fn submit(pool: &mut Pool, path: &str, waiter: u64) {
    pool.submit_lookup(ROOT, path.as_bytes(), Waiter::new(waiter))
        .unwrap();
}

#[test]
fn identical_requests_share_one_job() {
    let mut pool = pool(|_| {});
    let helper = Puppet::attach(&mut pool);
    submit(&mut pool, "a", 1);
    submit(&mut pool, "a", 2);
    pool.flush(0);
    submit(&mut pool, "a", 3);
    let done = helper.answer(&mut pool, 0);
    assert_eq!(done.len(), 1);
    assert_eq!(done[0].waiters, [1, 2, 3]);
    pool.flush(0);
    assert_eq!(helper.resolve(), None);
    assert_eq!(pool.statistics().coalesced, 2);
    submit(&mut pool, "a", 4);
    pool.flush(0);
    assert_eq!(
        helper.answer(&mut pool, 0)[0].waiters,
        [4],
        "a finished job is sent again"
    );
}

#[test]
fn no_job_is_sent_when_every_helper_is_busy() {
    let mut pool = pool(|_| {});
    let helper = Puppet::attach(&mut pool);
    pool.flush(0);
    assert!(!pool.has_work(), "no job is queued");
    submit(&mut pool, "a", 1);
    assert!(pool.has_work());
    pool.flush(0);
    submit(&mut pool, "b", 2);
    assert!(!pool.has_work(), "the only helper is busy");
    helper.answer(&mut pool, 0);
    assert!(pool.has_work(), "it could have the next");
}

#[test]
fn read_is_shared_when_two_opens_of_a_file_need_the_same_chunk() {
    let tree = directory();
    put(tree.path(), "f", b"x");
    let mut pool = pool(|_| {});
    let (one, two) = (open(tree.path(), "f"), open(tree.path(), "f"));
    pool.submit_read_in(&one, 0, 1, None).unwrap();
    pool.submit_read_in(&two, 0, 1, Some(Waiter::new(5)))
        .unwrap();
    pool.submit_read_in(&one, 4096, 1, None).unwrap();
    assert_eq!(
        (pool.statistics().queue, pool.statistics().coalesced),
        (2, 1)
    );
    pool.submit_fetch(&one, 1, Waiter::new(6)).unwrap();
    pool.submit_fetch(&two, 1, Waiter::new(7)).unwrap();
    assert_eq!(
        (pool.statistics().queue, pool.statistics().coalesced),
        (3, 2)
    );
}

#[test]
fn copies_are_separate_when_the_file_was_rewritten_between_requests() {
    let tree = directory();
    put(tree.path(), "f", b"one");
    let one = open(tree.path(), "f");
    let (inode, mut modified) = (one.meta().inode, one.meta().modified);
    modified.0 += 1;
    let file = std::fs::File::open(tree.path().join("f")).unwrap();
    let later = headway_files::Meta {
        modified,
        ..*one.meta()
    };
    let two = std::rc::Rc::new(headway_files::OpenFile::new(file.into(), later));
    assert_eq!(two.meta().inode, inode);
    let mut pool = pool(|_| {});
    pool.submit_copy(&one, 0, 3, Waiter::new(1)).unwrap();
    pool.submit_copy(&two, 0, 3, Waiter::new(2)).unwrap();
    assert_eq!(
        (pool.statistics().queue, pool.statistics().coalesced),
        (2, 0)
    );
}

#[test]
fn answer_is_used_before_the_death_of_its_helper_is_noticed() {
    let mut pool = pool(|_| {});
    let helper = Puppet::attach(&mut pool);
    submit(&mut pool, "a", 1);
    pool.flush(0);
    let (job, _) = helper.resolve().unwrap();
    let answer = RawAnswer::Directory;
    let content = None;
    let reply = Reply::LookedUp {
        job,
        answer,
        content,
    };
    helper.reply(&reply, &[]);
    drop(helper.socket);
    let mut done = Vec::new();
    let state = pool.on_ready(helper.slot, 0, &mut done);
    assert_eq!((state, &done[0].waiters[..]), (SlotState::Alive, &[1][..]));
    let state = pool.on_ready(helper.slot, 0, &mut done);
    assert_eq!((state, done.len()), (SlotState::Dead, 1));
    let statistics = pool.statistics();
    assert_eq!((statistics.deaths, statistics.retried), (1, 0));
}

#[test]
fn custom_job_is_given_to_another_helper_when_the_first_died_before_it_was_sent() {
    let mut pool = pool(|_| {});
    let helper = Puppet::attach(&mut pool);
    drop(helper.socket);
    pool.submit_custom(CustomJob::Once, b"append", Waiter::new(1))
        .unwrap();
    pool.flush(0);
    let mut done = Vec::new();
    let state = pool.on_ready(helper.slot, 0, &mut done);
    assert_eq!((state, done.len()), (SlotState::Dead, 0));
    pool.detach(helper.slot);
    let next = Puppet::attach(&mut pool);
    pool.flush(0);
    assert!(next.message().unwrap().starts_with("Custom"));
    // It is unknown whether this helper has done it.
    let given_up = next.die(&mut pool);
    assert_eq!(given_up[0].waiters, [1]);
    assert_eq!(pool.statistics().given_up, 1);
}

#[test]
fn job_is_retried_first_when_its_helper_dies() {
    let mut pool = pool(|_| {});
    let helper = Puppet::attach(&mut pool);
    submit(&mut pool, "a", 1);
    pool.flush(0);
    submit(&mut pool, "b", 2);
    assert!(helper.die(&mut pool).is_empty());
    let next = Puppet::attach(&mut pool);
    pool.flush(0);
    assert_eq!(next.resolve().unwrap().1, "a");
    assert_eq!(
        (pool.statistics().deaths, pool.statistics().retried),
        (1, 1)
    );
}

#[test]
fn custom_job_for_once_fails_and_a_shared_one_is_retried_when_its_helper_dies() {
    for kind in [CustomJob::Once, CustomJob::Shared] {
        let mut pool = pool(|_| {});
        let helper = Puppet::attach(&mut pool);
        for waiter in [1, 2] {
            pool.submit_custom(kind, b"append", Waiter::new(waiter))
                .unwrap();
        }
        pool.flush(0);
        let done = helper.die(&mut pool);
        let next = Puppet::attach(&mut pool);
        pool.flush(0);
        let repeated = next.message().is_some_and(|text| text.contains("job: 0"));
        match kind {
            CustomJob::Once => {
                let [one] = &done[..] else { panic!("{done:?}") };
                let why = match &one.outcome {
                    Outcome::Custom { answer: Err(why) } => *why,
                    other => panic!("{other:?}"),
                };
                assert_eq!(why, Failure::GivenUp);
                assert_eq!((&one.waiters[..], repeated), (&[1][..], false));
            }
            CustomJob::Shared => {
                assert!(done.is_empty() && repeated);
                assert_eq!(pool.statistics().coalesced, 1);
            }
        }
    }
}

#[test]
fn job_fails_when_sixteen_helpers_have_died_on_it() {
    let mut pool = pool(|_| {});
    submit(&mut pool, "poison", 1);
    for death in 1..=16 {
        let helper = Puppet::attach(&mut pool);
        pool.flush(0);
        let done = helper.die(&mut pool);
        assert_eq!(done.len(), usize::from(death == 16), "death {death}");
        if let [
            Done {
                outcome: Outcome::LookedUp { answer, .. },
                waiters,
                ..
            },
        ] = &done[..]
        {
            assert_eq!(
                (answer_text(answer).as_str(), &waiters[..]),
                ("GivenUp", &[1][..])
            );
        }
    }
    let statistics = pool.statistics();
    assert_eq!(
        (statistics.retried, statistics.given_up, statistics.queue),
        (15, 1, 0)
    );
    assert_eq!((statistics.helpers, statistics.busy), (0, 0));
}

#[test]
fn helper_is_removed_when_its_answer_is_invalid() {
    type Lie = fn(u64) -> Reply;
    let lies: [(&str, Lie); 4] = [
        ("another job", |job| Reply::LookedUp {
            job: job + 1,
            answer: RawAnswer::Redirect,
            content: None,
        }),
        ("another kind", |job| Reply::ReadIn { job, errno: 0 }),
        ("not asked to close", |job| Reply::Closed { job }),
        ("no descriptor", |job| {
            let tree = directory();
            put(tree.path(), "f", b"x");
            let file = *open(tree.path(), "f").meta();
            let siblings = [None, None, None];
            Reply::LookedUp {
                job,
                answer: RawAnswer::File {
                    file,
                    index: None,
                    siblings,
                    unusable: 0,
                },
                content: None,
            }
        }),
    ];
    for (what, lie) in lies {
        let mut pool = pool(|_| {});
        let helper = Puppet::attach(&mut pool);
        submit(&mut pool, "a", 1);
        pool.flush(0);
        let (job, _) = helper.resolve().unwrap();
        helper.reply(&lie(job), &[]);
        let state = pool.on_ready(helper.slot, 0, &mut Vec::new());
        assert_eq!(state, SlotState::Dead, "{what}");
    }
    let mut pool = pool(|_| {});
    let helper = Puppet::attach(&mut pool);
    helper.reply(&Reply::ReadIn { job: 0, errno: 0 }, &[]);
    assert_eq!(
        pool.on_ready(helper.slot, 0, &mut Vec::new()),
        SlotState::Dead,
        "unasked"
    );
}

#[test]
fn answer_is_exhausted_when_its_descriptors_are_lost() {
    let mut pool = pool(|_| {});
    let helper = Puppet::attach(&mut pool);
    submit(&mut pool, "a", 1);
    pool.flush(0);
    let (job, _) = helper.resolve().unwrap();
    // Six files for an answer of at most four: the kernel cuts them as it does at the limit.
    let null = std::fs::File::open("/dev/null").unwrap();
    helper.reply(
        &Reply::LookedUp {
            job,
            answer: RawAnswer::Directory,
            content: None,
        },
        &[null.as_fd(); 6],
    );
    let mut done = Vec::new();
    assert_eq!(pool.on_ready(helper.slot, 0, &mut done), SlotState::Alive);
    let Outcome::LookedUp { answer, .. } = &done[0].outcome else {
        panic!("{done:?}")
    };
    assert_eq!(answer_text(answer), "Exhausted");
}

#[test]
fn request_is_rejected_when_the_queue_is_full() {
    let mut pool = pool(|_| {});
    let tree = directory();
    put(tree.path(), "f", b"x");
    let file = open(tree.path(), "f");
    pool.submit_read_in(&file, 0, 1, None).unwrap();
    for path in ["a", "b", "c", "d"] {
        submit(&mut pool, path, 1);
    }
    assert_eq!(pool.statistics().prefetches_dropped, 1);
    assert_eq!(pool.submit_lookup(ROOT, b"e", Waiter::new(1)), Err(Full));
    assert_eq!(pool.submit_read_in(&file, 0, 1, None), Err(Full));
    assert_eq!(
        pool.submit_listing(ROOT, b"", None, Waiter::new(1)),
        Err(Full)
    );
    submit(&mut pool, "a", 2);
    let admitted = Waiter {
        token: 1,
        admitted: true,
    };
    assert_eq!(
        pool.submit_copy(&file, 0, 1, admitted),
        Ok(()),
        "it was let in"
    );
    assert_eq!(pool.submit_lookup(ROOT, b"e", Waiter::new(1)), Err(Full));
    assert_eq!(
        (pool.statistics().full, pool.statistics().queue_peak),
        (4, 5)
    );
}

#[test]
fn one_more_helper_is_wanted_when_jobs_wait_too_long() {
    let mut pool = pool(|_| {});
    assert_eq!(pool.wanted(0), 1);
    let _first = Puppet::attach(&mut pool);
    for path in ["a", "b", "c"] {
        submit(&mut pool, path, 1);
    }
    pool.flush(100);
    assert_eq!((pool.wanted(109), pool.next_ms(100)), (1, Some(110)));
    assert_eq!(
        (pool.wanted(110), pool.next_ms(110)),
        (2, None),
        "asked for: nothing to wait for"
    );
    let _second = Puppet::attach(&mut pool);
    pool.flush(111);
    assert_eq!(pool.wanted(111), 2, "the new one gets its chance first");
    assert_eq!(pool.wanted(121), 3);
    let third = Puppet::attach(&mut pool);
    submit(&mut pool, "d", 1);
    pool.flush(122);
    assert_eq!(
        (pool.wanted(999), pool.next_ms(122)),
        (3, None),
        "never above max"
    );
    third.die(&mut pool);
    pool.flush(123);
    assert_eq!(pool.wanted(123), 2);
}

#[test]
fn no_more_helpers_are_wanted_when_the_queue_is_served() {
    let mut pool = pool(|_| {});
    let helper = Puppet::attach(&mut pool);
    submit(&mut pool, "a", 1);
    submit(&mut pool, "b", 1);
    pool.flush(0);
    assert_eq!(pool.wanted(10), 2);
    helper.answer(&mut pool, 10);
    pool.flush(10);
    assert_eq!(pool.wanted(1000), 1);
}

#[test]
fn longest_idle_helper_ends_above_the_minimum() {
    let mut pool = pool(|_| {});
    let helpers = [(); 3].map(|()| Puppet::attach(&mut pool));
    pool.flush(0);
    submit(&mut pool, "a", 1);
    pool.flush(400);
    let used = helpers.iter().position(|helper| {
        let worked = helper
            .message()
            .is_some_and(|message| message.starts_with("Lookup"));
        if worked {
            helper.reply(
                &Reply::LookedUp {
                    job: 0,
                    answer: RawAnswer::Redirect,
                    content: None,
                },
                &[],
            );
        }
        worked
    });
    let used = helpers[used.unwrap()].slot;
    pool.on_ready(used, 500, &mut Vec::new());
    assert_eq!((pool.surplus(999), pool.next_ms(500)), (None, Some(1000)));
    for _ in 0..2 {
        let gone = pool.surplus(1000).unwrap();
        assert_ne!(
            gone, used,
            "work goes to the one used last, so it is not idle"
        );
        pool.detach(gone);
    }
    assert_eq!(
        (pool.surplus(9999), pool.next_ms(1000)),
        (None, None),
        "never below min"
    );
    let ended = helpers.iter().filter(|helper| {
        let got = receive_with_descriptors(&helper.socket, &mut [0; 64], 0, Wait::Never);
        matches!(got, Ok(Some(end)) if end.is_end())
    });
    assert_eq!(ended.count(), 2, "a detached helper sees the end");
}

#[test]
fn helpers_keep_their_own_jobs_when_several_work() {
    let mut pool = pool(|_| {});
    let helpers = [Puppet::attach(&mut pool), Puppet::attach(&mut pool)];
    submit(&mut pool, "a", 1);
    submit(&mut pool, "b", 2);
    submit(&mut pool, "c", 3);
    pool.flush(0);
    assert_eq!((pool.statistics().busy, pool.statistics().queue), (2, 1));
    let mut answered: Vec<_> = helpers
        .iter()
        .flat_map(|helper| helper.answer(&mut pool, 0))
        .collect();
    pool.flush(0);
    let last = helpers.iter().find_map(|helper| {
        let (job, _) = helper.resolve()?;
        helper.reply(
            &Reply::LookedUp {
                job,
                answer: RawAnswer::Redirect,
                content: None,
            },
            &[],
        );
        Some(helper.slot)
    });
    pool.on_ready(last.unwrap(), 0, &mut answered);
    let mut waiters: Vec<_> = answered
        .iter()
        .flat_map(|done| done.waiters.clone())
        .collect();
    waiters.sort_unstable();
    assert_eq!(waiters, [1, 2, 3]);
    assert_eq!(pool.statistics().service_us.count, 3);
}

#[test]
fn job_survives_when_a_busy_helper_is_detached() {
    let mut pool = pool(|_| {});
    let helper = Puppet::attach(&mut pool);
    submit(&mut pool, "a", 1);
    pool.flush(0);
    pool.detach(helper.slot);
    let next = Puppet::attach(&mut pool);
    pool.flush(0);
    assert_eq!(next.answer(&mut pool, 0)[0].waiters, [1]);
}

#[test]
fn death_is_noticed_when_a_job_cannot_be_sent() {
    let mut pool = pool(|_| {});
    let Puppet { slot, socket } = Puppet::attach(&mut pool);
    drop(socket);
    submit(&mut pool, "a", 1);
    pool.flush(0);
    assert_eq!(pool.on_ready(slot, 0, &mut Vec::new()), SlotState::Dead);
    pool.detach(slot);
    let next = Puppet::attach(&mut pool);
    pool.flush(0);
    assert_eq!(next.answer(&mut pool, 0)[0].waiters, [1]);
}

#[test]
fn disk_error_is_reported_when_a_chunk_cannot_be_read() {
    let tree = directory();
    put(tree.path(), "f", b"x");
    let mut pool = pool(|_| {});
    let helper = Puppet::attach(&mut pool);
    pool.submit_read_in(&open(tree.path(), "f"), 0, 1, Some(Waiter::new(3)))
        .unwrap();
    pool.flush(0);
    assert!(helper.message().unwrap().starts_with("ReadIn"));
    helper.reply(&Reply::ReadIn { job: 0, errno: 5 }, &[]);
    let mut done = Vec::new();
    pool.on_ready(helper.slot, 0, &mut done);
    assert!(
        matches!(
            done[0].outcome,
            Outcome::ReadIn {
                result: Err(Failure::Io),
                ..
            }
        ),
        "{done:?}"
    );
    assert!(!Failure::Io.cacheable());
}
