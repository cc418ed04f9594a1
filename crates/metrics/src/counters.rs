//! The numbers that a worker keeps about itself, and the one table that describes them.
//!
//! A counter is a plain integer in one structure: the loop increments a field, nothing more. The
//! table below makes the fields, their merge and their descriptions. The Prometheus output, the
//! keys in `/status.json`, the status page and the metrics reference all come from it.
//!
//! A metric family has a name, a type, labels and a HELP text. Each of its series is one field,
//! whose name is also its key in `/status.json`. The names follow the Prometheus conventions: the
//! prefix `headway_` and, for counters, the suffix `_total` are added when the table is rendered.

use headway_http::RejectKind;
use serde::{Deserialize, Serialize};

use super::{HandlerLabel, Histogram, HttpRequests, LongestTurn, RequestDurations, RequestStages};

/// How a number behaves over time, and so how workers' numbers merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeriesKind {
    /// Only grows. Adds up over workers, and outlives a worker in the total.
    Counter,
    /// A current value. Adds up over live workers.
    Gauge,
    /// The largest value seen. The total is the largest of all workers.
    Peak,
}

/// One series of a metric family: one integer of [`Counters`] with its description.
#[derive(Clone, Copy, Debug)]
pub struct Series {
    /// Heading under which the status page and the reference show it.
    pub group: &'static str,
    /// The family's name, without prefix and suffix.
    pub family: &'static str,
    /// HELP text of the family.
    pub family_help: &'static str,
    /// Label names of the family.
    pub labels: &'static [&'static str],
    /// Label values, in the order of `labels`.
    pub values: &'static [&'static str],
    /// The field's name, which is its key in `/status.json`.
    pub key: &'static str,
    /// How the series behaves over time.
    pub kind: SeriesKind,
    /// One sentence about this series.
    pub help: &'static str,
    /// The current value.
    pub value: u64,
}

/// One histogram of [`Counters`] with its description.
#[derive(Clone, Copy, Debug)]
pub struct HistogramSeries<'a> {
    /// Heading under which the reference shows it.
    pub group: &'static str,
    /// The family's name, without prefix.
    pub family: &'static str,
    /// The field's name, which is its key in `/status.json`. One that ends in `_us` counts
    /// microseconds there, and seconds in the Prometheus output.
    pub key: &'static str,
    /// HELP text.
    pub help: &'static str,
    /// The histogram.
    pub histogram: &'a Histogram,
}

/// The words in brackets as strings.
macro_rules! names {
    ([$( $name:ident )*]) => { &[$( stringify!($name) ),*] };
}

