//! Pipes and sockets that are full or empty, and waiting for events.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use headway_debox::{Debox, Label};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::net::sockopt;

use headway_os::ticks::monotonic_ns;

use crate::truth::{Attempt, InvalidAttempt, alone, block_until_released, prove_in_turn};

fn prove(test: &str, attempt: impl FnMut(&Debox) -> Result<Attempt, InvalidAttempt>) {
    prove_in_turn(&alone(), test, attempt);
}

/// A call that is blocked once, on one resource. A stream may come to room by itself, by an
/// acknowledgement that was late: a call that had returned before its release was not the
/// injector's to end.
fn once(
    debox: &Debox,
    label: Label,
    number: i64,
    call: impl FnOnce(),
    release: impl FnOnce() + Send,
) -> Result<Attempt, InvalidAttempt> {
    let call = || {
        call();
        monotonic_ns()
    };
    let (returned_ns, block) = block_until_released(debox, number, call, release);
    if returned_ns < block.end_ns.0 {
        return Err(InvalidAttempt(format!(
            "returned at {returned_ns}: {block:?}"
        )));
    }
    Ok(Attempt {
        sleeps: vec![(label, 1)],
        blocks: vec![block],
    })
}

/// Writes until there is no room.
fn fill(stream: &OwnedFd) {
    rustix::io::ioctl_fionbio(stream, true).expect("a stream");
    let bytes = [0; 4096];
    loop {
        match rustix::io::write(stream, &bytes) {
            Ok(_) => {}
            Err(Errno::AGAIN) => break,
            Err(error) => panic!("filling a stream: {error}"),
        }
    }
    rustix::io::ioctl_fionbio(stream, false).expect("a stream");
}

/// Little room, so that filling and emptying take no time worth mentioning.
fn narrow(socket: impl AsFd) {
    sockopt::set_socket_send_buffer_size(&socket, 32 * 1024).expect("a socket");
    sockopt::set_socket_recv_buffer_size(&socket, 32 * 1024).expect("a socket");
}

/// Reads whatever is there.
fn empty(stream: &OwnedFd) {
    rustix::io::ioctl_fionbio(stream, true).expect("a stream");
    let mut bytes = [0; 65536];
    while rustix::io::read(stream, &mut bytes[..]).is_ok_and(|bytes| bytes > 0) {}
}

fn loopback() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("bound");
    let client = TcpStream::connect(address).expect("listening");
    (client, listener.accept().expect("connected").0)
}

#[test]
fn pipe_is_named_when_a_read_finds_it_empty() {
    prove("pipe_is_named_when_a_read_finds_it_empty", |debox| {
        let (mut reader, mut writer) = std::io::pipe().expect("a pipe");
        let read = || reader.read_exact(&mut [0]).expect("a byte");
        once(debox, Label::Pipe, libc::SYS_read, read, || {
            writer.write_all(&[1]).expect("room");
        })
    });
}

#[test]
fn pipe_is_named_when_a_write_finds_it_full() {
    prove("pipe_is_named_when_a_write_finds_it_full", |debox| {
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let writer = OwnedFd::from(writer);
        fill(&writer);
        let write = || assert_eq!(rustix::io::write(&writer, &[0; 4096]), Ok(4096));
        once(debox, Label::Pipe, libc::SYS_write, write, || {
            reader.read_exact(&mut [0; 4096]).expect("full");
        })
    });
}

#[test]
fn socket_is_named_when_a_receive_finds_it_empty() {
    prove("socket_is_named_when_a_receive_finds_it_empty", |debox| {
        let (mut client, mut server) = loopback();
        let read = || server.read_exact(&mut [0]).expect("a byte");
        once(debox, Label::SocketRecv, libc::SYS_recvfrom, read, || {
            client.write_all(&[1]).expect("room");
        })
    });
    prove("socket_is_named_when_a_receive_finds_it_empty", |debox| {
        let (mut here, mut there) = UnixStream::pair().expect("a pair");
        let read = || there.read_exact(&mut [0]).expect("a byte");
        once(debox, Label::SocketRecv, libc::SYS_recvfrom, read, || {
            here.write_all(&[1]).expect("room");
        })
    });
}

#[test]
fn socket_is_named_when_a_send_finds_it_full() {
    prove("socket_is_named_when_a_send_finds_it_full", |debox| {
        let (client, server) = loopback();
        narrow(&client);
        narrow(&server);
        let (client, server) = (OwnedFd::from(client), OwnedFd::from(server));
        fill(&client);
        let write = || assert_eq!(rustix::io::write(&client, &[0; 512]), Ok(512));
        once(debox, Label::SocketSend, libc::SYS_sendto, write, || {
            empty(&server)
        })
    });
    prove("socket_is_named_when_a_send_finds_it_full", |debox| {
        let (here, there) = UnixStream::pair().expect("a pair");
        narrow(&here);
        let (here, there) = (OwnedFd::from(here), OwnedFd::from(there));
        fill(&here);
        let write = || assert_eq!(rustix::io::write(&here, &[0; 512]), Ok(512));
        once(debox, Label::SocketSend, libc::SYS_sendto, write, || {
            empty(&there)
        })
    });
}

#[test]
fn accept_is_named_when_no_client_is_there() {
    prove("accept_is_named_when_no_client_is_there", |debox| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("bound");
        let accept = || drop(listener.accept().expect("a client"));
        once(
            debox,
            Label::SocketAccept,
            libc::SYS_accept4,
            accept,
            || {
                drop(TcpStream::connect(address).expect("listening"));
            },
        )
    });
}

#[test]
fn event_wait_is_named_when_poll_waits() {
    prove("event_wait_is_named_when_poll_waits", |debox| {
        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        let wait = || {
            let mut events = [PollFd::new(&reader, PollFlags::IN)];
            assert_eq!(poll(&mut events, None), Ok(1));
        };
        once(debox, Label::EventWait, libc::SYS_poll, wait, || {
            writer.write_all(&[1]).expect("room");
        })
    });
}

#[test]
fn event_read_is_named_when_an_eventfd_is_empty() {
    prove("event_read_is_named_when_an_eventfd_is_empty", |debox| {
        let event = eventfd(0, EventfdFlags::empty()).expect("an eventfd");
        let read = || assert_eq!(rustix::io::read(event.as_fd(), &mut [0; 8]), Ok(8));
        once(debox, Label::EventRead, libc::SYS_read, read, || {
            rustix::io::write(&event, &1_u64.to_ne_bytes()).expect("room");
        })
    });
}
