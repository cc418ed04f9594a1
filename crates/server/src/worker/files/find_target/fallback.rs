//! The setting `fallback`: a path that does not exist is answered by another one, which may be a file or
//! belong to a location. The request stays as it is, so a program sees the path that was requested.

use std::borrow::Cow;
use std::ops::ControlFlow::{Break, Continue};

use headway_config::Fallback;
use headway_files::{Answer, Failure};
use headway_http::Status;
use headway_http::path::Path;
use headway_request::{LookedUp, VirtualHost};

use super::{
    COMPONENTS_MAX, INDEX_COMPONENT, NoTarget, PathSearch, Search, StaticFiles, Target, status_of,
};
use crate::worker::context::LoopContext;

/// The number of the requested path among the parts that are looked up. That of the first fallback is one
/// more, and so on.
pub(super) const OWN_PART: u16 = 1 << 14;
/// The number of the first component of the first fallback, if it belongs to a location of programs.
const COMPONENTS: u16 = 1 << 15;

impl StaticFiles {
    /// Finds out whether the path exists, or which fallback does. The last one need not. `looked_up` is
    /// the path, if it has been looked up.
    pub(super) fn find_fallback(
        &mut self,
        context: &mut LoopContext,
        site: &VirtualHost,
        path: &Path<'_>,
        fallbacks: &[Fallback],
        looked_up: Option<LookedUp>,
        search: &mut PathSearch<'_>,
    ) -> Search {
        // What comes before the part that a helper has looked up does not exist.
        let (first, is_found) = match search.last_part {
            Some(part) if (COMPONENTS..INDEX_COMPONENT).contains(&part) => {
                ((part - COMPONENTS) / COMPONENTS_MAX, true)
            }
            Some(part) if (OWN_PART..INDEX_COMPONENT).contains(&part) => (part - OWN_PART, false),
            _ => (0, false),
        };
        if (first, is_found) == (0, false) {
            let own = match looked_up {
                Some(looked_up) => looked_up,
                None => self.look_up_part(context, site.root, &path.bytes, OWN_PART, search)?,
            };
            if exists(site, &own.entry.answer) {
                return Continue(Target::Files(Some(own)));
            }
        }
        let count = fallbacks.len() as u16;
        for number in first.max(1)..=count {
            let Some(name) = fallbacks[usize::from(number) - 1].of(&path.bytes) else {
                continue;
            };
            if number < count && !(is_found && number == first) {
                let part = OWN_PART + number;
                let looked_up = self.look_up_part(context, site.root, &name, part, search)?;
                match &looked_up.entry.answer {
                    Answer::File(_) => {}
                    Answer::Redirect | Answer::Directory => continue,
                    Answer::Failed(failure) => match status_of(*failure) {
                        Status::NOT_FOUND | Status::FORBIDDEN => continue,
                        status => return Break(NoTarget::Error(status)),
                    },
                }
            }
            let path = Path {
                bytes: Cow::Owned(name),
                hidden: false,
                query: None,
            };
            search.first_part = COMPONENTS + number * COMPONENTS_MAX;
            return match context.routes.find(site, &path.bytes).cloned() {
                Some(route) => self.find_in_location(context, site, &route, &path, search),
                None => Continue(Target::OtherFile(path.bytes.into_owned())),
            };
        }
        Continue(Target::Files(None))
    }
}

/// Whether the answer to a path is more than that there is nothing.
fn exists(site: &VirtualHost, answer: &Answer) -> bool {
    match answer {
        Answer::File(_) | Answer::Redirect => true,
        Answer::Directory => site.listing,
        Answer::Failed(failure) => !matches!(failure, Failure::NotFound | Failure::NameTooLong),
    }
}
