//! `headway serve`: settings from the command line and a file, checked, then served.

use clap::Args;
use headway_server::config::settings::{Item, given};
use headway_server::config::units::{AcceptBatch, Bytes, Helpers, ListenAddress, Many, Millis};
use headway_server::config::{
    Checked, Config, ConfigError, EarlyReject, Environment, ListenerMode, LogFormat, Opening,
    Preset, SendMethod, Settings, Source, raise_descriptor_limit,
};
use headway_server::master::{Options, Programs};
use std::io::Write;
use std::path::PathBuf;

use super::Failure;

const EXAMPLES: &str = "\
Examples:
  headway serve                                  this directory on http://127.0.0.1:8080
  headway serve /srv/www --listen :80            to everybody, on every IPv4 address
  headway serve /srv/www --status 9090           with a status page on http://127.0.0.1:9090/status
  headway serve /srv/www --preset flash          as the Flash web server did it: its loop may wait
  headway serve /srv/www --preset accept25       as a micro-server that takes 25 clients at a time
  headway serve --config /etc/headway.toml       hosts, fields and more from a file
  headway serve --config headway.toml --check    is the file good, and what holds?

Programs answer requests where a [[location]] of the file says so: prefix = \"/cgi-bin/\", cgi = true, and
root = \"DIR\" for where they are; servers behind this one do with fastcgi, scgi or proxy = \"unix:/run/x.sock\".
The guide's chapter on programs has their limits.
Times are written 500ms, 10s, 5m; sizes 4096, 64KiB, 1MB. A configuration file has the same names:
idle-timeout = \"30s\". Numbers called \"a worker\" hold in each worker process.

SIGTERM and SIGINT let requests in flight finish (a second one ends at once), SIGHUP reopens the log.
Exit codes: 0 done, 1 failed, 2 wrong use.";

/// Serves a directory over HTTP; the event loop never waits for the filesystem.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// The document root [default: the current directory, if no file names one]
    #[arg(value_name = "DIR")]
    root: Option<PathBuf>,
    #[command(flatten)]
    run: Run,
    #[command(flatten)]
    strategy: Strategy,
    #[command(flatten)]
    content: Content,
    #[command(flatten)]
    connections: Connections,
    #[command(flatten)]
    timeouts: Timeouts,
    #[command(flatten)]
    bounds: Bounds,
    #[command(flatten)]
    report: Report,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Configuration")]
