//! Connections that the kernel dropped before the server could see them: half-open and waiting
//! ones.
//!
//! The kernel counts for the whole network namespace. The server shows what was added since its start.
//! That belongs to this server alone only where no other server listens; a study takes the difference
//! over its measurement, in a namespace of the lab. They explain what the server's own counters cannot: a client whose SYN
//! was dropped is in none of those.
//!
//! Source: `net/ipv4/proc.c` of the Linux sources for the names, `tcp_conn_request` and
//! `tcp_v4_syn_recv_sock` for when they grow.

use serde::{Deserialize, Serialize};

use super::families::{self, FixedFamily};

const FILE: &str = "/proc/net/netstat";

macro_rules! drops {
    ($( $field:ident = $name:literal $family:ident $help:literal; )*) => {
        /// Drops of the network namespace. A number that this kernel does not report is 0.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct NetworkDrops {
            $( #[doc = $help] pub $field: u64, )*
        }

        impl NetworkDrops {
            /// All numbers with their keys in `/status.json` and their families.
            pub fn all(&self) -> Vec<(&'static str, &'static FixedFamily, u64)> {
                vec![ $( (stringify!($field), &families::$family, self.$field), )* ]
            }

            fn set(&mut self, name: &str, value: u64) {
                match name {
                    $( $name => self.$field = value, )*
                    _ => {}
                }
            }
        }
    };
}

drops! {
    listen_overflows = "ListenOverflows" LISTEN_OVERFLOWS "Connections that met a full accept queue.";
    listen_drops = "ListenDrops" LISTEN_DROPS "SYNs dropped at a listener for any reason.";
    syn_queue_drops = "TCPReqQFullDrop" SYN_QUEUE_DROPS "SYNs dropped because the queue of half-open connections was full.";
    syn_cookies_sent = "SyncookiesSent" SYN_COOKIES "SYN cookies sent because the queue of half-open connections was full.";
    deferred_drops = "TCPDeferAcceptDrop" DEFERRED_DROPS "Handshakes deferred until the client sends data.";
}

impl NetworkDrops {
    /// The current numbers; `None` where the file cannot be read. Only the master calls this,
    /// because no event loop reads files.
    pub fn read() -> Option<NetworkDrops> {
        Some(NetworkDrops::parse(&std::fs::read_to_string(FILE).ok()?))
    }

    /// What has been counted since `before`.
    pub fn since(&self, before: &NetworkDrops) -> NetworkDrops {
        NetworkDrops {
            listen_overflows: self
                .listen_overflows
                .saturating_sub(before.listen_overflows),
            listen_drops: self.listen_drops.saturating_sub(before.listen_drops),
            syn_queue_drops: self.syn_queue_drops.saturating_sub(before.syn_queue_drops),
            syn_cookies_sent: self
                .syn_cookies_sent
                .saturating_sub(before.syn_cookies_sent),
            deferred_drops: self.deferred_drops.saturating_sub(before.deferred_drops),
        }
    }

    /// Parses pairs of lines, names and values, each after the same prefix.
    fn parse(text: &str) -> NetworkDrops {
        let mut drops = NetworkDrops::default();
        let lines: Vec<&str> = text.lines().collect();
        for pair in lines.chunks_exact(2) {
            let names = pair[0].split_ascii_whitespace().skip(1);
            let values = pair[1].split_ascii_whitespace().skip(1);
            for (name, value) in names.zip(values) {
                if let Ok(value) = value.parse() {
                    drops.set(name, value);
                }
            }
        }
        drops
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn netstat_values_are_found_by_name_when_others_stand_between() {
        let text = "TcpExt: SyncookiesSent ListenOverflows New ListenDrops TCPReqQFullDrop\n\
                    TcpExt: 4 5 -1 6 7\n\
                    IpExt: InNoRoutes TCPDeferAcceptDrop\n\
                    IpExt: 1 2\n";
        let expected = NetworkDrops {
            listen_overflows: 5,
            listen_drops: 6,
            syn_queue_drops: 7,
            syn_cookies_sent: 4,
            deferred_drops: 2,
        };
        assert_eq!(NetworkDrops::parse(text), expected);
        assert_eq!(
            NetworkDrops::parse("TcpExt: A B\n"),
            NetworkDrops::default()
        );
    }

    #[test]
    fn listen_overflow_is_counted_when_the_accept_queue_is_full() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let before = NetworkDrops::read().expect(FILE);
        let address = listener.local_addr().unwrap();
        // A backlog of 1 has room for two connections; the third SYN is dropped.
        let wait = std::time::Duration::from_millis(50);
        let clients: Vec<_> = (0..4)
            .map(|_| std::net::TcpStream::connect_timeout(&address, wait))
            .collect();
        assert!(clients.iter().any(Result::is_err));
        let now = NetworkDrops::read().unwrap();
        assert!(now.listen_overflows > before.listen_overflows, "{now:?}");
    }
}
