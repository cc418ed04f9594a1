//! An upstream behind a network that loses everything: no reset ever says that it is gone.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use headway_test_support::skip;
use rustix::thread::{UnshareFlags, gettid, unshare_unsafe};

use super::faults::{FakeUpstream, GOOD, proxy, read_head};
use crate::site::*;

const SERVER: &str = "10.83.0.1/24";
const UPSTREAM: &str = "10.83.0.2/24";

/// Moves this thread, and those it starts, to a network of its own.
fn own_network() -> Result<(), String> {
    // SAFETY: only the network namespace is left; descriptors, memory and the file system stay
    // shared as other threads expect.
    let left = unsafe { unshare_unsafe(UnshareFlags::NEWNET) };
    left.map_err(|error| format!("a network namespace: {error}"))
}

fn ip(arguments: &str) -> Result<(), String> {
    let mut ip = Command::new("ip");
    let status = ip.args(arguments.split(' ')).status();
    match status.map_err(|error| format!("ip: {error}"))?.success() {
        true => Ok(()),
        false => Err(format!("ip {arguments} failed")),
    }
}

fn plug_in(address: &str) -> Result<(), String> {
    ip("link set lo up")?;
    ip(&format!("address add {address} dev cable"))?;
    ip("link set cable up")
}

/// Moves this thread to a network of its own, and makes a listener in another one, with a cable
/// between. They end with the thread and the listener.
fn distant_listener() -> Result<TcpListener, String> {
    own_network()?;
    let (tell, told) = channel();
    let (go, gone) = channel();
    let other = thread::spawn(move || {
        own_network()?;
        tell.send(gettid()).map_err(|error| error.to_string())?;
        gone.recv().map_err(|error| error.to_string())?;
        plug_in(UPSTREAM)?;
        TcpListener::bind("10.83.0.2:0").map_err(|error| error.to_string())
    });
    if let Ok(thread) = told.recv() {
        let thread = thread.as_raw_nonzero();
        ip(&format!(
            "link add cable type veth peer name cable netns {thread}"
        ))?;
        plug_in(SERVER)?;
        go.send(()).map_err(|error| error.to_string())?;
    }
    other.join().expect("no panic")
}

/// From here on the network loses what is sent to the upstream.
fn cut() {
    // The last acknowledgement of a response is on its way meanwhile.
    thread::sleep(Duration::from_millis(300));
    ip("neighbour replace 10.83.0.2 lladdr 02:00:00:00:00:99 dev cable nud permanent").unwrap();
}

/// An upstream that answers request after request.
fn patient(listener: TcpListener) -> FakeUpstream {
    FakeUpstream::listening(listener, |mut stream| {
        while read_head(&mut stream).is_some() {
            let _ = stream.write_all(GOOD.as_bytes());
        }
    })
}

/// The descriptors of the worker.
fn descriptors(server: &Server) -> usize {
    let worker = server.children("serve-worker")[0];
    fs::read_dir(format!("/proc/{worker}/fd")).unwrap().count()
}

/// Requests until one of them is for the upstream that is cut off.
const ATTEMPTS: usize = 20;

/// A proxy that has had a response from each upstream and keeps the connections.
fn with_idle_connections(site: &Site, upstreams: &[&str]) -> Server {
    let more = "connect-timeout = \"1s\"\ntimeout = \"4s\"\nkeepalive-unsafe-methods = true";
    let server = proxy(site, upstreams, more);
    for _ in 0..4 {
        assert_eq!(get(&server, "/app/x").text(), "good");
    }
    server
}

/// Needs: CAP_SYS_ADMIN and iproute2: takes network namespaces of its own
#[test]
fn request_is_repeated_elsewhere_when_its_idle_connection_has_died_silently() {
    const NAME: &str = "request_is_repeated_elsewhere_when_its_idle_connection_has_died_silently";
    let listener = match distant_listener() {
        Ok(listener) => listener,
        Err(why) => return skip(NAME, &why),
    };
    let distant = patient(listener);
    let near = patient(TcpListener::bind("127.0.0.1:0").unwrap());
    let site = Site::new();
    let server = with_idle_connections(&site, &[&distant.address, &near.address]);
    assert_eq!((distant.count(), near.count()), (1, 1), "both are idle now");
    cut();
    // Which upstream is asked first depends on when the last response was finished.
    for _ in 0..ATTEMPTS {
        assert_eq!(get(&server, "/app/x").text(), "good");
        if counter(&server, "upstream_retries") > 0 {
            break;
        }
    }
    assert!(counter(&server, "upstream_retries") > 0);
    is_well(&server);
}

/// Needs: CAP_SYS_ADMIN and iproute2: takes network namespaces of its own
#[test]
fn request_that_changes_something_is_not_repeated_when_its_connection_has_died_silently() {
    const NAME: &str =
        "request_that_changes_something_is_not_repeated_when_its_connection_has_died_silently";
    let listener = match distant_listener() {
        Ok(listener) => listener,
        Err(why) => return skip(NAME, &why),
    };
    let distant = patient(listener);
    let near = patient(TcpListener::bind("127.0.0.1:0").unwrap());
    let site = Site::new();
    let server = with_idle_connections(&site, &[&distant.address, &near.address]);
    cut();
    let post = "POST /app/x HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
    let statuses = (0..ATTEMPTS).map(|_| exchange(&server, post).status);
    let failed = statuses.into_iter().find(|status| *status != 200);
    assert_eq!(failed, Some(504), "of the upstream that is cut off");
    is_well(&server);
}

/// Needs: CAP_SYS_ADMIN and iproute2: takes network namespaces of its own
#[test]
fn requests_get_504_and_leave_nothing_open_while_the_upstream_is_cut_off() {
    const NAME: &str = "requests_get_504_and_leave_nothing_open_while_the_upstream_is_cut_off";
    let listener = match distant_listener() {
        Ok(listener) => listener,
        Err(why) => return skip(NAME, &why),
    };
    let distant = patient(listener);
    let site = Site::new();
    let more = "connect-timeout = \"300ms\"\ntimeout = \"2s\"";
    let server = proxy(&site, &[&distant.address], more);
    assert_eq!(get(&server, "/file.txt").status, 200);
    assert_eq!(get(&server, "/app/x").text(), "good");
    let before = descriptors(&server);
    cut();
    let mut clients: Vec<_> = (0..20).map(|_| server.connect()).collect();
    for client in &mut clients {
        send(client, "GET /app/x HTTP/1.1\r\nHost: x\r\n\r\n");
    }
    for client in &mut clients {
        assert!([503, 504].contains(&receive(client).unwrap().status));
    }
    drop(clients);
    server.wait_for("the end of all connections", |server| {
        counter(server, "upstream_connections_idle") == 0 && descriptors(server) <= before
    });
    is_well(&server);
}
