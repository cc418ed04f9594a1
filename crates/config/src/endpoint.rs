//! Where a listener is: an address of TCP, or the path of a Unix socket.

use std::fmt;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::account::Account;
use super::units::ListenAddress;

/// The longest path of a Unix socket: `sun_path` with a null byte behind it (unix(7)).
const PATH_BYTES_MAX: usize = 107;
const UNIX: &str = "unix:";

/// Where a listener is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Endpoint {
    /// TCP; port 0 lets the kernel choose.
    Tcp(SocketAddr),
    /// A Unix socket, by its path, which is absolute once it is checked.
    Unix(PathBuf),
}

impl Endpoint {
    /// The address of TCP.
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Endpoint::Tcp(address) => Some(*address),
            Endpoint::Unix(_) => None,
        }
    }

    /// The path of a Unix socket.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Endpoint::Tcp(_) => None,
            Endpoint::Unix(path) => Some(path),
        }
    }

    /// A relative path becomes one in this directory.
    pub(super) fn anchor(&mut self, directory: &Path) {
        if let Endpoint::Unix(path) = self {
            *path = directory.join(&*path);
        }
    }

    /// The same with an absolute path.
    ///
    /// # Errors
    /// What is wrong with the path, as a message.
    pub(super) fn absolute(&self) -> Result<Endpoint, String> {
        let Endpoint::Unix(path) = self else {
            return Ok(self.clone());
        };
        let path = std::path::absolute(path).map_err(|error| format!("{self}: {error}"))?;
        match path.as_os_str().as_bytes().len() {
            ..=PATH_BYTES_MAX => Ok(Endpoint::Unix(path)),
            bytes => Err(format!(
                "`{}` has {bytes} bytes; the path of a socket has at most {PATH_BYTES_MAX}",
                path.display()
            )),
        }
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Endpoint {
        Endpoint::Tcp(address)
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Endpoint, String> {
        match text.strip_prefix(UNIX) {
            Some(path) if path.is_empty() || path.contains('\0') => Err(format!(
                "`{text}` has no path; write unix:/run/headway.sock"
            )),
            Some(path) => Ok(Endpoint::Unix(path.into())),
            None => match text.parse::<ListenAddress>() {
                Ok(ListenAddress(address)) => Ok(Endpoint::Tcp(address)),
                Err(problem) => Err(format!(
                    "{problem}; a Unix socket is unix:/run/headway.sock"
                )),
            },
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp(address) => write!(out, "{address}"),
            Endpoint::Unix(path) => write!(out, "{UNIX}{}", path.display()),
        }
    }
}

/// Permissions and owner of the Unix sockets of the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnixRights {
    /// The permissions of the sockets.
    pub mode: u32,
    /// Their owner and group; `None` leaves them to the user that starts the server.
    pub owner: Option<Account>,
}

impl Default for UnixRights {
    fn default() -> UnixRights {
        UnixRights {
            mode: 0o660,
            owner: None,
        }
    }
}

/// The permissions of a file, as in chmod(1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileMode(pub u32);

impl FromStr for FileMode {
    type Err = String;

    fn from_str(text: &str) -> Result<FileMode, String> {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let mode = u32::from_str_radix(text, 8)
            .ok()
            .filter(|mode| *mode <= 0o777);
        mode.filter(|_| digits)
            .map(FileMode)
            .ok_or_else(|| format!("`{text}` is not a mode as of chmod, such as 660"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_addresses_or_paths_of_sockets_and_print_as_written() {
        for (text, shown) in [
            ("unix:/run/a.sock", "unix:/run/a.sock"),
            ("unix:a.sock", "unix:a.sock"),
            (":80", "0.0.0.0:80"),
            ("[::1]:80", "[::1]:80"),
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), shown);
        }
        for text in ["unix:", "unix:a\0b", "/run/a.sock", "unix", ""] {
            assert!(text.parse::<Endpoint>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn path_of_a_socket_is_an_error_when_it_is_longer_than_107_bytes() {
        let of_length = |bytes: usize| Endpoint::Unix(format!("/{}", "a".repeat(bytes - 1)).into());
        assert_eq!(of_length(107).absolute(), Ok(of_length(107)));
        let problem = of_length(108).absolute().unwrap_err();
        assert!(problem.contains("has 108 bytes"), "{problem}");
        let problem = of_length(5_000).absolute().unwrap_err();
        assert!(problem.contains("at most 107"), "{problem}");
    }

    #[test]
    fn modes_are_octal() {
        for (text, mode) in [("660", 0o660), ("0660", 0o660), ("0", 0), ("777", 0o777)] {
            assert_eq!(text.parse(), Ok(FileMode(mode)), "{text}");
        }
        for text in ["", "888", "1777", "+660", "-1", "rw", "66 "] {
            assert!(text.parse::<FileMode>().is_err(), "{text}");
        }
    }
}
