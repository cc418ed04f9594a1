//! Kernel TLS: the kernel seals what is sent. `scripts/kernel-tests` runs these tests and the others of TLS with
//! a kernel that can.

use std::fs;
use std::io::Write;
use std::sync::Arc;

use headway_os::kernel_tls::{self, Support};
use headway_test_support::{skip, tiny_client, wait_until};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore, SupportedCipherSuite};

use super::tools::*;
use crate::site::*;

/// Longer than all buffers between; an emulated machine is slow.
const LARGE: usize = 6 << 20;
const OFFLOAD: &str = "tls-offload = \"kernel\"";

/// What the kernel can seal. Without, the test is skipped.
fn support(test: &str) -> Option<Support> {
    match kernel_tls::probe() {
        Ok(support) => Some(support),
        Err((call, error)) => {
            skip(test, &format!("{call}: {error}"));
            None
        }
    }
}

fn site() -> Site {
    let site = Site::new();
    fs::write(site.path("root/large"), contents(LARGE)).unwrap();
    fs::write(site.path("root/some"), contents(300_000)).unwrap();
    fs::write(site.path("root/small"), contents(500)).unwrap();
    site
}

/// Waits for this count: a slow worker may answer the status page too late, which then shows its last counts.
fn wait_for_offloaded(secured: &Secured, count: u64) {
    wait_until("the count of offloaded connections", || {
        secured.counter("tls_connections_offloaded") == count
    });
}

/// Clients that offer nothing but this suite.
fn clients(secured: &Secured, suite: SupportedCipherSuite) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(secured.certified.certificate.clone()).unwrap();
    let provider = CryptoProvider {
        cipher_suites: vec![suite],
        ..aws_lc_rs::default_provider()
    };
    let version = match suite.tls13() {
        Some(_) => &TLS13,
        None => &TLS12,
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(provider));
    let builder = builder.with_protocol_versions(&[version]);
    let builder = builder.unwrap().with_root_certificates(roots);
    Arc::new(builder.with_no_client_auth())
}

/// Needs: kernel TLS (the kernel module tls): scripts/kernel-tests
#[test]
fn kernel_seals_whole_responses_with_every_suite_and_method() {
    let name = "kernel_seals_whole_responses_with_every_suite_and_method";
    if support(name).is_none() {
        return;
    }
    for method in ["copy", "sendfile", "auto"] {
        let secured = Secured::start_with(site(), 1, &format!("{OFFLOAD}\nsend = \"{method}\""));
        let suites = aws_lc_rs::ALL_CIPHER_SUITES.iter();
        let ecdsa = |suite: &&SupportedCipherSuite| {
            suite.tls13().is_some() || format!("{:?}", suite.suite()).contains("ECDSA")
        };
        let suites: Vec<_> = suites.filter(ecdsa).collect();
        assert_eq!(suites.len(), 6, "three of each version");
        for (before, suite) in suites.into_iter().enumerate() {
            println!("{method} {suite:?}");
            let mut stream = secured.connect_as(clients(&secured, *suite));
            for _ in 0..2 {
                for (path, size) in [("/small", 500), ("/some", 300_000)] {
                    assert!(ask(&mut stream, path).body == contents(size), "{path}");
                }
            }
            assert!(ask(&mut stream, "/large").body == contents(LARGE));
            let range = "GET /large HTTP/1.1\r\nHost: x\r\nRange: bytes=1000-99999\r\n\r\n";
            send(&mut stream, range);
            assert!(receive(&mut stream).unwrap().body == contents(LARGE)[1000..100_000]);
            // The tail of the first response must not wait for the second.
            send(&mut stream, request("/small").repeat(100));
            for _ in 0..100 {
                assert!(receive(&mut stream).unwrap().body == contents(500));
            }
            let last = "GET /some HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            send(&mut stream, last);
            assert!(receive(&mut stream).unwrap().body == contents(300_000));
            assert_eq!(rest(&mut stream), (Vec::new(), true));
            wait_for_offloaded(&secured, before as u64 + 1);
        }
    }
}

/// Needs: kernel TLS (the kernel module tls): scripts/kernel-tests
#[test]
fn last_response_reaches_a_slow_reader_whole_when_the_kernel_seals() {
    let name = "last_response_reaches_a_slow_reader_whole_when_the_kernel_seals";
    if support(name).is_none() {
        return;
    }
    for method in ["copy", "sendfile"] {
        for version in VERSIONS {
            let secured =
                Secured::start_with(site(), 1, &format!("{OFFLOAD}\nsend = \"{method}\""));
            for length in [70_000, 150_000, 299_999, 300_000] {
                let config = Arc::new(secured.certified.clients(version));
                let mut stream = speak(tiny_client(secured.address()), config);
                let last = format!(
                    "GET /some HTTP/1.1\r\nHost: x\r\nConnection: close\r\nRange: bytes=0-{}\r\n\r\n",
                    length - 1
                );
                send(&mut stream, last);
                let response = receive(&mut stream).unwrap();
                assert!(response.body == contents(length), "{method} {length}");
                assert_eq!(rest(&mut stream), (Vec::new(), true), "{method} {length}");
            }
        }
    }
}

