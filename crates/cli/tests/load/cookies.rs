//! `headway load --cookies`: each client has the session that the server gave it.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use super::measured;

/// A server which gives a session to each request without one.
struct Sessions {
    url: String,
    given: Arc<AtomicUsize>,
    /// The `Cookie` headers of all requests.
    seen: Arc<Mutex<Vec<String>>>,
}

impl Sessions {
    fn start() -> Sessions {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/shop/", listener.local_addr().unwrap());
        let (given, seen) = (Arc::default(), Arc::default());
        let sessions = Sessions { url, given, seen };
        let (given, seen) = (sessions.given.clone(), sessions.seen.clone());
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let (given, seen) = (given.clone(), seen.clone());
                thread::spawn(move || answer(client, &given, &seen));
            }
        });
        sessions
    }

    fn seen(&self) -> Vec<String> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

fn answer(client: TcpStream, given: &AtomicUsize, seen: &Mutex<Vec<String>>) -> Option<()> {
    let mut lines = BufReader::new(client.try_clone().ok()?).lines();
    loop {
        let mut cookies = String::new();
        loop {
            let line = lines.next()?.ok()?;
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("Cookie: ") {
                cookies = value.to_owned();
            }
        }
        let session = match cookies.contains("session=") {
            true => String::new(),
            false => {
                let number = given.fetch_add(1, Ordering::Relaxed);
                format!(
                    "Set-Cookie: session={number}; Path=/; HttpOnly\r\nSet-Cookie: x=1; Path=/other\r\n"
                )
            }
        };
        seen.lock().unwrap().push(cookies);
        let response = format!("HTTP/1.1 200 OK\r\n{session}Content-Length: 2\r\n\r\nok");
        (&client).write_all(response.as_bytes()).ok()?;
    }
}

#[test]
fn each_client_keeps_the_cookies_of_its_responses() {
    let server = Sessions::start();
    let load = |more: &[&str]| {
        let plain = [&server.url, "-c", "3", "-n", "30", "--warmup", "0"];
        measured(&[&plain[..], more].concat())
    };
    let found = load(&[]);
    assert_eq!(found["summary"]["requests"], 30);
    assert_eq!(server.seen(), vec![""; 30]);
    server.given.store(0, Ordering::Relaxed);
    // Each connection carries two requests, and clients keep their cookies over them.
    let options = ["--requests-per-connection", "2", "--cookie", "lang=de"];
    let found = load(&[&["--cookies"][..], &options].concat());
    assert_eq!(found["summary"]["requests"], 30);
    assert_eq!(found["summary"]["errors"], 0);
    let seen = server.seen();
    assert_eq!(server.given.load(Ordering::Relaxed), 3, "{seen:?}");
    assert_eq!(seen.iter().filter(|one| *one == "lang=de").count(), 3);
    for session in 0..3 {
        let own = format!("lang=de; session={session}");
        assert!(seen.contains(&own), "{seen:?}");
    }
    assert!(
        seen.iter().all(|one| !one.contains("x=1")),
        "of another path"
    );
}
