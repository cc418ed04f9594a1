//! Embedded applications, end to end: a small one whose requests say which actions it takes.

use crate::support;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use headway_embedded::{
    Action, Application, ApplicationKind, Applications, Document, FileVersion, Job, JobResult,
    Outcome, Part, Request, Response, State,
};
use headway_server::Extensions;
use headway_server::config::{Config, Environment, HandlerConfig, Settings};
use support::{APPLICATIONS, Served, config};
use tempfile::TempDir;

/// A result longer than this comes back in a memfd, not in the helper's message.
const LONG_BYTES: usize = 1 << 20;

/// The application `probe`.
struct Probe;

impl ApplicationKind for Probe {
    fn name(&self) -> &'static str {
        "probe"
    }

    fn directory(&self) -> &'static str {
        ".probe"
    }

    fn check(&self, directory: &Path) -> Result<(), String> {
        match directory.join("broken").exists() {
            true => Err("it is broken; remove the file".to_owned()),
            false => Ok(()),
        }
    }

    fn start(&self) -> Box<dyn Application> {
        Box::new(Answers::default())
    }

    fn run_job(&self, directory: &Path, job: &[u8]) -> io::Result<Vec<u8>> {
        match job {
            b"append" => {
                let log = directory.join("log");
                let mut text = fs::read(&log).unwrap_or_default();
                text.push(b'x');
                fs::write(&log, &text)?;
                Ok(text)
            }
            b"replace" => {
                fs::write(directory.join("new"), "second")?;
                fs::rename(directory.join("new"), directory.join("table"))?;
                Ok(Vec::new())
            }
            b"long" => Ok(vec![b'l'; LONG_BYTES]),
            b"table" => fs::read(directory.join("table")),
            _ => Err(io::Error::other("no such job")),
        }
    }
}

/// Keeps a table in memory, in one version.
#[derive(Default)]
struct Answers {
    table: Option<(FileVersion, JobResult)>,
    loads: u32,
}

enum Waiting {
    Version,
    Table(FileVersion),
    Result,
    Forever,
}

impl Answers {
    fn show_table(&self, request: &Request<'_>) -> Action {
        let Some((_, table)) = &self.table else {
            return Action::Fail(500);
        };
        let mut text = vec![0; table.len() as usize];
        assert!(request.read(table, &mut text, 0));
        assert!(!request.read(table, &mut text, 1), "behind its end");
        text.extend_from_slice(format!(" {}", self.loads).as_bytes());
        respond(vec![Part::Bytes(text)])
    }
}

impl Application for Answers {
    fn body_bytes_max(&self) -> u64 {
        10
    }

    fn answer(&mut self, request: &Request<'_>) -> Action {
        let query = String::from_utf8_lossy(request.query()).into_owned();
        let (verb, rest) = query.split_once('=').unwrap_or((&query, ""));
        let check = |name: &'static str, waiting| Action::CheckFile(name.into(), Box::new(waiting));
        match verb {
            "echo" => echo(request),
            "status" => Action::Respond(Response {
                status: rest.parse().expect("a status"),
                ..Response::plain(200, "content")
            }),
            "fail" => Action::Fail(rest.parse().expect("a status")),
            "documents" => respond(documents(rest, false)),
            "edited" => respond(documents(rest, true)),
            "table" => check("table", Waiting::Version),
            "absent" => check("absent", Waiting::Version),
            "forever" => check("table", Waiting::Forever),
            "shared" => Action::RunJob(Job::shared(rest), Box::new(Waiting::Result)),
            "too-long" => {
                let job = Job::once(vec![b'x'; Job::BYTES_MAX + 1]);
                Action::RunJob(job, Box::new(Waiting::Result))
            }
            "replace" => {
                let job = Job {
                    replaces: Some("table".into()),
                    ..Job::once("replace")
                };
                Action::RunJob(job, Box::new(Waiting::Result))
            }
            "job" => Action::RunJob(Job::once(rest), Box::new(Waiting::Result)),
            other => panic!("{other}"),
        }
    }

