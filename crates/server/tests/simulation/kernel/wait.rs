//! The waits of the worker. It gives the turn to the world, which looks for events in its place: it
//! gets its turn back when there are some, or when its time is over.

use headway_base::random::Draw;

use super::layout::{make, read};
use super::{Caller, Role, State};
use crate::clock;
use crate::trap::Arguments;

const EPOLL_EVENT_BYTES: usize = 12;

pub fn is_wait(number: i64) -> bool {
    matches!(
        number,
        libc::SYS_epoll_wait
            | libc::SYS_epoll_pwait
            | libc::SYS_epoll_pwait2
            | libc::SYS_poll
            | libc::SYS_ppoll
            | libc::SYS_select
            | libc::SYS_pselect6
    )
}

/// The timeout of a wait in nanoseconds; `None` without one.
fn timeout_ns(number: i64, arguments: Arguments) -> Option<u64> {
    let timespec = |pointer: u64| {
        (pointer != 0).then(|| {
            let time: libc::timespec = read(pointer);
            time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
        })
    };
    let milliseconds = |value: u64| u64::try_from(value as i32).ok().map(|ms| ms * 1_000_000);
    match number {
        libc::SYS_poll => milliseconds(arguments[2]),
        libc::SYS_ppoll => timespec(arguments[2]),
        libc::SYS_epoll_pwait2 => timespec(arguments[3]),
        libc::SYS_pselect6 => timespec(arguments[4]),
        libc::SYS_select => (arguments[4] != 0).then(|| {
            let time: libc::timeval = read(arguments[4]);
            time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000
        }),
        _ => milliseconds(arguments[3]),
    }
}

/// The same wait, which only looks. `zero` lives as long as the call.
fn at_once(number: i64, mut arguments: Arguments, zero: &libc::timespec) -> Arguments {
    let pointer = &raw const *zero as u64;
    match number {
        libc::SYS_poll => arguments[2] = 0,
        libc::SYS_ppoll => arguments[2] = pointer,
        libc::SYS_epoll_pwait2 => arguments[3] = pointer,
        libc::SYS_select | libc::SYS_pselect6 => arguments[4] = pointer,
        _ => arguments[3] = 0,
    }
    arguments
}

/// What select(2) overwrites even if nothing is ready.
struct Sets(Vec<(u64, Vec<u8>)>);

impl Sets {
    fn of(number: i64, arguments: Arguments) -> Sets {
        if !matches!(number, libc::SYS_select | libc::SYS_pselect6) {
            return Sets(Vec::new());
        }
        let bytes = (arguments[0] as usize).div_ceil(64) * 8;
        let sets = arguments[1..4].iter().filter(|pointer| **pointer != 0);
        Sets(
            sets.map(|pointer| {
                (
                    *pointer,
                    (0..bytes).map(|at| read(pointer + at as u64)).collect(),
                )
            })
            .collect(),
        )
    }

    fn restore(&self) {
        for (pointer, bytes) in &self.0 {
            super::layout::fill(*pointer, bytes);
        }
    }
}

/// A wait that has begun. What its arguments point to is there until it ends.
pub struct Wait {
    number: i64,
    arguments: Arguments,
    /// When it ends; `None` without a timeout.
    pub deadline_ns: Option<u64>,
    sets: Sets,
}

impl Caller {
    pub(super) fn wait(&self, number: i64, arguments: Arguments) -> i64 {
        let mut state = self.kernel.state();
        state.is_serving = true;
        state.wait = Some(Wait {
            number,
            arguments,
            deadline_ns: timeout_ns(number, arguments).map(|timeout| clock::now_ns() + timeout),
            sets: Sets::of(number, arguments),
        });
        drop(state);
        self.baton.park();
        self.kernel.state().wait_result
    }
}

impl State {
    /// Whether the worker can go on: it does not wait, or its wait is over.
    pub fn ends_wait(&mut self) -> bool {
        let Some(wait) = self.wait.take() else {
            return true;
        };
        let (number, arguments) = (wait.number, wait.arguments);
        self.wait_result = self.look(number, arguments);
        let is_over = wait
            .deadline_ns
            .is_some_and(|deadline| clock::now_ns() >= deadline);
        if self.wait_result != 0 || is_over {
            self.waits += 1;
            self.iteration_ns = clock::now_ns();
            self.record(Role::Worker, number, arguments, self.wait_result);
            return true;
        }
        wait.sets.restore();
        self.wait = Some(wait);
        false
    }

    /// Asks the kernel what is ready, and disturbs its answer.
    fn look(&mut self, number: i64, mut arguments: Arguments) -> i64 {
        if self.happens(|faults| faults.interrupted) {
            return -i64::from(libc::EINTR);
        }
        if self.has_no_memory(number) {
            self.may_pause = true;
            return self.exhausted(&[libc::ENOMEM]);
        }
        let is_epoll = !matches!(
            number,
            libc::SYS_poll | libc::SYS_ppoll | libc::SYS_select | libc::SYS_pselect6
        );
        if is_epoll && self.happens(|faults| faults.short) {
            arguments[2] = 1 + self.random.below(2);
        }
        let zero = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let result = make(number, at_once(number, arguments, &zero));
        if is_epoll && result > 1 {
            let bytes = result as usize * EPOLL_EVENT_BYTES;
            let mut events: Vec<[u8; EPOLL_EVENT_BYTES]> = (0..result as u64)
                .map(|index| read(arguments[1] + index * EPOLL_EVENT_BYTES as u64))
                .collect();
            self.random.shuffle(&mut events);
            super::layout::fill(arguments[1], &events.as_flattened()[..bytes]);
        }
        result
    }
}
