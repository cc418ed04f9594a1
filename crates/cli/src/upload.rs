//! `headway upload`: a run directory into storage that speaks S3, as `load --upload` sends it after a run.
//!
//! The runs of agents are beside each other, as `agent=0`, `agent=1`, …, which other programs read as a partitioned
//! data set. A merged run is `merged`.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::Args;
use headway_latency::Run;
use headway_latency::format::count;
use headway_latency::run::Kind;
use headway_object_storage::{Location, Settings, Storage};

use super::{Failure, output};

/// The file that says that a run is whole.
pub const MARK: &str = "run.json";
/// What the names of the runs of agents begin with.
pub const AGENT: &str = "agent=";

const EXAMPLES: &str = "\
Examples:
  headway load http://app/ --rate 8000 --agent 0/2 -o run-0 --upload s3://bucket/monday
  headway upload run-0 s3://bucket/monday       the same later, or after an upload that failed
  headway merge s3://bucket/monday -o all

The keys are in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. AWS_REGION and, for storage that is not Amazon's,
AWS_ENDPOINT_URL say where it is. Large files are sent in parts, and an upload that was cut off continues.

Exit codes: 0 success; 1 the run cannot be read or sent; 2 usage error.";

/// Send a run directory to storage that speaks S3
#[derive(Debug, Args)]
#[command(after_help = "Examples: headway upload --help", after_long_help = EXAMPLES)]
pub struct Arguments {
    /// A directory that `headway load -o` wrote
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// The place: s3://BUCKET/PREFIX
    #[arg(value_name = "URL")]
    to: Location,
}

/// Where `load` and `merge` send their run.
#[derive(Debug, Args)]
pub struct UploadOptions {
    /// Send the directory of --output to storage that speaks S3: s3://BUCKET/PREFIX
    ///
    /// It is sent at the end of the run. The storage is checked before the run starts.
    #[arg(
        long,
        value_name = "URL",
        requires = "output",
        help_heading = "Output",
        hide_short_help = true
    )]
    upload: Option<Location>,
}

impl UploadOptions {
    /// Asks the storage. `None` if there is nothing to send.
    pub fn open(&self) -> Result<Option<Storage>, Failure> {
        let open = |location: &Location| -> Result<Storage, Failure> {
            let storage = storage(location)?;
            let probed = storage.probe().map_err(|error| anyhow!("{error}"));
            probed.with_context(|| format!("asking {location}; nothing was done"))?;
            Ok(storage)
        };
        self.upload.as_ref().map(open).transpose()
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let storage = storage(&arguments.to)?;
    let text = send(&storage, &arguments.run)?;
    output::print(&format!("{text} to {}\n", arguments.to))
}

/// The storage with the keys of the environment.
pub fn storage(location: &Location) -> Result<Storage, Failure> {
    let settings = Settings::from_environment();
    let storage = settings.and_then(|settings| Storage::open(location.clone(), settings));
    Ok(storage.map_err(|error| anyhow!("{error}"))?)
}

/// Sends a run that is whole, and says what was sent.
pub fn send(storage: &Storage, directory: &Path) -> Result<String, Failure> {
    let run = Run::open(directory)?;
    let description = run.description();
    let refused = |why: &str| Failure::Runtime(anyhow!("{}: {why}", directory.display()));
    if description.kind != Kind::Load {
        return Err(refused("holds several runs; send single ones"));
    }
    if !description.complete {
        return Err(refused("the run is not complete, and nothing was sent"));
    }
    let agent = description.agent.map_or(0, |agent| agent.index);
    let name = match description.agents.is_empty() {
        true => format!("{AGENT}{agent}"),
        false => "merged".to_owned(),
    };
    let done = storage.upload(directory, &name, MARK);
    let done = done.map_err(|error| {
        anyhow!(
            "{error}; `headway upload {} URL` continues",
            directory.display()
        )
    })?;
    let again = match done.resumed_bytes {
        0 => String::new(),
        bytes => format!(", of which {} were there", count(bytes)),
    };
    Ok(match done.files {
        0 => "everything was sent already".to_owned(),
        files => format!("sent {files} files, {} bytes{again},", count(done.bytes)),
    })
}
