//! The subcommand `serve`: settings from the command line and a file, checked, then served.
//!
//! Each program names what it contains ([`Contents`]). Its `main` must call [`run_child`] before it
//! parses its command line.
//!
//! The options are made from the keys of the configuration file, so that both have the same names,
//! values and messages.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, ValueHint};
use headway_latency::format::printable;
use headway_os::answer::Answer;
use headway_server::config::keys::{Key, Topic, reference};
use headway_server::config::value::Accepts;
use headway_server::config::{
    Checked, Config, ConfigError, ConfigFile, Environment, Settings, raise_descriptor_limit,
};
use headway_server::{Extensions, Inherited, Options, Programs, rehearse_upgrade};
use std::ffi::OsStr;
use std::fmt::Debug;
use std::io::Write;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::Failure;

const ABOUT: &str = "Serve a directory over HTTP without blocking on disk";

const SHORT_EXAMPLES: &str = concat!(
    "Examples:\n",
    "  headway serve                                this directory, on 127.0.0.1:8080\n",
    "  headway serve /srv/www --listen :80          port 80 of all IPv4 addresses\n",
    "  headway serve /srv/www --status 9090         status page and metrics on 9090\n",
    "  headway serve --config headway.toml --check  validate a configuration file\n",
    "All options: headway serve --help",
);

// Lines of text are wrapped when the help is rendered; only the examples stand as they are.
const EXAMPLES: &str = concat!(
    "Examples:\n",
    "  headway serve                                this directory, on 127.0.0.1:8080\n",
    "  headway serve /srv/www --listen :80          port 80 of all IPv4 addresses\n",
    "  headway serve /srv/www --status 9090         status page and metrics on 9090\n",
    "  headway serve /srv/www --log access.log      with an access log\n",
    "  headway serve --config headway.toml          hosts and handlers from a file\n",
    "  headway serve --config headway.toml --check  validate a configuration file\n",
    "  headway serve --tls-listen :443 --tls-certificate site.pem --tls-key site.key\n",
    "                                               HTTPS only, on port 443\n",
    "  headway serve --tls                          HTTPS for development, port 8443\n",
    "\n",
    "Configuration file: every option is also a key of the file, such as idle-timeout = \"30s\". ",
    "Only the file has virtual hosts, response headers, error pages and handlers (CGI, FastCGI, SCGI, proxy).\n",
    "\n",
    "Times: 500ms, 10s, 5m, 1h, 365d or a number of seconds. Sizes: 64KiB, 1MB or a number of bytes. ",
    "Booleans: --name, --name=on or --name=off.\n",
    "\n",
    "Signals: SIGTERM and SIGINT let requests in flight finish; a second one stops at once. ",
    "SIGHUP reads the configuration again; SIGUSR1 reopens the access log; ",
    "SIGUSR2 replaces the program by a new version.\n",
    "\n",
    "Exit codes: 0 success, 1 failure, 2 usage error.",
);

/// How long a start waits for the file systems of document roots, certificates and error pages.
const FILES_WAIT: Duration = Duration::from_secs(5);
/// How long it waits for all that the configuration names, also name servers. Service managers wait for 90 s.
const CHECK_WAIT: Duration = Duration::from_secs(60);

/// Options that `-h` shows; `--help` shows all.
const COMMON: &[&str] = &[
    "listen",
    "workers",
    "index",
    "listing",
    "max-connections",
    "idle-timeout",
    "max-body-size",
    "log",
    "log-format",
    "status",
];

/// What a program contains besides the server. It is a type, because a command line is described
/// without a value.
pub trait Contents: Debug + Send + Sync + 'static {
    /// Applications, and the servers of the papers.
    const EXTENSIONS: Extensions;
}

/// The command line of `headway serve`.
#[derive(Debug)]
pub struct Arguments<C> {
    run: Run,
    /// Options that are keys of the configuration file, with their texts.
    options: Vec<(String, Vec<String>)>,
    contents: PhantomData<C>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Serving")]
struct Run {
    /// Read settings from a TOML file; options take precedence
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
    /// Validate the configuration, print effective settings, exit
    #[arg(long)]
    check: bool,
    /// With --check, print the effective settings as JSON
    #[arg(long, requires = "check", hide_short_help = true)]
    json: bool,
    /// Write addresses and process number to this file as JSON once requests are accepted
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, hide_short_help = true)]
    ready_file: Option<PathBuf>,
    /// Print only warnings and errors
    #[arg(long, short)]
    quiet: bool,
    /// Read the state of a running server from standard input, and check whether this program can replace it
    #[arg(long, hide = true)]
    rehearse_upgrade: bool,
    /// Program that child processes run, where /proc/self/exe is another one, as under valgrind
    #[arg(long, value_name = "FILE", hide = true)]
    program: Option<PathBuf>,
}

