//! [`Rules`](crate::Rules) as a ruleset of Landlock.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use headway_os::confine::{allow_beneath, landlock_version};
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, NetPort, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetError, Scope, make_bitflags, path_beneath_rules,
};

use crate::{Connect, Place, Rules, SandboxError};

/// The newest version whose rights for files are used. Version 9 limits paths of Unix sockets, which
/// upstreams have.
const FILES: ABI = ABI::V5;

/// Makes the ruleset; `None` without Landlock.
pub(crate) fn make(rules: &Rules) -> Result<Option<OwnedFd>, SandboxError> {
    let read = make_bitflags!(AccessFs::{ReadFile | ReadDir});
    let create = make_bitflags!(AccessFs::{
        WriteFile | MakeReg | RemoveFile | Truncate
    }) | if rules.read.is_some() {
        AccessFs::ReadFile.into()
    } else {
        BitFlags::EMPTY
    };
    let none = Vec::new();
    let readable = rules.read.as_ref().unwrap_or(&none);
    let named = |places: &[Place]| -> Vec<PathBuf> {
        let named = places.iter().filter_map(|place| match place {
            Place::Named(path) => Some(path.clone()),
            Place::Open(_) => None,
        });
        named.collect()
    };
    let created = created(rules)
        .and_then(|created| created.add_rules(path_beneath_rules(named(readable), read)))
        .and_then(|created| created.add_rules(path_beneath_rules(named(&rules.write), create)));
    let created = created.map_err(|error| SandboxError::Landlock(error.to_string()))?;
    let ruleset: Option<OwnedFd> = created.into();
    let Some(ruleset) = ruleset else {
        return Ok(None);
    };
    // The library asks the file system of a directory what it is, and would wait for it.
    for (places, rights) in [(readable, read), (&rules.write, create)] {
        for place in places {
            if let Place::Open(directory) = place {
                allow(ruleset.as_fd(), directory, rights)?;
            }
        }
    }
    Ok(Some(ruleset))
}

/// A ruleset without rules for files.
fn created(rules: &Rules) -> Result<RulesetCreated, RulesetError> {
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
    let ports = match &rules.connect {
        Connect::Ports(ports) => ports.as_slice(),
        Connect::Nowhere | Connect::Daemons | Connect::Anywhere => &[],
    };
    ruleset.scope(Scope::Signal)?.create()?.add_rules(
        ports
            .iter()
            .map(|port| Ok::<_, RulesetError>(NetPort::new(*port, AccessNet::ConnectTcp))),
    )
}

/// Adds a rule for an open directory.
fn allow(
    ruleset: BorrowedFd<'_>,
    directory: &OwnedFd,
    rights: BitFlags<AccessFs>,
) -> Result<(), SandboxError> {
    let version = landlock_version().unwrap_or(0);
    let known = ABI::from(i32::try_from(version).unwrap_or(i32::MAX)).min(FILES);
    let rights = (rights & AccessFs::from_all(known)).bits();
    let added = allow_beneath(ruleset, directory.as_fd(), rights);
    added.map_err(|errno| SandboxError::Landlock(format!("rule for an open directory: {errno}")))
}

/// The domain of a program, and of the master: it may signal and trace only what it has started itself. `None`
/// without Landlock of version 6.
///
/// # Errors
/// A text of what the kernel refused.
pub fn own_processes_domain() -> Result<Option<OwnedFd>, String> {
    let made = Ruleset::default()
        .scope(Scope::Signal)
        .and_then(Ruleset::create);
    let made: RulesetCreated = made.map_err(|error| error.to_string())?;
    Ok(made.into())
}