/// Needs: kernel TLS (the kernel module tls): scripts/kernel-tests
#[test]
fn client_that_wants_new_keys_gets_them_or_an_end_after_the_response() {
    let name = "client_that_wants_new_keys_gets_them_or_an_end_after_the_response";
    let Some(support) = support(name) else {
        return;
    };
    let secured = Secured::start_with(site(), 1, OFFLOAD);
    // The client is idle.
    let mut stream = secured.connect(&TLS13);
    assert!(ask(&mut stream, "/some").body == contents(300_000));
    stream.conn.refresh_traffic_keys().unwrap();
    begin(&mut stream);
    match support.rekeys {
        true => assert!(ask(&mut stream, "/some").body == contents(300_000)),
        false => assert_eq!(rest(&mut stream), (Vec::new(), true)),
    }
    // A response is in progress.
    let config = Arc::new(secured.certified.clients(&TLS13));
    let mut stream = speak(tiny_client(secured.address()), config);
    send(&mut stream, request("/large"));
    wait_until("the server has begun", || {
        secured.counter("sent_bytes") > 400_000
    });
    stream.conn.refresh_traffic_keys().unwrap();
    begin(&mut stream);
    assert!(receive(&mut stream).unwrap().body == contents(LARGE));
    match support.rekeys {
        true => assert!(ask(&mut stream, "/some").body == contents(300_000)),
        false => assert_eq!(rest(&mut stream), (Vec::new(), true)),
    }
    // A request comes with the update: it is the last one that is answered.
    let mut stream = secured.connect(&TLS13);
    assert!(ask(&mut stream, "/some").body == contents(300_000));
    stream.conn.refresh_traffic_keys().unwrap();
    let both = stream.conn.writer().write_all(request("/some").as_bytes());
    both.unwrap();
    begin(&mut stream);
    let response = receive(&mut stream).unwrap();
    assert!(response.body == contents(300_000));
    if !support.rekeys {
        assert_eq!(response.field("Connection"), Some("close"));
        assert_eq!(rest(&mut stream), (Vec::new(), true));
    }
    wait_for_offloaded(&secured, 3);
    assert_eq!(secured.counter("tls_connections_failed"), 0);
}

/// Needs: kernel TLS (the kernel module tls): scripts/kernel-tests
#[test]
fn file_that_is_replaced_while_the_kernel_seals_arrives_in_one_version() {
    let name = "file_that_is_replaced_while_the_kernel_seals_arrives_in_one_version";
    if support(name).is_none() {
        return;
    }
    for method in ["copy", "sendfile"] {
        let site = site();
        let secured = Secured::start_with(site, 1, &format!("{OFFLOAD}\nsend = \"{method}\""));
        let config = Arc::new(secured.certified.clients(&TLS13));
        let mut stream = speak(tiny_client(secured.address()), config);
        send(&mut stream, request("/large"));
        wait_until("the server has begun", || {
            secured.counter("sent_bytes") > 100_000
        });
        let (new, path) = (secured.site.path("new"), secured.site.path("root/large"));
        fs::write(&new, vec![7; LARGE]).unwrap();
        fs::rename(&new, &path).unwrap();
        assert!(
            receive(&mut stream).unwrap().body == contents(LARGE),
            "{method}"
        );
        assert!(secured.get("/large").body == vec![7; LARGE], "{method}");
    }
}

/// Needs: a kernel without kernel TLS
#[test]
fn worker_seals_and_the_master_says_why_when_the_kernel_cannot() {
    let name = "worker_seals_and_the_master_says_why_when_the_kernel_cannot";
    if kernel_tls::probe().is_ok() {
        return skip(name, "this kernel has kernel TLS");
    }
    let secured = Secured::start_with(site(), 1, OFFLOAD);
    for version in VERSIONS {
        let mut stream = secured.connect(version);
        assert!(ask(&mut stream, "/large").body == contents(LARGE));
    }
    assert_eq!(secured.counter("tls_connections_offloaded"), 0);
    let printed = secured.server.stop();
    let said = "tls-offload: setsockopt(TCP_ULP, tls): No such file or directory";
    assert_eq!(printed.matches(said).count(), 1, "{printed}");
}
