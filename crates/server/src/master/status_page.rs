//! The listener of the status page, and the thread that serves it.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use headway_control::HandedListener;
use headway_metrics::status;
use headway_os::exec::BlockedSignals;

use super::inherited::Inherited;
use super::{MasterError, OverviewRequester, listeners, system};

/// The listener of the status page.
pub(super) struct StatusPage {
    wanted: SocketAddr,
    pub(super) address: SocketAddr,
    socket: OwnedFd,
}

impl StatusPage {
    /// Binds the address before anything else starts, so that a port in use is an error. That of the program
    /// before is used again.
    pub(super) fn start(
        wanted: SocketAddr,
        inherited: &Inherited,
        requester: OverviewRequester,
    ) -> Result<StatusPage, MasterError> {
        let before = inherited.predecessor().and_then(|before| {
            let handed = before.state.status.as_ref()?;
            let number = handed.sockets.first()?;
            let same = (handed.wanted == wanted.into()).then(|| before.duplicate(*number));
            Some((same?.ok()?, handed.bound.tcp()?))
        });
        let (socket, address) = match before {
            Some(before) => before,
            None => listeners::bind_alone(wanted)?,
        };
        let thread = system("status thread");
        let listener = TcpListener::from(socket.try_clone().map_err(&thread)?);
        // Signals are for the main thread, which blocks them while the program is replaced.
        let _blocked = BlockedSignals::all();
        std::thread::Builder::new()
            .name("status".into())
            .spawn(move || status::serve(&listener, &|| requester.request()))
            .map_err(thread)?;
        Ok(StatusPage {
            wanted,
            address,
            socket,
        })
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// What the next program gets.
    pub(super) fn handed(&self) -> HandedListener {
        HandedListener {
            wanted: self.wanted.into(),
            bound: self.address.into(),
            is_given: false,
            file: None,
            sockets: vec![self.socket.as_raw_fd()],
        }
    }
}
