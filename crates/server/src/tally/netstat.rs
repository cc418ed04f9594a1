//! What the kernel has dropped before any server could see it: half-open and waiting connections.
//!
//! The numbers are of the whole network namespace since it began, so they are ours alone only where
//! nobody else listens; a study takes the difference over its measurement, in a namespace of the
//! lab. They explain what a server's own counters cannot: a client whose SYN was dropped is in none
//! of those.
//!
//! Source: `net/ipv4/proc.c` of the Linux sources for the names, `tcp_conn_request` and
//! `tcp_v4_syn_recv_sock` for when they grow.

use serde::{Deserialize, Serialize};

const FILE: &str = "/proc/net/netstat";

macro_rules! drops {
    ($( $field:ident = $name:literal $help:literal; )*) => {
        /// Drops of the network namespace. A number that this kernel does not keep is 0.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct NetworkDrops {
            $( #[doc = $help] pub $field: u64, )*
        }

        impl NetworkDrops {
            /// All of them as (name, description, value).
            pub fn all(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![ $( (stringify!($field), $help, self.$field), )* ]
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
    listen_overflows = "ListenOverflows" "Times a connection met a full accept queue (of all listeners of this network namespace).";
    listen_drops = "ListenDrops" "SYNs dropped at a listener for whatever reason (of this network namespace).";
    syn_queue_drops = "TCPReqQFullDrop" "SYNs dropped because the queue of half-open connections was full (of this network namespace).";
    syn_cookies_sent = "SyncookiesSent" "Cookies sent in place of a full queue of half-open connections (of this network namespace).";
    deferred_drops = "TCPDeferAcceptDrop" "Handshakes whose last step was set aside until data comes (of this network namespace).";
}

impl NetworkDrops {
    /// The numbers of now; `None` where the file is not to be read. It waits for nothing but the
    /// kernel, yet it is the master's business: no loop reads files.
    pub fn read() -> Option<NetworkDrops> {
        Some(NetworkDrops::parse(&std::fs::read_to_string(FILE).ok()?))
    }

    /// Lines come in pairs, names and values, each after the same prefix.
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
    fn numbers_are_found_by_name_when_others_stand_between() {
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
    fn overflow_is_counted_when_clients_meet_a_full_queue() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let before = NetworkDrops::read().expect(FILE);
        let address = listener.local_addr().unwrap();
        // Room for two; the third is dropped, and connects no more.
        let wait = std::time::Duration::from_millis(50);
        let clients: Vec<_> = (0..4)
            .map(|_| std::net::TcpStream::connect_timeout(&address, wait))
            .collect();
        assert!(clients.iter().any(Result::is_err));
        let now = NetworkDrops::read().unwrap();
        assert!(now.listen_overflows > before.listen_overflows, "{now:?}");
    }
}
