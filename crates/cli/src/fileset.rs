//! `headway fileset`: creates the files of a measurement, verifies, shows and reads them.
//!
//! The command line becomes a shape, the library does the work, and its results are printed.
//! Results go to standard output; progress goes to standard error, and only when that is a
//! terminal.

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use clap::{Args, Subcommand};
use headway_latency::format::printable;
use headway_load::fileset::{
    self, Amount, FilePopularity, Manifest, PAGE_BYTES, Profile, Seen, Shape, ShapeError, Verified,
};
use serde_json::json;

use super::{Failure, output};
use progress::ProgressLine;

mod progress;

const EXAMPLES: &str = "\
Examples:
  headway fileset create /srv/set --size 1.5GB        SPECweb99's mix of sizes, 290 directories
  headway fileset create /srv/set --connections 400   as large as SPECweb99 demands for 400 clients
  headway fileset create /srv/set --file-size 10kB --count 1000
  headway fileset create /srv/set --log access.log    the sizes and popularity of a real site
  headway fileset verify /srv/set                     compare the files with the manifest
  headway fileset show /srv/set                       how much memory most of the requests need
  headway fileset read /srv/set --requests 200000     fill the page cache as 200,000 requests do

Exit codes: 0 success, 1 failure or a difference, 2 usage error.";

const MORE: &str = "Profiles and examples: headway fileset create --help";

const CREATE_EXAMPLES: &str = "\
Examples:
  headway fileset create /srv/set --size 1.5GB
  headway fileset create /srv/set --connections 400
  headway fileset create /srv/set --size 500MB --profile specweb96
  headway fileset create /srv/set --file-size 10kB --count 1000
  headway fileset create /srv/set --profile many-files --count 300000
  headway fileset create /srv/set --log /var/log/nginx/access.log
  zcat access.log.*.gz | headway fileset create /srv/set --log -

Profiles:
  specweb99          directories of 36 files, 100 bytes to 900 KB; directory n is requested 1/n as
                     often as the first
  specweb99-dynamic  specweb99, with the files of the dynamic application (headway-lab)
  specweb96          the files of specweb99, all directories requested equally often
  uniform            --count files of --file-size bytes, requested equally often
  many-files         --count files of 512 bytes to 16 KiB, 100 in a directory; the file of rank n is
                     requested 1/n as often as the first
  from-log           the files in --log, with their sizes and popularity

The directory must be new or empty. Run an interrupted command again to continue it; existing files
are not overwritten. Equal arguments create equal bytes on every machine.

Exit codes: 0 success, 1 failure, 2 usage error.";

/// Create and verify sets of files to measure a server with
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Create(Create),
    Verify(Verify),
    Show(Show),
    Read(Read),
}

/// Create a file set in a directory, or continue an interrupted one
#[derive(Debug, Args)]
#[command(after_help = MORE, after_long_help = CREATE_EXAMPLES)]
struct Create {
    /// A new or empty directory
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Size on disk and in memory, in pages of 4 KiB: 500MB, 1.5GB (specweb profiles)
    #[arg(
        long,
        value_name = "SIZE",
        allow_hyphen_values = true,
        conflicts_with = "connections"
    )]
    size: Option<Amount>,
    /// As large as SPECweb99 demands for N connections: 122 + 3.22 N MB
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = whole_number)]
    connections: Option<u64>,
    /// specweb99, specweb99-dynamic, specweb96, uniform, many-files or from-log [default: the
    /// profile of the other options, else specweb99]
    #[arg(long, value_name = "PROFILE")]
    profile: Option<Profile>,
    /// Size of each file (uniform)
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    file_size: Option<Amount>,
    /// Number of files (uniform, many-files)
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = whole_number)]
    count: Option<u64>,
    /// An access log in common or combined format; - is standard input (from-log)
    #[arg(long, value_name = "ACCESS_LOG")]
    log: Option<PathBuf>,
    /// Seed of the contents; it changes no name and no size
    #[arg(long, value_name = "N", default_value_t = 1, allow_hyphen_values = true, value_parser = seed)]
    seed: u64,
    #[command(flatten)]
    common: Common,
}

/// Compare a set with its manifest: missing and extra files, sizes, contents
#[derive(Debug, Args)]
struct Verify {
    /// The directory of the set
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Compare names and sizes only
    #[arg(long)]
    quick: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    common: Common,
}

