//! Names of upstreams, and a name server which gives many addresses, none, other ones, or no answer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use headway_test_support::is_root;

use super::*;

/// The name that is asked for. Other names have no address.
const UPSTREAM: &str = "app.headway.test";
/// What a response over UDP may hold of them; more are asked for over TCP.
const OVER_UDP_MAX: usize = 20;

#[derive(Clone)]
enum Manner {
    Addresses(Vec<IpAddr>),
    NoSuchName,
    Silent,
}

/// A name server. Its threads end with the test.
struct NameServer {
    address: Ipv4Addr,
    manner: Arc<Mutex<Manner>>,
}

impl NameServer {
    /// One at the address 127.0.53.`number`, which gives these addresses. `None` if it cannot have port 53.
    fn start(number: u8, addresses: Vec<IpAddr>) -> Option<NameServer> {
        let address = Ipv4Addr::new(127, 0, 53, number);
        let datagrams = UdpSocket::bind((address, 53)).ok()?;
        let streams = TcpListener::bind((address, 53)).ok()?;
        let manner = Arc::new(Mutex::new(Manner::Addresses(addresses)));
        let known = manner.clone();
        thread::spawn(move || {
            let mut question = [0; 512];
            while let Ok((length, client)) = datagrams.recv_from(&mut question) {
                let manner = known.lock().unwrap().clone();
                if let Some(answer) = answer(&question[..length], &manner, OVER_UDP_MAX) {
                    let _ = datagrams.send_to(&answer, client);
                }
            }
        });
        let known = manner.clone();
        thread::spawn(move || {
            for stream in streams.incoming().flatten() {
                let manner = known.lock().unwrap().clone();
                thread::spawn(move || answer_stream(stream, &manner));
            }
        });
        Some(NameServer { address, manner })
    }

    fn set(&self, manner: Manner) {
        *self.manner.lock().unwrap() = manner;
    }

    /// The program in a mount namespace where names are asked for here, and nowhere else.
    fn asked_by(&self, site: &Site) -> std::process::Command {
        let (settings, switch) = (site.path("resolv.conf"), site.path("nsswitch.conf"));
        let text = format!(
            "nameserver {}\noptions timeout:1 attempts:1\n",
            self.address
        );
        fs::write(&settings, text).unwrap();
        fs::write(&switch, "hosts: dns\n").unwrap();
        let script = format!(
            "mount --bind {settings:?} /etc/resolv.conf && mount --bind {switch:?} /etc/nsswitch.conf && exec \"$0\" \"$@\""
        );
        let mut command = std::process::Command::new("unshare");
        let arguments = ["--mount", "--propagation", "private", "sh", "-c"];
        command.args(arguments).args([&script, PROGRAM]);
        command
    }
}

fn answer_stream(mut stream: TcpStream, manner: &Manner) {
    let mut length = [0; 2];
    while stream.read_exact(&mut length).is_ok() {
        let mut question = vec![0; u16::from_be_bytes(length).into()];
        if stream.read_exact(&mut question).is_err() {
            return;
        }
        let Some(answer) = answer(&question, manner, usize::MAX) else {
            continue;
        };
        let length = (answer.len() as u16).to_be_bytes();
        let _ = stream.write_all(&[&length, answer.as_slice()].concat());
    }
}

