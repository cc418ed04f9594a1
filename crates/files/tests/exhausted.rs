//! At the descriptor limit. A process of its own, since the limit is the process's.

mod common;

use common::{ROOT, Served, answer_text, directory, put, raw_answer_text, roots};
use headway_files::{DeferredCloses, LoopResolver, Outcome, Probe, Waiter, resolve_blocking};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;

#[test]
fn answer_is_exhausted_when_no_descriptor_is_left() {
    let tree = directory();
    put(tree.path(), "a", b"x");
    let roots = roots(tree.path(), &[], false);
    let mut served = Served::new(&roots);
    // The helper is a thread of this process. When it has answered for the missing name it has
    // closed its copy of the file before, so that none becomes free later.
    for path in [&b"a"[..], b"missing"] {
        served
            .pool
            .submit_lookup(ROOT, path, Waiter::new(1))
            .unwrap();
        served.until_done(1);
    }
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(64),
            maximum,
        },
    )
    .unwrap();
    let mut held = Vec::new();
    while let Ok(file) = File::open("/proc/self/exe") {
        held.push(file);
    }
    assert_eq!(
        raw_answer_text(&resolve_blocking(&roots, ROOT, b"a")),
        "Exhausted"
    );
    let resolver = LoopResolver {
        roots: &roots,
        deferred: &DeferredCloses::new(),
    };
    let Probe::Answered(answer) = resolver.resolve_cached(ROOT, b"a") else {
        panic!("EMFILE is an answer")
    };
    assert_eq!(answer_text(&answer), "Exhausted");
    assert!(!answer.cacheable());
    // With a descriptor free the helper may open the file, and close it before its copy for us
    // needs room, or after. Whichever comes first, it is a shortage or the file.
    for free in 0..4 {
        held.truncate(held.len() - usize::from(free > 0));
        served
            .pool
            .submit_lookup(ROOT, b"a", Waiter::new(1))
            .unwrap();
        let done = served.until_done(1);
        let Outcome::LookedUp { answer, .. } = &done[0].outcome else {
            panic!("{done:?}")
        };
        let text = answer_text(answer);
        assert!(
            text == "Exhausted" || (free > 0 && text.starts_with("file")),
            "{free}: {text}"
        );
    }
    drop(held);
}
