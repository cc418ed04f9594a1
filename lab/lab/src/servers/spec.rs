//! What to start: which server, on what files, on which address, how large.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Kind;

/// A server to be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerSpec {
    /// The server's kind.
    pub kind: Kind,
    /// The document root. Peers give up root's rights, so its folders must be open to the user
    /// `nobody`.
    pub root: PathBuf,
    /// Where the server listens, in the network it is started in. IPv4, and a port other than 0.
    pub address: SocketAddr,
    /// Another port of that address, on which the server speaks TLS. It gets a certificate of its own,
    /// [`Server::certificate`](super::Server::certificate).
    #[serde(default)]
    pub tls_port: Option<u16>,
    /// Offers HTTP/2 on that port. Our server, h2o and lighttpd always do.
    #[serde(default)]
    pub http2: bool,
    /// Loops, processes, threads, helpers.
    #[serde(default)]
    pub sizes: Sizes,
    /// Writes a line for each request (combined format) into its scratch folder.
    #[serde(default)]
    pub access_log: bool,
    /// A path below the root that has to be answered 200 before the server counts as started, such
    /// as `/ready.txt`. Without it any answer to `/` will do.
    #[serde(default)]
    pub probe: Option<String>,
    /// More arguments for `headway-lab serve`; other servers take none.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// The most connections that a server of others accepts per wakeup; 0 only counts. A library is
    /// loaded before it for this. Our presets have `accept-batch`.
    #[serde(default)]
    pub accept_limit: Option<usize>,
    /// The program whose `serve` our presets are; without it the one that [`crate::headway_lab`]
    /// finds.
    #[serde(default)]
    pub program: Option<PathBuf>,
}

/// How large a server is made. Each server uses the numbers it has a setting for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sizes {
    /// Event loops: processes of headway, nginx and lighttpd, threads of h2o.
    pub workers: usize,
    /// Clients served at the same time where each takes a process or thread: Apache's
    /// `MaxRequestWorkers`, CivetWeb's `num_threads`. The worker and event modules round it up to
    /// equal processes of at most 64 threads.
    pub clients: usize,
    /// Helper processes of each of our workers, always as many; `None` leaves it to the server to
    /// adapt.
    pub helpers: Option<usize>,
    /// Connections that a loop keeps open at most.
    pub connections: usize,
    /// Length of the accept queue, the same for all. The kernel bounds it by `net.core.somaxconn`.
    pub backlog: u32,
}

impl Default for Sizes {
    /// One loop; 256 clients (the smaller of the 2006 paper's two sizes of Apache); room for the
    /// clients that wait while a disk stands still for ten seconds, 500 more each second at half
    /// load.
    fn default() -> Sizes {
        Sizes {
            workers: 1,
            clients: 256,
            helpers: None,
            connections: 12_288,
            backlog: 4096,
        }
    }
}

impl ServerSpec {
    /// Where the server speaks TLS.
    pub fn tls_address(&self) -> Option<SocketAddr> {
        Some(SocketAddr::new(self.address.ip(), self.tls_port?))
    }

    /// A server of the usual size.
    ///
    /// ```
    /// use headway_lab::servers::{Kind, ServerSpec};
    ///
    /// let mut spec = ServerSpec::new(Kind::ApachePrefork, "/srv/files", "127.0.0.1:8080".parse()?);
    /// spec.sizes.clients = 1024;
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    pub fn new(kind: Kind, root: impl Into<PathBuf>, address: SocketAddr) -> ServerSpec {
        ServerSpec {
            kind,
            root: root.into(),
            address,
            tls_port: None,
            http2: false,
            sizes: Sizes::default(),
            access_log: false,
            probe: None,
            arguments: Vec::new(),
            accept_limit: None,
            program: None,
        }
    }
}
