//! Applications inside the server: code that answers the requests of a location in the worker's own
//! loop.
//!
//! A program that is a server names the applications it contains ([`Applications`]) among its
//! extensions, at each of its entry points: for the configuration, the workers and the helpers. The
//! configuration gives one of them a location: `application = "NAME"`.
//!
//! An application decides, and the server does what may wait. For each request it returns an
//! [`Action`]: a response, or work of which the result comes back to [`Application::resume`] with
//! the application's own state. Files are looked up and read with the server's caches and helpers,
//! and jobs run in helpers. So an application **must not** make a call that can wait; the server
//! cannot prevent it.
//!
//! Not offered: responses of unknown length, parts of files, files outside the document root, bodies
//! that are received piece by piece.
//!
//! # Example
//!
//! Counts visits in a file, which only a helper may wait for.
//!
//! ```
//! use std::path::Path;
//! use headway_embedded::*;
//!
//! struct Counter;
//!
//! impl ApplicationKind for Counter {
//!     fn name(&self) -> &'static str {
//!         "counter"
//!     }
//!     fn start(&self) -> Box<dyn Application> {
//!         Box::new(Visits)
//!     }
//!     fn run_job(&self, directory: &Path, _: &[u8]) -> std::io::Result<Vec<u8>> {
//!         let path = directory.join("visits");
//!         let visits = std::fs::read_to_string(&path).unwrap_or_default();
//!         let visits = visits.parse().unwrap_or(0) + 1;
//!         std::fs::write(&path, visits.to_string())?;
//!         Ok(visits.to_string().into_bytes())
//!     }
//! }
//!
//! struct Visits;
//!
//! impl Application for Visits {
//!     fn answer(&mut self, request: &Request<'_>) -> Action {
//!         match request.method() {
//!             "GET" => Action::RunJob(Job::once("visit"), Box::new(())),
//!             _ => Action::Fail(405),
//!         }
//!     }
//!     fn resume(&mut self, _: &Request<'_>, _: State, outcome: Outcome) -> Action {
//!         let Outcome::Job(visits) = outcome else {
//!             return Action::Fail(500);
//!         };
//!         Action::Respond(Response {
//!             status: 200,
//!             fields: vec![("Content-Type", "text/plain".into())],
//!             body: vec![Part::Bytes(b"visits: ".to_vec()), Part::Result(visits)],
//!         })
//!     }
//! }
//!
//! // In the extensions that the program passes to `Environment` and `child_main`.
//! static APPLICATIONS: Applications = Applications::new(&[&Counter]);
//! assert!(APPLICATIONS.find("counter").is_some());
//! ```
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]
#![deny(clippy::unused_self)]
#![cfg_attr(
    not(test),
    deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro)
)]

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::Path;
use std::rc::Rc;

use headway_config::KnownApplications;
use headway_files::protocol::CustomResult;
use headway_files::{CustomJob, Failure, Meta, OpenFile};
use headway_http::Target;
use headway_metrics::calls::{Call, Tracer};

/// The applications that a program contains.
#[derive(Clone, Copy)]
pub struct Applications(&'static [&'static dyn ApplicationKind]);

impl Applications {
    /// No applications.
    pub const NONE: Applications = Applications(&[]);

    /// These applications. Each needs a name of its own.
    pub const fn new(kinds: &'static [&'static dyn ApplicationKind]) -> Applications {
        Applications(kinds)
    }

    /// The application of this name.
    pub fn find(self, name: &str) -> Option<&'static dyn ApplicationKind> {
        self.0.iter().copied().find(|kind| kind.name() == name)
    }

    /// The names of all applications.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|kind| kind.name())
    }
}

impl KnownApplications for Applications {
    fn names(&self) -> Vec<&'static str> {
        Applications::names(*self).collect()
    }

    fn directory(&self, name: &str) -> Option<&'static str> {
        self.find(name).map(ApplicationKind::directory)
    }

    fn check(&self, name: &str, directory: &Path) -> Result<(), String> {
        self.find(name).map_or(Ok(()), |kind| kind.check(directory))
    }
}

impl fmt::Debug for Applications {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_list().entries(self.names()).finish()
    }
}

/// A kind of application, which a program contains and locations name.
pub trait ApplicationKind: Sync {
    /// Its name in the configuration.
    fn name(&self) -> &'static str;

