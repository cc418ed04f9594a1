//! A SPECweb99-like run against a server that answers by the application crate through CGI, right
//! and wrong.
//!
//! Connections carry 400 kbit/s on any machine, so these runs take their two seconds; the number of
//! conforming connections is not asserted. Seeds are chosen so that no client draws one of the
//! largest files, whose response alone would take twenty seconds.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use headway_latency::Run;
use headway_latency::specweb99::{Conformance, Iteration, RequestKind};
use headway_load::engine::{Conversation, Document};
use headway_load::fileset::{self, FilePopularity, Manifest, Shape};
use headway_load::session::{Demand, Finished, RunContext, Settings, WorkSource};
use headway_specweb::cgi::{self, Variables};
use headway_specweb::post::RECORD_BYTES;
use headway_specweb::state::State;
use headway_specweb::{Ads, Reset};
use headway_specweb_client::client::{Clients, Posts, SharedClientState};
use headway_specweb_client::find::{FIND_JSON, FindSettings, Range, SearchResult};
use headway_specweb_client::{Listener, Ran, SpecWeb99Error, SpecWeb99Settings};

const CONNECTIONS: u32 = 24;
const LENGTH: Duration = Duration::from_millis(1500);

/// What is wrong with the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Nothing,
    /// A byte of every dynamic page, after the first ones.
    WrongByte,
    /// The log lacks its last record.
    LosesPost,
    /// The application is not there.
    NoApplication,
}

/// A set with an application, and a server for both.
struct Served {
    folder: tempfile::TempDir,
    url: String,
    dynamic: Arc<AtomicU64>,
}

impl Served {
    fn new(fault: Fault) -> Served {
        let folder = tempfile::tempdir().unwrap();
        let set = folder.path().join("set");
        let shape = Shape::SpecWeb99Dynamic { directories: 2 };
        fileset::create(&set, shape, 1, NonZeroUsize::MIN, &mut |_| ()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let dynamic = Arc::new(AtomicU64::new(0));
        let served = Arc::clone(&dynamic);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (set, served) = (set.clone(), Arc::clone(&served));
                // The client may leave at any time; that ends the thread and nothing else.
                std::thread::spawn(move || drop(converse(client, &set, fault, &served)));
            }
        });
        Served {
            folder,
            url,
            dynamic,
        }
    }

    fn set(&self) -> PathBuf {
        self.folder.path().join("set")
    }

    fn settings(&self, iterations: u32) -> SpecWeb99Settings {
        let session = Settings {
            urls: vec![self.url.parse().unwrap()],
            work: WorkSource::FileSet(self.set()),
            method: headway_load::engine::Method::Get,
            headers: Vec::new(),
            body: Vec::new(),
            agent: None,
            proxy_version: None,
            unix_socket: None,
            host: None,
            tls: Default::default(),
            protocol: Default::default(),
            directories: None,
            demand: Demand::Closed,
            connections: Some(CONNECTIONS),
            requests_per_connection: None,
            timeout: None,
            think: Duration::ZERO,
            first_pause: Duration::ZERO,
            bandwidth_bits_per_s: None,
            warmup: Some(Duration::ZERO),
            cooldown: Duration::ZERO,
            duration: Some(LENGTH),
            requests: None,
            seed: seed(&self.set(), iterations),
            sources: Vec::new(),
            verify: true,
            cookies: false,
            label: None,
            threads: Some(1),
            cpus: Vec::new(),
            command: Vec::new(),
        };
        SpecWeb99Settings {
            session,
            iterations,
            ramp: Duration::from_millis(100),
            paths: ["/specweb99".to_owned(), "/cgi-bin/specweb99".to_owned()],
            whole_set: true,
            static_only: false,
        }
    }

    fn run(&self, iterations: u32, name: &str) -> Result<Ran, SpecWeb99Error> {
        let directory = self.folder.path().join(name);
        let settings = self.settings(iterations);
        settings.run(Some(&directory), &RunContext::default(), &mut Silent)
    }
}

struct Silent;

impl Listener for Silent {
    fn begins(&mut self, _: &str) {}
    fn ended(&mut self, _: &Finished) {}
    fn remarks(&mut self, _: &str) {}
}