macro_rules! counters {
    (scalars { $( $group:literal {
         $( $kind:ident $family:ident $labels:tt $family_help:literal {
             $( $field:ident $( ($($value:literal)*) $help:literal )? $( minus ($($less:ident)*) )?; )*
         } )*
     } )* }
     histograms { $( $histogram_group:literal $histogram_family:ident $histogram:ident $histogram_help:literal; )* }) => {
        /// Everything that a worker counts.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct Counters {
            $( $( $( #[doc = $family_help] $( #[doc = $help] )? pub $field: u64, )* )* )*
            $( #[doc = $histogram_help] pub $histogram: Histogram, )*
            /// HTTP requests answered, by status code and method.
            pub http_requests: HttpRequests,
            /// How long they took, by host, handler and class of status.
            #[serde(default)]
            pub request_durations: RequestDurations,
            /// The part of that which they spent in each stage.
            #[serde(default)]
            pub request_stages: RequestStages,
            /// The longest turn of the event loop, with its stages.
            #[serde(default)]
            pub loop_longest_turn: LongestTurn,
        }

        impl Counters {
            /// Adds another worker's numbers; peaks take the larger one. What a worker reports is
            /// not trusted, so sums stop at the largest number.
            pub fn merge(&mut self, other: &Counters) {
                $( $( $( match SeriesKind::$kind {
                    SeriesKind::Counter | SeriesKind::Gauge => {
                        self.$field = self.$field.saturating_add(other.$field);
                    }
                    SeriesKind::Peak => self.$field = self.$field.max(other.$field),
                } )* )* )*
                $( self.$histogram.merge(&other.$histogram); )*
                self.http_requests.merge(&other.http_requests);
                self.request_durations.merge(&other.request_durations);
                self.request_stages.merge(&other.request_stages);
                self.loop_longest_turn.merge(&other.loop_longest_turn);
            }

            /// Sets every gauge to zero, which leaves what outlives a worker.
            pub fn clear_gauges(&mut self) {
                $( $( $( if SeriesKind::$kind == SeriesKind::Gauge {
                    self.$field = 0;
                } )* )* )*
            }

            /// All integers with their descriptions, in the order of the table.
            pub fn series(&self) -> Vec<Series> {
                vec![ $( $( $( Series {
                    group: $group,
                    family: stringify!($family),
                    family_help: $family_help,
                    labels: names!($labels),
                    values: &[$( $( $value ),* )?],
                    key: stringify!($field),
                    kind: SeriesKind::$kind,
                    help: last(&[$family_help $(, $help )?]),
                    value: self.$field $( $( .saturating_sub(self.$less) )* )?,
                }, )* )* )* ]
            }

            /// All histograms with their descriptions.
            pub fn histograms(&self) -> Vec<HistogramSeries<'_>> {
                vec![ $( HistogramSeries {
                    group: $histogram_group,
                    family: stringify!($histogram_family),
                    key: stringify!($histogram),
                    help: $histogram_help,
                    histogram: &self.$histogram,
                }, )* ]
            }
        }
    };
}

impl Counters {
    /// Counts a request that could not be parsed.
    pub fn count_rejected(&mut self, kind: RejectKind) {
        let count = match kind {
            RejectKind::Syntax => &mut self.requests_rejected_syntax,
            RejectKind::Target => &mut self.requests_rejected_target,
            RejectKind::Host => &mut self.requests_rejected_host,
            RejectKind::Framing => &mut self.requests_rejected_framing,
            RejectKind::TooLarge => &mut self.requests_rejected_too_large,
            RejectKind::Unsupported => &mut self.requests_rejected_unsupported,
        };
        *count += 1;
    }

    /// Counts a request that goes to a handler of this kind.
    pub fn count_handler_request(&mut self, handler: HandlerLabel) {
        let count = match handler {
            HandlerLabel::None | HandlerLabel::Files | HandlerLabel::Redirect => return,
            HandlerLabel::Cgi => &mut self.handler_requests_cgi,
            HandlerLabel::Direct => &mut self.handler_requests_direct,
            HandlerLabel::Pipe => &mut self.handler_requests_pipe,
            HandlerLabel::Application => &mut self.handler_requests_application,
            HandlerLabel::Fastcgi => &mut self.handler_requests_fastcgi,
            HandlerLabel::Scgi => &mut self.handler_requests_scgi,
            HandlerLabel::Proxy => &mut self.handler_requests_proxy,
        };
        *count += 1;
    }
}

/// A series' own sentence where it has one, else its family's.
fn last(helps: &[&'static str]) -> &'static str {
    helps.last().copied().unwrap_or_default()
}

counters! {
    scalars {
        "Connections" {
            Gauge connections [state] "Client connections now, by state. State open counts all of them." {
                connections_open ("open") "Client connections open now.";
                connections_idle ("idle") "Keep-alive connections that wait for their next request now.";
                connections_upgraded ("upgraded") "Connections upgraded to another protocol (WebSocket) now.";
            }
            Counter connections_accepted [] "Connections accepted." { connections_accepted; }
            Counter connections_closed [reason] "Connections closed, by reason. Timeouts count as normal." {
                connections_closed ("normal") "Connections closed. In /status.json this number includes the reset and aborted ones." minus (connections_reset responses_aborted);
                connections_reset ("reset") "Connections that the client reset.";
                responses_aborted ("aborted") "Responses that the server aborted (changed file, I/O error, timeout).";
            }
            Counter connections_rejected [reason] "Connections answered 503 and closed instead of served, by reason." {
                connections_rejected_per_address ("per_address_limit") "Connections from an address that had max-connections-per-address already.";
                connections_rejected_overload ("overload") "Connections rejected because of overload (early-reject).";
            }
            Counter connections_evicted [reason] "Idle connections closed to make room for new ones, by what had run out." {
                connections_evicted_limit ("max_connections") "Idle connections closed because max-connections was reached.";
                connections_evicted_descriptors ("descriptors") "Idle connections closed because file descriptors had run out.";
            }
            Counter timeouts [stage] "Timeouts, by the stage in which the connection was." {
                timeouts_handshake ("handshake") "Connections whose TLS handshake was not done within tls-handshake-timeout.";
                timeouts_header ("header") "Connections whose request header did not arrive within header-timeout.";
                timeouts_body ("body") "Connections whose request body did not arrive within body-timeout.";
                timeouts_send ("send") "Connections that took no response bytes for send-timeout.";
                timeouts_idle ("idle") "Keep-alive connections closed because they were idle for idle-timeout.";
            }
            Counter received_bytes [] "Bytes received from clients." { received_bytes; }
            Counter sent_bytes [] "Bytes sent to clients, response headers included." { sent_bytes; }
            Counter sent_body_bytes [] "Bytes of response bodies sent to clients." { sent_body_bytes; }
            Counter receives_would_block [] "Reads from client sockets that found no data (EWOULDBLOCK)." { receives_would_block; }
        }
        "Accepting" {
            Counter accept_calls [] "Accept calls, successful or not." { accept_calls; }
            Counter accept_wakeups [] "Wakeups in which a listener was ready." { accept_wakeups; }
            Counter accept_batches_on_close [] "Accept batches started because a connection had closed (headway-lab serve only)." { accept_batches_on_close; }
            Counter accept_errors [] "Failed accept calls, except EWOULDBLOCK." { accept_errors; }
            Counter accept_pauses [] "Times that accepting paused because file descriptors or memory ran out." { accept_pauses; }
            Counter accept_yielded [] "Times that a worker with more than its share of connections left new ones to others (listeners = shared)." { accept_yielded; }
            Gauge accept_batch_size [] "Connections that the next accept batch may take. 0 unless accept-batch is auto." { accept_batch_size; }
            Gauge accept_backlog [] "Length of the accept queues set by admission control; for a shared listener the worker's part. 0 unless accept-batch is auto." { accept_backlog; }
            Gauge accept_pending [] "Connections in the accept queues when last sampled, after an iteration that left some (accept-batch = auto)." { accept_pending; }
            Gauge accept_admission_limited [] "Workers whose SYN filter admits only a fraction of the new connections because of overload (accept-batch = auto)." { accept_admission_limited; }
            Gauge accept_syn_filter_stateful [] "Workers whose SYN filter remembers rejected SYNs. Needs CAP_BPF (accept-batch = auto)." { accept_syn_filter_stateful; }
            Counter accept_admission_changes [] "Changes of the fraction of SYNs that the SYN filter admits (accept-batch = auto)." { accept_admission_changes; }
            Counter accept_syn_dropped [] "First SYNs dropped: the accept queue was full, or the SYN filter rejected them. Sampled with accept-batch = auto." { accept_syn_dropped; }
            Counter accept_deferred_iterations [] "Loop iterations that accepted nothing because of loop lag for the established connections (accept-batch = auto)." { accept_deferred_iterations; }
            Gauge early_reject_active [] "Workers that reject new connections now because of overload (early-reject)." { early_reject_active; }
        }
        "TLS" {
            Counter tls_handshakes [result] "TLS handshakes that ended, by result." {
                tls_handshakes_full ("full") "Full handshakes, with a new session.";
                tls_handshakes_resumed ("resumed") "Handshakes that resumed an earlier session.";
                tls_handshakes_failed ("failed") "Handshakes that failed.";
            }
            Counter tls_handshakes_failed [reason] "TLS handshakes that failed, by reason. Clients that disconnect before their first byte do not count." {
                tls_failed_not_tls ("not_tls") "The first bytes of the client were not TLS.";
                tls_failed_bad_message ("bad_message") "The client sent an invalid message.";
                tls_failed_version ("version") "Client and server have no TLS version in common.";
                tls_failed_cipher_suite ("cipher_suite") "No cipher suite, key exchange group or signature scheme in common.";
                tls_failed_alpn ("alpn") "No application protocol in common (ALPN).";
                tls_failed_client_certificate_missing ("client_certificate_missing") "The client sent no certificate, but tls-client-ca requires one.";
                tls_failed_client_certificate_expired ("client_certificate_expired") "The client's certificate has expired, or is not valid yet.";
                tls_failed_client_certificate_refused ("client_certificate_refused") "The client's certificate is invalid, or an authority that is not in tls-client-ca has issued it.";
                tls_failed_unknown_name ("unknown_name") "The client rejected the default certificate. No certificate is for the name that it asked for.";
                tls_failed_certificate_rejected ("certificate_rejected") "The client rejected the server's certificate.";
                tls_failed_client_alert ("client_alert") "The client ended the handshake with another alert.";
                tls_failed_client_closed ("client_closed") "The client disconnected during the handshake.";
                tls_failed_timeout ("timeout") "The handshake took longer than tls-handshake-timeout.";
                tls_failed_process_gone ("process_gone") "The handshake process ended during the handshake.";
                tls_failed_other ("other") "The server itself failed.";
            }
            Gauge tls_handshakes_waiting [] "Clients that wait for the handshake process now." { tls_handshakes_waiting; }
            Counter tls_accept_pauses [] "Times that TLS listeners paused because 256 clients waited for the handshake process." { tls_accept_pauses; }
            Counter tls_connections_offloaded [] "TLS connections for which the kernel encrypts (tls-offload)." { tls_connections_offloaded; }
            Counter tls_connections_failed [] "TLS connections that failed after their handshake: invalid record, or alert from the client." { tls_connections_failed; }
        }
        "HTTP/2" {
            Counter http2_connections [] "Connections that speak HTTP/2." { http2_connections; }
            Counter http2_connections_flooded [] "HTTP/2 connections ended because of a flood." { http2_connections_flooded; }
            Counter http2_streams [] "Requests that came by HTTP/2." { http2_streams; }
            Counter http2_streams_refused [] "HTTP/2 requests refused because their address had used up its share of max-connections." { http2_streams_refused; }
            Counter http2_streams_closed [] "HTTP/2 requests that ended, with a response or without. Refused ones do not count." { http2_streams_closed; }
        }
        "Loop" {
            Peak loop_stage_longest [stage] "The longest time that a stage has taken in one turn of the event loop." {
                loop_longest_accept_us ("accept") "New connections.";
                loop_longest_client_us ("client") "Clients with input, or with room for output, but for crypto and send.";
                loop_longest_crypto_us ("crypto") "Encryption of 4 KiB or more at a time, and handshakes in the worker.";
                loop_longest_send_us ("send") "Sending 16 KiB or more at a time, without encryption.";
                loop_longest_handshake_us ("handshake") "Connections whose TLS handshake the handshake process has done.";
                loop_longest_helper_us ("helper") "Results of helpers.";
                loop_longest_upstream_us ("upstream") "Programs and upstreams.";
                loop_longest_control_us ("control") "Messages of the master and the store process.";
                loop_longest_queued_us ("queued") "Responses continued from the turn before.";
                loop_longest_maintenance_us ("maintenance") "Deadlines, jobs for helpers, log lines.";
            }
        }
        "Requests" {
            Counter requests_received [] "Requests whose header was complete, or could not be parsed." { requests_received; }
            Counter requests_rejected [reason] "Malformed and unsupported requests, by the part that is wrong." {
                requests_rejected_syntax ("syntax") "Requests with an invalid request line, header line or line end.";
                requests_rejected_target ("target") "Requests whose target has no valid form.";
                requests_rejected_host ("host") "Requests whose Host is absent, repeated or invalid.";
                requests_rejected_framing ("framing") "Requests whose Content-Length or Transfer-Encoding is invalid or ambiguous.";
                requests_rejected_too_large ("too_large") "Requests whose header or target exceeds a limit.";
                requests_rejected_unsupported ("unsupported") "Requests with an unsupported version, method, transfer coding or expectation, or for https.";
                requests_rejected_body ("body") "Requests with an invalid chunked body.";
            }
            Counter first_requests_sampled [] "First requests whose client was checked to be still connected (1 in 16, all under overload)." { first_requests_sampled; }
            Counter first_requests_disconnected [] "Checked first requests whose client had already closed its side of the connection." { first_requests_disconnected; }
            Counter first_requests_abandoned [] "First requests left unanswered: the client had closed after more than a second (accept-batch = auto)." { first_requests_abandoned; }
            Counter io_errors [] "Disk I/O errors." { io_errors; }
        }
        "Caches" {
            Counter cache_requests [cache result] "Cache lookups, by cache and result." {
                file_cache_hits ("file" "hit") "Requests whose path was in the file cache.";
                file_cache_stale_hits ("file" "stale") "Requests answered from the file cache while a helper checked its entry.";
                file_cache_misses ("file" "miss") "Requests whose path was not in the file cache.";
                response_cache_hits ("response" "hit") "Small files sent from the response cache.";
                response_cache_misses ("response" "miss") "Small files that were not in the response cache.";
                content_store_hits ("store" "hit") "Files sent from the content store.";
                chunks_buffered ("chunk" "buffered") "File chunks that were in the worker's own buffers.";
                chunks_resident ("chunk" "resident") "File chunks that the residency probe found in the page cache.";
                chunks_cold ("chunk" "cold") "File chunks that a helper read first, since they were not in the page cache.";
                mapping_cache_resident ("mapping" "resident") "Chunks of mapped files that mincore found resident.";
                mapping_cache_cold ("mapping" "cold") "Chunks of mapped files that a helper read first.";
                recent_cache_hits ("recent" "hit") "Chunks that were used recently (headway-lab serve only).";
                recent_cache_misses ("recent" "miss") "Chunks that a helper read first (headway-lab serve only).";
            }
            Gauge cache_entries [cache] "Entries in a cache now." {
                file_cache_entries ("file") "Paths in the file cache now.";
                listing_cache_entries ("listing") "Directory listings in memory now. Connections share them.";
                mapping_cache_entries ("mapping") "File chunks mapped now.";
                recent_cache_entries ("recent") "File chunks believed to be in the page cache now (headway-lab serve only).";
            }
            Gauge cache_bytes [cache] "Size of a cache now, in bytes." {
                response_cache_bytes ("response") "Bytes of small files in the response cache now.";
                content_store_bytes ("store") "Bytes of files in the content store now, in whole pages.";
                mapping_cache_bytes ("mapping") "Bytes of files mapped now.";
                recent_cache_bytes ("recent") "Bytes of files believed to be in the page cache now (headway-lab serve only).";
            }
            Gauge cache_descriptors [cache] "File descriptors held by a cache now." {
                file_cache_descriptors ("file") "Open file descriptors in the file cache now.";
            }
            Counter cache_reopened [cache] "Files that the loop opened again by name, because they were closed (headway-lab serve only)." {
                mapping_cache_reopened ("mapping") "Files that the loop opened again by name to map them (headway-lab serve only).";
            }
            Counter cache_insertions [cache] "Entries added to a cache." {
                response_cache_insertions ("response") "Small files added to the response cache.";
                content_store_insertions ("store") "Files added to the content store.";
            }
            Counter cache_evictions [cache] "Entries evicted from a cache because it was full." {
                file_cache_evictions ("file") "Paths evicted from the file cache.";
                response_cache_evictions ("response") "Small files evicted from the response cache.";
                content_store_evictions ("store") "Files evicted from the content store.";
                mapping_cache_evictions ("mapping") "Mappings released because the limit was reached.";
            }
            Counter cache_revalidations [cache] "Cache entries compared with the filesystem." {
                file_cache_revalidations ("file") "File cache entries compared with the filesystem.";
            }
            Counter cache_stale [cache] "Revalidated cache entries that had changed." {
                file_cache_stale ("file") "Revalidated file cache entries that had changed.";
            }
            Counter cache_repeated_lookups [cache] "Paths that the loop looked up again after a helper (headway-lab serve only)." {
                file_cache_repeated_lookups ("file") "Paths that the loop looked up again after a helper (headway-lab serve only).";
            }
            Counter precompressed_ignored [] "Precompressed files not used because they are empty or older than the original." { precompressed_ignored; }
            Counter root_switches [] "Times that another directory took the path of a document root." { root_switches; }
            Counter root_lookup_failures [] "Times that the path of a document root led nowhere, and the last directory was served." { root_lookup_failures; }
            Counter open_files_closed_early [] "Cached files closed because their contents are in memory and file descriptors were needed." { open_files_closed_early; }
            Counter lookup_probes [result] "Path lookups by openat2 with RESOLVE_CACHED, by result." {
                lookup_probes_resolved ("resolved") "Path lookups that were answered without blocking.";
                lookup_probes_would_block ("would_block") "Path lookups that would have blocked and went to a helper.";
            }
            Counter chunks_prefetched [] "File chunks that a helper read ahead of need." { chunks_prefetched; }
            Counter sendfile_slept [] "Times that sendfile waited although its chunk was found in memory. With send = auto the worker then copies for 10 s." { sendfile_slept; }
            Counter chunks_changed [] "Files that changed between two chunks of one response. The response was aborted." { chunks_changed; }
        }
        "Helpers" {
            Gauge helpers [] "Helper processes attached now." { helpers; }
            Gauge helpers_busy [] "Helper processes that run a job now." { helpers_busy; }
            Gauge helper_queue_length [] "Jobs that wait for a helper now." { helper_queue_length; }
            Peak helper_queue_length_max [] "Longest helper queue so far." { helper_queue_length_max; }
            Counter helper_jobs [kind] "Jobs submitted to helpers, by kind." {
                helper_jobs_lookup ("lookup") "Jobs that look up a path and pass the open file, or touch it.";
                helper_jobs_refresh ("refresh") "Jobs that look up a cached path again while its entry is used.";
                helper_jobs_read ("read") "Jobs that read a file chunk for which a connection waits.";
                helper_jobs_prefetch ("prefetch") "Jobs that read a file chunk ahead of need.";
                helper_jobs_fetch ("fetch") "Jobs that read a small file and return its contents.";
                helper_jobs_copy ("copy") "Jobs that copy what the loop cannot read without blocking, or into the content store.";
                helper_jobs_listing ("listing") "Jobs that render a directory listing.";
                helper_jobs_custom ("custom") "Jobs of applications inside the server.";
            }
            Counter helper_jobs_done [] "Jobs that helpers finished." { helper_jobs_done; }
            Counter helper_jobs_io_uring [] "Finished jobs that io_uring's kernel workers ran instead of helper processes (helpers = io_uring)." { helper_jobs_io_uring; }
            Counter requests_waited_for_helper [] "Times that a request waited for a helper, usually for the disk." { requests_waited_for_helper; }
            Counter helper_contents_returned [] "Small files whose contents a helper returned with its answer." { helper_contents_returned; }
            Counter helper_jobs_coalesced [] "Requests that joined a job already under way." { helper_jobs_coalesced; }
            Counter helper_jobs_retried [] "Jobs submitted again because their helper died." { helper_jobs_retried; }
            Counter helper_jobs_abandoned [] "Jobs abandoned because several helpers died running them. Their requests get 503." { helper_jobs_abandoned; }
            Counter helper_jobs_rejected [] "Jobs rejected because the helper queue was full. Their requests get 503." { helper_jobs_rejected; }
            Counter deferred_closes [] "File descriptors closed by helpers, so that the loop does not wait for close()." { deferred_closes; }
        }
        "Handlers and upstreams" {
            Counter handler_requests [handler] "Requests routed to a handler, by kind of handler." {
                handler_requests_cgi ("cgi") "Requests routed to CGI programs.";
                handler_requests_direct ("direct") "Requests routed to direct handlers.";
                handler_requests_pipe ("pipe") "Requests routed to pipe handlers.";
                handler_requests_fastcgi ("fastcgi") "Requests routed to FastCGI upstreams.";
                handler_requests_scgi ("scgi") "Requests routed to SCGI upstreams.";
                handler_requests_proxy ("proxy") "Requests routed to HTTP upstreams.";
                handler_requests_application ("application") "Requests routed to applications inside the server.";
            }
            Gauge handler_queue_length [] "Requests that wait now because a handler has reached its concurrency limit." { handler_queue_length; }
            Counter handler_errors [reason] "Requests that a handler did not answer, by reason." {
                handler_queue_full ("queue_full") "Requests answered 503 because a handler's queue was full.";
                buffers_full ("buffers_full") "Requests answered 503 because there was no room for their body.";
                handler_abandoned ("client_disconnected") "Requests whose client disconnected before the handler had answered.";
                handler_timeouts ("timeout") "Requests whose handler took too long: answered 504, or aborted.";
                handler_invalid_responses ("invalid_response") "Handler responses that were invalid: no header, malformed, too long or too short.";
            }
            Gauge buffer_bytes [place] "Request bodies and handlers' responses that wait now, in bytes." {
                buffer_memory_bytes ("memory") "Bytes of bodies and responses in the worker's memory now.";
                buffer_disk_bytes ("disk") "Bytes of bodies and responses in temporary files now.";
            }
            Gauge buffer_bodies_held [] "Clients not read from now, because there is no room for more of their body." { buffer_bodies_held; }
            Counter buffer_holds [] "Times that a client was not read from for lack of room." { buffer_holds; }
            Counter handler_request_bytes [] "Bytes of request bodies sent to handlers." { handler_request_bytes; }
            Counter handler_response_bytes [] "Bytes received from handlers." { handler_response_bytes; }
            Counter handler_spooled_bytes [direction] "Bytes buffered in temporary files, by direction." {
                handler_request_spooled_bytes ("request") "Bytes of request bodies buffered in temporary files.";
                handler_response_spooled_bytes ("response") "Bytes of responses buffered in temporary files.";
            }
            Gauge handler_processes [handler] "Handler processes now. Direct counts pipe handlers too." {
                cgi_processes ("cgi") "CGI processes now, those of finished requests included.";
                direct_processes ("direct") "Processes of direct and pipe handlers now.";
            }
            Gauge direct_processes_busy [] "Processes of direct and pipe handlers that answer a request now." { direct_processes_busy; }
            Counter handler_dispatched [handler] "Requests dispatched to a persistent handler process." {
                direct_requests_handed_off ("direct") "Requests dispatched to direct handlers, with their client's socket.";
                pipe_requests_dispatched ("pipe") "Requests dispatched to pipe handlers, which return their responses.";
            }
            Counter direct_processes_ended [] "Processes of direct and pipe handlers that ended or were killed." { direct_processes_ended; }
            Counter handler_processes_started [] "Handler processes started." { handler_processes_started; }
            Counter handler_process_failures [reason] "Handler processes that failed, by reason." {
                handler_process_spawn_failures ("spawn") "Handler processes that could not be started.";
                handler_processes_failed ("exit") "Handler processes that ended with a nonzero exit code or by a signal.";
                handler_processes_killed ("killed") "Handler processes that the server killed: timeout, client disconnected, invalid response.";
            }
            Counter upstream_connects [] "Connections to upstreams begun." { upstream_connects; }
            Counter upstream_connections_reused [] "Requests sent to an upstream over a keep-alive connection." { upstream_connections_reused; }
            Counter upstream_failures [] "Requests that an upstream failed: cannot connect, closed early, invalid response, timeout." { upstream_failures; }
            Counter upstream_retries [] "Requests retried on another upstream after a failure." { upstream_retries; }
            Counter upstream_aborts [] "Requests aborted at an application over a connection that stays open (FCGI_ABORT_REQUEST)." { upstream_aborts; }
            Gauge upstream_connections [state] "Connections to upstreams now, by state." {
                upstream_connections_idle ("idle") "Keep-alive connections to upstreams that wait for the next request now.";
            }
            Counter upgrades [] "Connections upgraded to another protocol with their upstream (WebSocket)." { upgrades; }
        }
        "Log and processes" {
            Counter log_lines [] "Access log lines passed to the log process." { log_lines; }
            Counter log_lines_dropped [stage] "Access log lines dropped, by stage." {
                log_lines_dropped ("queue") "Access log lines dropped because the log process did not keep up.";
            }
            Counter spans_dropped [stage] "Spans of requests dropped, by stage." {
                spans_dropped ("queue") "Spans of requests dropped because the span process did not keep up.";
            }
            Counter process_deaths [process] "Processes of the server that ended unexpectedly, by kind of process." {
                helper_deaths ("helper") "Helper processes that ended unexpectedly.";
            }
        }
    }
    histograms {
        "Loop" loop_turn loop_turn_us "Time of a turn of the event loop, from the end of one wait for events to the next, preemptions included.";
        "Loop" loop_lag loop_lag_us "Time that a ready event waited for those before it, from the end of the wait for events.";
        "Loop" loop_ready_events ready_events "Ready events per wakeup of the event loop.";
        "Accepting" accept_batch_connections accept_batch_connections "Connections accepted per batch. A batch starts when a listener is ready, or when a connection closes (headway-lab serve only).";
        "Accepting" connections_at_accept connections_at_accept "Open connections when a connection was accepted, itself included.";
        "Handlers and upstreams" handler_spawn handler_spawn_us "Time to create a handler process and execute its program.";
        "Handlers and upstreams" direct_response direct_response_us "Time from a complete request header to the end of a response that a direct handler wrote itself.";
        "Handlers and upstreams" handler_first_byte handler_first_byte_us "Time from a complete request header to the header of the handler's response.";
        "Helpers" helper_queue_length_at_submit helper_queue_length_at_submit "Jobs that waited in the helper queue when a job was submitted.";
        "Helpers" helper_wait helper_wait_us "Time that a job waited for a helper.";
        "Helpers" helper_service helper_service_us "Time that a helper took for a job.";
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MethodLabel;

    fn sample(factor: u64) -> Counters {
        let mut counters = Counters {
            connections_accepted: 3 * factor,
            connections_open: 2 * factor,
            helper_queue_length_max: 10 * factor,
            ..Counters::default()
        };
        counters.ready_events.record(factor);
        counters.http_requests.record(200, MethodLabel::Get);
        counters.http_requests.record(404, MethodLabel::Head);
        counters
    }

    #[test]
    fn merged_counters_add_up_and_peaks_take_the_maximum() {
        let mut total = sample(1);
        total.merge(&sample(2));
        assert_eq!(
            (
                total.connections_accepted,
                total.connections_open,
                total.helper_queue_length_max
            ),
            (9, 6, 20)
        );
        assert_eq!(total.ready_events.count(), 2);
        assert_eq!(
            (total.http_requests.get(200), total.http_requests.total()),
            (2, 4)
        );
    }

    #[test]
    fn only_gauges_are_cleared_for_an_ended_worker() {
        let mut gone = sample(1);
        gone.clear_gauges();
        assert_eq!(
            (
                gone.connections_accepted,
                gone.connections_open,
                gone.helper_queue_length_max
            ),
            (3, 0, 10)
        );
    }

    #[test]
    fn counters_read_back_from_json() {
        let counters = sample(5);
        let text = serde_json::to_string(&counters).unwrap();
        let expected = r#""http_requests":{"200":{"GET":1},"404":{"HEAD":1}}"#;
        assert!(text.contains(expected), "{text}");
        assert_eq!(serde_json::from_str::<Counters>(&text).unwrap(), counters);
    }

    #[test]
    fn closed_connections_series_excludes_resets_and_aborts() {
        let counters = Counters {
            connections_closed: 10,
            connections_reset: 2,
            responses_aborted: 3,
            ..Counters::default()
        };
        let series = counters.series();
        let normal = series.iter().find(|one| one.key == "connections_closed");
        assert_eq!(normal.unwrap().value, 5);
    }
}
