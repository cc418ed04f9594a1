//! What a person wrote: settings from a TOML file or the command line, not yet checked.
//!
//! Every value remembers where it was written, so that the check can name the line or the flag. A
//! setting that was not written is `None`; the defaults live with the checks.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;

use super::units::{AcceptCount, Bytes, Helpers, ListenAddress, Many, Millis};
use super::{ConfigError, EarlyReject, LogFormat, Opening, Preset, SendMethod, Sharing, Streams};

/// A setting: its value and where it was written, or nothing.
pub type Item<T> = Option<Spanned<T>>;

/// The place of values from the command line, where no file has a byte.
pub(super) const COMMAND_LINE: Range<usize> = usize::MAX..usize::MAX;

/// A value given on the command line.
pub fn given<T>(value: T) -> Spanned<T> {
    Spanned::new(COMMAND_LINE, value)
}

macro_rules! settings {
    ($( $(#[$attribute:meta])* $name:ident: $type:ty, )*) => {
        /// All settings of `headway serve`, each as it was written.
        ///
        /// The keys in TOML are the names of the command line, with hyphens or underscores.
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
        pub struct Settings { $( $(#[$attribute])* pub $name: $type, )* }

        impl Settings {
            /// Takes every setting that `over` has, and keeps the others.
            ///
            /// The path and the format of the log are settings of their own: one may come from the
            /// file and the other from the command line. What says several things at once takes the
            /// place of each of them: `preset` of `opening` and `send` (and a server named after
            /// how it takes clients, of that), `helpers` of its least and most.
            pub fn overlay(&mut self, mut over: Settings) {
                if let Some(preset) = &over.preset {
                    (self.opening, self.send) = (None, None);
                    if preset.get_ref().micro_server().is_some() {
                        (self.accept_count, self.caching, self.content_max) = (None, None, None);
                        self.early_reject = None;
                        (self.eager_read, self.eager_write) = (None, None);
                        (self.full_read, self.accept_on_close) = (None, None);
                    }
                }
                if over.helpers.is_some() {
                    (self.helpers_min, self.helpers_max) = (None, None);
                }
                if let (Some(mine), Some(theirs)) = (&self.log, &mut over.log) {
                    theirs.get_mut().inherit(mine.get_ref());
                }
                $( if over.$name.is_some() {
                    self.$name = over.$name;
                } )*
            }
        }
    };
}

settings! {
    /// The document root of the default host.
    root: Item<PathBuf>,
    /// Addresses to listen on.
    listen: Item<Many<ListenAddress>>,
    /// Worker processes.
    workers: Item<usize>,
    /// The event mechanism.
    events: Item<String>,
    /// Connections accepted at most a wake-up.
    #[serde(alias = "accept_count")]
    accept_count: Item<AcceptCount>,
    /// What is done with clients that cannot be served in time.
    #[serde(alias = "early_reject")]
    early_reject: Item<EarlyReject>,
    /// Which sockets workers accept from.
    listeners: Item<Sharing>,
    /// Whether a new connection is read from as soon as it is accepted.
    #[serde(alias = "eager_read")]
    eager_read: Item<bool>,
    /// Whether a reply is written as soon as it is there.
    #[serde(alias = "eager_write")]
    eager_write: Item<bool>,
    /// Whether connections are accepted whenever one has closed, too.
    #[serde(alias = "accept_on_close")]
    accept_on_close: Item<bool>,
    /// Whether a connection is read from until it has nothing more.
    #[serde(alias = "full_read")]
    full_read: Item<bool>,
    /// Whether anything is kept of files between requests.
    caching: Item<bool>,
    /// Length of the kernel's accept queue; signed, so that a negative one is told what it means.
    listenq: Item<i64>,
    /// Open connections at most, a worker.
    #[serde(alias = "max_conns")]
    max_conns: Item<u32>,
    /// Open connections at most from one address, a worker.
    #[serde(alias = "max_connections_per_address")]
    max_connections_per_address: Item<u32>,
    /// Whether the kernel keeps a connection back until its first data has come.
    #[serde(alias = "defer_accept")]
    defer_accept: Item<bool>,
    /// Requests at most on one connection.
    #[serde(alias = "max_requests")]
    max_requests: Item<u32>,
    /// For the whole request head.
    #[serde(alias = "head_timeout")]
    head_timeout: Item<Millis>,
    /// For the whole request body.
    #[serde(alias = "body_timeout")]
    body_timeout: Item<Millis>,
    /// Without progress in sending.
    #[serde(alias = "send_timeout")]
    send_timeout: Item<Millis>,
    /// Between two requests of a connection.
    #[serde(alias = "idle_timeout")]
    idle_timeout: Item<Millis>,
    /// For requests in flight after a stop signal.
    #[serde(alias = "drain_timeout")]
    drain_timeout: Item<Millis>,
    /// The longest request head.
    #[serde(alias = "head_max")]
    head_max: Item<Bytes>,
    /// The longest request target.
    #[serde(alias = "target_max")]
    target_max: Item<Bytes>,
    /// The longest request body.
    #[serde(alias = "body_max")]
    body_max: Item<Bytes>,
    /// Helper processes, a worker: as many, or from so many to so many; or the kernel's workers.
    helpers: Item<Helpers>,
    /// Helper processes at least, a worker.
    #[serde(alias = "helpers_min")]
    helpers_min: Item<usize>,
    /// Helper processes at most, a worker.
    #[serde(alias = "helpers_max")]
    helpers_max: Item<usize>,
    /// Jobs waiting for a helper at most.
    #[serde(alias = "helper_queue_max")]
    helper_queue_max: Item<usize>,
    /// Names in the cache at most.
    #[serde(alias = "names_max")]
    names_max: Item<usize>,
    /// Descriptors held by the name cache at most.
    #[serde(alias = "descriptors_max")]
    descriptors_max: Item<usize>,
    /// Memory for small files at most.
    #[serde(alias = "content_max")]
    content_max: Item<Bytes>,
    /// Small files that stay in the page cache for all workers, at most.
    #[serde(alias = "keep_max")]
    keep_max: Item<Bytes>,
    /// Files up to this size are sent from memory.
    #[serde(alias = "small_file_max")]
    small_file_max: Item<Bytes>,
    /// A server of the papers: what `opening`, `send` and the ways to take clients are unless they
    /// are given.
    preset: Item<Preset>,
    /// How a name becomes an open file.
    opening: Item<Opening>,
    /// How larger files leave.
    send: Item<SendMethod>,
    /// Mapped bytes of files at most.
    #[serde(alias = "mapped_max")]
    mapped_max: Item<Bytes>,
    /// Memory for windows of larger files at most.
    #[serde(alias = "window_max")]
    window_max: Item<Bytes>,
    /// Bytes one connection may send before the others have their turn.
    turn: Item<Bytes>,
    /// Age after which a cached name is checked again.
    revalidate: Item<Millis>,
    /// Where long request bodies wait for their program.
    #[serde(alias = "body_directory")]
    body_directory: Item<PathBuf>,
    /// The value of the `Server` field.
    server: Item<String>,
    /// Whether the `Server` field is left out.
    #[serde(alias = "hide_server")]
    hide_server: Item<bool>,
    /// Names tried in a directory.
    index: Item<Many<String>>,
    /// Whether directories are listed.
    listing: Item<bool>,
    /// Whether names that begin with a dot are served.
    dotfiles: Item<bool>,
    /// Whether compressed siblings are served.
    precompressed: Item<bool>,
    /// Bodies of error responses, by status.
    #[serde(alias = "error_pages")]
    error_pages: Item<BTreeMap<String, PathBuf>>,
    /// Media types by extension.
    media: Item<BTreeMap<String, String>>,
    /// The access log.
    log: Item<LogSettings>,
    /// Where the status page listens.
    status: Item<ListenAddress>,
    /// Whether the workers trace themselves.
    trace: Item<bool>,
    /// Virtual hosts.
    host: Option<Vec<Spanned<HostSettings>>>,
    /// Extra response fields.
    field: Option<Vec<Spanned<FieldSettings>>>,
    /// Paths that programs answer, of every host.
    location: Option<Vec<Spanned<LocationSettings>>>,
}

/// One `[[host]]`; what it leaves out is taken from the top level.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct HostSettings {
    /// `a.example`, `*.example`.
    pub names: Item<Many<String>>,
    /// The document root.
    pub root: Item<PathBuf>,
    /// Names tried in a directory.
    pub index: Item<Many<String>>,
    /// Whether directories are listed.
    pub listing: Item<bool>,
    /// Whether names that begin with a dot are served.
    pub dotfiles: Item<bool>,
    /// Whether compressed siblings are served.
    pub precompressed: Item<bool>,
    /// Bodies of error responses, by status.
    #[serde(alias = "error_pages")]
    pub error_pages: Item<BTreeMap<String, PathBuf>>,
    /// Paths that programs answer.
    pub location: Option<Vec<Spanned<LocationSettings>>>,
}

/// One `[[location]]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct LocationSettings {
    /// The paths below this one.
    pub prefix: Item<String>,
    /// The paths with a component that ends so.
    pub suffix: Item<String>,
    /// Whether files answer.
    pub files: Item<bool>,
    /// Whether only programs may send requests here.
    pub internal: Item<bool>,
    /// Whether a program started for each request answers.
    pub cgi: Item<bool>,
    /// The program, with its arguments, that stays and is given clients' sockets.
    pub direct: Item<Many<String>>,
    /// The program, with its arguments, that stays and sends its replies back.
    pub pipe: Item<Many<String>>,
    /// FastCGI applications that answer.
    pub fastcgi: Item<Many<String>>,
    /// SCGI programs that answer.
    pub scgi: Item<Many<String>>,
    /// HTTP servers that answer.
    pub proxy: Item<Many<String>>,
    /// The application of a SPECweb99-like measurement, in the server itself.
    pub specweb99: Item<SpecWeb99Settings>,
    /// Connections to each back end that wait for the next request, a worker.
    pub keep: Item<u32>,
    /// Whether they are for requests, too, that must not be sent twice.
    #[serde(alias = "reuse_always")]
    pub reuse_always: Item<bool>,
    /// Back ends asked for one request at most.
    pub attempts: Item<u32>,
    /// How long a back end may take to accept a connection.
    #[serde(alias = "connect_timeout")]
    pub connect_timeout: Item<Millis>,
    /// Connections that may have changed to another protocol, a worker.
    pub tunnels: Item<u32>,
    /// How long nothing may go over one of them.
    #[serde(alias = "tunnel_timeout")]
    pub tunnel_timeout: Item<Millis>,
    /// Whether a program may have the server send a file.
    pub handoff: Item<bool>,
    /// Whether what a request says of earlier hops is believed.
    #[serde(alias = "trust_forwarded")]
    pub trust_forwarded: Item<bool>,
    /// Whether a proxied request keeps the Host its client sent.
    #[serde(alias = "keep_host")]
    pub keep_host: Item<bool>,
    /// Where the programs are.
    pub root: Item<PathBuf>,
    /// How long a program may keep us waiting.
    pub timeout: Item<Millis>,
    /// How long a request may take in all.
    #[serde(alias = "time_max")]
    pub time_max: Item<Millis>,
    /// Address space of a process.
    #[serde(alias = "memory_max")]
    pub memory_max: Item<Bytes>,
    /// Processes of the server's user.
    #[serde(alias = "processes_max")]
    pub processes_max: Item<u64>,
    /// The longest reply body.
    #[serde(alias = "output_max")]
    pub output_max: Item<Bytes>,
    /// How much of a reply may wait for its client.
    #[serde(alias = "spill_max")]
    pub spill_max: Item<Bytes>,
    /// The longest request body.
    #[serde(alias = "body_max")]
    pub body_max: Item<Bytes>,
    /// Programs at once, a worker.
    pub concurrency: Item<u32>,
    /// Requests that wait at most, a worker.
    pub queue: Item<u32>,
    /// Whether a client that has ended its sending side is answered.
    #[serde(alias = "half_close")]
    pub half_close: Item<bool>,
    /// What connects a program with the server.
    pub streams: Item<Streams>,
    /// Whether the worker makes the process itself.
    #[serde(alias = "fork_in_server")]
    pub fork_in_server: Item<bool>,
    /// Whether the `Authorization` field is passed on.
    pub authorization: Item<bool>,
    /// Variables besides those of the request.
    pub variables: Item<BTreeMap<String, String>>,
}

/// The `specweb99` of a location.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SpecWeb99Settings {
    /// The directory of its own files.
    pub state: Option<PathBuf>,
}

/// One `[[field]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FieldSettings {
    /// The path prefix; every path when left out.
    #[serde(default = "everywhere")]
    pub prefix: String,
    /// The field's name.
    pub name: String,
    /// The field's value.
    pub value: String,
}

fn everywhere() -> String {
    "/".into()
}

/// The `[log]` table.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogSettings {
    /// The file.
    pub path: Option<PathBuf>,
    /// The format of its lines.
    pub format: Option<LogFormat>,
}

