//! The upstream's side of a conversation: it reads what the server forwards, and says what the case
//! lets it say.

use std::net::TcpListener;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};

use super::case::Step;
use super::client::Client;
use super::difference;
use super::notation::Names;

/// How long the upstream waits for a connection that is expected.
const TIMEOUT: Duration = Duration::from_secs(10);

pub struct Upstream {
    listener: TcpListener,
    connection: Option<Client>,
}

impl Upstream {
    pub fn new() -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        set_socket_timeout(&listener, Timeout::Recv, Some(TIMEOUT)).expect("a timeout");
        Upstream {
            listener,
            connection: None,
        }
    }

    pub fn address(&self) -> String {
        self.listener.local_addr().expect("an address").to_string()
    }

    /// Runs a step that is the upstream's; returns `false` if it is not.
    pub fn run(&mut self, step: &mut Step, names: &Names, update: bool) -> Result<bool, String> {
        match step {
            Step::Forwarded(expected) => {
                let said =
                    self.connection()?
                        .receive(names, (!update).then_some(&**expected), false)?;
                if update {
                    *expected = said;
                } else if said != *expected {
                    return Err(format!("forwarded:\n{}", difference(expected, &said)));
                }
            }
            Step::Reply(text) => self.connection()?.send(&names.parse(text)?)?,
            Step::Hangup => self.connection = None,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Checks that the server has forwarded nothing that the case does not know of.
    pub fn has_no_more(mut self, names: &Names) -> Result<(), String> {
        if let Some(connection) = &mut self.connection {
            let said = connection.unread(names)?;
            if !said.is_empty() {
                return Err(format!("the upstream gets more:\n{said}"));
            }
        }
        self.listener
            .set_nonblocking(true)
            .map_err(|error| error.to_string())?;
        match self.listener.accept() {
            Ok(_) => Err("the upstream gets one more connection".into()),
            Err(_) => Ok(()),
        }
    }

    /// The connection, which the server opens if there is none.
    fn connection(&mut self) -> Result<&mut Client, String> {
        if self.connection.is_none() {
            let (stream, _) = self
                .listener
                .accept()
                .map_err(|error| format!("no connection to the upstream: {error}"))?;
            self.connection = Some(Client::new(stream));
        }
        self.connection
            .as_mut()
            .ok_or_else(|| "no connection".into())
    }
}
