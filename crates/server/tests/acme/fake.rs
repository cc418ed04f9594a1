//! An authority that a test plays: it verifies nothing, and answers what the test wants.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rcgen::generate_simple_self_signed;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::json;

use super::tools::{Automatic, NAME};

/// What it does.
#[derive(Clone, Copy, PartialEq)]
pub enum Manner {
    /// It wants no request for an hour.
    Busy,
    /// It takes an order, and never looks at the answer.
    Endless,
    /// It answers no request.
    Silent,
}

/// The token of its challenges.
pub const TOKEN: &str = "a-token-of-at-least-128-bits-of-entropy";

/// A played authority. Its thread ends with the test.
pub struct Fake {
    port: u16,
    certificate: PathBuf,
    /// How often it was asked for the state of the order.
    pub questions: Arc<AtomicUsize>,
    /// Connections that it does not answer.
    pub held: Arc<Mutex<Vec<TcpStream>>>,
}

impl Fake {
    pub fn start(automatic: &Automatic, manner: Manner) -> Fake {
        let made = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let certificate = automatic.site.path("fake.pem");
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider);
        let config = config.with_safe_default_protocol_versions().unwrap();
        let chain = vec![made.cert.der().clone()];
        let config = config.with_no_client_auth().with_single_cert(chain, key);
        let config = Arc::new(config.unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fake = Fake {
            port: listener.local_addr().unwrap().port(),
            certificate,
            questions: Arc::default(),
            held: Arc::default(),
        };
        let (questions, held, port) = (fake.questions.clone(), fake.held.clone(), fake.port);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                match manner {
                    Manner::Silent => held.lock().unwrap().push(client),
                    _ => serve(client, &config, manner, port, &questions).unwrap_or(()),
                }
            }
        });
        fake
    }

    /// The settings of a server which gets its certificates from it.
    pub fn settings(&self) -> String {
        format!(
            "acme-hosts = \"{NAME}\"\nacme-directory = \"https://localhost:{}/dir\"\nacme-ca = {:?}\n\
             acme-retry-interval = \"1s\"\n",
            self.port, self.certificate
        )
    }
}

/// Answers one request.
fn serve(
    client: TcpStream,
    config: &Arc<ServerConfig>,
    manner: Manner,
    port: u16,
    questions: &AtomicUsize,
) -> std::io::Result<()> {
    let connection = ServerConnection::new(config.clone()).unwrap();
    let mut reader = BufReader::new(StreamOwned::new(connection, client));
    let (mut line, mut length) = (String::new(), 0);
    reader.read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        let (name, value) = line.split_once(':').unwrap_or_default();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().unwrap(),
            "" => break,
            _ => {}
        }
    }
    reader.read_exact(&mut vec![0; length])?;
    if path == "/order/1" {
        questions.fetch_add(1, Ordering::SeqCst);
    }
    let (status, headers, body) = answer(&path, manner, port);
    let length = body.len();
    let mut stream = reader.into_inner();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nReplay-Nonce: bm9uY2U\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    )?;
    stream.conn.send_close_notify();
    stream.flush()
}

/// The status, headers, and the body.
fn answer(path: &str, manner: Manner, port: u16) -> (u16, String, String) {
    let url = |path: &str| format!("https://localhost:{port}/{path}");
    let order = json!({
        "status": "pending",
        "identifiers": [{ "type": "dns", "value": NAME }],
        "authorizations": [url("authorization")],
        "finalize": url("finalize"),
    });
    let at = |path: &str| format!("Location: {}\r\n", url(path));
    let challenge = |kind: &str| json!({ "type": kind, "url": url("challenge"), "token": TOKEN, "status": "pending" });
    let (status, headers, body) = match path {
        "/dir" => (
            200,
            String::new(),
            json!({
                "newNonce": url("nonce"),
                "newAccount": url("account"),
                "newOrder": url("order"),
                "revokeCert": url("revoke"),
                "keyChange": url("key"),
            }),
        ),
        "/nonce" => return (200, String::new(), String::new()),
        "/account" if manner == Manner::Busy => (
            429,
            "Retry-After: 3600\r\n".to_owned(),
            json!({ "type": "urn:ietf:params:acme:error:rateLimited", "detail": "too many of you" }),
        ),
        "/account" => (201, at("account/1"), json!({ "status": "valid" })),
        "/order" => (201, at("order/1"), order),
        "/order/1" => (200, String::new(), order),
        "/authorization" => (
            200,
            String::new(),
            json!({
                "status": "pending",
                "identifier": { "type": "dns", "value": NAME },
                "challenges": [challenge("http-01"), challenge("tls-alpn-01")],
            }),
        ),
        "/challenge" => (200, String::new(), challenge("http-01")),
        _ => (404, String::new(), json!({})),
    };
    (status, headers, body.to_string())
}
