//! Suites of the observer which look only at the processes that they start.

mod common;

mod attach;
mod run_queue;
mod waiters;
