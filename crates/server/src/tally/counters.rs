//! The numbers a worker keeps about itself, and how the master adds them up.
//!
//! All of them are plain integers in one structure: the loop increments a field, nothing more. One
//! list below makes the fields, their merge and their descriptions, so that a counter can not be
//! kept but forgotten on the status page or in the metrics.

use headway_debox::Report;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use super::{BackEnd, Histogram};

/// How a number behaves over time, and so how it merges and what Prometheus is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows; adds up over workers and outlives a worker in the total.
    Counter,
    /// What is true now; adds up over live workers.
    Gauge,
    /// The largest seen; the total is the largest of all workers.
    Peak,
}

/// One integer of [`Counters`] with its description.
#[derive(Clone, Copy, Debug)]
pub struct Scalar {
    /// The field's name.
    pub name: &'static str,
    /// How it behaves over time.
    pub kind: Kind,
    /// One sentence for the reader of the metrics.
    pub help: &'static str,
    /// Its value.
    pub value: u64,
}

macro_rules! counters {
    (scalars { $( $kind:ident $name:ident $help:literal; )* }
     histograms { $( $histogram:ident $histogram_help:literal; )* }) => {
        /// Everything a worker counts. Counters only grow; gauges say what is now.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct Counters {
            $( #[doc = $help] pub $name: u64, )*
            $( #[doc = $histogram_help] pub $histogram: Histogram, )*
            /// Responses by status code.
            pub responses: Responses,
        }

        impl Counters {
            /// Adds another worker's numbers; peaks take the larger one.
            pub fn merge(&mut self, other: &Counters) {
                $( match Kind::$kind {
                    Kind::Counter | Kind::Gauge => self.$name += other.$name,
                    Kind::Peak => self.$name = self.$name.max(other.$name),
                } )*
                $( self.$histogram.merge(&other.$histogram); )*
                self.responses.merge(&other.responses);
            }

            /// Sets every gauge to zero: what remains of a worker that is gone.
            pub fn clear_gauges(&mut self) {
                $( if Kind::$kind == Kind::Gauge {
                    self.$name = 0;
                } )*
            }

            /// All integers with their descriptions, in the order of the request path.
            pub fn scalars(&self) -> Vec<Scalar> {
                vec![ $( Scalar {
                    name: stringify!($name),
                    kind: Kind::$kind,
                    help: $help,
                    value: self.$name,
                }, )* ]
            }

            /// All histograms as (name, description, histogram).
            pub fn histograms(&self) -> Vec<(&'static str, &'static str, &Histogram)> {
                vec![ $( (stringify!($histogram), $histogram_help, &self.$histogram), )* ]
            }
        }
    };
}

counters! {
    scalars {
        Counter accepted "Connections accepted.";
        Counter accepts_tried "Accept calls made, successful or not; accepted is how many gave a connection.";
        Counter accept_wakeups "Wake-ups in which a listener was ready.";
        Counter accepts_on_close "Rounds of accepting because a connection had closed (accept-on-close).";
        Gauge accept_round "Connections that the next round may take; 0 where accept-batch is not auto.";
        Gauge accept_queue "Length of the accept queues that the kernel was told, of shared ones this worker's part; 0 where accept-batch is not auto.";
        Gauge accept_waiting "Clients that waited in the accept queues when these were last looked at: after a turn that left some (accept-batch auto).";
        Gauge accept_limiting "Workers whose kernel hears only a part of the new connections because more come than can be served (accept-batch auto).";
        Gauge accept_remembering "Workers whose kernel remembers whom it did not hear; needs CAP_BPF (accept-batch auto).";
        Counter accept_parts "Times the kernel was told to hear another part of the new connections (accept-batch auto).";
        Counter accept_unheard "First segments that the kernel dropped because the queue was full or only a part was heard, as far as they were looked at (accept-batch auto).";
        Counter accept_held "Turns in which nobody was taken because those who are here were late (accept-batch auto).";
        Counter early_rejected "Connections answered 503 or reset at once because more come than can be served (early-reject).";
        Gauge early_rejecting "Workers that turn clients away now because more come than can be served (early-reject).";
        Counter accept_errors "Failed accept calls, would-block not counted.";
        Counter accept_pauses "Times accepting was paused because descriptors or memory ran out.";
        Counter accept_stood_back "Times a worker that had more clients than its share left new ones to the others (listeners = shared).";
        Counter connections_refused "Connections answered 503 and closed because their address had as many as it may.";
        Gauge connections_open "Connections open now.";
        Counter connections_closed "Connections closed, by whichever side.";
        Counter requests "Requests whose head was complete.";
        Counter first_requests_looked "First requests of a connection, one in 16 (all while more come than can be served and some had waited for long, with accept-batch auto), before whose answer was looked whether the client is still there.";
        Counter first_requests_late "Of them, those whose client had closed its side already: it gave up, or never sends again.";
        Counter first_requests_left "First requests that were not answered because their client had closed and they had waited for more than a second (accept-batch auto).";
        Counter receives_would_block "Reads from clients that found nothing (EWOULDBLOCK).";
        Counter bytes_received "Bytes received from clients.";
        Counter bytes_sent "Bytes sent to clients, heads included.";
        Counter body_bytes_sent "Bytes of response bodies sent to clients.";
        Counter names_hit "Requests answered from the name cache.";
        Counter names_missed "Requests whose name was not in the name cache.";
        Counter names_revalidated "Cached names that were checked against the filesystem.";
        Counter names_changed "Checked names that had changed.";
        Counter names_reopened "Names the loop itself looked up again after a helper had touched them (preset flash).";
        Counter names_evicted "Names evicted because the cache was full.";
        Counter descriptors_spared "Cached files closed because their contents are in memory and descriptors were wanted.";
        Gauge names_cached "Names in the cache now.";
        Gauge descriptors_cached "Open descriptors held by the name cache now.";
        Gauge listing_pages "Directory pages in memory now, each shared by all who are sent it.";
        Counter content_hit "Small files sent from memory.";
        Counter content_loaded "Small files taken into memory.";
        Counter content_evicted "Small files evicted from memory because the bound was reached.";
        Gauge content_bytes "Bytes of small files held in memory now.";
        Counter probes_resolved "Name probes (openat2 RESOLVE_CACHED) that answered without waiting.";
        Counter probes_would_block "Name probes that would have waited and went to a helper.";
        Counter windows_held "File windows that stood in the worker's own memory when they were to be sent.";
        Counter windows_resident "Questions about file windows that were answered: resident.";
        Counter windows_cold "File windows not resident: a helper read them in first.";
        Counter windows_prefetched "File windows a helper read in ahead of need.";
        Counter windows_changed "Files found changed between two windows; the connection was closed.";
        Counter mincore_hits "Windows of mapped files that mincore found resident.";
        Counter mincore_misses "Windows of mapped files that mincore found not resident: a helper read them in first.";
        Gauge mapped_windows "Windows of files mapped now.";
        Gauge mapped_bytes "Bytes of files mapped now.";
        Counter mapped_evicted "Mappings given back because the bound was reached.";
        Counter recent_hits "Windows sent because they were used lately (send = sendfile-recent).";
        Counter recent_misses "Windows not used lately: a helper read them in first, resident or not.";
        Gauge recent_windows "Windows of files believed to be in memory now.";
        Gauge recent_bytes "Bytes of files believed to be in memory now.";
        Counter timeouts_head "Connections whose request head did not arrive in time.";
        Counter timeouts_body "Connections whose request body did not arrive in time.";
        Counter timeouts_send "Connections that took no response bytes for too long.";
        Counter timeouts_idle "Keep-alive connections closed because they were idle.";
        Counter resets "Connections reset by the client.";
        Counter aborted "Responses the server broke off in mid-body (changed file, I/O error).";
        Counter io_errors "I/O errors from the disk.";
        Counter dynamic_requests "Requests that a program was to answer.";
        Gauge dynamic_queue "Requests that wait now because as many programs run as may.";
        Counter dynamic_queue_full "Requests answered 503 because too many waited for a program already.";
        Counter dynamic_abandoned "Requests whose client left before the program had answered.";
        Counter dynamic_timeouts "Requests whose program took too long: answered 504, or cut off.";
        Counter dynamic_bad_replies "Replies of programs that were refused: no head, malformed, too long or too short.";
        Counter dynamic_received_bytes "Bytes of request bodies given to programs.";
        Counter dynamic_spilled_bytes "Bytes of request bodies that waited for their program in a file.";
        Counter dynamic_reply_spilled_bytes "Bytes of replies that waited for their client in a file.";
        Counter dynamic_sent_bytes "Bytes taken from programs.";
        Counter backend_connects "Connections to back ends that were begun.";
        Counter backend_reused "Requests that went to a back end over a connection that had waited for one.";
        Counter backend_failures "Requests that a back end failed: not connected, closed early, no sense, too late.";
        Counter backend_retries "Requests that went to another back end because the first one had failed.";
        Counter backend_aborts "Requests that an application was told to give up, over a connection that is kept.";
        Gauge backend_idle "Connections to back ends that wait for the next request now.";
        Counter tunnels_opened "Connections that changed to another protocol, with their back end (WebSocket).";
        Gauge tunnels_open "Connections that speak another protocol with their back end now.";
        Gauge programs_running "Programs that run now, those of finished requests included.";
        Gauge direct_processes "Processes of direct and pipe locations now.";
        Gauge direct_busy "Processes of direct and pipe locations that answer a request now.";
        Counter direct_lent "Requests given to processes of direct locations, with their client's socket.";
        Counter direct_ended "Processes of direct and pipe locations that have ended or were ended.";
        Counter piped_requests "Requests given to processes of pipe locations, which send their replies back.";
        Counter programs_started "Programs started.";
        Counter programs_not_started "Programs that could not be started.";
        Counter programs_failed "Programs that ended by themselves with an exit code other than 0, or by a signal.";
        Counter programs_killed "Programs that the server ended: time-out, client gone, bad reply.";
        Counter log_lines "Access log lines handed to the log process.";
        Counter log_dropped "Access log lines dropped because the log could not keep up.";
        Gauge helpers "Helper processes attached now.";
        Gauge helpers_busy "Helper processes with a job now.";
        Gauge helper_queue "Jobs waiting for a helper now.";
        Peak helper_queue_peak "The longest the helper queue has been.";
        Counter helper_deaths "Helper processes that died with their socket open.";
        Counter helper_jobs "Jobs done by helpers.";
        Counter helper_ring_jobs "Of them, those that the kernel's workers did in place of helpers (helpers = io_uring).";
        Counter helper_resolves "Jobs asked for: look up a name and pass it, or touch it.";
        Counter helper_reads_in "Jobs asked for: read in a window that somebody waits for.";
        Counter helper_prefetches "Jobs asked for: read in a window ahead of need.";
        Counter helper_fetches "Jobs asked for: read a small file that is not in memory and answer what it holds.";
        Counter helper_copies "Jobs asked for: copy what the loop cannot read without waiting.";
        Counter helper_contents "Small files that helpers read and whose contents came in the answer: asked for so, or with a name.";
        Counter helper_lists "Jobs asked for: make a directory's page.";
        Counter helper_errands "Jobs asked for: append to the log of a SPECweb99-like application, or make, load or hand out its files.";
        Counter helper_coalesced "Requests that joined a job already under way.";
        Counter helper_asked_again "Jobs asked again because their helper died.";
        Counter helper_given_up "Jobs given up because helper after helper died on them; answered 503.";
        Counter helper_queue_full "Jobs refused because the helper queue was full: 503, or a prefetch less.";
        Counter retired "Descriptors closed by helpers, so that the loop does not wait for the close.";
    }
    histograms {
        ready_events "Ready events a wake-up of the loop.";
        accepts_per_wakeup "Connections accepted in a round: a wake-up in which a listener was ready, or a closed connection (accept-on-close).";
        open_at_accept "Connections open when one was accepted, it included; the mean over all accepts is the sum by the count.";
        program_spawn_us "Time to make a program's process and execute it, in microseconds.";
        direct_us "Time from a request's head to the end of a reply that its program wrote itself, in microseconds.";
        dynamic_first_byte_us "Time from a request's head to the head of its program's reply, in microseconds.";
        helper_queue_found "Jobs that a new one found waiting for a helper.";
        helper_queue_us "Time a job waited for a helper, in microseconds.";
        helper_service_us "Time a helper took for a job, in microseconds.";
    }
}

impl Counters {
    /// Counts one response.
    #[inline]
    pub fn record_response(&mut self, status: u16) {
        self.responses.record(status);
    }
}

/// Responses by status code: a short list, most servers use about ten codes.
///
/// The codes stand in the order of their first use, so the usual 200 is found at once. Serialises
/// as a map from code to count.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(from = "BTreeMap<u16, u64>", into = "BTreeMap<u16, u64>")]
pub struct Responses(Vec<(u16, u64)>);

impl Responses {
    /// Counts one response with this status.
    #[inline]
    pub fn record(&mut self, status: u16) {
        self.add(status, 1);
    }

    /// How many responses had this status.
    pub fn get(&self, status: u16) -> u64 {
        self.0
            .iter()
            .find(|(code, _)| *code == status)
            .map_or(0, |(_, count)| *count)
    }

    /// All of them, by ascending code.
    pub fn sorted(&self) -> BTreeMap<u16, u64> {
        self.0.iter().copied().collect()
    }

    /// How many responses were sent at all.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|(_, count)| count).sum()
    }

    /// Adds another worker's counts.
    pub fn merge(&mut self, other: &Responses) {
        other
            .0
            .iter()
            .for_each(|&(status, count)| self.add(status, count));
    }

    #[inline]
    fn add(&mut self, status: u16, times: u64) {
        match self.0.iter_mut().find(|(code, _)| *code == status) {
            Some((_, count)) => *count += times,
            None => self.0.push((status, times)),
        }
    }
}

