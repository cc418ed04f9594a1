//! All suites of this crate but those which change the limits of their process.
//!
//! Most run a worker in threads of the test (`support`). `lifecycle`, `programs`, `status` and
//! `upstreams` start a whole server (`site`), whose binary is `tests/program`.

mod conversation;
mod site;
mod support;

mod control;
mod conversations;
mod embedded;
mod faults;
mod lifecycle;
mod presets;
mod programs;
mod proxies;
mod reload;
mod serving;
mod status;
mod upstreams;