    fn resume(&mut self, request: &Request<'_>, state: State, outcome: Outcome) -> Action {
        let waiting = *state.downcast::<Waiting>().expect("its own state");
        match (waiting, outcome) {
            (Waiting::Version, Outcome::File(None)) => Action::Fail(404),
            (Waiting::Version, Outcome::File(Some(version))) => match &self.table {
                Some((known, _)) if *known == version => self.show_table(request),
                _ => {
                    let waiting = Box::new(Waiting::Table(version));
                    Action::RunJob(Job::shared("table"), waiting)
                }
            },
            (Waiting::Table(version), Outcome::Job(table)) => {
                self.table = Some((version, table));
                self.loads += 1;
                self.show_table(request)
            }
            (Waiting::Result, Outcome::Job(result)) => {
                respond(vec![Part::Bytes(b"<".to_vec()), Part::Result(result)])
            }
            (Waiting::Forever, Outcome::File(_)) => {
                Action::CheckFile("table".into(), Box::new(Waiting::Forever))
            }
            _ => panic!("a result that was not asked for"),
        }
    }

    fn missing(&mut self, request: &Request<'_>) -> Response {
        match request.values("X-Missing").next() {
            // The substitute is missing, too.
            Some(_) => Response {
                body: documents("absent", false),
                ..Response::plain(200, "")
            },
            None => Response::plain(404, "not in the set"),
        }
    }
}

fn respond(body: Vec<Part>) -> Action {
    Action::Respond(Response {
        status: 200,
        fields: vec![("X-Probe", "yes".to_owned())],
        body,
    })
}

fn echo(request: &Request<'_>) -> Action {
    let cookies: Vec<_> = request.values("cookie").collect();
    let text = format!(
        "{} {} {} {} {} {} {}",
        request.method(),
        request.location(),
        String::from_utf8_lossy(request.path()),
        String::from_utf8_lossy(&cookies.join(&b"; "[..])),
        request.client(),
        request.now_s() > 1_700_000_000,
        String::from_utf8_lossy(request.body()),
    );
    respond(vec![Part::Bytes(text.into_bytes())])
}

/// Files with a comma between them, in capitals if they are edited.
fn documents(names: &str, is_edited: bool) -> Vec<Part> {
    let mut parts = Vec::new();
    for name in names.split(',') {
        let edit: headway_embedded::Edit =
            Box::new(|bytes: &mut [u8]| bytes.make_ascii_uppercase());
        parts.push(Part::Document(Document {
            path: name.to_owned(),
            edit: is_edited.then_some(edit),
        }));
        parts.push(Part::Bytes(b",".to_vec()));
    }
    parts
}

/// A document root with the application's directory.
fn site() -> TempDir {
    let _ = APPLICATIONS.set(Applications::new(&[&Probe]));
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join(".probe")).unwrap();
    fs::write(root.path().join(".probe/table"), "first").unwrap();
    fs::write(root.path().join("small"), "small file").unwrap();
    fs::write(root.path().join("medium"), vec![b'm'; 200_000]).unwrap();
    fs::write(root.path().join("large"), vec![b'a'; (1 << 20) + 1]).unwrap();
    root
}

fn location(more: &str) -> String {
    format!("{more}\n[[location]]\nprefix = \"/probe/\"\napplication = \"probe\"\n")
}

fn serve(root: &TempDir) -> Served {
    Served::start(config(root.path(), &location("")))
}

fn text(served: &Served, query: &str) -> (u16, String) {
    let response = served.get(&format!("/probe/a/../b?{query}"));
    let body = String::from_utf8_lossy(&response.body).into_owned();
    (response.status, body)
}

fn ok(text: impl Into<String>) -> (u16, String) {
    (200, text.into())
}

