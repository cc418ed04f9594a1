//! Opens many connections, asks one request on each, and holds them idle until standard input ends.
//!
//! It prints `ready N` when all are open, which is when `bench/memory` reads the server's memory. The sources
//! are 127.0.0.2 and following: one address has only some 28,000 ephemeral ports, and the many sources
//! also look more like the world to the server. It measures nothing itself and keeps no deadline; a server
//! that closes a connection early makes it fail, because the figure would be about fewer connections.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};

const SOURCES: usize = 16;

struct Arguments {
    target: SocketAddr,
    path: String,
    connections: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = parse()?;
    let request = format!("GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", arguments.path);
    let mut open = Vec::with_capacity(arguments.connections);
    for number in 0..arguments.connections {
        let mut connection = open_from(number, arguments.target).map_err(|error| {
            format!("connection {number} of {}: {error}", arguments.connections)
        })?;
        connection.write_all(request.as_bytes())?;
        read_answer(&mut connection)
            .map_err(|error| format!("answer on connection {number}: {error}"))?;
        open.push(connection);
    }
    ensure_open(&open)?;
    println!("ready {}", open.len());
    std::io::stdout().flush()?;
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    ensure_open(&open)
}

fn parse() -> Result<Arguments, Box<dyn Error>> {
    let usage = "idle --target ADDR [--path /NAME] [--connections N]";
    let mut parsed = Arguments {
        target: "127.0.0.1:8080".parse()?,
        path: "/".into(),
        connections: 10_000,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or(usage)?;
        match name.as_str() {
            "--target" => parsed.target = value.parse()?,
            "--path" => parsed.path = value,
            "--connections" => parsed.connections = value.parse()?,
            _ => return Err(usage.into()),
        }
    }
    Ok(parsed)
}

fn open_from(number: usize, target: SocketAddr) -> Result<TcpStream, rustix::io::Errno> {
    let socket: OwnedFd = socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let source = Ipv4Addr::new(127, 0, 0, 2 + (number % SOURCES) as u8);
    bind(&socket, &SocketAddrV4::new(source, 0))?;
    connect(&socket, &target)?;
    Ok(TcpStream::from(socket))
}

/// Reads one whole answer, so that the server has nothing left to do on the connection.
fn read_answer(connection: &mut TcpStream) -> Result<(), Box<dyn Error>> {
    let mut answer = Vec::new();
    let mut buffer = [0u8; 8192];
    loop {
        let count = connection.read(&mut buffer)?;
        if count == 0 {
            return Err("the server closed the connection".into());
        }
        answer.extend_from_slice(&buffer[..count]);
        let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
        if !head.starts_with("http/1.1 200") {
            return Err(format!("not a 200: {head}").into());
        }
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length:"))
            .ok_or("an answer without Content-Length")?;
        if answer.len() >= end + 4 + length.trim().parse::<usize>()? {
            return Ok(());
        }
    }
}

fn ensure_open(connections: &[TcpStream]) -> Result<(), Box<dyn Error>> {
    for (number, connection) in connections.iter().enumerate() {
        connection.set_nonblocking(true)?;
        let closed = matches!(connection.peek(&mut [0u8; 1]), Ok(0));
        if closed {
            return Err(format!("the server closed connection {number} while it was idle").into());
        }
    }
    Ok(())
}
