//! Servers behind `headway serve`: php-fpm, uWSGI and nginx, each in conversations that people have
//! with them, and back ends of the tests' own that do everything wrong.

#[path = "../../../gateway/tests/peers/arrange.rs"]
mod arrange;
#[path = "../common/executable.rs"]
mod executable;
#[path = "../serving/mod.rs"]
#[allow(dead_code, reason = "each test binary uses its part")]
mod serving;
#[path = "../programs/site.rs"]
#[allow(dead_code, reason = "each test binary uses its part")]
mod site;
#[path = "../../../gateway/tests/peers/start.rs"]
#[allow(dead_code, reason = "each test binary uses its part")]
mod start;

mod aborts;
mod faults;
mod handoff;
mod kept;
mod php;
mod proxy;
mod scgi;
mod slow;
mod tunnels;
