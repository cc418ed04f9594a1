//! Calls of gRPC through the proxy: a client of HTTP/2 with TLS, and an upstream that speaks gRPC in HTTP/1.1 with
//! chunks and trailers. A gRPC server that speaks only HTTP/2 cannot be an upstream.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::client::*;
use crate::site::*;
use crate::tls::tools::Secured;
use crate::upstreams::faults::{FakeUpstream, read_head};

/// A message with the prefix of gRPC: not compressed, and its length.
fn message(text: &str) -> Vec<u8> {
    let length = (text.len() as u32).to_be_bytes();
    [&[0], &length[..], text.as_bytes()].concat()
}

/// Reads a chunk. Its data is empty at the end of the body, of which the line end behind trailers is left.
fn read_chunk(stream: &mut TcpStream) -> Vec<u8> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        line.push(byte[0]);
    }
    let text = std::str::from_utf8(&line).unwrap().trim_end();
    let size = usize::from_str_radix(text, 16).unwrap();
    let mut data = vec![0; size + 2];
    stream.read_exact(&mut data).unwrap();
    data.truncate(size);
    data
}

/// Reads chunks until they have this many bytes.
fn read_message(stream: &mut TcpStream, bytes: usize) -> Vec<u8> {
    let mut data = Vec::new();
    while data.len() < bytes {
        let chunk = read_chunk(stream);
        assert!(!chunk.is_empty(), "the body is over");
        data.extend(chunk);
    }
    data
}

fn write_chunk(stream: &mut TcpStream, data: &[u8]) {
    let chunk = [format!("{:x}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat();
    stream.write_all(&chunk).unwrap();
}

const HEADER: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: application/grpc\r\nTransfer-Encoding: chunked\r\n\r\n";
const WELL: &str = "0\r\nGrpc-Status: 0\r\nGrpc-Message: well\r\n\r\n";

/// Answers calls by the name of their method.
fn serve(mut stream: TcpStream) {
    while let Some(head) = read_head(&mut stream) {
        for line in [
            "content-type: application/grpc\r\n",
            "grpc-timeout: 5S\r\n",
            "TE: trailers\r\n",
            "Transfer-Encoding: chunked\r\n",
        ] {
            assert!(head.contains(line), "{head}");
        }
        let first = read_message(&mut stream, 5 + 5);
        let method = head.split(' ').nth(1).unwrap().rsplit('/').next().unwrap();
        match method {
            // Each message is answered before the next one is sent.
            "Chat" => {
                stream.write_all(HEADER.as_bytes()).unwrap();
                write_chunk(&mut stream, &first);
                for _ in 0..2 {
                    let next = read_message(&mut stream, 5 + 5);
                    write_chunk(&mut stream, &next);
                }
                assert_eq!(read_chunk(&mut stream), b"");
                stream.write_all(WELL.as_bytes()).unwrap();
            }
            _ => {
                assert_eq!(read_chunk(&mut stream), b"");
                stream.write_all(&answer(method, &first)).unwrap();
            }
        }
    }
}

fn answer(method: &str, message: &[u8]) -> Vec<u8> {
    let chunk = [
        format!("{:x}\r\n", message.len()).as_bytes(),
        message,
        b"\r\n",
    ]
    .concat();
    match method {
        "Unary" => [HEADER.as_bytes(), &chunk, WELL.as_bytes()].concat(),
        "Stream" => [HEADER.as_bytes(), &chunk.repeat(1000), WELL.as_bytes()].concat(),
        // An error without a message: its status is in the header.
        _ => b"HTTP/1.1 200 OK\r\nContent-Type: application/grpc\r\ngrpc-status: 12\r\n\
               grpc-message: no such method\r\nContent-Length: 0\r\n\r\n"
            .to_vec(),
    }
}

#[test]
fn grpc_calls_pass_to_an_upstream_that_speaks_grpc_in_http_1() {
    let upstream = FakeUpstream::new(serve);
    let secured = Secured::start(&format!(
        "[[location]]\nprefix = \"/test.Service/\"\nproxy = \"{}\"\nrequest-buffering = false\n",
        upstream.address
    ));
    let mut client = Client::secured(&secured);
    let call = |client: &mut Client<_>, method: &str, body: Option<&[u8]>| {
        let request = client.request("POST", &format!("/test.Service/{method}"));
        let request = request.header("content-type", "application/grpc");
        let request = request.header("grpc-timeout", "5S");
        client.begin(request.header("te", "trailers"), body)
    };
    for (method, count) in [("Unary", 1), ("Stream", 1000)] {
        let at = call(&mut client, method, Some(&message("hello")));
        let seen = client.finish(at);
        assert_eq!((seen.status, seen.end), (200, Some(Ok(()))), "{method}");
        assert_eq!(seen.header("content-type"), "application/grpc");
        assert_eq!(seen.received, message("hello").repeat(count));
        assert_eq!(
            (
                &seen.trailers["grpc-status"],
                &seen.trailers["grpc-message"]
            ),
            (&"0".parse().unwrap(), &"well".parse().unwrap())
        );
    }
    let at = call(&mut client, "Absent", Some(&message("hello")));
    let seen = client.finish(at);
    assert_eq!((seen.header("grpc-status"), seen.end), ("12", Some(Ok(()))));
    assert!(seen.received.is_empty() && seen.trailers.is_empty());
    let at = call(&mut client, "Chat", Some(&message("first")));
    client.exchanges[at].is_open = true;
    let mut expected = Vec::new();
    for (text, next) in [
        ("first", Some("other")),
        ("other", Some("third")),
        ("third", None),
    ] {
        expected.extend(message(text));
        client.wait_for("the answer", |client| {
            client.exchanges[at].received == expected
        });
        match next {
            Some(next) => client.exchanges[at].say(&message(next)),
            None => client.exchanges[at].is_open = false,
        }
    }
    let seen = client.finish(at);
    assert_eq!(
        (seen.trailers["grpc-status"].to_str().unwrap(), seen.end),
        ("0", Some(Ok(())))
    );
    drop(client);
    wait_until_all_have_ended(&secured.server);
    is_well(&secured.server);
}
