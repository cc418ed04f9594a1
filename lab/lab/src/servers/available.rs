//! Whether a server can be started here, and in which version; the reason otherwise.
//!
//! The version is what the installed program says of itself, since that is what the evidence has to
//! name. Nothing is installed here: `scripts/setup` does that.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::kind::{Family, Kind};

/// Servers live in the last three, which are not on every user's path.
const MORE_PLACES: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Where Debian and Ubuntu put Apache's modules, as `bench/peers/apache.conf` has it.
const APACHE_MODULES: &str = "/usr/lib/apache2/modules";

/// Our module for it.
const APACHE_MODULE: &str = "mod_headway.so";

/// A server that can be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// The program, by its whole path; `None` for ours, which the caller names.
    pub program: Option<PathBuf>,
    /// The version as the program gives it: `2.4.71`.
    pub version: String,
}

/// Why a server cannot be started here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The server is packaged, and not installed.
    #[error("{program} is not installed; `scripts/setup` installs the package {package}")]
    NotInstalled {
        /// The program looked for.
        program: &'static str,
        /// Debian's package.
        package: &'static str,
    },
    /// The program is there, a part of it is not.
    #[error(
        "{} is missing; the configuration expects Debian's or Ubuntu's apache2 package", path.display()
    )]
    PartMissing {
        /// The file looked for.
        path: PathBuf,
    },
    /// Our module for Apache has not been built.
    #[error(
        "mod_headway is neither installed nor beside the headway program; `make -C apache install` installs it, \
         `make -C apache OUT=DIR` builds it into a folder"
    )]
    NoModule,
    /// The program does not say its version.
    #[error("{} does not start: {text}", program.display())]
    Broken {
        /// The program.
        program: PathBuf,
        /// What the program said, or what the system said.
        text: String,
    },
    /// The server cannot be started on any current machine.
    #[error("{0}")]
    Absent(&'static str),
}

/// Program and version of a server, or why it cannot be started here.
///
/// Starts the program once to ask for its version. Presets of `headway-lab serve` are always
/// there.
///
/// # Errors
///
/// A [`Reason`], a sentence that can stand in a report.
pub fn available(kind: Kind) -> Result<Installed, Reason> {
    let (program, version_option, before) = match kind.family() {
        Family::Absent(reason) => return Err(Reason::Absent(reason)),
        Family::Headway => {
            return Ok(Installed {
                program: None,
                version: env!("CARGO_PKG_VERSION").into(),
            });
        }
        Family::Apache { mpm, service } => {
            find("apache2")?;
            let path = Path::new(APACHE_MODULES).join(format!("mod_mpm_{mpm}.so"));
            if !path.exists() {
                return Err(Reason::PartMissing { path });
            }
            if service {
                module().ok_or(Reason::NoModule)?;
            }
            ("apache2", "-v", "Apache/")
        }
        Family::Nginx { .. } => ("nginx", "-v", "nginx/"),
        Family::Lighttpd => ("lighttpd", "-v", "lighttpd/"),
        Family::H2o => ("h2o", "--version", "h2o version "),
        Family::Civetweb => ("civetweb", "-I", "CivetWeb V"),
    };
    let program = find(program)?;
    let version = version(&program, version_option, before)?;
    // The service is the first process then, and starts Apache.
    let is_beside = kind.has_service();
    Ok(Installed {
        program: (!is_beside).then_some(program),
        version,
    })
}

/// Apache's program by its whole path.
pub(super) fn apache() -> Option<PathBuf> {
    find("apache2").ok()
}

/// Our module for Apache: the one that was built beside this program, or the installed one.
pub(super) fn module() -> Option<PathBuf> {
    let own = std::env::current_exe().ok();
    let own = own.and_then(|program| Some(program.parent()?.join(APACHE_MODULE)));
    let installed = Path::new(APACHE_MODULES).join(APACHE_MODULE);
    own.into_iter()
        .chain([installed])
        .find(|path| path.is_file())
}

/// Debian's packages are called like their programs, for all of them.
fn find(program: &'static str) -> Result<PathBuf, Reason> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(MORE_PLACES.map(PathBuf::from));
    let mut files = directories.map(|directory| directory.join(program));
    files
        .find(|file| file.is_file())
        .ok_or(Reason::NotInstalled {
            program,
            package: program,
        })
}

/// The word after `before` in what the program prints when asked; nginx prints it to standard
/// error.
fn version(program: &Path, version_option: &str, before: &str) -> Result<String, Reason> {
    let broken = |text: String| Reason::Broken {
        program: program.into(),
        text,
    };
    let output = Command::new(program).arg(version_option).output();
    let output = output.map_err(|error| broken(error.to_string()))?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let after = text.split_once(before).map(|(_, after)| after);
    let word = after.and_then(|after| after.split_whitespace().next());
    word.map(Into::into)
        .ok_or_else(|| broken(text.trim().into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_is_a_sentence_when_a_server_cannot_run() {
        let reason = available(Kind::Haboob).expect_err("it cannot run");
        assert!(reason.to_string().contains("2001"), "{reason}");
        let reason = find("headway-no-such-server").expect_err("no such program");
        assert!(reason.to_string().contains("scripts/setup"), "{reason}");
    }

    #[test]
    fn version_is_a_number_when_a_peer_is_installed() {
        for kind in Kind::all() {
            let Ok(installed) = available(kind) else {
                continue;
            };
            let first = installed.version.chars().next();
            assert!(
                first.is_some_and(|c| c.is_ascii_digit()),
                "{kind}: {installed:?}"
            );
        }
    }

    #[test]
    fn program_is_broken_when_it_prints_no_version() {
        let reason = version(Path::new("/bin/echo"), "hello", "nginx/").expect_err("no version");
        assert_eq!(reason.to_string(), "/bin/echo does not start: hello");
    }
}