/// Print the parameters of a set, and how much memory most of the requests need
#[derive(Debug, Args)]
struct Show {
    /// The directory of the set
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const READ_EXAMPLES: &str = "\
Examples:
  headway fileset read /srv/set --requests 200000
  headway-lab exec NAME -- headway fileset read DIR --requests 200000 --seed 7

One thread reads whole files, in the order in which `headway load` with that seed requests them.

Exit codes: 0 success, 1 failure, 2 usage error.";

/// Read files as requests do, to fill the page cache
#[derive(Debug, Args)]
#[command(after_help = READ_EXAMPLES)]
struct Read {
    /// The directory of the set
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Number of files to read
    #[arg(long, short = 'n', value_name = "N", allow_hyphen_values = true, value_parser = whole_number)]
    requests: u64,
    /// Seed of the order in which files are read
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        allow_hyphen_values = true,
        value_parser = whole_number
    )]
    seed: u64,
    /// Print only warnings and errors
    #[arg(long, short)]
    quiet: bool,
}

#[derive(Debug, Args)]
struct Common {
    /// Threads [default: one per CPU, at most 8]
    #[arg(long, value_name = "N", value_parser = threads)]
    threads: Option<u16>,
    /// Print only warnings and errors
    #[arg(long, short)]
    quiet: bool,
}

fn whole_number(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("`{text}` is not a whole number; write 0 or more, without a unit"))
}

/// The manifest is TOML, whose numbers are signed.
fn seed(text: &str) -> Result<u64, String> {
    match whole_number(text)? {
        seed if i64::try_from(seed).is_ok() => Ok(seed),
        _ => Err(format!("a seed is at most {}", i64::MAX)),
    }
}

fn threads(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(number @ 1..=256) => Ok(number),
        _ => Err(format!("`{text}` is not a number of threads, 1 to 256")),
    }
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.action {
        Action::Create(create) => create.run(),
        Action::Verify(verify) => verify.run(),
        Action::Show(show) => show.run(),
        Action::Read(read) => read.run(),
    }
}

impl Create {
    fn run(&self) -> Result<(), Failure> {
        let begun = Instant::now();
        let (shape, seen) = self.shape()?;
        let mut line = ProgressLine::new("written", self.common.quiet);
        let created = fileset::create(
            &self.directory,
            shape,
            self.seed,
            self.common.threads(),
            &mut |progress| line.show(progress),
        );
        line.clear();
        let created = created?;
        if self.common.quiet {
            return Ok(());
        }
        let mut out = output::stdout();
        if let Some(seen) = seen {
            write!(out, "{}", log_text(&seen))?;
        }
        let directory = shown(&self.directory);
        let files = created.manifest.len();
        if created.files_written == 0 {
            writeln!(out, "{directory}: all {files} files are there already")?;
            return Ok(());
        }
        writeln!(
            out,
            "{directory}: {}, {} files, {} written in {:.1} s{}",
            created.manifest.profile(),
            files,
            Amount(created.bytes_written),
            begun.elapsed().as_secs_f64(),
            if created.resumed {
                format!(" ({} of the files were missing)", created.files_written)
            } else {
                String::new()
            }
        )?;
        Ok(())
    }

    /// The shape that the options describe, and the contents of a log.
    fn shape(&self) -> Result<(Shape, Option<Seen>), Failure> {
        let profile = self.profile();
        self.check_options(profile)?;
        let shape = match profile {
            Profile::SpecWeb99 => Shape::specweb99(self.bytes()?),
            Profile::SpecWeb99Dynamic => Shape::specweb99_dynamic(self.bytes()?),
            Profile::SpecWeb96 => Shape::specweb96(self.bytes()?),
            Profile::Uniform => {
                let (Some(size), Some(count)) = (self.file_size, self.count) else {
                    return Err(usage_error(
                        "a uniform set needs both --file-size and --count",
                    ));
                };
                if size.0 == 0 {
                    return Err(usage_error(
                        "--file-size: 0 bytes hold nothing to send; use 1 or more",
                    ));
                }
                Shape::uniform(count, size.0)
            }
            Profile::ManyFiles => Shape::many_files(
                self.count
                    .ok_or_else(|| usage_error("a set of many-files needs --count"))?,
            ),
            Profile::FromLog => return self.site().map(|(shape, seen)| (shape, Some(seen))),
        };
        match shape {
            Ok(shape) => Ok((shape, None)),
            Err(ShapeError::Empty) => Err(usage_error(
                "a file set needs at least one file; use a number above 0",
            )),
            Err(error) => Err(usage_error(&error.to_string())),
        }
    }

    /// The profile that was named, or the one whose options were used.
    fn profile(&self) -> Profile {
        self.profile.unwrap_or(if self.log.is_some() {
            Profile::FromLog
        } else if self.file_size.is_some() || self.count.is_some() {
            Profile::Uniform
        } else {
            Profile::SpecWeb99
        })
    }