/// An answer (RFC 1035, 4.1); `None` for silence.
fn answer(question: &[u8], manner: &Manner, most: usize) -> Option<Vec<u8>> {
    // The question is the name, its type and the class.
    let end = 12 + question.get(12..)?.iter().position(|byte| *byte == 0)? + 5;
    let (asked, kind) = (question.get(12..end)?, question.get(end - 3)?);
    let name: Vec<u8> = UPSTREAM.split('.').flat_map(label).collect();
    let (addresses, code) = match manner {
        Manner::Silent => return None,
        Manner::Addresses(all) if asked.starts_with(&name) => (all.as_slice(), 0),
        Manner::Addresses(_) | Manner::NoSuchName => (&[][..], 3),
    };
    // Types A and AAAA (RFC 3596).
    let is_of_kind = |address: &IpAddr| *kind == if address.is_ipv4() { 1 } else { 28 };
    let mut addresses = addresses.to_vec();
    addresses.retain(is_of_kind);
    let is_cut = addresses.len() > most;
    if is_cut {
        addresses.clear();
    }
    let mut answer = question[..2].to_vec();
    answer.extend([0x81 | u8::from(is_cut) << 1, 0x80 | code, 0, 1]);
    answer.extend((addresses.len() as u16).to_be_bytes());
    answer.extend([0; 4]);
    answer.extend(asked);
    for address in addresses {
        let octets = match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        answer.extend([0xc0, 12, 0, *kind, 0, 1, 0, 0, 0, 0, 0]);
        answer.push(octets.len() as u8);
        answer.extend(octets);
    }
    Some(answer)
}

fn label(text: &str) -> Vec<u8> {
    let mut bytes = vec![text.len() as u8];
    bytes.extend(text.bytes());
    bytes
}

const ONE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));
const TWO: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
const SIX: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// A server whose upstream is named, with upstreams `one` and `two` at the two addresses.
struct Named {
    names: NameServer,
    reloaded: Reloaded,
    port: String,
    _upstreams: Vec<crate::upstreams::faults::FakeUpstream>,
}

impl Named {
    /// `None` after a skip.
    fn start(test: &str, number: u8) -> Option<Named> {
        if !is_root() {
            skip(test, "root and unshare, for a name server of its own");
            return None;
        }
        let Some(names) = NameServer::start(number, vec![ONE]) else {
            skip(test, "port 53 of an address of loopback");
            return None;
        };
        let one = saying("one", "127.0.0.1:0");
        let port = one.address.rsplit_once(':').unwrap().1.to_owned();
        let two = saying("two", &format!("{TWO}:{port}"));
        let site = Site::new();
        write_settings(&site, &settings(&port));
        let server = Server::start_from_file(names.asked_by(&site), &settings_file(&site));
        Some(Named {
            names,
            reloaded: Reloaded { site, server },
            port,
            _upstreams: vec![one, two],
        })
    }

    fn answer(&self) -> String {
        let response = get(&self.reloaded.server, "/app/");
        assert_eq!(response.status, 200, "{}", response.head);
        response.text()
    }
}

fn settings(port: &str) -> String {
    format!(
        "workers = 1\nresolve-interval = \"50ms\"\n[[location]]\nprefix = \"/app/\"\n\
         proxy = \"http://{UPSTREAM}:{port}\"\n"
    )
}

/// Needs: root and unshare, for a name server of its own
#[test]
fn upstreams_keep_their_addresses_while_the_name_server_gives_none_or_is_silent() {
    const NAME: &str =
        "upstreams_keep_their_addresses_while_the_name_server_gives_none_or_is_silent";
    let Some(named) = Named::start(NAME, 1) else {
        return;
    };
    for manner in [
        Manner::NoSuchName,
        Manner::Addresses(Vec::new()),
        Manner::Silent,
    ] {
        named.names.set(manner);
        // Longer than the resolver waits for an answer.
        let until = Instant::now() + Duration::from_millis(1_500);
        while Instant::now() < until {
            assert_eq!(named.answer(), "one");
        }
        assert_eq!(named.reloaded.master("reloads"), 0);
        // A reload needs addresses, and says that there are none.
        let server = &named.reloaded.server;
        let before = named.reloaded.master("reload_failures");
        server.signal(Signal::HUP);
        server.wait_for("the refusal", |_| {
            named.answer() == "one" && named.reloaded.master("reload_failures") > before
        });
        let status = server.status();
        let why = status["master"]["reload_error"].as_str().unwrap();
        assert!(why.contains(&format!("cannot resolve {UPSTREAM}")), "{why}");
    }
    named.names.set(Manner::Addresses(vec![TWO]));
    let server = &named.reloaded.server;
    server.wait_for("the other address", |_| named.answer() == "two");
    is_well(server);
}

