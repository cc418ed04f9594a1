//! HTTP behaviour, bytes in and bytes out: one file, one conversation with a worker of its own.
//!
//! `tests/data/AREA/CASE.http` begins with TOML (its first comment says what is to be seen and
//! where it is written), followed by steps, each begun by a line `--- STEP`:
//!
//! ```text
//! # A small file that is known leaves in one write.
//! warm = ["/a.txt"]          # paths asked for beforehand, on connections of their own
//! needs = "user"             # run only without root's rights; in an area of its own
//! config = "listing = true"  # lines of server configuration; {base} is the directory around the root
//! [tree]                     # what the document root holds; a name may begin with ../
//! "a.txt" = "hello\n"
//! "big" = { size = 300000 }  # numbered lines; also: content, mode, modified
//! "link" = { link = "a.txt" }
//! "pipe" = { special = "fifo" }   # or "socket", "device"
//! "empty/" = ""
//! [calls]                    # system calls made at most from the first step to the end
//! recvfrom = 1
//! [counters]                 # exact growth of the worker's counters
//! names_hit = 1
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
//! `UPDATE_CONVERSATIONS=1` rewrites the expected bytes of every case: read the difference before
//! you keep it. `CONVERSATION=AREA/CASE` runs one.

mod conversation;
mod support;

use std::collections::BTreeSet;

use conversation::run_area;

macro_rules! areas {
    ($($test:ident = $area:literal,)*) => {
        $(#[test] fn $test() { run_area($area, None); })*

        /// The folders that a test above runs.
        const AREAS: &[&str] = &[$($area),*];
    };
}

areas! {
    bodies_are_passed_over_or_refused = "bodies",
    budgets_are_kept_when_a_name_is_warm = "budgets",
    conditions_are_weighed_in_the_order_of_the_rfc = "conditions",
    connections_are_kept_and_closed_as_asked = "connections",
    content_is_negotiated_and_described = "content",
    directories_are_indexed_redirected_and_listed = "directories",
    errors_are_told_by_own_and_default_pages = "errors",
    hosts_are_told_apart = "hosts",
    kinds_of_files_are_told_apart = "kinds",
    limits_are_answered_with_the_right_status = "limits",
    methods_are_answered_or_refused = "methods",
    paths_are_normalised_within_the_root = "paths",
    permissions_are_kept_and_told = "permissions",
    ranges_are_cut_exactly = "ranges",
    smuggling_forms_are_refused = "smuggling",
}

#[test]
fn every_folder_of_cases_is_run_when_all_tests_are() {
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