impl LogSettings {
    fn inherit(&mut self, from: &LogSettings) {
        self.path = self.path.take().or_else(|| from.path.clone());
        self.format = self.format.or(from.format);
    }
}

impl Settings {
    /// Reads settings from TOML. Relative paths are relative to the directory of `path`.
    ///
    /// Unknown keys and wrong types are errors that name the line.
    pub fn from_toml(text: &str, path: &Path) -> Result<Settings, ConfigError> {
        let mut settings: Settings =
            toml::from_str(text).map_err(|error| ConfigError::toml(path, text, &error))?;
        if let Some(directory) = path.parent() {
            settings.anchor(directory);
        }
        Ok(settings)
    }

    fn anchor(&mut self, directory: &Path) {
        let join = |path: &mut PathBuf| *path = directory.join(&*path);
        let pages = |pages: &mut Item<BTreeMap<String, PathBuf>>| {
            pages
                .iter_mut()
                .flat_map(|pages| pages.get_mut().values_mut())
                .for_each(join);
        };
        let own = [&mut self.root, &mut self.body_directory];
        own.into_iter()
            .flatten()
            .for_each(|path| join(path.get_mut()));
        self.log
            .iter_mut()
            .filter_map(|log| log.get_mut().path.as_mut())
            .for_each(join);
        pages(&mut self.error_pages);
        let programs = |locations: &mut Option<Vec<Spanned<LocationSettings>>>| {
            let all = locations.iter_mut().flatten();
            for location in all {
                let own = location.get_mut();
                own.root.iter_mut().for_each(|root| join(root.get_mut()));
                let application = own.specweb99.iter_mut();
                application
                    .filter_map(|item| item.get_mut().state.as_mut())
                    .for_each(join);
                let command = own
                    .direct
                    .iter_mut()
                    .chain(&mut own.pipe)
                    .filter_map(|item| item.get_mut().0.first_mut());
                for program in command {
                    *program = directory.join(&*program).to_string_lossy().into_owned();
                }
            }
        };
        programs(&mut self.location);
        for host in self.host.iter_mut().flatten() {
            host.get_mut()
                .root
                .iter_mut()
                .for_each(|root| join(root.get_mut()));
            pages(&mut host.get_mut().error_pages);
            programs(&mut host.get_mut().location);
        }
    }
}