impl PartialEq for Responses {
    fn eq(&self, other: &Self) -> bool {
        self.sorted() == other.sorted()
    }
}

impl Eq for Responses {}

impl From<BTreeMap<u16, u64>> for Responses {
    fn from(map: BTreeMap<u16, u64>) -> Self {
        Responses(map.into_iter().collect())
    }
}

impl From<Responses> for BTreeMap<u16, u64> {
    fn from(responses: Responses) -> Self {
        responses.sorted()
    }
}

/// What one worker says about itself at one moment; also the sum of several.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    /// The worker's number, from 0; of no meaning in a sum.
    pub worker: u32,
    /// Its process; of no meaning in a sum.
    pub pid: u32,
    /// Milliseconds since the worker began to serve; in a sum, the longest.
    pub uptime_ms: u64,
    /// The event mechanism in use.
    pub events: String,
    /// How names become open files.
    #[serde(default)]
    pub opening: String,
    /// How files leave.
    #[serde(default)]
    pub send: String,
    /// The residency probe in use.
    pub residency: String,
    /// The numbers.
    pub counters: Counters,
    /// What is known of back ends.
    #[serde(default)]
    pub back_ends: Vec<BackEnd>,
    /// What its tracer saw: the proof that its loop never blocked.
    pub trace: Report,
}

