//! HTTP behaviour, bytes in and bytes out: one file, one conversation with a worker of its own.
//!
//! `tests/data/AREA/CASE.http` begins with TOML (its first comment says what is to be seen and
//! where it is written), followed by steps, each begun by a line `--- STEP`:
//!
//! ```text
//! # A small file that is known leaves in one write.
//! warm = ["/a.txt"]          # paths requested beforehand, on connections of their own
//! needs = "user"             # run only without root's rights; in an area of its own
//! config = "listing = true"  # lines of server configuration; {base} is the directory around the root
//! [tree]                     # what the document root holds; a name may begin with ../
//! "a.txt" = "hello\n"
//! "big" = { size = 300000 }  # numbered lines; also: content, mode, modified
//! "link" = { link = "a.txt" }     # its target may begin with {base}
//! "pipe" = { special = "fifo" }   # or "socket", "device"
//! "empty/" = ""
//! [calls]                    # system calls made at most from the first step to the end
//! recvfrom = 1
//! [counters]                 # exact growth of the worker's counters
//! file_cache_hits = 1
//! --- send
//! GET /a.txt HTTP/1.1
//! Host: test
//!
//! --- expect
//! HTTP/1.1 200 OK
//! ...
//! --- close
//! ```
//!
//! Steps: `send`; `expect`, exactly these bytes; `pause`, so that what is sent next arrives alone;
//! `shut`, the client ends its side. The last step is `close`, the server ends the connection and
//! has sent nothing more, or `open`, it answers one more request on it. [`conversation::notation`]
//! says how bytes are written.
//!
//! Where `config` names `{upstream}`, the case has an upstream. Its steps: `forwarded`, it receives
//! exactly these bytes; `reply`, it sends; `hangup`, it closes its connection, so that the server
//! opens another one for the next `forwarded`. At the end it has received nothing more.
//!
//! `docs/research/src/http-conformance.md` names cases by section of RFC 9110 and RFC 9112.
//!
//! All areas are held by TLS, too, and those about responses by HTTP/2 ([`conversation::http2`]).
//!
//! `UPDATE_CONVERSATIONS=1` rewrites the expected bytes of every case: read the difference before
//! you keep it. `CONVERSATION=AREA/CASE` runs one.

use crate::conversation;
use std::collections::BTreeSet;

use conversation::{Way, run_area};

macro_rules! areas {
    ($($test:ident = $area:literal,)*) => {
        $(#[test] fn $test() { run_area($area, Way::Written); })*

        /// The same conversations by clients that speak TLS.
        mod by_tls {
            use super::*;

            $(#[test] fn $test() { run_area($area, Way::Tls); })*
        }

        /// The folders that a test above runs.
        const AREAS: &[&str] = &[$($area),*];
    };
}

areas! {
    gateway_forwards_messages_as_in_rfc_9110 = "gateway",
    request_bodies_are_skipped_or_rejected = "bodies",
    system_calls_stay_within_budget_for_cached_files = "budgets",
    preconditions_are_answered_as_in_rfc_9110 = "conditions",
    connections_are_kept_open_or_closed_as_requested = "connections",
    content_type_and_encoding_are_negotiated = "content",
    directories_are_answered_with_index_redirect_or_listing = "directories",
    errors_have_custom_or_default_pages = "errors",
    missing_paths_are_answered_by_fallbacks = "fallbacks",
    virtual_hosts_are_selected_by_host_header = "hosts",
    special_files_and_links_are_refused_or_followed = "kinds",
    exceeded_limits_return_413_414_or_431 = "limits",
    methods_are_answered_or_return_405_or_501 = "methods",
    paths_are_normalised_within_the_document_root = "paths",
    missing_permissions_return_403 = "permissions",
    locations_redirect_elsewhere = "redirects",
    pages_of_other_origins_are_granted_what_the_rules_say = "cors",
    range_requests_return_the_exact_bytes = "ranges",
    request_smuggling_forms_are_rejected = "smuggling",
}

/// Conversations about responses, by clients that speak HTTP/2.
mod by_http2 {
    use super::*;

    macro_rules! areas {
        ($($test:ident = $area:literal,)*) => {
            $(#[test] fn $test() { run_area($area, Way::Http2); })*
        };
    }

    areas! {
        preconditions_are_answered_as_in_rfc_9110 = "conditions",
        content_type_and_encoding_are_negotiated = "content",
        errors_have_custom_or_default_pages = "errors",
        paths_are_normalised_within_the_document_root = "paths",
        locations_redirect_elsewhere = "redirects",
        pages_of_other_origins_are_granted_what_the_rules_say = "cors",
        range_requests_return_the_exact_bytes = "ranges",
    }
}

#[test]
fn every_directory_of_cases_has_a_test() {
    let on_disk: BTreeSet<String> = std::fs::read_dir(conversation::data())
        .expect("the cases")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .into_string()
                .expect("UTF-8")
        })
        .collect();
    let run: BTreeSet<String> = AREAS.iter().map(|&area| area.to_owned()).collect();
    assert_eq!(on_disk, run);
}

/// The page with the demands of RFC 9110 and RFC 9112.
const CONFORMANCE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../docs/research/src/http-conformance.md"
);

#[test]
fn every_demand_of_the_conformance_page_has_its_conversations() {
    let page = std::fs::read_to_string(CONFORMANCE).expect("the page");
    let rows = page.lines().filter(|line| {
        line.strip_prefix("| ")
            .is_some_and(|row| row.starts_with(|first: char| first.is_ascii_digit()))
    });
    let mut demands = 0;
    for row in rows {
        demands += 1;
        let tests = row.trim_end_matches([' ', '|']).rsplit(" | ").next();
        let names: Vec<&str> = tests
            .unwrap_or_default()
            .split('`')
            .skip(1)
            .step_by(2)
            .collect();
        assert!(!names.is_empty(), "no conversation: {row}");
        for name in names {
            let case = conversation::data().join(name).with_extension("http");
            assert!(case.is_file(), "there is no conversation {name}: {row}");
        }
    }
    assert!(demands > 150, "{demands} rows");
}
