//! An authority that is down, busy, silent or never ready, and wrong answers to it. The site has to be served all
//! the time, without a wait in its loop.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use headway_test_support::wait_until;
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::fake::{Fake, Manner, TOKEN};
use super::tools::*;
use super::{CHALLENGES, FAILED, ISSUED, authority_for, http_get, metric};
use crate::site::*;

fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap().as_secs()
}

/// A server that answers each request over HTTP with this text. Its thread ends with the test.
fn answering(text: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let _ = client.read(&mut [0; 4096]);
            let length = text.len();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close");
            let _ = write!(client, "{head}\r\n\r\n{text}");
        }
    });
    port
}

/// Needs: the programs pebble and pebble-challtestsrv
#[test]
fn wrong_answer_to_a_challenge_is_reported_and_the_site_served_on() {
    let name = "wrong_answer_to_a_challenge_is_reported_and_the_site_served_on";
    let Some(programs) = authority_for(name) else {
        return;
    };
    let automatic = Automatic::new();
    let mut authority = Authority::new(programs, &automatic.site, answering("not the answer"));
    authority.run();
    let server = automatic.start(&authority.settings());
    wait_until("an order has failed", || metric(&server, FAILED) > 0);
    let state = automatic.state(&authority);
    assert_eq!(state.certificate, "self-signed");
    let error = state.error.unwrap();
    assert!(error.contains("the authority says unauthorized"), "{error}");
    assert!(automatic.is_served(&server));
    assert_never_blocked(&server, |_| false);
}

/// Needs: the programs pebble and pebble-challtestsrv
#[test]
fn certificate_in_use_stays_while_the_authority_is_down_at_renewal() {
    let name = "certificate_in_use_stays_while_the_authority_is_down_at_renewal";
    let Some(programs) = authority_for(name) else {
        return;
    };
    let automatic = Automatic::new();
    let mut authority = Authority::new(programs, &automatic.site, automatic.port);
    let settings = authority.settings();
    let mut wanted = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
    let days = |count: u64| {
        date_time_ymd(1970, 1, 1)
            + Duration::from_secs(now_s())
            + Duration::from_secs(count * 86_400)
    };
    (wanted.not_before, wanted.not_after) = (days(0) - Duration::from_secs(80 * 86_400), days(10));
    let key = KeyPair::generate().unwrap();
    let old = wanted.self_signed(&key).unwrap();
    automatic.start(&settings).stop();
    let file = automatic
        .site
        .path(&format!("state/acme/certificates/{NAME}.pem"));
    let text = format!(
        "# Issued by {}\n{}{}",
        authority.url(),
        key.serialize_pem(),
        old.pem()
    );
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();

    let server = automatic.start(&settings);
    wait_until("renewal has failed", || metric(&server, FAILED) > 1);
    let old = CertificateDer::from_pem_slice(old.pem().as_bytes()).unwrap();
    assert_eq!(automatic.served(), old);
    assert!(automatic.is_served(&server));
    let state = automatic.state(&authority);
    assert!(
        state.certificate == "issued" && state.failures > 1,
        "{state:?}"
    );
    authority.run();
    wait_until("it is renewed", || metric(&server, ISSUED) == 1);
    wait_until("clients get the new one", || automatic.served() != old);
    assert_never_blocked(&server, |_| false);
    let said = server.stop();
    assert!(said.contains("the one in use is valid until"), "{said}");
}

#[test]
fn busy_authority_is_asked_again_when_it_wants() {
    let automatic = Automatic::new();
    let fake = Fake::start(&automatic, Manner::Busy);
    let server = automatic.start(&fake.settings());
    wait_until("an order has failed", || metric(&server, FAILED) == 1);
    wait_until("the next order is planned", || {
        automatic
            .state_with(&fake.settings())
            .next_order_s
            .is_some()
    });
    let state = automatic.state_with(&fake.settings());
    let wait_s = state.next_order_s.unwrap().saturating_sub(now_s());
    assert!((3_000..=3_600).contains(&wait_s), "{wait_s}");
    let error = state.error.unwrap();
    assert!(error.contains("rateLimited: too many of you"), "{error}");
    assert!(automatic.is_served(&server));
    assert_never_blocked(&server, |_| false);
    server.stop();
    // A restart does not ask earlier, as the plan of its process says.
    let plan = format!("state/acme/plans/{NAME}.json");
    fs::remove_file(automatic.site.path(&plan)).unwrap();
    let server = automatic.start(&fake.settings());
    wait_until("the plan is the same", || {
        let state = automatic.state_with(&fake.settings());
        state.next_order_s.is_some_and(|at| at >= now_s() + 3_000)
    });
    assert_eq!(metric(&server, FAILED), 0);
}