struct Run {
    /// Take settings from a TOML file; the command line wins over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check the configuration, print what holds, and serve nothing
    #[arg(long)]
    check: bool,
    /// With --check, print JSON
    #[arg(long, requires = "check")]
    json: bool,
    /// Worker processes [default: one a processor]
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// How the loop waits: select, poll, epoll, epoll-edge or io_uring [default: epoll; select with
    /// the presets of micro-servers]
    #[arg(long, value_name = "MECHANISM")]
    events: Option<String>,
    /// When serving begins, write addresses and process number to a file as JSON
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
    /// Print nothing but trouble
    #[arg(long, short)]
    quiet: bool,
    /// What children execute, where /proc/self/exe is another program, as under valgrind
    #[arg(long, value_name = "FILE", hide = true)]
    program: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Strategy")]
struct Strategy {
    /// A server of the papers: flash, fd-pass, no-mmap, new-flash, or headway. It says what
    /// --opening and --send are unless they are given. The first three may wait for the disk on
    /// their loop. Or a micro-server, by how it takes clients: accept1, accept-inf, accept25,
    /// eager, eager+full, eager+close, cm, accept25+cache [default: headway]
    #[arg(long, value_name = "NAME")]
    preset: Option<Preset>,
    /// How a name becomes an open file: probe-then-pass (asks the kernel's name cache; a helper
    /// opens what is not there), pass-descriptor (a helper opens all that is new), or
    /// touch-and-reopen (a helper looks first, then the loop opens, and may wait) [default: the
    /// preset's]
    #[arg(long, value_name = "WAY")]
    opening: Option<Opening>,
    /// How files leave. Small ones from memory and larger ones by copy (a body is never two
    /// versions of its file) or sendfile (lends the file's pages: what a client has not received
    /// yet changes with them). Or all of them by sendfile-resident (after a check), sendfile-recent
    /// (if used lately: may wait) or mmap (mincore and writev: may wait) [default: the preset's]
    #[arg(long, value_name = "METHOD")]
    send: Option<SendMethod>,
    /// Helper processes, a worker: 5, or 1-16 to follow the work there is; or io_uring: the
    /// kernel's own workers open and read in, and a process is left for listings and copies
    /// [default: 1-16]
    #[arg(long, value_name = "N|MIN-MAX|io_uring", conflicts_with_all = ["helpers_min", "helpers_max"])]
    helpers: Option<Helpers>,
    /// Bytes of files mapped (mmap) or believed to be in memory (sendfile-recent) at most, a worker
    /// [default: four fifths of the memory]
    #[arg(long, value_name = "SIZE")]
    mapped_max: Option<Bytes>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Content")]
struct Content {
    /// A file tried in a directory, may be repeated [default: index.html]
    #[arg(long, value_name = "NAME")]
    index: Vec<String>,
    /// List directories that have no index file [default: off]
    #[arg(long, value_name = "on|off", num_args = 0..=1, require_equals = true,
          default_missing_value = "on", value_parser = on_off)]
    listing: Option<bool>,
    /// Serve and list names that begin with a dot [default: off]
    #[arg(long, value_name = "on|off", num_args = 0..=1, require_equals = true,
          default_missing_value = "on", value_parser = on_off)]
    dotfiles: Option<bool>,
    /// Serve .br, .zst and .gz files in place of the file to clients that accept them [default: on]
    #[arg(long, value_name = "on|off", num_args = 0..=1, require_equals = true,
          default_missing_value = "on", value_parser = on_off)]
    precompressed: Option<bool>,
    /// Value of the Server header [default: Headway]
    #[arg(long, value_name = "TEXT")]
    server_header: Option<String>,
    /// Leave out the Server header [default: off]
    #[arg(long, value_name = "on|off", num_args = 0..=1, require_equals = true,
          default_missing_value = "on", value_parser = on_off)]
    hide_server_header: Option<bool>,
    /// Directory of temporary files: long request bodies and responses [default: /tmp or TMPDIR]
    #[arg(long, value_name = "DIR")]
    temp_directory: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Connections")]
