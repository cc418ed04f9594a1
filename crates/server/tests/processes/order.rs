//! Which of several connections sends a long response first (`send-order`).

use std::fs;
use std::net::TcpStream;

use headway_test_support::server::Server;

use crate::clients::*;

/// Both are long, and a socket on the loopback interface takes either at once.
const FILES: [(&str, usize); 2] = [("larger", 120_000), ("smaller", 70_000)];

/// The order in which the responses to both are finished, by the access log, when the request for the
/// larger one came first.
fn finished(order: &str) -> Vec<String> {
    let root = root();
    for (name, size) in FILES {
        fs::write(root.path().join(name), vec![b'x'; size]).unwrap();
    }
    let log = root.path().join("log");
    let options = [
        "--workers",
        "1",
        "--log",
        log.to_str().unwrap(),
        "--response-cache-max=0",
        "--content-store-max=0",
        "--precompressed=off",
        &format!("--send-order={order}"),
    ];
    let server = Server::start(program(), root.path(), &options);
    let ask = |(name, _): (&str, usize)| -> TcpStream {
        let mut client = server.connect();
        send_get(&mut client, &format!("/{name}"));
        client
    };
    let read = |mut client: TcpStream| assert_eq!(read_response(&mut client).0, 200);
    // Names and contents are known from here on, so that no helper changes the order.
    FILES.into_iter().for_each(|file| read(ask(file)));
    let stopped = Stopped::stop(server.children("serve-worker"));
    let clients = FILES.map(ask);
    drop(stopped);
    clients.into_iter().for_each(read);
    server.wait_for("four lines of the log", |_| {
        fs::read_to_string(&log).is_ok_and(|text| text.lines().count() == 4)
    });
    let text = fs::read_to_string(&log).unwrap();
    let path = |line: &str| {
        let found = FILES.iter().find(|(name, _)| line.contains(name));
        found.map_or(line.to_owned(), |(name, _)| (*name).to_owned())
    };
    text.lines().skip(2).map(path).collect()
}

#[test]
fn shortest_response_is_sent_first_with_send_order_shortest() {
    assert_eq!(finished("ready"), ["larger", "smaller"]);
    assert_eq!(finished("shortest"), ["smaller", "larger"]);
}
