//! Features of the server that may be off, and which numbers belong to them. The status page does not
//! show a number of a feature that is off, unless it has counted something.

use headway_config::{
    AcceptBatch, Config, EarlyReject, HandlerConfig, HelperBackend, ListenerMode, Location,
    Offload, ResearchConfig,
};
use serde::{Deserialize, Serialize};

/// A part of the server that may be off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Feature {
    /// Listeners that speak TLS.
    Tls,
    /// `tls-offload = "kernel"`.
    TlsOffload,
    /// HTTP/2.
    Http2,
    /// Locations with programs or upstreams.
    Handlers,
    /// CGI programs.
    Cgi,
    /// Direct and pipe handlers.
    Direct,
    /// FastCGI, SCGI and HTTP upstreams.
    Upstreams,
    /// Applications inside the server.
    Applications,
    /// Directory listings.
    Listings,
    /// `accept-batch = "auto"`.
    AcceptAuto,
    /// `early-reject`.
    EarlyReject,
    /// `max-connections-per-address`.
    AddressLimit,
    /// Several workers that share listeners.
    SharedListeners,
    /// The access log.
    Log,
    /// Spans for OpenTelemetry.
    Spans,
    /// `helpers = "io_uring"`.
    IoUring,
    /// The content store.
    ContentStore,
    /// The settings of `headway-lab`.
    Research,
}

impl Feature {
    /// The features that are off.
    pub fn off(config: &Config) -> Vec<Feature> {
        let locations = || config.hosts.iter().flat_map(|host| &host.locations);
        let has = |is_one: fn(&HandlerConfig) -> bool| {
            locations().any(|location: &Location| is_one(&location.handler))
        };
        let has_cgi = has(|handler| matches!(handler, HandlerConfig::Cgi(_)));
        let has_direct =
            has(|handler| matches!(handler, HandlerConfig::Direct(_) | HandlerConfig::Pipe(_)));
        let has_upstreams = has(|handler| matches!(handler, HandlerConfig::Upstreams(_)));
        let is_offload = |offload: Offload| offload == Offload::Kernel;
        let tls = config.tls.as_ref();
        let shares = config.listeners == ListenerMode::Shared && config.workers > 1;
        let features = [
            (Feature::Tls, tls.is_some()),
            (
                Feature::TlsOffload,
                tls.is_some_and(|tls| is_offload(tls.offload)),
            ),
            (Feature::Http2, config.http2_streams_max > 0),
            (Feature::Handlers, has_cgi || has_direct || has_upstreams),
            (Feature::Cgi, has_cgi),
            (Feature::Direct, has_direct),
            (Feature::Upstreams, has_upstreams),
            (
                Feature::Applications,
                has(|handler| matches!(handler, HandlerConfig::Application(_))),
            ),
            (
                Feature::Listings,
                config.hosts.iter().any(|host| host.listing),
            ),
            (
                Feature::AcceptAuto,
                config.accept_batch == AcceptBatch::Auto,
            ),
            (
                Feature::EarlyReject,
                config.early_reject != EarlyReject::Off,
            ),
            (
                Feature::AddressLimit,
                config.max_connections_per_address > 0,
            ),
            (Feature::SharedListeners, shares),
            (Feature::Log, config.log.is_some()),
            (Feature::Spans, config.otlp.is_some()),
            (
                Feature::IoUring,
                config.helper_backend == HelperBackend::IoUring,
            ),
            (Feature::ContentStore, config.content_store_max_bytes > 0),
            (
                Feature::Research,
                config.research != ResearchConfig::default(),
            ),
        ];
        let off = features.into_iter().filter(|(_, is_on)| !is_on);
        off.map(|(feature, _)| feature).collect()
    }

    /// The feature that a number belongs to, by its group and its key in `/status.json`.
    pub fn of(group: &str, key: &str) -> Option<Feature> {
        Some(match (group, key) {
            (_, "tls_connections_offloaded") => Feature::TlsOffload,
            ("TLS", _) | (_, "timeouts_handshake") => Feature::Tls,
            ("HTTP/2", _) => Feature::Http2,
            (_, "connections_rejected_per_address") => Feature::AddressLimit,
            (_, "connections_rejected_overload") => Feature::EarlyReject,
            (_, "connections_upgraded" | "upgrades") => Feature::Upstreams,
            (_, "accept_yielded") => Feature::SharedListeners,
            (_, "accept_batches_on_close") => Feature::Research,
            (_, "first_requests_abandoned") => Feature::AcceptAuto,
            ("Accepting", key) if is_of_admission(key) => Feature::AcceptAuto,
            (_, "helper_jobs_io_uring") => Feature::IoUring,
            (_, "helper_jobs_custom" | "handler_requests_application") => Feature::Applications,
            (_, "helper_jobs_listing" | "listing_cache_entries") => Feature::Listings,
            (_, "file_cache_repeated_lookups") => Feature::Research,
            (_, key) if key.starts_with("log_lines") => Feature::Log,
            (_, key) if key.starts_with("spans_") => Feature::Spans,
            (_, key) if key.starts_with("content_store") => Feature::ContentStore,
            (_, key) if key.starts_with("recent_cache") || key.starts_with("mapping_cache") => {
                Feature::Research
            }
            ("Handlers and upstreams", key) => feature_of_handler(key),
            (_, "loop_longest_handshake_us" | "loop_longest_crypto_us") => Feature::Tls,
            (_, "loop_longest_upstream_us") => Feature::Handlers,
            _ => return None,
        })
    }
}

/// Whether a number is that of admission control.
fn is_of_admission(key: &str) -> bool {
    let parts = [
        "batch_size",
        "backlog",
        "pending",
        "admission",
        "syn",
        "deferred",
    ];
    let key = key.strip_prefix("accept_").unwrap_or_default();
    parts.iter().any(|part| key.starts_with(part))
}

fn feature_of_handler(key: &str) -> Feature {
    match key {
        _ if key.contains("direct") || key.contains("pipe") => Feature::Direct,
        _ if key.contains("cgi") && !key.contains("fastcgi") && !key.contains("scgi") => {
            Feature::Cgi
        }
        _ if key.starts_with("upstream")
            || ["fastcgi", "scgi", "proxy"]
                .iter()
                .any(|one| key.ends_with(one)) =>
        {
            Feature::Upstreams
        }
        _ => Feature::Handlers,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Counters;

    #[test]
    fn numbers_belong_to_the_feature_that_counts_them() {
        for (key, expected) in [
            ("connections_open", None),
            ("timeouts_handshake", Some(Feature::Tls)),
            ("tls_connections_offloaded", Some(Feature::TlsOffload)),
            ("http2_streams", Some(Feature::Http2)),
            ("accept_calls", None),
            ("accept_batch_size", Some(Feature::AcceptAuto)),
            ("accept_syn_filter_stateful", Some(Feature::AcceptAuto)),
            ("mapping_cache_cold", Some(Feature::Research)),
            ("file_cache_hits", None),
            ("handler_requests_cgi", Some(Feature::Cgi)),
            ("handler_requests_fastcgi", Some(Feature::Upstreams)),
            ("handler_queue_full", Some(Feature::Handlers)),
            ("upstream_retries", Some(Feature::Upstreams)),
            ("direct_processes_busy", Some(Feature::Direct)),
            ("log_lines_dropped", Some(Feature::Log)),
            ("spans_dropped", Some(Feature::Spans)),
        ] {
            let all = Counters::default().series();
            let series = all.iter().find(|series| series.key == key).unwrap();
            assert_eq!(Feature::of(series.group, key), expected, "{key}");
        }
    }
}
