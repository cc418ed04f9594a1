//! Exchanges with real programs at the other end of a Unix socket: php-fpm, uWSGI, nginx.
//!
//! The tables beside this folder say what we understand of each protocol; these tests say whether
//! others understand the same. Sockets are used in the plainest way, since no loop is being tested.

mod arrange;
mod nginx;
mod peer;
mod php;
mod scgi;
mod start;
