//! Spans of requests for OpenTelemetry.
//!
//! A worker writes the span of a sampled request as JSON into a queue, as it writes a line of the access log
//! ([`Span`]). The *span process* reads these queues, makes batches and sends them to a collector by OTLP over HTTP
//! ([`process`]). A worker never waits for it: what does not fit is dropped and counted.
//!
//! Sources: OTLP 1.x (JSON over HTTP), the semantic conventions for HTTP spans.
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]
#![deny(clippy::unused_self)]
#![cfg_attr(
    not(test),
    deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)
)]

mod batches;
mod export;
pub mod process;
mod span;

pub use headway_access_log::LogQueue as SpanQueue;
pub use span::Span;
