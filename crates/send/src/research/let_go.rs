//! Files that are closed once they are mapped, as Flash did, and their names.
//!
//! A name that is known and data that is not mapped any more lead to an `open` on the event loop,
//! which may wait: the rare path that the dissertation found (2.5.3). Names have no limit here; the
//! file cache has one.
//!
//! The name of a file is what the kernel says of its descriptor before that is closed (proc(5)).

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::rc::Rc;

use headway_files::{Meta, OpenFile};
use headway_metrics::calls::Call;
use headway_os::open::{Links, NameLookup, open_to_read};
use rustix::fs::CWD;

use crate::{SendContext, SendProgress};

/// References to a file that only the response being sent has: the file cache, the piece of the
/// response, and that of the sender.
const REFERENCES_OF_ONE: usize = 3;

/// The names of files that were closed, by what the files were.
pub(super) struct LetGo {
    names: HashMap<Meta, PathBuf>,
    /// What the descriptor of a closed file leads to.
    nothing: File,
}

impl LetGo {
    /// `None` where there is no /dev/null; then files stay open.
    pub(super) fn new() -> Option<LetGo> {
        Some(LetGo {
            names: HashMap::new(),
            nothing: File::open("/dev/null").ok()?,
        })
    }

    /// Closes a file of which all that is wanted is mapped, unless another response uses it.
    pub(super) fn close(&mut self, file: &Rc<OpenFile>, context: &SendContext<'_>) {
        if file.is_let_go() || file.is_memory() || Rc::strong_count(file) > REFERENCES_OF_ONE {
            return;
        }
        let descriptor = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        if !self.names.contains_key(file.meta()) {
            let Ok(name) = std::fs::read_link(descriptor) else {
                return;
            };
            self.names.insert(*file.meta(), name);
        }
        // Where it fails the file stays open, which is the usual state.
        let _ = (context.tracer).call(Call::Close, || file.let_go(self.nothing.as_fd()));
    }

    /// Opens a closed file again by its name, on the event loop. May block.
    pub(super) fn open(
        &mut self,
        file: &Rc<OpenFile>,
        context: &mut SendContext<'_>,
    ) -> Result<(), SendProgress> {
        context.counters.mapping_cache_reopened += 1;
        let name = self.names.get(file.meta()).ok_or(SendProgress::Changed);
        let opened = name.and_then(|name| {
            let bytes = name.as_os_str().as_bytes();
            let open = || open_to_read(CWD, bytes, NameLookup::MayBlock, Links::Anywhere, false);
            let found = context.tracer.call(Call::Reopen, open);
            match found {
                Ok(Some((descriptor, status))) if Meta::from(status) == *file.meta() => {
                    Ok(descriptor)
                }
                _ => Err(SendProgress::Changed),
            }
        });
        let taken = opened.and_then(|descriptor| {
            file.take_back(descriptor.as_fd())
                .map_err(|_| SendProgress::Changed)
        });
        if taken.is_err() {
            self.forget(file);
        }
        taken
    }

    /// Has the name of a closed file looked up again by a helper.
    pub(super) fn forget(&mut self, file: &Rc<OpenFile>) {
        self.names.remove(file.meta());
        file.outdate();
    }
}
