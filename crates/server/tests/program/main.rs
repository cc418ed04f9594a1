//! The server as a program, for tests of this crate which need its processes: `serve` with the
//! options of `headway serve`, which are the keys of the configuration file, and no help.
//!
//! It is no test of the command line. That of `headway` is in crates/cli-support, which builds on
//! this crate.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use headway_embedded::{
    Action, Application, ApplicationKind, Applications, Outcome, Request, State,
};
use headway_server::config::keys::reference;
use headway_server::config::value::Accepts;
use headway_server::config::{
    Checked, Config, ConfigError, ConfigFile, Environment, Settings, raise_descriptor_limit,
};
use headway_server::research::RESEARCH;
use headway_server::{Extensions, Inherited, Options, Programs, child_main, rehearse_upgrade};

/// Servers of the papers are tested as the others are.
const EXTENSIONS: Extensions = Extensions {
    applications: &Applications::new(&[&Spins]),
    research: Some(&RESEARCH),
};

/// An application that never answers, as one with a mistake does. After a request with a query its
/// worker ignores SIGABRT.
struct Spins;

impl ApplicationKind for Spins {
    fn name(&self) -> &'static str {
        "spins"
    }

    fn start(&self) -> Box<dyn Application> {
        Box::new(Spins)
    }
}

impl Application for Spins {
    fn answer(&mut self, request: &Request<'_>) -> Action {
        if !request.query().is_empty() {
            let noted = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(signal_hook::consts::SIGABRT, noted)
                .expect("a handler that does nothing");
        }
        loop {
            std::hint::spin_loop();
        }
    }

    fn resume(&mut self, _: &Request<'_>, _: State, _: Outcome) -> Action {
        Action::Fail(500)
    }
}

/// The arguments after `serve`.
#[derive(Default)]
struct Arguments {
    config: Option<PathBuf>,
    ready_file: Option<PathBuf>,
    is_check: bool,
    is_rehearsal: bool,
    is_json: bool,
    is_quiet: bool,
    /// Keys of the configuration file, with their texts.
    keys: BTreeMap<String, Vec<String>>,
}

fn main() -> ExitCode {
    let first = std::env::args_os().nth(1);
    let done = match first.and_then(|argument| child_main(&argument, EXTENSIONS)) {
        Some(done) => done.map_err(Into::into),
        None => serve(Arguments::read(std::env::args().skip(2))),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("headway: {error}");
            ExitCode::FAILURE
        }
    }
}

impl Arguments {
    fn read(mut line: impl Iterator<Item = String>) -> Arguments {
        let mut arguments = Arguments::default();
        while let Some(argument) = line.next() {
            let Some(option) = argument.strip_prefix("--") else {
                arguments.add("root", argument);
                continue;
            };
            let (name, text) = match option.split_once('=') {
                Some((name, text)) => (name, Some(text.to_owned())),
                None => (option, None),
            };
            let mut value = || {
                text.clone()
                    .or_else(|| line.next())
                    .expect("an option has a value")
            };
            match name {
                "config" => arguments.config = Some(value().into()),
                "ready-file" => arguments.ready_file = Some(value().into()),
                "check" => arguments.is_check = true,
                "rehearse-upgrade" => arguments.is_rehearsal = true,
                "json" => arguments.is_json = true,
                "quiet" => arguments.is_quiet = true,
                name if is_boolean(name) => {
                    arguments.add(name, text.unwrap_or_else(|| "on".into()))
                }
                name => arguments.add(name, value()),
            }
        }
        arguments
    }

    fn add(&mut self, key: &str, text: String) {
        self.keys.entry(key.to_owned()).or_default().push(text);
    }
}

fn is_boolean(name: &str) -> bool {
    reference(EXTENSIONS.known())
        .iter()
        .any(|key| key.is_option() && key.name == name && key.form.accepts == Accepts::Boolean)
}

fn serve(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let inherited = match arguments.is_check || arguments.is_rehearsal {
        true => Inherited::default(),
        false => Inherited::take()?,
    };
    let Checked { config, warnings } = match check(&arguments) {
        Ok(checked) => checked,
        Err(errors) => {
            let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
            let text = lines.join("\nheadway: ");
            inherited.fail(&text);
            return Err(text.into());
        }
    };
    if arguments.is_rehearsal {
        return Ok(rehearse_upgrade(config, std::io::stdin())?);
    }
    for warning in warnings {
        eprintln!("headway: warning: {warning}");
    }
    if arguments.is_check {
        match arguments.is_json {
            true => print!("{}", config.to_json()),
            false => print!("{}", config.to_toml()),
        }
        return Ok(());
    }
    if let Err(error) = raise_descriptor_limit() {
        eprintln!("headway: warning: raising RLIMIT_NOFILE: {error}");
    }
    let options = Options {
        programs: Programs::this_binary(),
        ready_file: arguments.ready_file.clone(),
        quiet: arguments.is_quiet,
    };
    let read_config = move || {
        let checked = check(&arguments);
        checked.map(|checked| checked.config).map_err(|errors| {
            errors
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("; ")
        })
    };
    Ok(headway_server::run(
        config,
        options,
        Arc::new(read_config),
        inherited,
    )?)
}

fn check(arguments: &Arguments) -> Result<Checked, Vec<ConfigError>> {
    let mut settings = Settings::default();
    for (name, texts) in &arguments.keys {
        let set = settings.set_from_option(name, texts, EXTENSIONS.known());
        set.map_err(|error| vec![error])?;
    }
    let environment = Environment {
        extensions: EXTENSIONS.known(),
        ..Environment::detect()
    };
    let Some(path) = &arguments.config else {
        return Config::check(&settings, None, &environment);
    };
    let text = read(path).map_err(|error| vec![error])?;
    let file = ConfigFile { path, text: &text };
    Config::load(file, settings, &environment)
}

fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|error| ConfigError::unreadable(path, &error))
}
