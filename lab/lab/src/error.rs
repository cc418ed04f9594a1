//! Why a lab could not be made, used or removed.

use std::io;
use std::path::{Path, PathBuf};

/// A part of the lab that this machine or this user cannot make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// `disk`, `memory limit`, `CPU quota`, `link`, `CPUs`.
    pub part: &'static str,
    /// What is missing for it, and how to get it.
    pub reason: String,
}

/// What went wrong with a lab.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The name could not be part of a device's and a directory's name.
    #[error(
        "\"{0}\" cannot name a lab: use 1 to 32 of a-z, 0-9 and -, beginning with a letter or digit"
    )]
    Name(String),
    /// A lab of that name is there.
    #[error(
        "lab {0} exists already; `headway-lab down {0}` removes it, or give the new one another name"
    )]
    Exists(String),
    /// No lab of that name.
    #[error("there is no lab {name} in {}; `headway-lab status` lists the labs", base.display())]
    Unknown {
        /// The name asked for.
        name: String,
        /// Where labs are recorded.
        base: PathBuf,
    },
    /// The lab was begun and never finished.
    #[error("lab {0} was never finished; `headway-lab down {0}` removes what there is of it")]
    Unfinished(String),
    /// Another process makes, loads, cools or removes the lab at this moment.
    #[error("another process is making, loading or removing lab {0}; wait for it, or end it first")]
    Busy(String),
    /// The lab has no such part.
    #[error("lab {name} has no {part}")]
    NoPart {
        /// The lab.
        name: String,
        /// The part, such as `disk`.
        part: &'static str,
    },
    /// The command that serves and loads is not where it has to be.
    #[error(
        "{} is missing; headway-lab starts it to serve, to load and to make file sets: install \
         both in one directory, or build both with `cargo build --release`", .0.display()
    )]
    NoHeadway(PathBuf),
    /// Parts cannot be made here.
    #[error("{}", missing_text(.0))]
    Missing(Vec<Missing>),
    /// A value that cannot be kept.
    #[error("{0}")]
    Value(String),
    /// A program of the system failed.
    #[error("{command}: {why}")]
    Tool {
        /// The program and its arguments.
        command: String,
        /// The last line of its output, or why it did not start.
        why: String,
    },
    /// A file of the kernel's or of the lab's own.
    #[error("{tried} {}: {source}", path.display())]
    File {
        /// `writing 1000000 to`.
        tried: String,
        /// The file.
        path: PathBuf,
        /// Why the call failed.
        source: io::Error,
    },
    /// The disk.
    #[error(transparent)]
    Disk(#[from] crate::disk::DiskError),
    /// A signal came while the lab was made.
    #[error("interrupted; lab {0} was removed again")]
    Interrupted(String),
    /// The lab could not be made, and of what was made not everything could be removed.
    #[error("{why}; of lab {name} still there: {}; once that is free, `headway-lab down {name}` removes the rest", left.join("; "))]
    HalfMade {
        /// The lab.
        name: String,
        /// Why the lab could not be made.
        why: String,
        /// What is left, and why.
        left: Vec<String>,
    },
    /// Not everything could be removed.
    #[error("lab {name}: still there: {}; once that is free, `headway-lab down {name}` removes the rest", left.join("; "))]
    Left {
        /// The lab.
        name: String,
        /// What is left, and why.
        left: Vec<String>,
    },
}

impl LabError {
    /// In words that say nothing of what became of the lab.
    pub(crate) fn reason(&self) -> String {
        match self {
            LabError::Interrupted(_) => "interrupted".to_owned(),
            other => other.to_string(),
        }
    }

    /// For `map_err`: an operation on a file.
    pub(crate) fn file(tried: impl Into<String>, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let (tried, path) = (tried.into(), path.to_owned());
        move |source| LabError::File {
            tried,
            path,
            source,
        }
    }
}

fn missing_text(missing: &[Missing]) -> String {
    let parts: Vec<String> = missing
        .iter()
        .map(|part| format!("no {}: {}", part.part, part.reason))
        .collect();
    parts.join("\n")
}
