//! All suites of this crate.

mod common;

mod cgi_responses;
mod cgi_variables;
mod fastcgi;
mod instructions;
mod proxy_requests;
mod proxy_responses;
mod real_servers;
mod scgi;
mod upstreams;