/// One connection of the server.
fn converse(
    mut client: TcpStream,
    set: &Path,
    fault: Fault,
    dynamic: &AtomicU64,
) -> std::io::Result<()> {
    let (mut received, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let end = received.windows(4).position(|bytes| bytes == b"\r\n\r\n");
        let head = end.map(|end| String::from_utf8_lossy(&received[..end]).into_owned());
        let field = |name: &str| {
            let lines = head.iter().flat_map(|head| head.lines().skip(1));
            let mut pairs = lines.filter_map(|line| line.split_once(": "));
            pairs
                .find(|(found, _)| found.eq_ignore_ascii_case(name))
                .map(|(_, value)| value.to_owned())
        };
        let length: usize = field("content-length").map_or(0, |digits| digits.parse().unwrap());
        let whole = end
            .map(|end| end + 4 + length)
            .filter(|&whole| whole <= received.len());
        let (Some(head), Some(whole), Some(end)) = (&head, whole, end) else {
            match client.read(&mut buffer)? {
                0 => return Ok(()),
                count => received.extend_from_slice(&buffer[..count]),
            }
            continue;
        };
        let mut parts = head.split(' ');
        let (method, target) = (parts.next().unwrap(), parts.next().unwrap());
        let (script, query) = target.split_once('?').unwrap_or((target, ""));
        let last = field("connection").is_some_and(|value| value == "close");
        let old = head.lines().next().unwrap().ends_with("HTTP/1.0");
        let response = match script {
            "/specweb99" | "/cgi-bin/specweb99" if fault == Fault::NoApplication => missing(),
            "/specweb99" | "/cgi-bin/specweb99" => {
                let variables = Variables::of(|name| match name {
                    "REQUEST_METHOD" => Some(method.to_owned()),
                    "QUERY_STRING" => Some(query.to_owned()),
                    "CONTENT_LENGTH" => field("content-length"),
                    "HTTP_COOKIE" => field("cookie"),
                    "SERVER_SOFTWARE" => Some("test/1".to_owned()),
                    "REMOTE_ADDR" => Some("127.0.0.1".to_owned()),
                    "SCRIPT_NAME" => Some(script.to_owned()),
                    _ => None,
                });
                let served = dynamic.fetch_add(1, Ordering::Relaxed);
                let response = answered(&variables, set, &received[end + 4..whole]);
                spoiled(response, query, fault, served)
            }
            path => match std::fs::read(set.join(&path[1..])) {
                Ok(bytes) => {
                    let length = bytes.len();
                    let head = format!(
                        "HTTP/1.1 200 OK\r\nServer: test/1\r\nContent-Length: {length}\r\n\r\n"
                    );
                    [head.as_bytes(), &bytes].concat()
                }
                Err(_) => missing(),
            },
        };
        client.write_all(&response)?;
        if last || old {
            return Ok(());
        }
        received.drain(..whole);
    }
}

fn missing() -> Vec<u8> {
    b"HTTP/1.1 404 Not SearchResult\r\nContent-Length: 0\r\n\r\n".to_vec()
}

/// What a server makes of a CGI program's output.
fn answered(variables: &Variables, set: &Path, body: &[u8]) -> Vec<u8> {
    let (mut output, mut input) = (Vec::new(), body);
    let mut state = State::new(set, None);
    cgi::run(variables, &mut state, &mut input, &mut output).unwrap();
    let rest = output.strip_prefix(b"Status: ").unwrap();
    [b"HTTP/1.1 ", rest].concat()
}

