//! The system calls of a worker, as the keys that sleeps are attributed to.

headway_debox::call_kinds! {
    /// A kind of system call. A call with several uses in the server, such as `sendmsg`, has a kind
    /// for each use.
    pub enum Call {
        /// Waiting for events: the only call in which a worker may sleep.
        EventWait = "epoll_wait/poll/select",
        /// Changing the set of events waited for.
        EventControl = "epoll_ctl",
        /// Taking a connection.
        Accept = "accept4",
        /// Reading from a client.
        Receive = "recvfrom",
        /// Writing to a client.
        Send = "sendto",
        /// Writing to a client from memory and a mapped file.
        Writev = "writev",
        /// Sending from a file.
        Sendfile = "sendfile",
        /// Probing a name, open and status together.
        Resolve = "openat2",
        /// Probing the path of a document root.
        ResolveRoot = "openat2 (root)",
        /// Resolving and opening a name although that may block, as Flash does.
        Reopen = "openat2 (may wait)",
        /// Status of an open descriptor.
        Status = "statx",
        /// Querying which pages of a file chunk are resident.
        Residency = "cachestat",
        /// Mapping a piece of a file.
        Mmap = "mmap",
        /// Giving a mapping back.
        Munmap = "munmap",
        /// Querying which pages of a mapping are resident.
        Mincore = "mincore",
        /// Reading what is resident.
        ReadNowait = "preadv2",
        /// Sending a job to a helper.
        HelperSend = "sendmsg (helper)",
        /// Hearing from a helper.
        HelperReceive = "recvmsg (helper)",
        /// Telling the store process.
        StoreSend = "sendmsg (store)",
        /// Hearing from the store process.
        StoreReceive = "recvmsg (store)",
        /// Passing a handshake on.
        HandshakeSend = "sendmsg (handshake)",
        /// Receiving from the handshake process.
        HandshakeReceive = "recvmsg (handshake)",
        /// Making the two ends of a program's input or output.
        ProgramPair = "socketpair (program)",
        /// Putting a piece of a body into memory that a helper can be given.
        BodyMemfd = "memfd_create and write",
        /// Giving a program its request's body.
        ProgramWrite = "write (program)",
        /// Taking a program's response.
        ProgramRead = "read (program)",
        /// Connecting to an upstream, which does not block; only resolving the path of a Unix socket
        /// may wait for a disk.
        UpstreamConnect = "connect (upstream)",
        /// Sending a request to an upstream.
        UpstreamWrite = "write (upstream)",
        /// Receiving an upstream's response.
        UpstreamRead = "read (upstream)",
        /// Checking whether an upstream has acknowledged a request.
        UpstreamInfo = "getsockopt (upstream)",
        /// Sending a request to the spawner.
        SpawnerSend = "sendmsg (spawner)",
        /// Checking whether the spawner is alive.
        SpawnerPoll = "poll (spawner)",
        /// Checking whether waiting clients are still connected, or whether a socket has room.
        ClientPoll = "poll (clients)",
        /// Receiving from the spawner.
        SpawnerReceive = "recvmsg (spawner)",
        /// Giving a program a request and its client's socket.
        HandOff = "sendmsg (client handed off)",
        /// Receiving the notice that a program is done with a client.
        Reclaim = "recvmsg (client handed off)",
        /// Creating a program's process in the worker itself, which blocks.
        Fork = "fork (waits)",
        /// Checking whether a program started by the worker itself has ended.
        Reap = "waitid",
        /// Blocking the loop on purpose, for research.
        Stall = "clock_nanosleep",
        /// Handing lines to the log process.
        LogSend = "sendmsg (log)",
        /// Telling the master.
        ControlSend = "sendmsg (control)",
        /// Hearing from the master.
        ControlReceive = "recvmsg (control)",
        /// Setting a socket option.
        SocketOption = "setsockopt",
        /// Closing one direction of a connection.
        Shutdown = "shutdown",
        /// Closing a descriptor.
        Close = "close",
        /// Reading a clock.
        Clock = "clock_gettime",
    }
    wait = EventWait
}

/// The record of a worker's calls.
pub type Tracer = headway_debox::Tracer<Call>;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Call;

    #[test]
    fn names_are_unique() {
        let names: BTreeSet<&str> = Call::ALL.iter().map(|call| call.name()).collect();
        assert_eq!(names.len(), Call::ALL.len());
    }
}
