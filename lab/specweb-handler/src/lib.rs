//! The SPECweb99-like application inside the server, as Flash had it.
//!
//! The crate `specweb` decides what a request gets, and the server sends it
//! ([`headway_embedded`]). The advertisements stay in memory; before each use it is checked
//! whether their file is unchanged. What may wait is a job of a helper ([`job`]): appending a record
//! under the log's lock, rebuilding and loading tables, reading the log.
//!
//! Only programs for experiments contain it (`headway-lab serve`).

#![forbid(unsafe_code)]

mod job;
mod tables;

use std::borrow::Cow;
use std::io;
use std::path::Path;

use headway_embedded::{
    Action, Application, ApplicationKind, Applications, Document, FileVersion, Job, JobResult,
    Outcome, Part, Request, Response, State,
};
use headway_specweb::application::{self, BodyPiece, Lookup, PageResponse, RequestAction};
use headway_specweb::post::Entry;
use headway_specweb::request::{self as specweb, BODY_BYTES_MAX, Method, Operation, parse};
use headway_specweb::scan::Scanner;
use headway_specweb::state_directory::{ADS_NAME, STATE_NAME};
use headway_specweb::tables::Reset;

use job::AppJob;
use tables::{Loaded, NoTables, Tables};

/// The value of SERVER_SOFTWARE, as programs get it.
const SERVER: &str = "Headway";

/// Digits of the largest record number.
const NUMBER_BYTES_MAX: usize = 20;

/// The applications of a server for experiments.
pub const APPLICATIONS: Applications = Applications::new(&[&SpecWeb99]);

/// The application, named `specweb99`.
#[derive(Debug)]
pub struct SpecWeb99;

impl ApplicationKind for SpecWeb99 {
    fn name(&self) -> &'static str {
        "specweb99"
    }

    fn directory(&self) -> &'static str {
        STATE_NAME
    }

    fn check(&self, directory: &Path) -> Result<(), String> {
        let table = directory.join(ADS_NAME);
        match table.is_file() {
            true => Ok(()),
            false => Err(format!(
                "no file {} (`headway fileset create` makes it with the profile specweb99-dynamic)",
                table.display()
            )),
        }
    }

    fn start(&self) -> Box<dyn Application> {
        Box::new(Pages { tables: None })
    }

    fn run_job(&self, directory: &Path, job: &[u8]) -> io::Result<Vec<u8>> {
        job::run(directory, job)
    }
}

/// The application at one location of one worker.
struct Pages {
    /// The tables in the version last used.
    tables: Option<Tables>,
}

/// What a request waits for.
enum Progress {
    /// The version of the tables.
    Tables,
    /// This version of the tables.
    Loading(FileVersion),
    /// A record is being appended.
    Posting(Entry),
    /// The tables are being rebuilt.
    Resetting(Reset),
    /// The log.
    Fetching,
}

impl Application for Pages {
    fn body_bytes_max(&self) -> u64 {
        BODY_BYTES_MAX as u64
    }

    fn answer(&mut self, request: &Request<'_>) -> Action {
        let parts = Parts::new(request);
        if let Ok(Operation::Custom { .. }) = parse(&parts.request()) {
            return Action::CheckFile(ADS_NAME.into(), Box::new(Progress::Tables));
        }
        decided(&parts, &mut NoTables)
    }

    fn resume(&mut self, request: &Request<'_>, state: State, outcome: Outcome) -> Action {
        let Ok(progress) = state.downcast::<Progress>() else {
            return Action::Fail(500);
        };
        let parts = Parts::new(request);
        match (*progress, outcome) {
            (Progress::Tables, Outcome::File(Some(version))) => {
                let current = |tables: &&Tables| tables.version == version;
                match self.tables.as_ref().filter(current) {
                    Some(tables) => decided(&parts, &mut Loaded { tables, request }),
                    None => run(AppJob::Tables, Progress::Loading(version)),
                }
            }
            (Progress::Loading(version), Outcome::Job(content)) => {
                match Tables::read(content, version, request) {
                    Some(tables) => {
                        let tables = self.tables.insert(tables);
                        decided(&parts, &mut Loaded { tables, request })
                    }
                    None => Action::Fail(500),
                }
            }
            (Progress::Posting(entry), Outcome::Job(number)) => match digits(request, &number) {
                Some(number) => page(application::posted(&parts.request(), &entry, number)),
                None => Action::Fail(500),
            },
            (Progress::Resetting(reset), Outcome::Job(_)) => {
                page(application::was_reset(&parts.request(), &reset))
            }
            (Progress::Fetching, Outcome::Job(log)) => {
                let mut response = response(application::fetched(&parts.request(), Vec::new()));
                // Between head and tail of the page.
                response.body.insert(1, Part::Result(log));
                Action::Respond(response)
            }
            // The tables are not there, or it is a result that was not asked for.
            _ => Action::Fail(500),
        }
    }