fn spoiled(mut response: Vec<u8>, query: &str, fault: Fault, served: u64) -> Vec<u8> {
    match fault {
        // The first requests are the client's check of the application.
        Fault::WrongByte if served >= 3 && !query.starts_with("command/") => {
            let at = response.len() - 40;
            response[at] ^= 1;
        }
        Fault::LosesPost if query == "command/Fetch" => {
            let text = String::from_utf8(response).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            let tail = body.len() - headway_specweb::page::TAIL.len();
            let body = format!("{}{}", &body[..tail - RECORD_BYTES], &body[tail..]);
            let length = body.len();
            let status = head.lines().next().unwrap();
            response = format!("{status}\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes();
        }
        _ => {}
    }
    response
}

/// A seed with which no client draws a large file within the length of a run, in any of the
/// iterations.
fn seed(set: &Path, iterations: u32) -> u64 {
    let manifest = Manifest::load(set).unwrap();
    let documents = manifest.files().map(|file| Document {
        path: file.path.to_owned(),
        size_bytes: Some(file.size_bytes),
        class: file.class,
        checksum: None,
    });
    let reset = Reset {
        users: CONNECTIONS,
        seed: 1,
        time_s: 1_700_000_000,
        expired_percent: 10,
    };
    let knowledge = Arc::new(SharedClientState {
        documents: documents.collect(),
        popularity: FilePopularity::new(&manifest),
        ads: Ads::generate(&reset),
        reset,
        paths: [String::new(), String::new()],
        static_only: false,
        posts: Posts::new(CONNECTIONS),
    });
    let is_small = |seed: u64| {
        let clients = Clients {
            knowledge: Arc::clone(&knowledge),
            seed,
        };
        (0..CONNECTIONS).all(|number| {
            let mut client = clients.client(number);
            let mut line_s = 0.0;
            while line_s < LENGTH.as_secs_f64() + 0.1 {
                client.choose(0);
                let class = client.facts().class % 4;
                if class == 3 {
                    return false;
                }
                let mut request = Vec::new();
                client.form(b"\r\n", &mut request);
                let text = String::from_utf8(request).unwrap();
                let line = text.lines().next().unwrap();
                // Of a POST only the class is at hand: its smallest file, so that a run draws no
                // more than this.
                let name = line.split(['_', ' ']).nth(2).unwrap_or("");
                let number: f64 = name.parse().unwrap_or(1.0);
                line_s += number * 102.0 * 10_f64.powi(class.into()) * 8.0 / 400_000.0;
            }
            true
        })
    };
    let all = |seed: u64| (0..u64::from(iterations)).all(|more| is_small(seed + more));
    (1..1_000_000)
        .find(|&seed| all(seed))
        .expect("one such seed")
}

fn figures<'a>(
    iteration: &'a Iteration,
    name: &str,
) -> &'a headway_latency::specweb99::KindFigures {
    iteration
        .kinds
        .iter()
        .find(|kind| kind.kind == name)
        .unwrap()
}

#[test]
fn conforming_application_has_no_errors() {
    let served = Served::new(Fault::Nothing);
    let ran = served.run(2, "run").unwrap();
    let info = ran.info();
    assert_eq!((info.connections, info.iterations.len()), (24, 2));
    assert!(info.score.is_some() && info.held.is_some());
    for iteration in &info.iterations {
        assert_eq!(iteration.errors, 0, "{:?}", iteration.kinds);
        assert!(iteration.requests >= 24, "{}", iteration.requests);
        let fastest = iteration.rates_bits_per_s.iter().max().unwrap();
        assert!(*fastest <= 400_000, "{fastest}");
        let dynamic = figures(iteration, "dynamic").requests;
        assert_eq!(
            dynamic + figures(iteration, "static").requests,
            iteration.requests
        );
        assert!(figures(iteration, "custom GET").requests > 0);
    }
    let log = info.log.clone().unwrap();
    assert!(log.is_right() && log.records > 0, "{log:?}");
    assert_eq!(log.records, log.acknowledged);

    // What is on disk says the same, and the rows say it again.
    let directory = served.folder.path().join("run");
    let run = Run::open(&directory).unwrap();
    assert!(run.description().complete);
    let kept = run.description().specweb99.as_ref().unwrap();
    assert_eq!((kept.score, &kept.log), (info.score, &info.log));
    for (index, expected) in info.iterations.iter().enumerate() {
        let path = directory.join(&expected.directory);
        assert!(path.ends_with(format!("iterations/{}", index + 1)));
        let run = Run::open(&path).unwrap();
        let measured = run.description().load.measured.unwrap();
        let mut again = Conformance::new(CONNECTIONS, measured.start_ns);
        for batch in run.rows().unwrap() {
            batch.unwrap().iter().for_each(|row| again.push(row));
        }
        let again = Iteration {
            directory: expected.directory.clone(),
            verdict: expected.verdict,
            reasons: expected.reasons.clone(),
            ..again.finish()
        };
        assert_eq!(&again, expected);
    }
    let error = served.run(1, "run").unwrap_err().to_string();
    assert!(
        error.contains("finished") || error.contains("new"),
        "{error}"
    );
}

#[test]
fn wrong_byte_in_a_page_is_an_error_and_no_connection_conforms() {
    let served = Served::new(Fault::WrongByte);
    let ran = served.run(1, "run").unwrap();
    let iteration = &ran.info().iterations[0];
    assert_eq!(figures(iteration, "static").errors, 0);
    for kind in [
        RequestKind::Standard,
        RequestKind::Custom,
        RequestKind::Post,
    ] {
        let figures = figures(iteration, kind.name());
        assert_eq!(figures.errors, figures.requests, "{}", kind.name());
    }
    assert!(iteration.errors > 0 && iteration.erring > 0);
    // The posts were appended, but not acknowledged.
    let log = ran.info().log.clone().unwrap();
    assert_eq!((log.acknowledged, log.is_right()), (0, true), "{log:?}");
}

