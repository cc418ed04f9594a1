//! What a program contains besides the server, as far as the configuration knows it.
//!
//! The server has what runs. Here are names, keys and checks, so that this crate depends on none of
//! it. The [research table](crate::research) is reached only through the functions of
//! [`ResearchTable`]. So the linker leaves its code out of a program that does not name it.

use std::fmt;
use std::path::Path;

use toml::de::DeTable;

use crate::error::Findings;
use crate::keys::Key;
use crate::research::{Defaults, ResearchConfig, ResearchSettings};
use crate::{Memory, Settings};

/// What a program contains besides the server.
///
/// ```
/// use headway_config::keys::reference;
/// use headway_config::{KnownExtensions, RESEARCH_TABLE};
///
/// let names = |extensions| reference(extensions).into_iter().map(|key| key.name);
/// let lab = KnownExtensions { research: Some(&RESEARCH_TABLE), ..KnownExtensions::NONE };
/// assert!(names(lab).any(|name| name == "preset"));
/// assert!(!names(KnownExtensions::NONE).any(|name| name == "preset"));
/// ```
#[derive(Clone, Copy)]
pub struct KnownExtensions {
    /// Applications that locations name.
    pub applications: &'static dyn KnownApplications,
    /// The table `[research]`; `None` in a server for users.
    pub research: Option<&'static ResearchTable>,
}

impl KnownExtensions {
    /// The server alone.
    pub const NONE: KnownExtensions = KnownExtensions {
        applications: &NoApplications,
        research: None,
    };
}

impl fmt::Debug for KnownExtensions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("KnownExtensions")
            .field("applications", &self.applications.names())
            .field("research", &self.research.is_some())
            .finish()
    }
}

/// The applications that a program contains.
pub trait KnownApplications: Sync {
    /// Their names in the configuration.
    fn names(&self) -> Vec<&'static str>;

    /// Directory of an application's own files where the location has no `root`, relative to the
    /// document root. `None` if there is no application of this name.
    fn directory(&self, name: &str) -> Option<&'static str>;

    /// Checks an application's own files before the server starts, so that a mistake is reported.
    ///
    /// # Errors
    /// What is missing, and how to make it.
    fn check(&self, name: &str, directory: &Path) -> Result<(), String>;
}

struct NoApplications;

impl KnownApplications for NoApplications {
    fn names(&self) -> Vec<&'static str> {
        Vec::new()
    }

    fn directory(&self, _: &str) -> Option<&'static str> {
        None
    }

    fn check(&self, _: &str, _: &Path) -> Result<(), String> {
        Ok(())
    }
}

/// Sets a key from the texts of its option; `None` where there is no such key.
pub(crate) type SetOption =
    fn(&mut ResearchSettings, &str, &[String]) -> Option<Result<(), String>>;

/// The functions by which the configuration reaches the table `[research]`. The only one is
/// [`RESEARCH_TABLE`](crate::RESEARCH_TABLE).
pub struct ResearchTable {
    /// The keys of the table.
    pub(crate) keys: fn() -> Vec<Key>,
    /// Reads the table, which stands at this path.
    pub(crate) read: fn(&DeTable<'_>, &str, &mut Findings<'_>) -> ResearchSettings,
    /// Sets a key of the table.
    pub(crate) set_option: SetOption,
    /// Puts the table of the command line over the settings of a file.
    pub(crate) overlay: fn(&mut Settings, ResearchSettings),
    /// Checks the table. Returns what is in effect, and defaults that depend on it.
    pub(crate) check: fn(&Settings, usize, Memory, &mut Findings<'_>) -> (ResearchConfig, Defaults),
}