#[test]
fn authority_that_never_ends_an_order_holds_up_nothing() {
    let automatic = Automatic::new();
    let fake = Fake::start(&automatic, Manner::Endless);
    let server = automatic.start(&fake.settings());
    wait_until("it is asked again and again", || {
        fake.questions.load(Ordering::SeqCst) > 1
    });
    let (status, answer) = http_get(
        &server.address,
        &format!("/.well-known/acme-challenge/{TOKEN}"),
    );
    assert!(
        status == 200 && answer.starts_with(&format!("{TOKEN}.")),
        "{answer}"
    );
    assert!(automatic.is_served(&server));
    assert_never_blocked(&server, |_| false);
    server.stop();
    let state = automatic.state_with(&fake.settings());
    assert_eq!(
        (state.failures, state.error.as_deref()),
        (1, Some("the order has not ended"))
    );

    // The answer of the earlier process is gone with the next one.
    let server = automatic.start(&fake.settings());
    assert!(automatic.is_served(&server));
    let asked = fake.questions.load(Ordering::SeqCst);
    wait_until("it is tried again", || {
        fake.questions.load(Ordering::SeqCst) > asked
    });
    assert_eq!(
        fs::read_dir(automatic.site.path(CHALLENGES))
            .unwrap()
            .count(),
        1
    );
}

#[test]
fn authority_that_answers_nothing_holds_up_nothing() {
    let automatic = Automatic::new();
    let fake = Fake::start(&automatic, Manner::Silent);
    let server = automatic.start(&fake.settings());
    wait_until("it is asked", || !fake.held.lock().unwrap().is_empty());
    assert!(automatic.is_served(&server));
    assert_never_blocked(&server, |_| false);
    server.signal(rustix::process::Signal::HUP);
    server.wait_for("the reload", |server| {
        server.status()["master"]["reloads"] == 1
    });
    assert!(automatic.is_served(&server));
    server.stop();
}

#[test]
fn handshake_answers_a_challenge_while_it_lasts_and_serves_nothing() {
    /// acmeIdentifier (RFC 8737, section 3), critical, with 32 bytes.
    const EXTENSION: &[u8] =
        b"\x06\x08\x2b\x06\x01\x05\x05\x07\x01\x1f\x01\x01\xff\x04\x22\x04\x20";
    let automatic = Automatic::new();
    let fake = Fake::start(&automatic, Manner::Endless);
    let settings = fake.settings() + "acme-challenge = \"tls-alpn-01\"\n";
    let server = automatic.start_with_tls_only(&settings);
    wait_until("the authority waits for the answer", || {
        fake.questions.load(Ordering::SeqCst) > 0
    });
    let mut client = automatic.ask_as_authority();
    assert_eq!(client.conn.alpn_protocol(), Some(&b"acme-tls/1"[..]));
    let certificate = client.conn.peer_certificates().unwrap()[0].to_vec();
    let mut parts = certificate.windows(EXTENSION.len());
    assert!(parts.any(|part| part == EXTENSION), "{certificate:x?}");
    // The server may have closed the connection already.
    let _ = client.write_all(b"GET /file.txt HTTP/1.1\r\nHost: a.example\r\n\r\n");
    let mut served = Vec::new();
    let _ = client.read_to_end(&mut served);
    assert_eq!(served, b"");
    assert_ne!(
        automatic.served().to_vec(),
        certificate,
        "others get the site's"
    );
    assert_never_blocked(&server, |_| false);
    // The process that replaces it forgets the challenge before it does anything else.
    let process = server.children("serve-acme")[0];
    let process = rustix::process::Pid::from_raw(process).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    wait_until("the challenge is over", || automatic.refuses_challenges());
}