#[test]
fn only_files_are_requested_with_static_only() {
    let served = Served::new(Fault::Nothing);
    let mut settings = served.settings(1);
    settings.static_only = true;
    let directory = served.folder.path().join("static");
    let ran = settings.run(Some(&directory), &RunContext::default(), &mut Silent);
    let ran = ran.unwrap();
    let iteration = &ran.info().iterations[0];
    assert!(figures(iteration, "static").requests > 0 && ran.info().static_only);
    for kind in RequestKind::ALL.into_iter().skip(1) {
        let found = iteration
            .kinds
            .iter()
            .find(|found| found.kind == kind.name());
        assert_eq!(
            found.map_or(0, |found| found.requests),
            0,
            "{}",
            kind.name()
        );
    }
}

#[test]
fn load_is_not_sustained_when_an_acknowledged_post_is_not_logged() {
    let served = Served::new(Fault::LosesPost);
    let ran = served.run(1, "run").unwrap();
    let log = ran.info().log.clone().unwrap();
    assert_eq!((log.missing, log.out_of_order, log.unknown), (1, 0, 0));
    assert_eq!(ran.info().held, Some(false));
}

#[test]
fn run_fails_early_without_the_application_or_the_set() {
    let served = Served::new(Fault::NoApplication);
    let error = served.run(1, "run").unwrap_err().to_string();
    assert!(
        error.contains("command/Reset") && error.contains("status 404"),
        "{error}"
    );
    assert!(!served.folder.path().join("run").exists());

    let mut settings = served.settings(1);
    settings.whole_set = false;
    let refused = |settings: &SpecWeb99Settings| {
        let ran = settings.run(None, &RunContext::default(), &mut Silent);
        ran.unwrap_err().to_string()
    };
    let error = refused(&settings);
    assert!(
        error.contains("has 2 directories") && error.contains("--whole-set"),
        "{error}"
    );

    let plain = served.folder.path().join("plain");
    let shape = Shape::SpecWeb99 { directories: 1 };
    fileset::create(&plain, shape, 1, NonZeroUsize::MIN, &mut |_| ()).unwrap();
    settings.session.work = WorkSource::FileSet(plain);
    assert!(refused(&settings).contains("specweb99-dynamic"));
    settings.session.connections = None;
    assert!(refused(&settings).contains("--connections"));
}

#[test]
fn search_continues_with_its_trials_when_interrupted() {
    let served = Served::new(Fault::Nothing);
    let folder = served.folder.path();
    let note = folder.join("notes");
    let command = |word: &str| {
        let note = note.display();
        Some(format!(
            "echo {word} $HEADWAY_CONNECTIONS $HEADWAY_TRIAL >> {note}"
        ))
    };
    let settings = FindSettings {
        run: served.settings(1),
        range: Range {
            first: 1,
            most: 1,
            step: 1,
        },
        trial_iterations: 1,
        before_trial: command("before"),
        after_trial: command("after"),
    };
    let directory = folder.join("search");
    let search = || settings.run(&directory, &RunContext::default(), &mut Silent);
    let found = search().unwrap();
    let trial = &found.trials[0];
    assert_eq!((trial.connections, trial.iterations), (1, 1));
    let run = Run::open(directory.join(&trial.directory)).unwrap();
    assert_eq!(
        run.description().specweb99.as_ref().unwrap().score,
        Some(trial.score)
    );
    let notes = std::fs::read_to_string(&note).unwrap();
    let path = directory.join(&trial.directory);
    assert!(
        notes.starts_with(&format!("before 1 {0}\nafter 1 {0}\n", path.display())),
        "{notes}"
    );
    assert!(search().unwrap_err().to_string().contains("is over"));

    // As a search leaves it that was killed before it noted its trials: nothing is measured again.
    let path = directory.join(FIND_JSON);
    let cut = SearchResult {
        trials: Vec::new(),
        connections: None,
        ..found.clone()
    };
    std::fs::write(&path, serde_json::to_string(&cut).unwrap()).unwrap();
    let dynamic_requests = served.dynamic.load(Ordering::Relaxed);
    assert_eq!(search().unwrap(), found);
    assert_eq!(served.dynamic.load(Ordering::Relaxed), dynamic_requests);

    let mut other = settings.clone();
    other.run.session.seed += 1;
    std::fs::write(&path, serde_json::to_string(&cut).unwrap()).unwrap();
    let error = other.run(&directory, &RunContext::default(), &mut Silent);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("the seed"), "{error}");
}