struct Connections {
    /// Where to listen, may be repeated: 127.0.0.1:8080, [::1]:8080, :8080 (every IPv4 address),
    /// 8080 (this machine only) [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR")]
    listen: Vec<ListenAddress>,
    /// Connections accepted at most from a listener at a wake-up; 0 takes all that wait (with eager
    /// reads for a quarter of a second at most); auto takes as many as those who are here can bear,
    /// keeps the kernel's queue no longer than is served in a quarter of a second (and room for
    /// chance), and where more come than can be served has it hear only a part of the new
    /// connections [default: auto; 25 with --accept-on-close and the presets of the Flash line; as
    /// the name of a micro-server's preset says]
    #[arg(long, value_name = "N|auto", allow_hyphen_values = true)]
    accept_batch: Option<AcceptBatch>,
    /// When more come than can be served, and it is no burst, tell those who are left: 503 answers
    /// them, reset resets their connections; off leaves them waiting. Goes with --accept-batch auto
    /// alone [default: off]
    #[arg(long, value_name = "off|503|reset")]
    early_reject: Option<EarlyReject>,
    /// Which sockets workers accept from: reuseport (each its own, the kernel chooses by a hash),
    /// shared (one for all, who is free takes a client, in turn and by shares) or shared-thundering (one for
    /// all, and all are woken); with these two --accept-batch auto has all heard [default:
    /// reuseport]
    #[arg(long, value_name = "WAY")]
    listeners: Option<ListenerMode>,
    /// Read from a new connection as soon as it is accepted, without asking the event mechanism
    /// [default: on; off with the presets accept…]
    #[arg(long, value_name = "on|off", num_args = 0..=1, require_equals = true,
          default_missing_value = "on", value_parser = on_off)]
    eager_read: Option<bool>,
    /// Write a reply as soon as it is there, without asking the event mechanism [default: on; off
    /// with the presets accept…]
    #[arg(long, value_name = "on|off", num_args = 0..=1, require_equals = true,
          default_missing_value = "on", value_parser = on_off)]
    eager_write: Option<bool>,
    /// Accept connections whenever one has closed, too; not with --accept-batch auto [default: off;
    /// on with the presets eager+close and cm]
    #[arg(long, value_name = "on|off", num_args = 0..=1, require_equals = true,
          default_missing_value = "on", value_parser = on_off)]
    accept_on_close: Option<bool>,
    /// Read from a connection until there is nothing more [default: off; on with the presets
    /// eager+full and cm]
    #[arg(long, value_name = "on|off", num_args = 0..=1, require_equals = true,
          default_missing_value = "on", value_parser = on_off)]
    full_read: Option<bool>,
    /// Keep names, open files and small files' contents between requests [default: on; off with the
    /// presets of micro-servers, but for accept25+cache]
    #[arg(long, value_name = "on|off", num_args = 0..=1, require_equals = true,
          default_missing_value = "on", value_parser = on_off)]
    caching: Option<bool>,
    /// Length of the kernel's accept queue; with --accept-batch auto the longest that it may be
    /// [default: 1024; 128 with the presets of micro-servers]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    backlog: Option<i64>,
    /// Open connections at most, a worker [default: 15000, or what the descriptor limit allows]
    #[arg(long, value_name = "N")]
    max_connections: Option<u32>,
    /// Open connections at most from one address (one /64 of IPv6), a worker: who comes with more
    /// is answered 503; 0 is no bound [default: 0]
    #[arg(long, value_name = "N")]
    max_connections_per_address: Option<u32>,
    /// Leave a connection in the kernel until its first bytes have arrived [default: on; off with
    /// the presets of micro-servers]
    #[arg(long, value_name = "on|off", num_args = 0..=1, require_equals = true,
          default_missing_value = "on", value_parser = on_off)]
    defer_accept: Option<bool>,
    /// Requests at most on one connection; 0 is no bound [default: 0]
    #[arg(long, value_name = "N")]
    max_requests_per_connection: Option<u32>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Time-outs")]
