//! How other threads speak to the service's loop: a queue, and a descriptor that wakes it.

use super::statistics::ServiceStatistics;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{read, write};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel as queue};
use std::time::Duration;

/// How long to wait for the numbers of a loop that never waits.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the loop is told.
pub(super) enum Order {
    Stop,
    Statistics(Sender<ServiceStatistics>),
    Helper { socket: OwnedFd, pid: u32 },
    NoHelper,
}

/// A way to reach a running service from any thread. When the last one is dropped, the service
/// ends.
#[derive(Clone, Debug)]
pub struct Remote {
    /// Present until dropped.
    orders: Option<Sender<Order>>,
    wake: Arc<OwnedFd>,
}

impl Remote {
    /// Let the service end.
    pub fn stop(&self) {
        self.tell(Order::Stop);
    }

    /// Hand over a started helper: our end of its socket, and its process.
    pub fn helper(&self, socket: OwnedFd, pid: u32) {
        self.tell(Order::Helper { socket, pid });
    }

    /// A helper that was asked for could not be started.
    pub fn no_helper(&self) {
        self.tell(Order::NoHelper);
    }

    /// The counters of this moment; `None` when the service has ended.
    pub fn statistics(&self) -> Option<ServiceStatistics> {
        let (sender, receiver) = queue();
        self.tell(Order::Statistics(sender));
        receiver.recv_timeout(PATIENCE).ok()
    }

    fn tell(&self, order: Order) {
        // The service may have ended; then there is nobody to wake either.
        if let Some(orders) = &self.orders {
            let _ = orders.send(order);
        }
        let _ = write(&*self.wake, &1_u64.to_ne_bytes());
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // In this order: the loop wakes, looks at its queue, and finds whether this was the last.
        self.orders = None;
        let _ = write(&*self.wake, &1_u64.to_ne_bytes());
    }
}

/// The loop's end.
#[derive(Debug)]
pub(super) struct Orders {
    orders: Receiver<Order>,
    wake: Arc<OwnedFd>,
}

impl Orders {
    /// The next order; `None` when there is none now. With nobody left to give one it is `Stop`.
    pub(super) fn next(&mut self) -> Option<Order> {
        // Before the queue is looked at, so that an order that comes after it wakes the loop again.
        let _ = read(&*self.wake, &mut [0; 8]);
        match self.orders.try_recv() {
            Ok(order) => Some(order),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Order::Stop),
        }
    }
}

impl AsFd for Orders {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

pub(super) fn channel() -> io::Result<(Orders, Remote)> {
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (sender, receiver) = queue();
    let orders = Orders {
        orders: receiver,
        wake: Arc::clone(&wake),
    };
    Ok((
        orders,
        Remote {
            orders: Some(sender),
            wake,
        },
    ))
}
