//! Exchanges with real servers over a Unix socket: php-fpm, uWSGI, nginx.
//!
//! The tables in the other tests define how each protocol is read; these tests check that other
//! implementations agree. Sockets are used in the simplest way, because no event loop is tested.

mod nginx;
mod php;
mod scgi;
mod transaction;