    /// An option that the profile would ignore is a usage error.
    fn check_options(&self, profile: Profile) -> Result<(), Failure> {
        use Profile::{FromLog, ManyFiles, SpecWeb96, SpecWeb99, SpecWeb99Dynamic, Uniform};
        let specweb = [SpecWeb99, SpecWeb99Dynamic, SpecWeb96];
        let options = [
            ("--size", self.size.is_some(), &specweb[..]),
            ("--connections", self.connections.is_some(), &specweb),
            ("--file-size", self.file_size.is_some(), &[Uniform]),
            ("--count", self.count.is_some(), &[Uniform, ManyFiles]),
            ("--log", self.log.is_some(), &[FromLog]),
        ];
        for (option, given, profiles) in options {
            if given && !profiles.contains(&profile) {
                return Err(usage_error(&format!(
                    "{option} does not belong to the profile {profile}; see headway fileset create --help"
                )));
            }
        }
        Ok(())
    }

    /// The size of a SPECweb set.
    fn bytes(&self) -> Result<u64, Failure> {
        match (self.size, self.connections) {
            (Some(Amount(0)), _) => Err(usage_error(
                "--size: a file set needs at least one file; use a size above 0",
            )),
            (Some(size), _) => Ok(size.0),
            (None, Some(0)) => Err(usage_error("--connections: use at least 1")),
            (None, Some(connections)) => Ok(fileset::specweb_bytes(connections)),
            (None, None) => Err(usage_error(
                "how large? use --size 1.5GB or --connections 400",
            )),
        }
    }

    fn site(&self) -> Result<(Shape, Seen), Failure> {
        let Some(log) = &self.log else {
            return Err(usage_error("the profile from-log needs --log ACCESS_LOG"));
        };
        let (site, seen) = if log == Path::new("-") {
            fileset::read_access_log(&mut io::stdin().lock())
                .context("the log on standard input")?
        } else {
            let file = File::open(log).with_context(|| format!("opening {}", log.display()))?;
            fileset::read_access_log(&mut BufReader::new(file))
                .with_context(|| log.display().to_string())?
        };
        let shape = Shape::Site(site)
            .checked()
            .context("the files of the log")?;
        Ok((shape, seen))
    }
}

impl Verify {
    fn run(&self) -> Result<(), Failure> {
        let manifest = Manifest::load(&self.directory)?;
        let mut line = ProgressLine::new("compared", self.common.quiet || self.quick);
        let verified = fileset::verify(
            &manifest,
            self.quick,
            self.common.threads(),
            &mut |progress| {
                line.show(progress);
            },
        );
        line.clear();
        let verified = verified.with_context(|| format!("reading {}", self.directory.display()))?;
        let mut out = output::stdout();
        if self.json {
            let mut value = serde_json::to_value(&verified)?;
            value["same"] = verified.is_same().into();
            writeln!(out, "{value:#}")?;
        } else if !self.common.quiet {
            write!(out, "{}", findings_text(&verified))?;
        }
        if verified.is_same() {
            if !self.json && !self.common.quiet {
                let compared = if self.quick {
                    "names and sizes"
                } else {
                    "names, sizes and contents"
                };
                let (files, bytes) = (verified.files, Amount(verified.bytes));
                writeln!(
                    out,
                    "{}: {files} files, {bytes}: {compared} match the manifest",
                    shown(&self.directory)
                )?;
            }
            return Ok(());
        }
        Err(self.difference(&verified).into())
    }

    fn difference(&self, verified: &Verified) -> anyhow::Error {
        let kinds = verified.kinds();
        let found: Vec<String> = kinds
            .iter()
            .filter(|(_, found)| found.count > 0)
            .map(|(name, found)| format!("{} {name}", found.count))
            .collect();
        let advice = if verified.complete {
            ""
        } else {
            "; it was interrupted: run the `fileset create` command again to continue"
        };
        anyhow::anyhow!(
            "{} differs from its manifest: {}{advice}",
            self.directory.display(),
            found.join(", ")
        )
    }
}

fn shown(path: &Path) -> String {
    printable(&path.display().to_string()).into_owned()
}

/// Examples of each kind of difference.
fn findings_text(verified: &Verified) -> String {
    let mut text = String::new();
    for (kind, found) in verified.kinds() {
        for example in &found.examples {
            text += &format!("{kind}: {}\n", printable(example));
        }
        let more = found.count - found.examples.len() as u64;
        if more > 0 {
            text += &format!("{kind}: and {more} more\n");
        }
    }
    text
}

impl Show {
    const SHARES: [f64; 4] = [0.50, 0.90, 0.95, 0.99];