impl<C: Contents> Args for Arguments<C> {
    fn augment_args(command: Command) -> Command {
        let root = Arg::new("root")
            .value_name("DIR")
            .value_hint(ValueHint::DirPath)
            .help("Document root [default: the current directory]")
            .help_heading(Topic::Serving.title());
        // The usual flag would stand under a heading of its own.
        let help = Arg::new("help")
            .long("help")
            .short('h')
            .action(ArgAction::Help)
            .help("Print help (see more with '--help')")
            .long_help("Print help (see a summary with '-h')")
            .help_heading(Topic::Serving.title());
        let command = command.disable_help_flag(true).arg(root).arg(help);
        let mut command = Run::augment_args(command)
            .about(ABOUT)
            .after_help(SHORT_EXAMPLES)
            .after_long_help(EXAMPLES);
        for key in option_keys(C::EXTENSIONS) {
            let is_listen = key.name == "listen";
            command = command.arg(option(key));
            if is_listen {
                command = command.arg(port(key.topic));
            }
        }
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<C: Contents> FromArgMatches for Arguments<C> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let texts = |name: &str| -> Vec<String> {
            matches
                .get_many::<String>(name)
                .into_iter()
                .flatten()
                .cloned()
                .collect()
        };
        let keys = option_keys(C::EXTENSIONS);
        let names =
            std::iter::once("root".to_owned()).chain(keys.iter().map(|key| key.name.clone()));
        let mut options: Vec<(String, Vec<String>)> =
            names.map(|name| (name.clone(), texts(&name))).collect();
        for (name, values) in &mut options {
            if name == "listen" {
                values.extend(texts("port"));
            }
        }
        options.retain(|(_, values)| !values.is_empty());
        Ok(Arguments {
            run: Run::from_arg_matches(matches)?,
            options,
            contents: PhantomData,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The keys that are options, in the order of the help.
fn option_keys(extensions: Extensions) -> &'static [Key] {
    static OF_USERS: OnceLock<Vec<Key>> = OnceLock::new();
    static WITH_RESEARCH: OnceLock<Vec<Key>> = OnceLock::new();
    let keys = match extensions.research {
        None => &OF_USERS,
        Some(_) => &WITH_RESEARCH,
    };
    keys.get_or_init(|| {
        let mut keys: Vec<Key> = reference(extensions.known())
            .into_iter()
            .filter(|key| key.is_option() && key.name != "root")
            .collect();
        keys.sort_by_key(|key| key.topic);
        keys
    })
}

fn option(key: &'static Key) -> Arg {
    let shown = match (key.form.accepts, key.default) {
        (Accepts::Boolean, "true") => "on",
        (Accepts::Boolean, "false") => "off",
        (_, default) => default,
    };
    let default = match key.default {
        "none" => String::new(),
        none if none.starts_with("no ") => String::new(),
        _ => format!(" [default: {shown}]"),
    };
    let repeated = if key.form.is_list {
        " It may be repeated."
    } else {
        ""
    };
    let help = format!("{}{default}", key.summary);
    let long_help = match (key.detail.as_str(), repeated) {
        ("", "") => help.clone(),
        ("", repeated) => format!("{}.{repeated}{default}", key.summary),
        (detail, repeated) => format!("{}. {detail}{repeated}{default}", key.summary),
    };
    let option = Arg::new(key.name.as_str())
        .long(key.name.as_str())
        .value_name(key.form.placeholder)
        .help(help)
        .long_help(long_help)
        .help_heading(key.topic.title())
        .hide_short_help(!COMMON.contains(&key.name.as_str()));
    if key.form.accepts == Accepts::Boolean {
        return option
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("on");
    }
    let option = match key.form.is_list {
        true => option.action(ArgAction::Append),
        false => option,
    };
    match key.form.placeholder {
        "PATH" => option.value_hint(ValueHint::AnyPath),
        _ => option.allow_negative_numbers(true),
    }
}

/// The option that many other servers have in place of `--listen`.
fn port(topic: Topic) -> Arg {
    Arg::new("port")
        .long("port")
        .short('p')
        .value_name("PORT")
        .action(ArgAction::Append)
        .help("Port on 127.0.0.1; for all addresses use --listen :PORT")
        .help_heading(topic.title())
}

/// Checks, then serves until a stop signal; with `--check` only checks.
pub fn run<C: Contents>(arguments: Arguments<C>) -> Result<(), Failure> {
    let is_only_check = arguments.run.check || arguments.run.rehearse_upgrade;
    let inherited = match is_only_check {
        true => Inherited::default(),
        false => Inherited::take()?,
    };
    // An upgrade of a server that has its roots open is not worth losing them.
    let files_wait = (!arguments.run.rehearse_upgrade).then_some(FILES_WAIT);
    let arguments = Arc::new(arguments);
    let Checked { config, warnings } = match check_in_time(&arguments, files_wait) {
        Ok(checked) => checked,
        Err(errors) => {
            inherited.fail(joined(&errors));
            return Err(config_failure(&errors));
        }
    };
    if arguments.run.rehearse_upgrade {
        return rehearse_upgrade(config, std::io::stdin())
            .map_err(|why| Failure::Runtime(anyhow::Error::msg(why)));
    }
    for warning in warnings {
        warn(&warning.to_string());
    }
    if arguments.run.check {
        // A warning only: the server that is to be restarted with this configuration may have them.
        for problem in headway_server::unavailable_addresses(&config) {
            warn(&problem.to_string());
        }
        headway_server::check_tls(&config).map_err(anyhow::Error::msg)?;
        return print(&config, arguments.run.json);
    }
    // Where the limit cannot be raised, workers pause accepting when they reach it.
    if let Err(error) = raise_descriptor_limit() {
        warn(&format!("raising RLIMIT_NOFILE: {error}"));
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
    let read_config = move || {
        let Checked { config, warnings } =
            check(&arguments, None).map_err(|errors| joined(&errors))?;
        for warning in warnings {
            warn(&warning.to_string());
        }
        Ok(config)
    };
    Ok(headway_server::run(
        config,
        options,
        Arc::new(read_config),
        inherited,
    )?)
}

/// All errors in one line.
fn joined(errors: &[ConfigError]) -> String {
    let all: Vec<String> = errors.iter().map(ToString::to_string).collect();
    all.join("; ")
}

/// Runs the child of `headway serve` or `headway backend` with this hidden subcommand to its end.
/// `None` if there is no such child.
pub fn run_child<C: Contents>(name: &OsStr) -> Option<Result<(), Failure>> {
    let done = headway_server::child_main(name, C::EXTENSIONS)?;
    Some(done.map_err(Failure::from))
}

fn warn(text: &str) {
    let _ = writeln!(std::io::stderr(), "headway: warning: {}", printable(text));
}

/// The check before a start. A file system may not answer.
fn check_in_time<C: Contents>(
    arguments: &Arc<Arguments<C>>,
    files_wait: Option<Duration>,
) -> Result<Checked, Vec<ConfigError>> {
    let own = arguments.clone();
    // Without another thread nothing else can be done.
    let Ok(checked) = Answer::of("check", move || check(&own, files_wait)) else {
        return check(arguments, files_wait);
    };
    let late = || Err(vec![ConfigError::late(CHECK_WAIT)]);
    checked.within(CHECK_WAIT).unwrap_or_else(late)
}

fn check<C: Contents>(
    arguments: &Arguments<C>,
    files_wait: Option<Duration>,
) -> Result<Checked, Vec<ConfigError>> {
    let (options, mut errors) = settings(arguments);
    let environment = Environment {
        extensions: C::EXTENSIONS.known(),
        files_wait,
        ..Environment::detect()
    };
    let checked = match &arguments.run.config {
        None => Config::check(&options, None, &environment),
        Some(path) => match std::fs::read_to_string(path) {
            Err(error) => Err(vec![ConfigError::unreadable(path, &error)]),
            Ok(text) => Config::load(ConfigFile { path, text: &text }, options, &environment),
        },
    };
    match checked {
        Ok(checked) if errors.is_empty() => with_user(checked, arguments.run.check),
        Ok(_) => Err(errors),
        Err(more) => {
            errors.extend(more);
            Err(errors)
        }
    }
}

/// An error if root has to name a user. A check only warns: it may be for a server that another user starts.
fn with_user(mut checked: Checked, is_check: bool) -> Result<Checked, Vec<ConfigError>> {
    match checked.config.lacks_user() {
        Some(problem) if is_check => checked.warnings.push(problem),
        Some(problem) => return Err(vec![problem]),
        None => {}
    }
    Ok(checked)
}

/// The settings of the command line, and what is wrong with them.
fn settings<C: Contents>(arguments: &Arguments<C>) -> (Settings, Vec<ConfigError>) {
    let mut settings = Settings::default();
    let errors = arguments
        .options
        .iter()
        .filter_map(|(name, texts)| {
            settings
                .set_from_option(name, texts, C::EXTENSIONS.known())
                .err()
        })
        .collect();
    (settings, errors)
}

/// One line per error. A usage error counts more than what this machine lacks.
pub fn config_failure(errors: &[ConfigError]) -> Failure {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let text = lines.join("\n");
    match errors.iter().all(ConfigError::is_environment) {
        true => Failure::Runtime(anyhow::Error::msg(text)),
        false => Failure::Usage(text),
    }
}

fn print(config: &Config, json: bool) -> Result<(), Failure> {
    match json {
        true => crate::output::print_data(&config.to_json()),
        false => crate::output::print(&format!(
            "# configuration OK; effective settings:\n{}",
            config.to_toml()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[derive(Debug)]
    struct ForUsers;

    impl Contents for ForUsers {
        const EXTENSIONS: Extensions = Extensions::NONE;
    }

    #[derive(Debug)]
    struct ForResearch;

    impl Contents for ForResearch {
        const EXTENSIONS: Extensions = Extensions {
            research: Some(&headway_server::research::RESEARCH),
            ..Extensions::NONE
        };
    }

    #[derive(Debug, clap::Parser)]
    struct Cli<C: Contents> {
        #[command(flatten)]
        _arguments: Arguments<C>,
    }

    fn long_help<C: Contents>(width: usize) -> String {
        let command = Cli::<C>::command().term_width(width);
        command.clone().render_long_help().to_string()
    }

    #[test]
    fn short_help_is_at_most_40_lines_and_has_the_common_options() {
        let help = Cli::<ForUsers>::command()
            .term_width(100)
            .render_help()
            .to_string();
        assert!(help.lines().count() <= 40, "{help}");
        assert!(
            help.lines().all(|line| line.chars().count() <= 100),
            "{help}"
        );
        for name in COMMON {
            assert!(help.contains(&format!("--{name}")), "{name}: {help}");
        }
    }

    #[test]
    fn long_help_has_every_key_and_examples_that_can_be_pasted() {
        let help = long_help::<ForUsers>(100);
        for key in option_keys(Extensions::NONE) {
            assert!(help.contains(&format!("--{}", key.name)), "{}", key.name);
        }
        // Lines that can be pasted stand as they are written.
        let narrow = long_help::<ForUsers>(80);
        for line in EXAMPLES
            .lines()
            .filter(|line| line.starts_with("  headway "))
        {
            assert!(narrow.contains(line), "{line}");
        }
    }

    #[test]
    fn options_of_the_papers_are_one_group_at_the_end_and_only_where_they_are_contained() {
        let help = long_help::<ForResearch>(100);
        let (users, research) = help.split_once("\nResearch:").unwrap();
        let mut keys = option_keys(ForResearch::EXTENSIONS).iter();
        let first = keys.position(|key| key.table == "research").unwrap();
        assert!(first > 0 && keys.all(|key| key.table == "research"));
        let without = long_help::<ForUsers>(100);
        assert!(!without.contains("Research"), "{without}");
        for key in &option_keys(ForResearch::EXTENSIONS)[first..] {
            let option = format!("--{}", key.name);
            assert!(research.contains(&option), "{option}: {research}");
            assert!(!users.contains(&format!("{option} ")), "{option}: {users}");
            assert!(!without.contains(&option), "{option}: {without}");
        }
    }
}
