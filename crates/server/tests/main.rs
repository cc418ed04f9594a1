//! All suites of this crate but those which change the limits of their process.
//!
//! Most run a worker in threads of the test (`support`). `counts`, `error_log`, `host_listeners`, `host_logs`, `http2`, `lifecycle`, `programs`, `spans`, `stages`, `status`, `tls`,
//! `unix_sockets` and `upstreams` start a whole server (`site`), whose binary is `tests/program`.

mod acme;
mod activation;
mod conversation;
mod site;
mod support;

mod clock_steps;
mod control;
mod conversations;
mod embedded;
mod counts;
mod error_log;
mod faults;
mod host_listeners;
mod host_logs;
mod http2;
mod lifecycle;
mod presets;
mod programs;
mod proxies;
mod reload;
mod request_durations;
mod sandbox;
mod serving;
mod shared_memory;
mod spans;
mod stages;
mod status;
mod tls;
mod unix_sockets;
mod upgrade;
mod upstreams;
