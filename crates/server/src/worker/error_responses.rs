//! Sends error responses.

use headway_connection::{Connection, Next};
use headway_files::Failure;
use headway_http::{Framing, Status};
use headway_request::Request;
use headway_send::SendProgress;

use super::context::LoopContext;
use super::sending::status_of;

impl LoopContext {
    /// Sends an error response to a valid request.
    pub(super) fn send_error(
        &mut self,
        connection: &mut Connection,
        request: Box<Request>,
        status: Status,
    ) -> Next {
        let head = request.head.head();
        let host = self.hosts.get(request.virtual_host);
        let context = self.response_context(&head, request.virtual_host, connection);
        let response = headway_respond::error(&context, status, Some(host), None);
        self.start_response(connection, request, response)
    }

    /// Answers a request for a handler which does not get it: `OPTIONS` with `Max-Forwards: 0` with 200,
    /// a method that is not passed on with 405.
    pub(super) fn answer_for_handler(
        &mut self,
        connection: &mut Connection,
        request: Box<Request>,
        status: Status,
    ) -> Next {
        let head = request.head.head();
        let host = self.hosts.get(request.virtual_host);
        let mut context = self.response_context(&head, request.virtual_host, connection);
        context.allowed = headway_respond::HANDLER_METHODS;
        let response = match status {
            Status::OK => headway_respond::options(&context),
            _ => headway_respond::error(&context, status, Some(host), None),
        };
        self.start_response(connection, request, response)
    }

    /// Sends an error response before the body of the request has been read. If there is one, the
    /// connection closes: the rest of the body would be parsed as the next request.
    pub(super) fn send_early_error(
        &mut self,
        connection: &mut Connection,
        request: Box<Request>,
        status: Status,
    ) -> Next {
        if request.head.framing() != Framing::None {
            return self.close_with_error(connection, request, status);
        }
        connection.keep_alive = self.keeps_alive(connection, &request);
        self.send_error(connection, request, status)
    }

    /// Sends the error response for a failed lookup or helper job.
    pub(super) fn send_failure(
        &mut self,
        connection: &mut Connection,
        request: Box<Request>,
        failure: Failure,
    ) -> Next {
        let is_io_error = matches!(failure, Failure::Io | Failure::Stale);
        self.counters.io_errors += u64::from(is_io_error);
        self.send_error(connection, request, status_of(failure))
    }

    /// Sends 503 because a limit is reached.
    pub(super) fn send_overloaded(
        &mut self,
        connection: &mut Connection,
        request: Box<Request>,
    ) -> Next {
        self.send_error(connection, request, Status::SERVICE_UNAVAILABLE)
    }

    /// Answers an invalid or slow request with an error; the connection closes then. The error page
    /// is that of the requested virtual host, or of the default host if the header could not be
    /// parsed. A response to `HEAD` has no body, whatever the status (RFC 9112, 6.3).
    pub(super) fn close_with_error(
        &mut self,
        connection: &mut Connection,
        request: Box<Request>,
        status: Status,
    ) -> Next {
        connection.keep_alive = false;
        self.replace_response(connection, &request, status, request.head_only);
        match self.transmit(connection) {
            // A page that does not fit into the socket's buffer is cut off: the client has not read the
            // responses before it. Those must reach it, and closing with unread input destroys them
            // (RFC 9112, 9.6).
            SendProgress::Finished | SendProgress::SocketFull | SendProgress::QuantumSpent => {
                self.finish_response(connection, request);
                Next::Linger
            }
            _ => Next::Close(Some(request)),
        }
    }
}
