//! A set of files as work: its files are the documents, its popularity the order.

use std::num::NonZeroUsize;
use std::path::Path;

use super::SessionError;
use super::work::CollectedWork;
use crate::engine::{Document, Part, RequestOrder, Work};
use crate::fileset::{FilePopularity, Manifest};
use headway_latency::run::description::{AgentInfo, FileSetInfo};

/// Reads the manifest of a set, or of its first directories; the files themselves are not read.
/// Checksums of the expected contents are computed on all CPUs, only if contents are to be
/// verified.
pub(super) fn collect(
    directory: &Path,
    prefix: &str,
    verify: bool,
    directories: Option<u32>,
    agent: Option<AgentInfo>,
) -> Result<CollectedWork, SessionError> {
    let manifest =
        Manifest::load(directory).map_err(|error| SessionError::Content(error.to_string()))?;
    let part = directories.and_then(|directories| manifest.part(directories));
    let manifest = part.unwrap_or(manifest);
    if !manifest.complete() {
        let directory = directory.display();
        return Err(SessionError::Content(format!(
            "{directory}: the file set is not complete; run `headway fileset create {directory}` again to continue it"
        )));
    }
    let checksums = verify.then(|| {
        let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        manifest.checksums(threads)
    });
    let documents = manifest.files().map(|file| Document {
        path: format!("{prefix}{}", file.path),
        size_bytes: Some(file.size_bytes),
        class: file.class,
        checksum: checksums.as_ref().map(|all| all[file.index as usize]),
    });
    let mut popularity = FilePopularity::new(&manifest);
    if let Some(AgentInfo { index, count }) = agent {
        popularity = popularity.part(Part::new(index, count)).ok_or_else(|| {
            let text = format!("--agent {index}/{count}: there are fewer files than agents");
            SessionError::Use(text)
        })?;
    }
    let work = Work {
        documents: documents.collect(),
        order: RequestOrder::Drawn(Box::new(popularity)),
    };
    let info = FileSetInfo {
        path: directory.display().to_string(),
        profile: manifest.profile().to_string(),
        bytes: manifest.bytes(),
        files: manifest.len().into(),
        seed: manifest.seed(),
        checksum: manifest.parameters_checksum(),
    };
    Ok(CollectedWork {
        work,
        fileset: Some(info),
        conversation: None,
    })
}
