//! Connections that come from a trusted proxy: its PROXY header, and the client that it names for each
//! request.

use std::net::SocketAddr;

use headway_connection::Connection;
use headway_gateway::client_address::{ProxyPreface, client_of, read_proxy_header};
use headway_http::{Head, Reject, RejectKind, Status};

use crate::worker::context::LoopContext;

/// A longer PROXY header is refused.
const PROXY_HEADER_BYTES_MAX: usize = 4096;

/// The answer to a trusted proxy whose connection does not begin with a PROXY header.
pub(in crate::worker) const NO_PROXY_HEADER: Reject = Reject {
    status: Status::BAD_REQUEST,
    reason: "no PROXY header",
    kind: RejectKind::Syntax,
    close: true,
};

/// The answer to a client that speaks HTTP where TLS is spoken.
pub(in crate::worker) const NO_TLS: Reject = Reject {
    status: Status::BAD_REQUEST,
    reason: "HTTP without TLS",
    kind: RejectKind::Syntax,
    close: true,
};

impl LoopContext {
    /// Reads the PROXY header at the start of a connection, and learns the client from it.
    pub(in crate::worker) fn read_preface(
        &self,
        connection: &mut Connection,
        input: &[u8],
    ) -> ProxyPreface {
        let preface = read_proxy_header(input);
        let most = PROXY_HEADER_BYTES_MAX.min(self.config.max_header_bytes);
        match (preface, &mut connection.behind_proxy) {
            (ProxyPreface::Partial, _) if input.len() >= most => ProxyPreface::Invalid,
            (ProxyPreface::Complete { client, .. }, Some(behind)) => {
                behind.awaits_header = false;
                if let Some(client) = client {
                    behind.sender = client;
                    behind.is_trusted = self.config.proxies.networks.contains(client.ip());
                    connection.client = client;
                }
                (connection.header_partial, connection.parsed_bytes) = (false, 0);
                preface
            }
            _ => preface,
        }
    }

    /// Finds out whose request it is. Only a trusted proxy has more than one client.
    pub(in crate::worker) fn find_client(
        &self,
        connection: &mut Connection,
        head: &Head<'_>,
        input: &[u8],
    ) {
        let Some(behind) = &connection.behind_proxy else {
            return;
        };
        if behind.is_trusted {
            let (proxies, sender) = (&self.config.proxies, behind.sender.ip());
            let request = headway_gateway::Request::new(head, input);
            let is_trusted = |address| proxies.networks.contains(address);
            let client = client_of(&request, &proxies.header, sender, is_trusted);
            if client != sender {
                connection.client = SocketAddr::new(client, 0);
            }
        }
    }
}