    fn run(&self) -> Result<(), Failure> {
        let manifest = Manifest::load(&self.directory)?;
        let popularity = FilePopularity::new(&manifest);
        let mut out = output::stdout();
        if self.json {
            writeln!(out, "{:#}", self.json(&manifest, &popularity))?;
            return Ok(());
        }
        let pages = Amount(manifest.shape().page_bytes());
        writeln!(out, "profile      {}", manifest.profile())?;
        writeln!(out, "files        {}", manifest.len())?;
        writeln!(out, "directories  {}", manifest.shape().directories())?;
        writeln!(
            out,
            "lengths      {} ({} bytes)",
            Amount(manifest.bytes()),
            manifest.bytes()
        )?;
        writeln!(
            out,
            "in pages     {pages} (on disk and in memory, {PAGE_BYTES} bytes each)"
        )?;
        writeln!(out, "seed         {}", manifest.seed())?;
        writeln!(out, "parameters   {}", manifest.parameters_checksum())?;
        let complete = if manifest.complete() {
            "yes"
        } else {
            "no; run the `fileset create` command again to continue"
        };
        writeln!(out, "complete     {complete}\n")?;
        writeln!(out, "requests   most popular files   in pages")?;
        for share in Self::SHARES {
            let lengths = Amount(popularity.top_bytes(share)).to_string();
            let pages = Amount(popularity.top_page_bytes(share)).to_string();
            writeln!(out, "{:>6.0} %   {lengths:>18}   {pages:>8}", share * 100.0)?;
        }
        Ok(())
    }

    fn json(&self, manifest: &Manifest, popularity: &FilePopularity) -> serde_json::Value {
        let top: Vec<_> = Self::SHARES
            .iter()
            .map(|&share| {
                json!({
                    "share": share,
                    "bytes": popularity.top_bytes(share),
                    "page_bytes": popularity.top_page_bytes(share),
                })
            })
            .collect();
        json!({
            "profile": manifest.profile().to_string(),
            "files": manifest.len(),
            "directories": manifest.shape().directories(),
            "bytes": manifest.bytes(),
            "page_bytes": manifest.shape().page_bytes(),
            "seed": manifest.seed(),
            "parameters_checksum": manifest.parameters_checksum(),
            "complete": manifest.complete(),
            "top": top,
        })
    }
}

impl Read {
    fn run(&self) -> Result<(), Failure> {
        let begun = Instant::now();
        let manifest = Manifest::load(&self.directory)?;
        let mut line = ProgressLine::new("read", self.quiet);
        let read = fileset::read(&manifest, self.requests, self.seed, &mut |progress| {
            line.show(progress);
        });
        line.clear();
        let bytes = Amount(read?);
        if !self.quiet {
            let (directory, requests) = (shown(&self.directory), self.requests);
            let seconds = begun.elapsed().as_secs_f64();
            let mut out = output::stdout();
            writeln!(
                out,
                "{directory}: {requests} files, {bytes} read in {seconds:.1} s"
            )?;
        }
        Ok(())
    }
}

impl Common {
    fn threads(&self) -> NonZeroUsize {
        let given = self
            .threads
            .and_then(|threads| NonZeroUsize::new(threads.into()));
        let eight = NonZeroUsize::MIN.saturating_add(7);
        given.unwrap_or_else(|| {
            std::thread::available_parallelism()
                .map_or(NonZeroUsize::MIN, |threads| threads.min(eight))
        })
    }
}

/// What was left out of the set, so that a set that lacks half of a site is no surprise later.
fn log_text(seen: &Seen) -> String {
    let mut text = format!(
        "{} of {} lines of the log are requests for files of the set\n",
        seen.used, seen.lines
    );
    for (count, what) in [
        (seen.other_methods, "left out: not a GET"),
        (seen.other_statuses, "left out: not answered 200 or 304"),
        (
            seen.not_understood,
            "left out: in neither common nor combined format",
        ),
        (
            seen.hostile,
            "left out: paths with .. or control characters",
        ),
        (seen.hidden, "left out: hidden names"),
        (seen.long, "left out: names too long for a file system"),
        (
            seen.unknown_size,
            "left out: always answered 304, so the size is unknown",
        ),
        (seen.conflicting, "left out: a directory has the same name"),
        (seen.beyond, "left out: more files than a set may have"),
        (
            seen.moved,
            "files became the index.html of the directory of the same name",
        ),
    ] {
        if count > 0 {
            text += &format!("{count:>9} {what}\n");
        }
    }
    text
}

fn usage_error(message: &str) -> Failure {
    Failure::Usage(message.to_owned())
}
