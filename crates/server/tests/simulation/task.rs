//! A thread that runs only when its turn comes: the worker, and each of its helpers. Exactly one of
//! them, or the test, runs at a time, so everything happens in an order that the seed decides.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use crate::trap::{Calls, with_calls};

/// Whose turn it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Turn {
    World,
    Task,
    Ended,
}

/// The baton that a task and the world pass to each other.
pub struct Baton {
    turn: Mutex<Turn>,
    passed: Condvar,
}

impl Baton {
    pub fn new() -> Arc<Baton> {
        Arc::new(Baton {
            turn: Mutex::new(Turn::World),
            passed: Condvar::new(),
        })
    }

    /// Called by the task: gives the turn to the world, and waits for the next one.
    pub fn park(&self) {
        self.pass(Turn::World);
        self.await_turn();
    }

    fn await_turn(&self) {
        let mut turn = self.turn.lock().expect("no panic with the baton");
        while *turn != Turn::Task {
            turn = self.passed.wait(turn).expect("no panic with the baton");
        }
    }

    /// Called by the world: lets the task run until it parks. `false` if it has ended.
    fn run(&self) -> bool {
        let mut turn = self.turn.lock().expect("no panic with the baton");
        if *turn == Turn::Ended {
            return false;
        }
        *turn = Turn::Task;
        drop(turn);
        self.passed.notify_one();
        turn = self.turn.lock().expect("no panic with the baton");
        while *turn == Turn::Task {
            turn = self.passed.wait(turn).expect("no panic with the baton");
        }
        *turn != Turn::Ended
    }

    /// Only one thread ever waits, and it needs the lock: it is free before that thread wakes up.
    fn pass(&self, to: Turn) {
        *self.turn.lock().expect("no panic with the baton") = to;
        self.passed.notify_one();
    }
}

/// A simulated thread.
pub struct Task {
    baton: Arc<Baton>,
    thread: Option<JoinHandle<Result<(), String>>>,
}

impl Task {
    /// A task that has not begun. Its system calls go to `calls`, which parks at `baton`.
    pub fn new(
        baton: Arc<Baton>,
        calls: impl Calls + Send + 'static,
        body: impl FnOnce() -> Result<(), String> + Send + 'static,
    ) -> Task {
        let passed = baton.clone();
        let thread = std::thread::spawn(move || {
            passed.await_turn();
            let ended = catch_unwind(AssertUnwindSafe(|| with_calls(&calls, body)));
            drop(calls);
            let ended = match ended {
                Ok(Ok(ended)) => ended,
                Ok(Err(error)) => Err(format!("syscall user dispatch: {error}")),
                Err(_) => Err("it panicked".to_owned()),
            };
            passed.pass(Turn::Ended);
            ended
        });
        Task {
            baton,
            thread: Some(thread),
        }
    }

    /// Lets it run until it waits. `false` if it has ended.
    pub fn run(&self) -> bool {
        self.baton.run()
    }

    /// The result of a task that has ended.
    pub fn join(&mut self) -> Result<(), String> {
        let thread = self.thread.take().expect("joined once");
        thread
            .join()
            .unwrap_or_else(|_| Err("it panicked".to_owned()))
    }
}