    /// Directory of its own files where the location has no `root`, relative to the document root.
    fn directory(&self) -> &'static str {
        "."
    }

    /// Checks its own files before the server starts, so that a mistake is reported.
    ///
    /// # Errors
    /// What is missing, and how to make it.
    fn check(&self, directory: &Path) -> Result<(), String> {
        let _ = directory;
        Ok(())
    }

    /// Makes the application of one location in one worker.
    fn start(&self) -> Box<dyn Application>;

    /// Runs a job with the application's own directory, in a helper, where it may wait.
    ///
    /// # Errors
    /// Printed by the helper; the request is answered with 500.
    fn run_job(&self, directory: &Path, job: &[u8]) -> io::Result<Vec<u8>> {
        let _ = (directory, job);
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// What an application keeps of a request while it waits for the result of an action.
pub type State = Box<dyn Any>;

/// An application at one location of one worker.
pub trait Application {
    /// The longest request body. A longer one gets 413; a chunked one gets 411.
    fn body_bytes_max(&self) -> u64 {
        0
    }

    /// Says what to do for a request whose body has been received.
    fn answer(&mut self, request: &Request<'_>) -> Action;

    /// Says how to go on with the result of an action.
    fn resume(&mut self, request: &Request<'_>, state: State, outcome: Outcome) -> Action;

    /// The response in place of one with a document that does not exist. It has no documents.
    fn missing(&mut self, request: &Request<'_>) -> Response {
        let _ = request;
        Response::plain(404, "no such file")
    }
}

/// What the server is to do for a request.
pub enum Action {
    /// Send this response.
    Respond(Response),
    /// Send the error response of this status.
    Fail(u16),
    /// Find out which version a file in the application's own directory has now; comes back as
    /// [`Outcome::File`].
    CheckFile(Cow<'static, str>, State),
    /// Run a job in a helper; comes back as [`Outcome::Job`]. A failed job is answered with 500, a
    /// full queue of helpers with 503.
    RunJob(Job, State),
}

/// The result of an action.
pub enum Outcome {
    /// The version of a file; `None` if it does not exist or cannot be looked up.
    File(Option<FileVersion>),
    /// The result of a job.
    Job(JobResult),
}

/// A response. The server adds its own fields and `Content-Length`.
pub struct Response {
    /// The status.
    pub status: u16,
    /// The application's fields, without line ends.
    pub fields: Vec<(&'static str, String)>,
    /// The body. It is left out for HEAD.
    pub body: Vec<Part>,
}

impl Response {
    /// A line of plain text.
    pub fn plain(status: u16, text: &str) -> Response {
        Response {
            status,
            fields: vec![("Content-Type", "text/plain".to_owned())],
            body: vec![Part::Bytes(format!("{text}\n").into_bytes())],
        }
    }
}

/// A part of a response's body.
pub enum Part {
    /// Bytes made for this response.
    Bytes(Vec<u8>),
    /// A whole file below the document root.
    Document(Document),
    /// The whole result of a job.
    Result(JobResult),
}

/// Changes bytes in place.
pub type Edit = Box<dyn FnOnce(&mut [u8])>;

/// A file below the document root, as part of a body.
pub struct Document {
    /// The path, without a slash in front.
    pub path: String,
    /// What to change in this response's copy of it. Such a file has at most
    /// [`Document::EDITED_BYTES_MAX`] bytes; the response for a larger one is a 500.
    pub edit: Option<Edit>,
}

impl Document {
    /// The longest file that is edited.
    pub const EDITED_BYTES_MAX: u64 = 1 << 20;
}

/// Work for a helper.
pub struct Job {
    /// What [`ApplicationKind::run_job`] gets: at most [`Job::BYTES_MAX`] bytes, otherwise the
    /// response is a 500.
    pub payload: Vec<u8>,
    /// Whether it runs once and for this request alone. Otherwise equal jobs under way are one, and
    /// it is done again if its helper dies.
    pub is_once: bool,
    /// A file in the application's own directory that the job replaces.
    pub replaces: Option<Cow<'static, str>>,
}

impl Job {
    /// The longest payload.
    pub const BYTES_MAX: usize = 1024;

    /// A job that must not be repeated.
    pub fn once(payload: impl Into<Vec<u8>>) -> Job {
        Job {
            payload: payload.into(),
            is_once: true,
            replaces: None,
        }
    }

    /// A job whose result serves every request that wants it.
    pub fn shared(payload: impl Into<Vec<u8>>) -> Job {
        Job {
            is_once: false,
            ..Job::once(payload)
        }
    }

    /// Whether helpers share it, for their queue.
    pub fn sharing(&self) -> CustomJob {
        match self.is_once {
            true => CustomJob::Once,
            false => CustomJob::Shared,
        }
    }

    /// The job for a helper: name, directory and payload, separated by NUL. `None` if it is too
    /// long.
    pub fn encode(&self, name: &str, directory: &[u8]) -> Option<Vec<u8>> {
        let encoded = [name.as_bytes(), directory, &self.payload].join(&0);
        let is_short = self.payload.len() <= Job::BYTES_MAX
            && encoded.len() <= headway_files::protocol::CUSTOM_JOB_BYTES_MAX;
        is_short.then_some(encoded)
    }
}

/// Runs an encoded job, in a helper. Errors are explained on standard error.
pub fn run_job(applications: Applications, encoded: &[u8]) -> Result<Vec<u8>, Failure> {
    use std::os::unix::ffi::OsStrExt;
    let mut parts = encoded.splitn(3, |byte| *byte == 0);
    let name = parts
        .next()
        .and_then(|name| std::str::from_utf8(name).ok())
        .unwrap_or_default();
    let (Some(kind), Some(directory), Some(payload)) =
        (applications.find(name), parts.next(), parts.next())
    else {
        // Worker and helper are the same program, so this is a mistake in it.
        return Err(Failure::Io);
    };
    let directory = Path::new(std::ffi::OsStr::from_bytes(directory));
    #[expect(clippy::disallowed_methods, reason = "a helper may wait")]
    kind.run_job(directory, payload).map_err(|error| {
        // If standard error is closed, nothing can be reported.
        let _ = writeln!(io::stderr(), "headway: {name}: {error}");
        Failure::Io
    })
}

/// A version of a file: another one exists if the file has been changed or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileVersion(Meta);

impl FileVersion {
    /// The version that this metadata describes.
    pub fn of(meta: Meta) -> FileVersion {
        FileVersion(meta)
    }
}

/// The result of a job, in memory.
#[derive(Clone)]
pub struct JobResult(Stored);

/// Where the result of a job is.
#[derive(Clone)]
pub enum Stored {
    /// In the memory of the worker.
    Bytes(Rc<[u8]>),
    /// In a memfd, which a read never waits for.
    File(Rc<OpenFile>),
}

impl JobResult {
    /// The result in the answer of a helper.
    pub fn new(result: &CustomResult<Rc<OpenFile>>) -> JobResult {
        JobResult(match result {
            CustomResult::Inline(bytes) => Stored::Bytes(bytes[..].into()),
            CustomResult::File(file) => Stored::File(file.clone()),
        })
    }

    /// Where it is.
    pub fn stored(&self) -> &Stored {
        &self.0
    }

    /// The number of bytes.
    pub fn len(&self) -> u64 {
        match &self.0 {
            Stored::Bytes(bytes) => bytes.len() as u64,
            Stored::File(file) => file.meta().size,
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A request as an application sees it.
pub struct Request<'r> {
    fields: headway_gateway::Request<'r>,
    request: &'r headway_request::Request,
    location: &'r str,
    client: IpAddr,
    now_s: u64,
    tracer: &'r Tracer,
}

impl<'r> Request<'r> {
    /// A request to the application of this location.
    pub fn new(
        fields: headway_gateway::Request<'r>,
        request: &'r headway_request::Request,
        location: &'r str,
        client: IpAddr,
        now_s: u64,
        tracer: &'r Tracer,
    ) -> Self {
        Request {
            fields,
            request,
            location,
            client,
            now_s,
            tracer,
        }
    }

    /// The method.
    pub fn method(&self) -> &'static str {
        self.fields.head.method.as_str()
    }

    /// The prefix of the location, without a slash at its end.
    pub fn location(&self) -> &'r str {
        self.location
    }

    /// The whole path in its normal form, without the slash in front.
    pub fn path(&self) -> &'r [u8] {
        self.request.path()
    }

    /// The text after the `?`, as received; empty without one.
    pub fn query(&self) -> &'r [u8] {
        match self.fields.head.target {
            Target::Path(target) => {
                memchr::memchr(b'?', target).map_or(b"", |at| &target[at + 1..])
            }
            Target::Asterisk | Target::Authority(_) => b"",
        }
    }

    /// The values of every field with this name.
    pub fn values<'n>(&self, name: &'n str) -> impl Iterator<Item = &'r [u8]> + use<'r, 'n> {
        self.fields.values(name.as_bytes())
    }

    /// The body.
    pub fn body(&self) -> &'r [u8] {
        &self.request.body
    }

    /// The address of the client.
    pub fn client(&self) -> IpAddr {
        self.client
    }

    /// The time in seconds since 1970.
    pub fn now_s(&self) -> u64 {
        self.now_s
    }

    /// Fills `buffer` from the result of a job, from the offset `at`. Returns `false` if the result
    /// ends before. It does not wait.
    #[must_use]
    pub fn read(&self, result: &JobResult, buffer: &mut [u8], at: u64) -> bool {
        let file = match &result.0 {
            Stored::File(file) => file,
            Stored::Bytes(bytes) => {
                let rest = usize::try_from(at).ok().and_then(|at| bytes.get(at..));
                let found = rest.and_then(|rest| rest.get(..buffer.len()));
                return found.map(|found| buffer.copy_from_slice(found)).is_some();
            }
        };
        let mut have = 0;
        while have < buffer.len() {
            let read = self.tracer.call(Call::ReadNowait, || {
                headway_files::read_nowait(file, &mut buffer[have..], at + have as u64)
            });
            match read {
                Ok(Some(count @ 1..)) => have += count,
                _ => return false,
            }
        }
        true
    }
}
