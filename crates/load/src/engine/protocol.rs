//! The HTTP version of a plan, and the settings that it excludes.

use super::http2;
use super::plan::{COUNT_MAX, Mode, Plan, PlanError, bounded, nonzero};

/// How requests are framed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1: a connection carries one request at a time.
    #[default]
    Http1,
    /// HTTP/1.0: as `Http1`, and a connection is kept only if both sides say so.
    Http10,
    /// HTTP/2: by ALPN over TLS, by prior knowledge without.
    Http2 {
        /// Concurrent requests per connection. In a closed loop each of them is a client.
        streams: u32,
    },
}

/// Headers about one connection of HTTP/1.1 (RFC 9113 section 8.2.2).
pub(super) const UNFIT_HEADERS: [&str; 6] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "transfer-encoding",
    "upgrade",
    "te",
];

impl Protocol {
    /// Concurrent requests per connection.
    pub fn streams(self) -> u32 {
        match self {
            Protocol::Http1 | Protocol::Http10 => 1,
            Protocol::Http2 { streams } => streams,
        }
    }

    /// The version in a request line; HTTP/2 has none.
    pub(crate) fn version(self) -> &'static str {
        match self {
            Protocol::Http10 => "HTTP/1.0",
            Protocol::Http1 | Protocol::Http2 { .. } => "HTTP/1.1",
        }
    }

    pub(super) fn check(self, plan: &Plan) -> Result<(), PlanError> {
        let Protocol::Http2 { streams } = self else {
            return Ok(());
        };
        nonzero("the number of streams", streams.into())?;
        let (Mode::Closed { connections }
        | Mode::Open {
            connections_max: connections,
            ..
        }) = plan.mode;
        let clients = u64::from(connections) * u64::from(streams);
        bounded("connections times streams", clients, COUNT_MAX.into())?;
        let unfit = |name: &str| {
            UNFIT_HEADERS
                .iter()
                .any(|one| name.eq_ignore_ascii_case(one))
        };
        let unfit = plan.headers.iter().find(|(name, _)| unfit(name));
        let wrong = |text: String| Err(PlanError::Http2(text));
        if let Some((name, _)) = unfit {
            return wrong(format!("a request has no header {name}; leave it out"));
        }
        if plan.targets.len() > 1 {
            return wrong(format!("{} servers: ask one", plan.targets.len()));
        }
        if plan
            .conversation
            .as_ref()
            .is_some_and(|one| !one.speaks_http2())
        {
            return wrong("a conversation of this kind needs HTTP/1.1".to_owned());
        }
        if plan.bandwidth_bits_per_s.is_some() {
            return wrong("a limit on the bandwidth of each connection needs HTTP/1.1".to_owned());
        }
        if !plan.first_pause.is_zero() {
            return wrong("a pause before the first request needs HTTP/1.1".to_owned());
        }
        let bytes = http2::header_bytes(plan) as u64;
        bounded(
            "the header of a request",
            bytes,
            http2::HEADER_BYTES_MAX as u64,
        )
    }
}