struct Timeouts {
    /// For a whole request head [default: 10s]
    #[arg(long, value_name = "TIME")]
    header_timeout: Option<Millis>,
    /// For a whole request body [default: 10s]
    #[arg(long, value_name = "TIME")]
    body_timeout: Option<Millis>,
    /// Without any progress in sending [default: 30s]
    #[arg(long, value_name = "TIME")]
    send_timeout: Option<Millis>,
    /// Between two requests of a connection [default: 60s]
    #[arg(long, value_name = "TIME")]
    idle_timeout: Option<Millis>,
    /// For requests in flight after a stop signal [default: 10s]
    #[arg(long, value_name = "TIME")]
    drain_timeout: Option<Millis>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Bounds, a worker")]
struct Bounds {
    /// A longer request head is answered 431 [default: 16KiB]
    #[arg(long, value_name = "SIZE")]
    max_header_size: Option<Bytes>,
    /// A longer request target is answered 414 [default: 8KiB]
    #[arg(long, value_name = "SIZE")]
    max_target_size: Option<Bytes>,
    /// A longer request body is answered 413 [default: 1MiB]
    #[arg(long, value_name = "SIZE")]
    max_body_size: Option<Bytes>,
    /// Helper processes at least [default: 1]
    #[arg(long, value_name = "N")]
    helpers_min: Option<usize>,
    /// Helper processes at most [default: 16, fewer where memory is short]
    #[arg(long, value_name = "N")]
    helpers_max: Option<usize>,
    /// Jobs that may wait for a helper; beyond, new requests are answered 503 [default: 4096]
    #[arg(long, value_name = "N")]
    helper_queue_max: Option<usize>,
    /// Names in the cache [default: 50000]
    #[arg(long, value_name = "N")]
    file_cache_entries: Option<usize>,
    /// Open files in the cache [default: what the descriptor limit leaves]
    #[arg(long, value_name = "N")]
    file_cache_descriptors: Option<usize>,
    /// Memory for the contents of small files, taken by each worker when it starts [default: 64MiB,
    /// less where memory is short; two fifths of a control group's limit; 0 where small files are
    /// not kept]
    #[arg(long, value_name = "SIZE")]
    response_cache_max: Option<Bytes>,
    /// Small files that stay in the page cache for all workers together, once somebody has asked
    /// for them [default: two fifths of a control group's limit with several workers; else 0]
    #[arg(long, value_name = "SIZE")]
    pin_max: Option<Bytes>,
    /// Files up to this size are sent from memory [default: 128KiB; 0 in the ways of sending that
    /// know no small files]
    #[arg(long, value_name = "SIZE")]
    small_file_max: Option<Bytes>,
    /// Memory for the windows of larger files on their way [default: 16MiB, less where memory is
    /// short]
    #[arg(long, value_name = "SIZE")]
    chunk_cache_max: Option<Bytes>,
    /// Bytes one connection may send before the others have their turn [default: 1MiB]
    #[arg(long, value_name = "SIZE")]
    write_quantum: Option<Bytes>,
    /// Age after which a cached name is checked again [default: 1s; 60s where only a helper can]
    #[arg(long, value_name = "TIME")]
    revalidate: Option<Millis>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Log and status")]
struct Report {
    /// Write an access log
    #[arg(long, value_name = "PATH")]
    log: Option<PathBuf>,
    /// Format of the access log: common, combined or json [default: combined]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<LogFormat>,
    /// Serve the status page on an address of its own: 9090 is http://127.0.0.1:9090/status
    #[arg(long, value_name = "ADDR")]
    status: Option<ListenAddress>,
    /// Let the workers trace their own system calls [default: on]
    #[arg(long, value_name = "on|off", num_args = 0..=1, require_equals = true,
          default_missing_value = "on", value_parser = on_off)]
    trace: Option<bool>,
}

/// Checks, then serves until a stop signal; with `--check` only checks.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Checked { config, warnings } = check(arguments)?;
    for warning in warnings {
        let _ = writeln!(std::io::stderr(), "headway: warning: {warning}");
    }
    if arguments.run.check {
        return print(&config, arguments.run.json);
    }
    // Where the limit can not be raised the bounds of the configuration are too high, and the
    // workers pause accepting when they meet it.
    if let Err(error) = raise_descriptor_limit() {
        let _ = writeln!(
            std::io::stderr(),
            "headway: warning: raising RLIMIT_NOFILE: {error}"
        );
    }
    let options = Options {
        programs: arguments
            .run
            .program
            .as_deref()
            .map_or_else(Programs::this_binary, Programs::of_binary),
        ready_file: arguments.run.ready_file.clone(),
        quiet: arguments.run.quiet,
    };
    Ok(headway_server::master::run(config, options)?)
}

fn check(arguments: &Arguments) -> Result<Checked, Failure> {
    let Some(path) = &arguments.run.config else {
        let settings = settings(arguments);
        return Config::check(&settings, None, &Environment::detect()).map_err(|all| told(&all));
    };
    let text = std::fs::read_to_string(path)
        .map_err(|error| told(&[ConfigError::unreadable(path, &error)]))?;
    let mut all = Settings::from_toml(&text, path).map_err(|error| told(&[error]))?;
    all.overlay(settings(arguments));
    let source = Source { path, text: &text };
    Config::check(&all, Some(source), &Environment::detect()).map_err(|errors| told(&errors))
}

