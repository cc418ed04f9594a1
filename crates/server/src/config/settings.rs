//! What a person wrote: settings from a TOML file or the command line, not yet checked.
//!
//! Every value remembers where it was written, so that the check can name the line or the flag. A
//! setting that was not written is `None`; the defaults live with the checks.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;

use super::units::{AcceptBatch, Bytes, Helpers, ListenAddress, Many, Millis};
use super::{
    ConfigError, EarlyReject, ListenerMode, LogFormat, Opening, Preset, SendMethod, Streams,
};

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
        /// The keys in TOML are the names of the command line, without their hyphens.
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
        pub struct Settings { $( $(#[$attribute])* pub $name: $type, )* }

        impl Settings {
            /// Takes every setting that `over` has, and keeps the others.
            ///
            /// What says several things at once takes the place of each of them: `preset` of `opening` and `send` (and a server named after
            /// how it takes clients, of that), `helpers` of its least and most.
            pub fn overlay(&mut self, over: Settings) {
                if let Some(preset) = &over.preset {
                    (self.opening, self.send) = (None, None);
                    if preset.get_ref().micro_server().is_some() {
                        (self.accept_batch, self.caching, self.response_cache_max) = (None, None, None);
                        self.early_reject = None;
                        (self.eager_read, self.eager_write) = (None, None);
                        (self.full_read, self.accept_on_close) = (None, None);
                    }
                }
                if over.helpers.is_some() {
                    (self.helpers_min, self.helpers_max) = (None, None);
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
    accept_batch: Item<AcceptBatch>,
    /// What is done with clients that cannot be served in time.
    early_reject: Item<EarlyReject>,
    /// Which sockets workers accept from.
    listeners: Item<ListenerMode>,
    /// Whether a new connection is read from as soon as it is accepted.
    eager_read: Item<bool>,
    /// Whether a reply is written as soon as it is there.
    eager_write: Item<bool>,
    /// Whether connections are accepted whenever one has closed, too.
    accept_on_close: Item<bool>,
    /// Whether a connection is read from until it has nothing more.
    full_read: Item<bool>,
    /// Whether anything is kept of files between requests.
    caching: Item<bool>,
    /// Length of the kernel's accept queue; signed, so that a negative one is told what it means.
    backlog: Item<i64>,
    /// Open connections at most, a worker.
    max_connections: Item<u32>,
    /// Open connections at most from one address, a worker.
    max_connections_per_address: Item<u32>,
    /// Whether the kernel keeps a connection back until its first data has come.
    defer_accept: Item<bool>,
    /// Requests at most on one connection.
    max_requests_per_connection: Item<u32>,
    /// For the whole request head.
    header_timeout: Item<Millis>,
    /// For the whole request body.
    body_timeout: Item<Millis>,
    /// Without progress in sending.
    send_timeout: Item<Millis>,
    /// Between two requests of a connection.
    idle_timeout: Item<Millis>,
    /// For requests in flight after a stop signal.
    drain_timeout: Item<Millis>,
    /// The longest request head.
    max_header_size: Item<Bytes>,
    /// The longest request target.
    max_target_size: Item<Bytes>,
    /// The longest request body.
    max_body_size: Item<Bytes>,
    /// Helper processes, a worker: as many, or from so many to so many; or the kernel's workers.
    helpers: Item<Helpers>,
    /// Helper processes at least, a worker.
    helpers_min: Item<usize>,
    /// Helper processes at most, a worker.
    helpers_max: Item<usize>,
    /// Jobs waiting for a helper at most.
    helper_queue_max: Item<usize>,
    /// Names in the cache at most.
    file_cache_entries: Item<usize>,
    /// Descriptors held by the name cache at most.
    file_cache_descriptors: Item<usize>,
    /// Memory for small files at most.
    response_cache_max: Item<Bytes>,
    /// Small files that stay in the page cache for all workers, at most.
    pin_max: Item<Bytes>,
    /// Files up to this size are sent from memory.
    small_file_max: Item<Bytes>,
    /// A server of the papers: what `opening`, `send` and the ways to take clients are unless they
    /// are given.
    preset: Item<Preset>,
    /// How a name becomes an open file.
    opening: Item<Opening>,
    /// How larger files leave.
    send: Item<SendMethod>,
    /// Mapped bytes of files at most.
    mapped_max: Item<Bytes>,
    /// Memory for windows of larger files at most.
    chunk_cache_max: Item<Bytes>,
    /// Bytes one connection may send before the others have their turn.
    write_quantum: Item<Bytes>,
    /// Age after which a cached name is checked again.
    revalidate: Item<Millis>,
    /// Where long request bodies wait for their program.
    temp_directory: Item<PathBuf>,
    /// The value of the `Server` field.
    server_header: Item<String>,
    /// Whether the `Server` field is left out.
    hide_server_header: Item<bool>,
    /// Names tried in a directory.
    index: Item<Many<String>>,
    /// Whether directories are listed.
    listing: Item<bool>,
    /// Whether names that begin with a dot are served.
    dotfiles: Item<bool>,
    /// Whether compressed siblings are served.
    precompressed: Item<bool>,
    /// Bodies of error responses, by status.
    error_pages: Item<BTreeMap<String, PathBuf>>,
    /// Media types by extension.
    mime_types: Item<BTreeMap<String, String>>,
    /// The file of the access log.
    log: Item<PathBuf>,
    /// The format of its lines.
    log_format: Item<LogFormat>,
    /// Where the status page listens.
    status: Item<ListenAddress>,
    /// Whether the workers trace themselves.
    trace: Item<bool>,
    /// Virtual hosts.
    host: Option<Vec<Spanned<HostSettings>>>,
    /// Extra response fields.
    header: Option<Vec<Spanned<HeaderSettings>>>,
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
    pub keepalive: Item<u32>,
    /// Whether they are for requests, too, that must not be sent twice.
    pub keepalive_unsafe_methods: Item<bool>,
    /// Back ends asked for one request at most.
    pub attempts: Item<u32>,
    /// How long a back end may take to accept a connection.
    pub connect_timeout: Item<Millis>,
    /// Connections that may have changed to another protocol, a worker.
    pub max_upgrades: Item<u32>,
    /// How long nothing may go over one of them.
    pub upgrade_timeout: Item<Millis>,
    /// Whether a program may have the server send a file.
    pub accel_redirect: Item<bool>,
    /// Whether what a request says of earlier hops is believed.
    pub trust_forwarded: Item<bool>,
    /// Whether a proxied request keeps the Host its client sent.
    pub preserve_host: Item<bool>,
    /// Where the programs are.
    pub root: Item<PathBuf>,
    /// How long a program may keep us waiting.
    pub timeout: Item<Millis>,
    /// How long a request may take in all.
    pub request_timeout: Item<Millis>,
    /// Address space of a process.
    pub memory_max: Item<Bytes>,
    /// Processes of the server's user.
    pub processes_max: Item<u64>,
    /// The longest reply body.
    pub output_max: Item<Bytes>,
    /// How much of a reply may wait for its client.
    pub temp_file_max: Item<Bytes>,
    /// The longest request body.
    pub max_body_size: Item<Bytes>,
    /// Programs at once, a worker.
    pub concurrency: Item<u32>,
    /// Requests that wait at most, a worker.
    pub queue: Item<u32>,
    /// Whether a client that has ended its sending side is answered.
    pub half_close: Item<bool>,
    /// What connects a program with the server.
    pub streams: Item<Streams>,
    /// Whether the worker makes the process itself.
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

/// One `[[header]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeaderSettings {
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
        let own = [&mut self.root, &mut self.temp_directory, &mut self.log];
        own.into_iter()
            .flatten()
            .for_each(|path| join(path.get_mut()));
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