    fn missing(&mut self, _: &Request<'_>) -> Response {
        response(PageResponse::missing())
    }
}

/// What the application decides, as an action of the server.
fn decided(parts: &Parts<'_>, tables: &mut dyn Lookup) -> Action {
    match application::decide(&parts.request(), tables) {
        Ok(RequestAction::Response(response)) => page(response),
        Ok(RequestAction::Post(entry)) => run(AppJob::Append(entry), Progress::Posting(entry)),
        Ok(RequestAction::Reset(reset)) => run(AppJob::Reset(reset), Progress::Resetting(reset)),
        Ok(RequestAction::Fetch) => run(AppJob::Log, Progress::Fetching),
        Err(_) => Action::Fail(500),
    }
}

fn run(job: AppJob, progress: Progress) -> Action {
    let payload = job.encode();
    let job = match job {
        AppJob::Tables => Job::shared(payload),
        AppJob::Append(_) | AppJob::Log => Job::once(payload),
        AppJob::Reset(_) => Job {
            replaces: Some(ADS_NAME.into()),
            ..Job::once(payload)
        },
    };
    Action::RunJob(job, Box::new(progress))
}

fn page(page: PageResponse) -> Action {
    Action::Respond(response(page))
}

fn response(page: PageResponse) -> Response {
    let document = |name: headway_specweb::FileName| {
        let mut path = name.to_string();
        // It begins with a slash.
        path.remove(0);
        path
    };
    let part = |piece| match piece {
        BodyPiece::Bytes(bytes) => Part::Bytes(bytes),
        BodyPiece::File(name) => Part::Document(Document {
            path: document(name),
            edit: None,
        }),
        BodyPiece::Scanned(name, ad) => Part::Document(Document {
            path: document(name),
            edit: Some(Box::new(move |bytes| Scanner::new().replace(bytes, &ad))),
        }),
    };
    Response {
        status: page.status,
        fields: page.fields,
        body: page.pieces.into_iter().map(part).collect(),
    }
}

/// The number that a job has returned.
fn digits(request: &Request<'_>, number: &JobResult) -> Option<u64> {
    let length = usize::try_from(number.len()).ok()?;
    let mut digits = [0; NUMBER_BYTES_MAX];
    let digits = digits.get_mut(..length)?;
    if !request.read(number, digits, 0) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The parts of a request that the application uses.
struct Parts<'r> {
    method: Method,
    query: Cow<'r, str>,
    cookie: Cow<'r, str>,
    body: &'r [u8],
    client: String,
    script: &'r str,
    now_s: u64,
}

impl<'r> Parts<'r> {
    fn new(request: &Request<'r>) -> Parts<'r> {
        Parts {
            method: method(request.method()),
            query: String::from_utf8_lossy(request.query()),
            cookie: joined(request.values("Cookie")),
            body: request.body(),
            client: request.client().to_string(),
            script: request.location(),
            now_s: request.now_s(),
        }
    }

    fn request(&self) -> specweb::Request<'_> {
        specweb::Request {
            method: self.method,
            query: &self.query,
            cookie: &self.cookie,
            body: self.body,
            server: SERVER,
            client: &self.client,
            script: self.script,
            now_s: self.now_s,
        }
    }
}

fn method(name: &str) -> Method {
    match name {
        "GET" => Method::Get,
        "POST" => Method::Post,
        _ => Method::Other,
    }
}

/// Several cookie fields are joined as in a CGI variable (RFC 6265, section 5.4).
fn joined<'r>(mut values: impl Iterator<Item = &'r [u8]>) -> Cow<'r, str> {
    let first = String::from_utf8_lossy(values.next().unwrap_or_default());
    values.fold(first, |all, value| {
        Cow::Owned(format!("{all}; {}", String::from_utf8_lossy(value)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookie_fields_are_joined_as_in_a_cgi_variable() {
        for (values, expected) in [
            (&[][..], ""),
            (&[&b"a=b"[..]], "a=b"),
            (
                &[&b"a=b"[..], b"my_cookie=user_id=3"],
                "a=b; my_cookie=user_id=3",
            ),
        ] {
            assert_eq!(joined(values.iter().copied()), expected);
        }
    }

    #[test]
    fn other_methods_are_not_those_of_the_application() {
        assert_eq!(method("GET"), Method::Get);
        assert_eq!(method("POST"), Method::Post);
        assert_eq!(method("HEAD"), Method::Other);
    }

    #[test]
    fn check_names_the_missing_table() {
        let directory = tempfile::tempdir().expect("a directory");
        let error = SpecWeb99.check(directory.path()).expect_err("no table");
        assert!(
            error.contains(ADS_NAME) && error.contains("fileset create"),
            "{error}"
        );
        std::fs::write(directory.path().join(ADS_NAME), "").expect("a file");
        assert_eq!(SpecWeb99.check(directory.path()), Ok(()));
    }
}
