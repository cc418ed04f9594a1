//! [`Rules`](crate::Rules) as a ruleset of Landlock.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, NetPort, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetError, Scope, make_bitflags, path_beneath_rules,
};

use crate::{Connect, Rules};

/// The newest version whose rights for files are used. Version 9 limits paths of Unix sockets, which
/// upstreams have.
const FILES: ABI = ABI::V5;

/// Makes the ruleset and goes under it.
pub(crate) fn enter(rules: &Rules) -> Result<(), RulesetError> {
    let write = AccessFs::from_write(FILES);
    let handled = match rules.read {
        Some(_) => AccessFs::from_all(FILES),
        None => write | AccessFs::Execute,
    };
    let mut ruleset = Ruleset::default().handle_access(handled)?;
    if let Connect::Anywhere = rules.connect {
        ruleset = ruleset.handle_access(AccessNet::BindTcp)?;
    } else {
        ruleset = ruleset.handle_access(AccessNet::from_all(ABI::V4))?;
    }
    ruleset = ruleset.scope(Scope::Signal)?;
    let read = make_bitflags!(AccessFs::{ReadFile | ReadDir});
    let create = make_bitflags!(AccessFs::{
        WriteFile | MakeReg | RemoveFile | Truncate
    }) | if rules.read.is_some() {
        AccessFs::ReadFile.into()
    } else {
        BitFlags::EMPTY
    };
    let ports = match &rules.connect {
        Connect::Ports(ports) => ports.as_slice(),
        Connect::Nowhere | Connect::Daemons | Connect::Anywhere => &[],
    };
    let none: Vec<PathBuf> = Vec::new();
    ruleset
        .create()?
        .add_rules(path_beneath_rules(
            rules.read.as_ref().unwrap_or(&none),
            read,
        ))?
        .add_rules(path_beneath_rules(&rules.write, create))?
        .add_rules(
            ports
                .iter()
                .map(|port| Ok::<_, RulesetError>(NetPort::new(*port, AccessNet::ConnectTcp))),
        )?
        .restrict_self()
        .map(drop)
}

/// The domain of a program: it may signal and trace only what it has started itself. `None` without
/// Landlock of version 6.
///
/// # Errors
/// A text of what the kernel refused.
pub fn programs_domain() -> Result<Option<OwnedFd>, String> {
    let made = Ruleset::default()
        .scope(Scope::Signal)
        .and_then(Ruleset::create);
    let made: RulesetCreated = made.map_err(|error| error.to_string())?;
    Ok(made.into())
}