impl Snapshot {
    /// The sum of several workers; `None` of none, because there is no proof of nothing.
    pub fn total<'a>(snapshots: impl IntoIterator<Item = &'a Snapshot>) -> Option<Snapshot> {
        let mut snapshots = snapshots.into_iter();
        let mut total = snapshots.next()?.clone();
        snapshots.for_each(|snapshot| total.merge(snapshot));
        Some(total)
    }

    /// Adds another worker's snapshot to this one.
    pub fn merge(&mut self, other: &Snapshot) {
        self.uptime_ms = self.uptime_ms.max(other.uptime_ms);
        join(&mut self.events, &other.events);
        join(&mut self.opening, &other.opening);
        join(&mut self.send, &other.send);
        join(&mut self.residency, &other.residency);
        self.counters.merge(&other.counters);
        for back_end in &other.back_ends {
            BackEnd::merge(&mut self.back_ends, back_end);
        }
        self.trace.merge(&other.trace);
    }
}

/// Workers nearly always agree; where they do not, the sum names both.
fn join(mine: &mut String, theirs: &str) {
    if mine.is_empty() {
        theirs.clone_into(mine);
    } else if !theirs.is_empty() && !mine.split(", ").any(|one| one == theirs) {
        mine.push_str(", ");
        mine.push_str(theirs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(factor: u64) -> Counters {
        let mut counters = Counters {
            accepted: 3 * factor,
            connections_open: 2 * factor,
            helper_queue_peak: 10 * factor,
            ..Counters::default()
        };
        counters.ready_events.record(factor);
        counters.record_response(200);
        counters.record_response(404);
        counters
    }

    #[test]
    fn counters_add_and_peaks_take_the_larger_when_merged() {
        let mut total = sample(1);
        total.merge(&sample(2));
        assert_eq!(
            (
                total.accepted,
                total.connections_open,
                total.helper_queue_peak
            ),
            (9, 6, 20)
        );
        assert_eq!(total.ready_events.count(), 2);
        assert_eq!((total.responses.get(200), total.responses.total()), (2, 4));
    }

    #[test]
    fn only_gauges_are_cleared_when_a_worker_is_gone() {
        let mut gone = sample(1);
        gone.clear_gauges();
        assert_eq!(
            (gone.accepted, gone.connections_open, gone.helper_queue_peak),
            (3, 0, 10)
        );
    }

    #[test]
    fn counters_are_the_same_when_they_went_through_json() {
        let counters = sample(5);
        let text = serde_json::to_string(&counters).unwrap();
        assert!(text.contains(r#""responses":{"200":1,"404":1}"#), "{text}");
        assert_eq!(serde_json::from_str::<Counters>(&text).unwrap(), counters);
    }

    #[test]
    fn a_sum_names_both_mechanisms_when_workers_differ() {
        let with = |events: &str| Snapshot {
            worker: 0,
            pid: 1,
            uptime_ms: 5,
            events: events.into(),
            opening: "probe-then-pass".into(),
            send: "copy".into(),
            residency: "cachestat".into(),
            counters: sample(1),
            back_ends: Vec::new(),
            trace: headway_debox::Tracer::disabled().report(),
        };
        let all = [with("epoll"), with("poll"), with("epoll")];
        let total = Snapshot::total(&all).unwrap();
        assert_eq!(
            (total.events.as_str(), total.residency.as_str()),
            ("epoll, poll", "cachestat")
        );
        assert_eq!((total.counters.accepted, total.uptime_ms), (9, 5));
        assert!(Snapshot::total(&[]).is_none());
    }
}