#[test]
fn application_sees_the_request_and_its_body() {
    let root = site();
    let mut served = serve(&root);
    let post = |length: usize, body: &str| {
        format!(
            "POST /probe/a?echo HTTP/1.1\r\nHost: x\r\nCookie: a=b\r\ncookie: c\r\nContent-Length: {length}\r\n\r\n{body}"
        )
    };
    let answer = served.exchange(post(4, "body").as_bytes());
    let answer = support::Response::parse(&answer);
    let expected = "POST /probe probe/a a=b; c 127.0.0.1 true body";
    assert_eq!(String::from_utf8_lossy(&answer.body), expected);
    assert_eq!(answer.field("X-Probe"), Some("yes"));
    // The body comes later than the header.
    let mut stream = served.connect();
    stream.write_all(post(4, "").as_bytes()).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    stream.write_all(b"body").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut late = Vec::new();
    stream.read_to_end(&mut late).unwrap();
    assert_eq!(support::Response::parse(&late).body, answer.body);
    let snapshot = served.snapshot();
    assert_eq!(snapshot.counters.handler_requests_application, 2);
}

#[test]
fn body_is_rejected_when_it_is_too_long_or_chunked() {
    let root = site();
    let served = serve(&root);
    for (field, status) in [
        ("Content-Length: 11\r\n\r\nxxxxxxxxxxx", 413),
        ("Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", 411),
    ] {
        let request = format!("POST /probe/?echo HTTP/1.1\r\nHost: x\r\n{field}");
        let answer = support::Response::parse(&served.exchange(request.as_bytes()));
        assert_eq!(answer.status, status);
        assert_eq!(answer.field("Connection"), Some("close"));
    }
}

#[test]
fn head_gets_the_fields_without_a_body() {
    let root = site();
    let served = serve(&root);
    let request = b"HEAD /probe/?documents=small HTTP/1.1\r\nHost: x\r\n\r\n";
    let answer = support::Response::parse(&served.exchange(request));
    assert_eq!((answer.status, &answer.body[..]), (200, &b""[..]));
    assert_eq!(answer.field("Content-Length"), Some("11"));
}

#[test]
fn documents_of_every_size_are_parts_of_a_body_under_every_way_to_read_them() {
    let root = site();
    let (medium, large) = ("m".repeat(200_000), "a".repeat((1 << 20) + 1));
    for more in [
        "",
        "small-file-max = \"4KiB\"",
        "research.preset = \"flash\"",
        "research.preset = \"fd-pass\"",
        "research.preset = \"new-flash\"",
        "research.caching = false",
    ] {
        let served = Served::start(config(root.path(), &location(more)));
        for _ in 0..2 {
            assert_eq!(
                text(&served, "documents=small"),
                ok("small file,"),
                "{more}"
            );
            let (status, body) = text(&served, "documents=small,medium,large,small");
            let expected = format!("small file,{medium},{large},small file,");
            assert!(status == 200 && body == expected, "{more}: {}", body.len());
            let (status, body) = text(&served, "edited=small,medium");
            let expected = format!("SMALL FILE,{},", medium.to_uppercase());
            assert!(status == 200 && body == expected, "{more}: {}", body.len());
        }
        // What is edited is a copy.
        assert_eq!(
            text(&served, "documents=small"),
            ok("small file,"),
            "{more}"
        );
    }
}

#[test]
fn document_is_answered_with_an_error_when_it_cannot_be_sent() {
    let root = site();
    fs::create_dir(root.path().join("directory")).unwrap();
    let served = serve(&root);
    assert_eq!(
        text(&served, "documents=small,absent"),
        (404, "not in the set\n".into())
    );
    assert_eq!(
        text(&served, "documents=directory").1,
        "not in the set\n",
        "only files are documents"
    );
    assert_eq!(text(&served, "edited=large").0, 500, "it is too large");
    let request =
        b"GET /probe/?documents=absent HTTP/1.1\r\nHost: x\r\nX-Missing: 1\r\nConnection: close\r\n\r\n";
    let answer = support::Response::parse(&served.exchange(request));
    assert_eq!(answer.status, 404, "the substitute is missing, too");
    assert!(!String::from_utf8_lossy(&answer.body).contains("not in the set"));
}

