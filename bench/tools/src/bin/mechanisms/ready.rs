//! Readiness mechanisms: the loop then receives and sends, a call each.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use headway_event::{Events, Interest, Mechanism, Token};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send, sockopt};

const LISTENER: u8 = 0;
const CONNECTION: u8 = 1;

/// Serves until it fails. `listening` is called when clients may come.
pub fn serve(
    listener: &TcpListener,
    mechanism: Mechanism,
    listening: impl FnOnce(),
) -> io::Result<Infallible> {
    let mut events = Events::new(mechanism)?;
    events.add(listener.as_fd(), Token::new(LISTENER, 0, 0), Interest::READ)?;
    listening();
    // By descriptor number: the kernel gives the lowest free one.
    let mut connections: Vec<Option<OwnedFd>> = Vec::new();
    let mut ready = Vec::new();
    loop {
        events.wait(&mut ready, None)?;
        for event in &ready {
            match event.token.kind() {
                LISTENER => accept(listener, &mut events, &mut connections)?,
                _ => answer(event.token.slot() as usize, &mut events, &mut connections)?,
            }
        }
    }
}

fn accept(
    listener: &TcpListener,
    events: &mut Events,
    connections: &mut Vec<Option<OwnedFd>>,
) -> io::Result<()> {
    loop {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = match accept_with(listener, flags) {
            Ok(socket) => socket,
            Err(Errno::AGAIN) => {
                events.drained(listener.as_fd());
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        sockopt::set_tcp_nodelay(&socket, true)?;
        let slot = socket.as_raw_fd() as usize;
        let token = Token::new(CONNECTION, slot as u32, 0);
        events.add(socket.as_fd(), token, Interest::READ)?;
        if connections.len() <= slot {
            connections.resize_with(slot + 1, || None);
        }
        connections[slot] = Some(socket);
    }
}

fn answer(slot: usize, events: &mut Events, connections: &mut [Option<OwnedFd>]) -> io::Result<()> {
    let Some(place) = connections.get_mut(slot) else {
        return Ok(());
    };
    let Some(socket) = place else {
        return Ok(());
    };
    let mut buffer = [0; 64];
    match recv(&*socket, &mut buffer, RecvFlags::DONTWAIT) {
        Err(Errno::AGAIN) => return Ok(()),
        Ok((1.., _)) => {
            events.drained(socket.as_fd());
            if send(&*socket, b"x", SendFlags::NOSIGNAL).is_ok() {
                return Ok(());
            }
        }
        Ok(_) | Err(_) => {}
    }
    events.forget(socket.as_fd());
    *place = None;
    Ok(())
}
