//! Upstreams of a server: php-fpm, uWSGI and nginx in ordinary use, and faulty upstreams
//! made for the tests.

mod aborts;
mod buffers;
pub mod faults;
mod accel_redirect;
mod keepalive;
mod partition;
mod php;
mod proxy;
mod scgi;
mod slow_clients;
mod trace_context;
pub mod websocket;
