//! Any bytes from a trusted proxy: a PROXY header ends where it says and is the same however it is cut,
//! and a forwarded header names an address or none.
#![no_main]

use std::net::{IpAddr, Ipv4Addr};

use headway_gateway::Request;
use headway_gateway::client_address::{ProxyPreface, client_of, read_proxy_header};
use headway_http::{HeadLimits, Parsed};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    if let ProxyPreface::Complete { length, client } = read_proxy_header(bytes) {
        assert!(length <= bytes.len());
        let whole = ProxyPreface::Complete { length, client };
        assert_eq!(read_proxy_header(&bytes[..length]), whole);
        for cut in 0..length {
            assert_eq!(read_proxy_header(&bytes[..cut]), ProxyPreface::Partial);
        }
        rest = &bytes[length..];
    }
    let Parsed::Complete(head) = headway_http::parse(rest, &HeadLimits::default()) else {
        return;
    };
    let request = Request::new(&head, rest);
    let peer = IpAddr::V4(Ipv4Addr::LOCALHOST);
    for header in ["x-forwarded-for", "forwarded", "x-real-ip"] {
        let is_trusted = |address: IpAddr| address.is_loopback();
        let client = client_of(&request, header, peer, is_trusted);
        assert_eq!(client, client.to_canonical());
    }
});
