//! All suites of this crate but those which change the limits of their process.
//!
//! Most run a worker in threads of the test (`support`). `host_logs`, `http2`, `lifecycle`, `programs`, `status`, `tls`,
//! `unix_sockets` and `upstreams` start a whole server (`site`), whose binary is `tests/program`.

mod acme;
mod conversation;
mod site;
mod support;

mod control;
mod conversations;
mod embedded;
mod faults;
mod host_logs;
mod http2;
mod lifecycle;
mod presets;
mod programs;
mod proxies;
mod reload;
mod request_durations;
mod serving;
mod status;
mod tls;
mod unix_sockets;
mod upstreams;
