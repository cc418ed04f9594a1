//! The time of requests in each stage: in metrics, and in `Server-Timing`.

use headway_test_support::client::Response;

use crate::site::*;

/// A program with one slot, which waits for a file.
fn serve(top: &str) -> (Site, Server) {
    let site = Site::new();
    let wait = "until [ -e {notes}/go ]; do sleep 0.01; done";
    site.program(
        "slow",
        &format!("{wait}; printf 'Content-Type: a/b\\n\\nslow'"),
    );
    let server = site.serve_with(top, "concurrency = 1");
    (site, server)
}

/// The milliseconds of a stage in `Server-Timing`.
fn spent(response: &Response, stage: &str) -> Option<f64> {
    let timing = response.field("server-timing").unwrap();
    let of_stage = |part: &str| {
        let (name, milliseconds) = part.split_once(";dur=").unwrap();
        (name == stage).then(|| milliseconds.parse().unwrap())
    };
    timing.split(", ").find_map(of_stage)
}

/// The number of requests that have been in a stage, and the seconds that they were there.
fn sums(server: &Server, stage: &str) -> (u64, f64) {
    let stages = server.status()["total"]["counters"]["request_stages"].clone();
    let at = ["lookup", "queue", "upstream", "send"]
        .iter()
        .position(|one| *one == stage);
    let durations = &stages[at.unwrap()];
    let buckets = durations["buckets"].as_array().unwrap().iter();
    let count = buckets.map(|bucket| bucket.as_u64().unwrap()).sum();
    (count, durations["sum_us"].as_u64().unwrap() as f64 / 1e6)
}

#[test]
fn responses_say_how_long_the_request_was_in_each_stage() {
    let (site, server) = serve("server-timing = true");
    for path in ["/file.txt", "/file.txt", "/missing"] {
        let response = get(&server, path);
        assert!(spent(&response, "lookup").is_some(), "{path}");
        assert_eq!(spent(&response, "upstream"), None, "{path}");
        let fields = response.head.matches("Server-Timing").count();
        assert_eq!(fields, 1, "{path}");
    }
    let (of_first, of_second) = queued(&site, &server);
    for response in [&of_first, &of_second] {
        assert!(spent(response, "upstream").unwrap() > 0.0);
    }
    // One of them has waited for the other.
    let queued = [&of_first, &of_second].map(|one| spent(one, "queue"));
    assert_eq!(queued.iter().flatten().count(), 1, "{queued:?}");
    server.stop();
}

/// Two responses of the program. One of the requests waits until the other is answered.
fn queued(site: &Site, server: &Server) -> (Response, Response) {
    std::thread::scope(|scope| {
        let [first, second] = [(); 2].map(|()| scope.spawn(|| get(server, "/cgi-bin/slow")));
        server.wait_for("a queue", |server| {
            server.status()["total"]["counters"]["handler_queue_length"] == 1
        });
        std::fs::write(site.note("go"), "").unwrap();
        (first.join().unwrap(), second.join().unwrap())
    })
}

#[test]
fn stages_are_metrics_and_there_is_no_header_by_default() {
    let (site, server) = serve("");
    assert_eq!(get(&server, "/file.txt").field("server-timing"), None);
    assert_eq!(get(&server, "/file.txt").field("server-timing"), None);
    queued(&site, &server);
    server.wait_for("the counters", |server| sums(server, "send").0 == 4);
    let counts = ["lookup", "queue", "upstream"].map(|stage| sums(&server, stage).0);
    assert_eq!(counts, [4, 1, 2]);
    assert!(
        ["queue", "upstream", "send"]
            .iter()
            .all(|stage| sums(&server, stage).1 > 0.0)
    );
    let (_, _, metrics) = headway_test_support::server::get(&server.status, "/metrics");
    assert!(metrics.contains("headway_http_request_stage_seconds_count{stage=\"queue\"} 1\n"));
    server.stop();
}
