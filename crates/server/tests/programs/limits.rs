//! Limits: how many programs run at once, which requests wait, and which resources a program may
//! use.

use crate::site::*;

#[test]
fn program_requests_queue_or_get_503_above_the_concurrency_limit() {
    let site = Site::new();
    // Runs until the test ends it, and notes when it started and ended.
    let script = "echo + >>{notes}/order; while [ ! -e {notes}/go ]; do sleep 0.01; done; echo - >>{notes}/order\n\
        printf 'Content-Type: a/b\\n\\ndone'";
    site.program("waits", script);
    let server = site.serve("concurrency = 1\nqueue = 2");
    let mut streams: Vec<_> = (0..3)
        .map(|number| {
            let mut stream = server.connect();
            send(
                &mut stream,
                "GET /cgi-bin/waits HTTP/1.1\r\nHost: x\r\n\r\n",
            );
            server.wait_for("its slot", |server| {
                counter(server, "cgi_processes") + counter(server, "handler_queue_length")
                    == number + 1
            });
            stream
        })
        .collect();
    assert_eq!(counter(&server, "handler_queue_length"), 2);
    let refused = get(&server, "/cgi-bin/waits");
    assert_eq!(
        (refused.status, refused.field("Retry-After")),
        (503, Some("1"))
    );
    assert_eq!(counter(&server, "handler_queue_full"), 1);
    std::fs::write(site.note("go"), "").unwrap();
    for stream in &mut streams {
        assert_eq!(receive(stream).unwrap().text(), "done");
    }
    let order = std::fs::read_to_string(site.note("order")).unwrap();
    assert_eq!(order, "+\n-\n+\n-\n+\n-\n", "one at a time");
    is_well(&server);
}

#[test]
fn queue_slot_is_freed_when_the_client_disconnects() {
    let site = Site::new();
    site.program(
        "waits",
        "while [ ! -e {notes}/go ]; do sleep 0.01; done; printf 'Content-Type: a/b\\n\\ndone'",
    );
    let server = site.serve("concurrency = 1\nqueue = 1");
    let mut first = server.connect();
    send(&mut first, "GET /cgi-bin/waits HTTP/1.1\r\nHost: x\r\n\r\n");
    server.wait_for("the start", |server| {
        counter(server, "handler_processes_started") == 1
    });
    for _ in 0..3 {
        let mut stream = server.connect();
        send(
            &mut stream,
            "GET /cgi-bin/waits HTTP/1.1\r\nHost: x\r\n\r\n",
        );
        server.wait_for("its slot", |server| {
            counter(server, "handler_queue_length") == 1
        });
        drop(stream);
        server.wait_for("its leave", |server| {
            counter(server, "handler_queue_length") == 0
        });
    }
    std::fs::write(site.note("go"), "").unwrap();
    assert_eq!(receive(&mut first).unwrap().text(), "done");
    assert_eq!(
        counter(&server, "handler_processes_started"),
        1,
        "no further process is started"
    );
    is_well(&server);
}

#[test]
fn static_files_are_served_while_all_programs_hang() {
    let site = Site::new();
    site.program("hangs", "exec sleep 1000");
    let server = site.serve("concurrency = 2\nqueue = 4");
    let streams: Vec<_> = (0..6)
        .map(|_| {
            let mut stream = server.connect();
            send(
                &mut stream,
                "GET /cgi-bin/hangs HTTP/1.1\r\nHost: x\r\n\r\n",
            );
            stream
        })
        .collect();
    server.wait_for("all of them", |server| {
        counter(server, "handler_requests_cgi") == 6
    });
    for _ in 0..50 {
        assert_eq!(get(&server, "/file.txt").text(), "a file\n");
    }
    drop(streams);
    server.wait_for("their end", |server| counter(server, "cgi_processes") == 0);
    is_well(&server);
}

#[test]
fn resource_limits_apply_in_the_program() {
    let site = Site::new();
    site.program("limits", "printf 'Content-Type: a/b\\n\\n'; ulimit -v; ulimit -p 2>/dev/null || ulimit -u; ulimit -c; ulimit -n; ulimit -t");
    let server = site.serve("memory-max = \"512MiB\"\nprocesses-max = 5000");
    assert_eq!(
        get(&server, "/cgi-bin/limits").text(),
        "524288\n5000\n0\n1024\nunlimited\n"
    );
    let server = site.serve("open-files-max = 64\ncpu-time-max = \"1500ms\"");
    let limits = get(&server, "/cgi-bin/limits").text();
    assert!(limits.ends_with("\n0\n64\n2\n"), "{limits}");
    let server = site.serve_with(FORK_IN_SERVER, "memory-max = \"512MiB\"");
    assert!(
        get(&server, "/cgi-bin/limits")
            .text()
            .starts_with("524288\n")
    );
}

#[test]
fn program_cannot_exceed_memory_max() {
    let site = Site::new();
    // The shell keeps assigned values in its own memory.
    let script =
        "x=0123456789abcdef; while :; do x=$x$x; done; printf 'Content-Type: a/b\\n\\ndone'";
    site.program("greedy", script);
    let server = site.serve("memory-max = \"64MiB\"");
    assert_eq!(get(&server, "/cgi-bin/greedy").status, 502);
    server.wait_for("its end", |server| {
        counter(server, "handler_processes_failed") == 1
    });
    is_well(&server);
}

#[test]
fn loop_never_blocks_with_many_programs_and_files() {
    let site = Site::new();
    site.program(
        "echo",
        "printf 'Content-Type: a/b\\n\\n'; cat; echo heard >&2",
    );
    let server = site.serve("concurrency = 8\nqueue = 1000\nmax-body-size = \"1MiB\"");
    let body = contents(40_000);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut stream = server.connect();
                for _ in 0..12 {
                    send(&mut stream, post("/cgi-bin/echo", &body));
                    send(&mut stream, "GET /file.txt HTTP/1.1\r\nHost: x\r\n\r\n");
                    assert!(receive(&mut stream).unwrap().body == body);
                    assert_eq!(receive(&mut stream).unwrap().text(), "a file\n");
                }
            });
        }
    });
    server.wait_for("the last program's end", |server| {
        counter(server, "cgi_processes") == 0
    });
    assert_eq!(counter(&server, "handler_processes_started"), 96);
    assert_eq!(counter(&server, "handler_processes_failed"), 0);
    let metrics = headway_test_support::server::get(&server.status, "/metrics").2;
    for line in [
        "headway_handler_processes_started_total 96",
        "headway_handler_spawn_seconds_count 96",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    let page = headway_test_support::server::get(&server.status, "/status").2;
    assert!(
        page.contains("andler processes started"),
        "the page has it, too"
    );
    is_well(&server);
}