#[test]
fn replaced_document_is_sent_in_its_new_version() {
    let root = site();
    let served = Served::start(config(root.path(), &location("revalidate = 0")));
    assert_eq!(text(&served, "edited=small"), ok("SMALL FILE,"));
    fs::write(root.path().join("new"), "other").unwrap();
    fs::rename(root.path().join("new"), root.path().join("small")).unwrap();
    assert_eq!(text(&served, "edited=small"), ok("OTHER,"));
}

#[test]
fn application_fails_with_the_status_that_it_names() {
    let root = site();
    let served = serve(&root);
    for status in [403, 405, 503] {
        assert_eq!(text(&served, &format!("fail={status}")).0, status);
    }
    assert_eq!(text(&served, "fail=999").0, 500, "not a status");
}

#[test]
fn response_has_no_content_and_no_length_when_its_status_has_none() {
    let root = site();
    let served = serve(&root);
    for status in [204, 304] {
        let answer = served.get(&format!("/probe/?status={status}"));
        assert_eq!((answer.status, &answer.body[..]), (status, &b""[..]));
        assert_eq!(answer.field("Content-Length"), None, "{status}");
    }
}

#[test]
fn own_file_is_checked_before_each_use_and_loaded_when_it_has_changed() {
    let root = site();
    // Documents would be believed for an hour.
    let mut served = Served::start(config(root.path(), &location("revalidate = \"1h\"")));
    for _ in 0..3 {
        assert_eq!(text(&served, "table"), ok("first 1"));
    }
    let new = root.path().join(".probe/new");
    fs::write(&new, "by another process").unwrap();
    fs::rename(&new, root.path().join(".probe/table")).unwrap();
    assert_eq!(text(&served, "table"), ok("by another process 2"));
    assert_eq!(text(&served, "absent").0, 404);
    assert_eq!(served.snapshot().counters.helper_jobs_custom, 2);
}

#[test]
fn file_that_a_job_replaces_is_looked_up_again_where_nothing_is_probed() {
    let root = site();
    let more = location("research.preset = \"fd-pass\"\nrevalidate = \"1h\"");
    let served = Served::start(config(root.path(), &more));
    assert_eq!(text(&served, "table"), ok("first 1"));
    assert_eq!(text(&served, "replace"), ok("<"));
    assert_eq!(text(&served, "table"), ok("second 2"));
}

#[test]
fn endless_checks_are_ended_with_500() {
    let root = site();
    let served = serve(&root);
    assert_eq!(text(&served, "forever").0, 500);
    assert_eq!(text(&served, "table").0, 200, "the loop goes on");
}

#[test]
fn results_of_jobs_are_parts_of_a_body() {
    let root = site();
    let served = serve(&root);
    assert_eq!(text(&served, "job=append"), ok("<x"));
    assert_eq!(text(&served, "job=append"), ok("<xx"));
    assert_eq!(text(&served, "shared=table"), ok("<first"));
    let (status, body) = text(&served, "job=long");
    assert!(status == 200 && body == format!("<{}", "l".repeat(LONG_BYTES)));
    assert_eq!(text(&served, "job=unknown").0, 500, "it fails");
    assert_eq!(text(&served, "too-long").0, 500, "it is never sent");
}

#[test]
fn job_that_runs_once_is_not_repeated_when_its_helper_dies() {
    let root = site();
    for (query, status) in [("job=append", 503), ("shared=table", 200)] {
        let mut served = Served::start_holding_helpers(config(root.path(), &location("")));
        let mut stream = served.connect();
        let request =
            format!("GET /probe/?{query} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        served.wait_for("the job", |snapshot| {
            snapshot.counters.helper_jobs_custom == 1 && snapshot.counters.helpers_busy == 1
        });
        served.kill_helpers();
        served.release_helpers();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!(support::Response::parse(&answer).status, status, "{query}");
    }
    assert!(!root.path().join(".probe/log").exists());
}

