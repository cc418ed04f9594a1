//! Upstreams of `headway serve`: php-fpm, uWSGI and nginx in ordinary use, and faulty upstreams
//! made for the tests.

#[path = "../../gateway/tests/real_servers/arrange.rs"]
mod arrange;
#[path = "../../gateway/tests/real_servers/start.rs"]
#[allow(dead_code, reason = "each test binary uses its part")]
mod start;

mod aborts;
mod faults;
mod accel_redirect;
mod keepalive;
mod php;
mod proxy;
mod scgi;
mod slow_clients;
mod websocket;

use crate::programs::site;
