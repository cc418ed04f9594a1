//! The sandbox of the master itself.
//!
//! All that it starts inherits it, and programs need files and the network. So the master has a list of system calls
//! that no process of the server needs, and may signal and trace only what it has started.
//!
//! It goes in once, at its start. A program that takes over in an upgrade is in the same sandbox, since it is the same
//! process. A second one would not hold the children of the program before, which it has to be able to end.

use headway_config::Config;
use headway_sandbox::{Kind, Rules, confine};

use super::children::Programs;
use super::inherited::Inherited;
use super::{MasterError, Options, system};

/// Confines this process as its children are. Returns how to start these.
pub(super) fn enter(
    config: &Config,
    options: &Options,
    inherited: &Inherited,
) -> Result<Programs, MasterError> {
    let mut programs = options.programs.clone();
    let users = programs.use_accounts(config);
    users.map_err(system("groups of the user"))?;
    if let Some(demand) = programs.sandbox
        && inherited.predecessor().is_none()
    {
        let confined = confine(&Rules::of(Kind::Master), demand);
        confined.map_err(|error| MasterError::Sandbox(error.to_string()))?;
    }
    Ok(programs)
}
