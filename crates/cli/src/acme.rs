//! `headway acme`: shows the automatic certificates of a server, and revokes one.
//!
//! It reads the configuration of the server, and works on its files. So it runs as the user of the server's main
//! process.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use clap::{Args, Subcommand, ValueEnum, ValueHint};
use headway_cli_support::serve::config_failure;
use headway_cli_support::table::table;
use headway_server::acme::{HostStatus, Reason, revoke, shown, status};
use headway_server::config::{AcmeConfig, Config, ConfigError, ConfigFile, Environment, Settings};

use super::{Failure, output};

const EXAMPLES: &str = "\
Examples:
  headway acme status --config headway.toml
  headway acme revoke www.example.com --config headway.toml --reason key-compromise

Run it as the user that starts the server, such as root.

Exit codes: 0 success, 1 failure, 2 usage error.";

/// Show the automatic certificates of a server, or revoke one
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show certificates, the next orders and the last errors
    Status {
        #[command(flatten)]
        of: Of,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Revoke the certificate of a host; the running server then gets another one
    Revoke {
        /// One of acme-hosts
        host: String,
        #[command(flatten)]
        of: Of,
        /// What the authority publishes as the reason
        #[arg(long, value_enum, default_value = "unspecified")]
        reason: Why,
    },
}

#[derive(Debug, Args)]
struct Of {
    /// The configuration file of the server
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Why {
    Unspecified,
    KeyCompromise,
    Superseded,
    CessationOfOperation,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.action {
        Action::Status { of, json } => {
            let hosts = status(&configured(&of.config)?).map_err(|why| anyhow!(why))?;
            match json {
                true => output::print_data(&format!("{}\n", serde_json::to_string(&hosts)?)),
                false => output::print(&text(&hosts)),
            }
        }
        Action::Revoke { host, of, reason } => {
            let reason = match reason {
                Why::Unspecified => Reason::Unspecified,
                Why::KeyCompromise => Reason::KeyCompromise,
                Why::Superseded => Reason::Superseded,
                Why::CessationOfOperation => Reason::CessationOfOperation,
            };
            let host = host.to_ascii_lowercase();
            let config = configured(&of.config)?;
            revoke(&config, &host, reason).map_err(|why| match config.hosts.contains(&host) {
                true => Failure::Runtime(anyhow!(why)),
                false => Failure::Usage(why),
            })?;
            output::print(&format!(
                "certificate of {host}: revoked; a running server orders another one within 10 s\n"
            ))
        }
    }
}

/// The settings of automatic certificates in a file.
fn configured(path: &Path) -> Result<AcmeConfig, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| config_failure(&[ConfigError::unreadable(path, &error)]))?;
    let file = ConfigFile { path, text: &text };
    let checked = Config::load(file, Settings::default(), &Environment::detect());
    let acme = checked
        .map_err(|errors| config_failure(&errors))?
        .config
        .acme;
    acme.ok_or_else(|| {
        let file = path.display();
        Failure::Usage(format!(
            "{file}: there are no automatic certificates; acme-hosts has the names that get one"
        ))
    })
}

fn text(hosts: &[HostStatus]) -> String {
    let time = |seconds: Option<u64>| match seconds {
        None | Some(u64::MAX) => "-".to_owned(),
        Some(seconds) => shown(seconds),
    };
    let rows: Vec<Vec<String>> = hosts
        .iter()
        .map(|host| {
            vec![
                host.host.clone(),
                host.certificate.to_owned(),
                time(host.expires_s),
                time(host.next_order_s),
                host.failures.to_string(),
            ]
        })
        .collect();
    let head = ["host", "certificate", "expires", "next order", "failures"];
    let mut text = table(&head, &rows);
    for host in hosts {
        if let Some(error) = &host.error {
            text += &format!("{}: {error}\n", host.host);
        }
    }
    text
}