/// Needs: root and unshare, for a name server of its own
#[test]
fn no_request_fails_when_the_addresses_of_an_upstream_change_under_load() {
    const NAME: &str = "no_request_fails_when_the_addresses_of_an_upstream_change_under_load";
    let Some(named) = Named::start(NAME, 2) else {
        return;
    };
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let text = named.answer();
                    assert!(text == "one" || text == "two", "{text}");
                }
            });
        }
        for (addresses, expected) in [
            (vec![TWO], "two"),
            (vec![ONE], "one"),
            (vec![TWO, ONE], "two"),
            (vec![TWO], "two"),
        ] {
            named.names.set(Manner::Addresses(addresses));
            let server = &named.reloaded.server;
            server.wait_for("the addresses", |_| named.answer() == expected);
        }
        // Other addresses at each look replace no workers.
        for number in 0..20 {
            let addresses = if number % 2 == 0 { ONE } else { TWO };
            named.names.set(Manner::Addresses(vec![addresses]));
            thread::sleep(Duration::from_millis(50));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    named.names.set(Manner::Addresses(vec![ONE]));
    let server = &named.reloaded.server;
    server.wait_for("the last address", |_| named.answer() == "one");
    assert_eq!(named.reloaded.master("reload_failures"), 0);
    assert_eq!(named.reloaded.master("worker_deaths"), 0);
    is_well(server);
}

/// Upstreams that the server shows.
fn shown(server: &Server) -> usize {
    let (_, _, metrics) = headway_test_support::server::get(&server.status, "/metrics");
    metrics.matches("headway_upstream_ejections{").count()
}

/// Needs: root and unshare, for a name server of its own; IPv6 on the loopback interface
#[test]
fn upstream_is_reached_at_its_ipv6_address_alone_and_beside_others() {
    const NAME: &str = "upstream_is_reached_at_its_ipv6_address_alone_and_beside_others";
    if TcpListener::bind((SIX, 0)).is_err() {
        return skip(NAME, "IPv6 on the loopback interface");
    }
    let Some(named) = Named::start(NAME, 4) else {
        return;
    };
    let _six = saying("six", &format!("[{SIX}]:{}", named.port));
    let server = &named.reloaded.server;
    for (addresses, expected) in [
        (vec![SIX], "six"),
        (vec![ONE], "one"),
        (vec![ONE, SIX], "six"),
    ] {
        let count = addresses.len();
        named.names.set(Manner::Addresses(addresses));
        server.wait_for("the addresses", |server| {
            named.answer() == expected && shown(server) == count
        });
    }
    is_well(server);
}

/// Needs: root and unshare, for a name server of its own
#[test]
fn sixty_four_upstreams_are_used_when_a_name_has_a_thousand_addresses() {
    const NAME: &str = "sixty_four_upstreams_are_used_when_a_name_has_a_thousand_addresses";
    if !is_root() {
        return skip(NAME, "root and unshare, for a name server of its own");
    }
    let address = |number: u32| IpAddr::V4(Ipv4Addr::from(0x7f01_0001 + number));
    let many = |count: u32| (0..count).map(address);
    let Some(names) = NameServer::start(3, many(1_000).collect()) else {
        return skip(NAME, "port 53 of an address of loopback");
    };
    let upstream = saying("found", "0.0.0.0:0");
    let port = upstream.address.rsplit_once(':').unwrap().1;
    let site = Site::new();
    write_settings(&site, &settings(port));
    let server = Server::start_from_file(names.asked_by(&site), &settings_file(&site));
    server.wait_for("as many upstreams as there may be", |server| {
        shown(server) == 64
    });
    for _ in 0..100 {
        assert_eq!(get(&server, "/app/").text(), "found");
    }
    names.set(Manner::Addresses(many(10).collect()));
    server.wait_for("fewer upstreams", |server| {
        assert_eq!(get(server, "/app/").text(), "found");
        shown(server) == 10
    });
    is_well(&server);
    let said = server.stop();
    assert!(said.contains("have 1000 addresses; 64 are used"), "{said}");
}
