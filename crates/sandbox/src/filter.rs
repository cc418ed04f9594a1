//! The calls of a kind as a filter.
//!
//! A call which is allowed without a look at its arguments costs next to nothing: the kernel remembers it
//! in a bitmap (Linux 5.11). Only the few with a condition run the filter.

use std::collections::BTreeMap;
use std::io;

use headway_os::confine::{Instruction, filter_calls};
use rustix::io::Errno;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, SeccompRule};

use crate::calls::{Allowed, Condition, allowed, hidden, refused_to_master, refused_to_programs};
use crate::{Kind, Rules};

/// The calls by number, with the arguments that are meant; none means any.
type Calls = BTreeMap<i64, Vec<SeccompRule>>;

/// Filters the calls of this process.
pub(crate) fn install(rules: &Rules) -> io::Result<()> {
    let errno = |errno: Errno| SeccompAction::Errno(errno.raw_os_error() as u32);
    let hidden = calls(hidden(rules.kind))?;
    if !hidden.is_empty() {
        // A filter of its own, since one has one answer. The C library then uses an older call.
        let program = program(hidden, SeccompAction::Allow, errno(Errno::NOSYS))?;
        add(&program, false)?;
    }
    // The last one: to add another is not among the calls of a kind which has a list of them.
    let denied = errno(Errno::PERM);
    let program = match rules.kind {
        Kind::Spawner => program(calls(refused_to_programs())?, SeccompAction::Allow, denied),
        Kind::Master => program(calls(refused_to_master())?, SeccompAction::Allow, denied),
        _ => program(calls(allowed(rules))?, denied, SeccompAction::Allow),
    };
    add(&program?, true)
}

fn calls(table: Vec<Allowed>) -> io::Result<Calls> {
    let mut calls = Calls::new();
    for Allowed { number, conditions } in table {
        let rule = match conditions.is_empty() {
            true => None,
            false => {
                let conditions: Result<Vec<_>, _> =
                    conditions.into_iter().map(Condition::compile).collect();
                let rule = conditions.and_then(SeccompRule::new);
                Some(rule.map_err(io::Error::other)?)
            }
        };
        calls.entry(number).or_default().extend(rule);
    }
    Ok(calls)
}

fn program(calls: Calls, other: SeccompAction, matching: SeccompAction) -> io::Result<BpfProgram> {
    let architecture = std::env::consts::ARCH.try_into();
    let architecture = architecture.map_err(io::Error::other)?;
    let filter = SeccompFilter::new(calls, other, matching, architecture);
    let program = filter.and_then(BpfProgram::try_from);
    program.map_err(io::Error::other)
}

fn add(program: &BpfProgram, are_logged: bool) -> io::Result<()> {
    let instructions: Vec<Instruction> = program
        .iter()
        .map(|one| Instruction {
            code: one.code,
            if_true: one.jt,
            if_false: one.jf,
            operand: one.k,
        })
        .collect();
    Ok(filter_calls(&instructions, are_logged)?)
}
