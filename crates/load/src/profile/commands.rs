//! Commands between the points of a profile: a server restarted, its cache emptied or filled.

use std::process::{Command, ExitStatus, Stdio};

use headway_latency::run::description::Point;

/// A command did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The shell that should run the command did not start.
    #[error("{option} `{command}`: starting sh: {source}")]
    Start {
        /// The option that gave the command.
        option: &'static str,
        /// The command.
        command: String,
        /// Why the shell did not start.
        source: std::io::Error,
    },
    /// The command ended with an error.
    #[error(
        "{option} `{command}`: {status}; the measurement stops here; continue with the same command"
    )]
    Failed {
        /// The option that gave the command.
        option: &'static str,
        /// The command.
        command: String,
        /// How the command ended.
        status: ExitStatus,
    },
}

/// Runs a command by the shell and waits for it. It finds the point in `HEADWAY_POINT`,
/// `HEADWAY_LOAD`, `HEADWAY_RATE` and `HEADWAY_REPEAT`.
///
/// # Errors
/// As [`run_shell`]'s.
pub(super) fn run(option: &'static str, command: &str, point: &Point) -> Result<(), CommandError> {
    let variables = [
        ("HEADWAY_POINT", point.directory.clone()),
        ("HEADWAY_LOAD", point.relative.to_string()),
        ("HEADWAY_RATE", point.rate_rps.to_string()),
        ("HEADWAY_REPEAT", point.repeat.to_string()),
    ];
    run_shell(option, command, &variables)
}

/// Runs a command by the shell and waits for it. What it prints goes to standard error, since
/// standard output may be JSON.
///
/// # Errors
/// It could not be started, or did not end with 0.
pub fn run_shell(
    option: &'static str,
    command: &str,
    variables: &[(&str, String)],
) -> Result<(), CommandError> {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", command])
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(std::io::stderr());
    let status = shell.status().map_err(|source| CommandError::Start {
        option,
        command: command.to_owned(),
        source,
    })?;
    match status.success() {
        true => Ok(()),
        false => Err(CommandError::Failed {
            option,
            command: command.to_owned(),
            status,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_has_its_point_in_the_environment() {
        let point = Point {
            relative: 0.4,
            rate_rps: 200.0,
            repeat: 2,
            directory: "points/0.40-2".to_owned(),
            done: false,
            of_client: false,
            of_knee: false,
        };
        let check = "test \"$HEADWAY_POINT $HEADWAY_LOAD $HEADWAY_RATE $HEADWAY_REPEAT\" = 'points/0.40-2 0.4 200 2'";
        assert!(run("--before-point", check, &point).is_ok());
        let error = run("--before-point", "exit 3", &point).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("--before-point `exit 3`"), "{text}");
        assert!(text.contains("exit status: 3"), "{text}");
    }
}