#[test]
fn full_queue_of_helpers_is_answered_with_503() {
    let root = site();
    let more = location("helpers-min = 1\nhelpers-max = 1\nhelper-queue-max = 1");
    let mut served = Served::start_holding_helpers(config(root.path(), &more));
    let request = b"GET /probe/?job=append HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let mut streams = Vec::new();
    loop {
        let mut stream = served.connect();
        stream.write_all(request).unwrap();
        streams.push(stream);
        let count = streams.len() as u64;
        assert!(count < 100, "no job is rejected");
        let snapshot = served.wait_for("the request", |snapshot| {
            snapshot.counters.handler_requests_application == count
        });
        if snapshot.counters.helper_jobs_rejected > 0 {
            break;
        }
    }
    let mut answer = Vec::new();
    let mut last = streams.pop().unwrap();
    last.read_to_end(&mut answer).unwrap();
    assert_eq!(support::Response::parse(&answer).status, 503);
    served.release_helpers();
    for (number, mut stream) in streams.into_iter().enumerate() {
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let body = support::Response::parse(&answer).body;
        assert_eq!(body.len(), number + 2, "each is done once, in order");
    }
}

/// The directory of the only application, or what is wrong.
fn checked(
    root: &Path,
    applications: &'static Applications,
    more: &str,
) -> Result<PathBuf, String> {
    let text = format!("root = {root:?}\n[[location]]\n{more}\n");
    let settings = Settings::from_toml(&text, &root.join("t.toml")).unwrap();
    let environment = Environment {
        extensions: Extensions {
            applications,
            ..Extensions::NONE
        }
        .known(),
        ..Environment::detect()
    };
    let checked = Config::check(&settings, None, &environment);
    let good =
        checked.map_err(|errors| errors.iter().map(ToString::to_string).collect::<String>())?;
    let printed = Settings::from_toml(&good.config.to_toml(), &root.join("p")).unwrap();
    let again = Config::check(&printed, None, &environment).unwrap();
    assert_eq!(
        again.config.hosts[0].locations,
        good.config.hosts[0].locations
    );
    let host = &good.config.hosts[0];
    match &host.locations[0].handler {
        HandlerConfig::Application(named) => Ok(named.directory(&host.root)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn location_names_an_application_of_the_program_and_its_directory() {
    let root = site();
    let path = root.path().canonicalize().unwrap();
    static PROBE: Applications = Applications::new(&[&Probe]);
    let probe = &PROBE;
    let usual = "prefix = \"/own\"\napplication = \"probe\"";
    assert_eq!(checked(&path, probe, usual), Ok(path.join(".probe")));
    fs::create_dir(path.join("other")).unwrap();
    let elsewhere = format!("{usual}\nroot = \"other\"");
    assert_eq!(checked(&path, probe, &elsewhere), Ok(path.join("other")));
    fs::write(path.join(".probe/broken"), "").unwrap();
    for (applications, wrong, why) in [
        (probe, usual, "/own: it is broken; remove the file"),
        (
            probe,
            "prefix = \"/own\"\napplication = \"others\"",
            "no application `others`; this program has probe",
        ),
        (
            &Applications::NONE,
            usual,
            "this program contains no applications, so not `probe`; `headway-lab serve` has",
        ),
        (
            probe,
            "suffix = \".x\"\napplication = \"probe\"",
            "needs a prefix",
        ),
        (
            probe,
            "prefix = \"/own\"\ncgi = true\napplication = \"probe\"",
            "one handler, and this one has cgi and application; keep one",
        ),
        (
            probe,
            "prefix = \"/own\"\napplication = \"probe\"\nroot = \"nowhere\"",
            "the application's directory",
        ),
        (
            probe,
            "prefix = \"/own\"\napplication = \"probe\"\nkeepalive = 3",
            "only for upstreams",
        ),
    ] {
        let error = checked(&path, applications, wrong).unwrap_err();
        assert!(error.contains(why), "{wrong}: {error}");
    }
    fs::remove_dir_all(path.join(".probe")).unwrap();
    let error = checked(&path, probe, usual).unwrap_err();
    assert!(error.contains("no directory"), "{error}");
}
