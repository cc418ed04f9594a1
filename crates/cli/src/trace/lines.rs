//! Kernel source lines, for `--kernel-lines`.
//!
//! The debug file has about a gigabyte and takes seconds to read. So it is read only on request,
//! once, after the command has ended (with `--live`, at the first drawing).

use std::cell::OnceCell;
use std::io;

use headway_debox::{KernelLines, Symbols};

/// The debug file, if it is wanted.
pub struct Lines {
    wanted: bool,
    found: OnceCell<io::Result<KernelLines>>,
}

impl Lines {
    /// Reads nothing yet.
    pub fn new(wanted: bool) -> Lines {
        Lines {
            wanted,
            found: OnceCell::new(),
        }
    }

    /// The lines; none if they are not wanted.
    ///
    /// # Errors
    ///
    /// A sentence that says why there are none.
    pub fn get(&self, symbols: Option<&Symbols>) -> Result<Option<&KernelLines>, String> {
        let without = "Kernel functions have no file and line";
        if !self.wanted {
            return Ok(None);
        }
        let Some(symbols) = symbols else {
            return Err(format!(
                "{without}: the kernel's symbols are not to be read."
            ));
        };
        let found = self.found.get_or_init(|| KernelLines::find(symbols));
        let lines = found.as_ref().map_err(|why| format!("{without}: {why}."))?;
        Ok(Some(lines))
    }
}