/// One line an error. Wrong words weigh more than what is missing on this machine.
fn told(errors: &[ConfigError]) -> Failure {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let text = lines.join("\n");
    match errors.iter().all(ConfigError::is_environment) {
        true => Failure::Work(anyhow::Error::msg(text)),
        false => Failure::Use(text),
    }
}

fn print(config: &Config, json: bool) -> Result<(), Failure> {
    let text = match json {
        true => serde_json::to_string_pretty(config)? + "\n",
        false => format!(
            "# configuration is good; this is what holds\n{}",
            config.to_toml()
        ),
    };
    super::output::print(&text)
}

fn settings(from: &Arguments) -> Settings {
    let (run, content, connections) = (&from.run, &from.content, &from.connections);
    let (timeouts, bounds, report) = (&from.timeouts, &from.bounds, &from.report);
    let strategy = &from.strategy;
    Settings {
        root: item(&from.root),
        listen: list(&connections.listen),
        workers: item(&run.workers),
        events: item(&run.events),
        accept_batch: item(&connections.accept_batch),
        early_reject: item(&connections.early_reject),
        listeners: item(&connections.listeners),
        eager_read: item(&connections.eager_read),
        eager_write: item(&connections.eager_write),
        accept_on_close: item(&connections.accept_on_close),
        full_read: item(&connections.full_read),
        caching: item(&connections.caching),
        backlog: item(&connections.backlog),
        max_connections: item(&connections.max_connections),
        max_connections_per_address: item(&connections.max_connections_per_address),
        defer_accept: item(&connections.defer_accept),
        max_requests_per_connection: item(&connections.max_requests_per_connection),
        header_timeout: item(&timeouts.header_timeout),
        body_timeout: item(&timeouts.body_timeout),
        send_timeout: item(&timeouts.send_timeout),
        idle_timeout: item(&timeouts.idle_timeout),
        drain_timeout: item(&timeouts.drain_timeout),
        max_header_size: item(&bounds.max_header_size),
        max_target_size: item(&bounds.max_target_size),
        max_body_size: item(&bounds.max_body_size),
        helpers_min: item(&bounds.helpers_min),
        helpers_max: item(&bounds.helpers_max),
        helper_queue_max: item(&bounds.helper_queue_max),
        file_cache_entries: item(&bounds.file_cache_entries),
        file_cache_descriptors: item(&bounds.file_cache_descriptors),
        response_cache_max: item(&bounds.response_cache_max),
        pin_max: item(&bounds.pin_max),
        small_file_max: item(&bounds.small_file_max),
        preset: item(&strategy.preset),
        opening: item(&strategy.opening),
        send: item(&strategy.send),
        mapped_max: item(&strategy.mapped_max),
        helpers: item(&strategy.helpers),
        chunk_cache_max: item(&bounds.chunk_cache_max),
        write_quantum: item(&bounds.write_quantum),
        revalidate: item(&bounds.revalidate),
        server_header: item(&content.server_header),
        hide_server_header: item(&content.hide_server_header),
        temp_directory: item(&content.temp_directory),
        index: list(&content.index),
        listing: item(&content.listing),
        dotfiles: item(&content.dotfiles),
        precompressed: item(&content.precompressed),
        log: item(&report.log),
        log_format: item(&report.log_format),
        status: item(&report.status),
        trace: item(&report.trace),
        ..Settings::default()
    }
}

/// The two words of a switch that can be off where its default is on.
fn on_off(word: &str) -> Result<bool, String> {
    match word {
        "on" => Ok(true),
        "off" => Ok(false),
        other => Err(format!("`{other}` is neither on nor off")),
    }
}

fn item<T: Clone>(argument: &Option<T>) -> Item<T> {
    argument.clone().map(given)
}

fn list<T: Clone>(arguments: &[T]) -> Item<Many<T>> {
    (!arguments.is_empty()).then(|| given(Many(arguments.to_vec())))
}
