//! File sets: the documents that a server under load is asked for, and how often each is.
//!
//! [`Shape`] says in a few numbers what a set consists of: SPECweb99's (with or without places for
//! advertisements) or SPECweb96's files, equal files, or those of a real site's log. [`create`]
//! writes it, [`grow`] makes it larger, [`verify()`] compares it with its [`Manifest`].
//! [`FilePopularity`] has the weight of each file, [`Requests`] is the endless stream of a seed, and
//! [`read()`] reads files in its order. No file is ever read to know what it holds: [`Content`] is
//! a function of the seed and the file's number.
//!
//! Sources: Ruan's dissertation (2005) section 1.1; SPEC's public workload description of
//! SPECweb96.

mod access_log;
mod amount;
mod content;
mod create;
mod dynamic;
mod manifest;
mod popularity;
mod read;
mod shape;
mod site;
mod verify;

pub use access_log::{LogError, Seen, read as read_access_log};
pub use amount::Amount;
pub use content::Content;
pub use create::{CreateError, Created, Progress, create};
pub use dynamic::grow;
pub use manifest::{File, MANIFEST_NAME, Manifest, ManifestError};
pub use popularity::{FilePopularity, Requests};
pub use read::{ReadError, read};
pub use shape::{
    FILES_PER_DIRECTORY, FileIndex, PAGE_BYTES, Profile, Shape, ShapeError, specweb_bytes,
    specweb_directories,
};
pub use site::{Conflicts, SiteFile, SiteFiles};
pub use verify::{Findings, Verified, verify};
