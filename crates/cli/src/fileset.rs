//! `headway fileset`: makes the documents of a measurement, verifies, shows and reads them.
//!
//! Glue: words become a shape, the library does the work, and its answers are put into words.
//! Results go to standard output; progress goes to standard error, and only when that is a
//! terminal.

use std::fs::File;
use std::io::{self, BufReader, IsTerminal, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use clap::{Args, Subcommand};
use headway_load::fileset::{
    self, Amount, Manifest, PAGE_BYTES, Popularity, Profile, Progress, Seen, Shape, ShapeError,
    Verified,
};
use serde_json::json;

use super::{Failure, output};

const EXAMPLES: &str = "\
Examples:
  headway fileset create /srv/set --size 1.5GB            290 directories like SPECweb99's
  headway fileset create /srv/set --connections 400       as large as SPECweb99 asks for 400 clients
  headway fileset create /srv/set --connections 400 --profile specweb99-dynamic     for `headway load --specweb99`
  headway fileset create /srv/set --file-size 10kB --count 1000
  headway fileset create /srv/set --log access.log        the sizes and popularity of a real site
  headway fileset verify /srv/set                         is it still what was made?
  headway fileset show /srv/set                           how much of it do most requests need?
  headway fileset read /srv/set --requests 200000         as much in memory as after so many

Exit codes: 0 done, 1 failed or different, 2 wrong use.";

const CREATE_EXAMPLES: &str = "\
Examples:
  headway fileset create /srv/set --size 1.5GB
  headway fileset create /srv/set --connections 400
  headway fileset create /srv/set --size 500MB --profile specweb96
  headway fileset create /srv/set --file-size 10kB --count 1000
  headway fileset create /srv/set --log /var/log/nginx/access.log
  zcat access.log.*.gz | headway fileset create /srv/set --log -

Profiles:
  specweb99  directories of 36 files, 100 bytes to 900 KB; the nth is 1/n as popular as the first
  specweb99-dynamic  the same with places for advertisements, and the files of the dynamic application
  specweb96  the same files, all directories alike
  uniform    --count files of --file-size bytes, all alike
  from-log   the files that --log shows, as large and as popular as there

The directory must be new or empty. If it is interrupted, give the same command again: it goes on,
and overwrites nothing. The same words give the same bytes on every machine.
Exit codes: 0 done, 1 failed, 2 wrong use.";

/// Makes, verifies, shows and reads sets of files to measure a server with.
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

/// Makes a file set in a directory, or completes one that was interrupted.
#[derive(Debug, Args)]
#[command(after_help = CREATE_EXAMPLES)]
struct Create {
    /// A new or empty directory
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// What it takes on disk and in memory, in pages of 4 KiB: 500MB, 1.5GB (specweb99,
    /// specweb99-dynamic and specweb96)
    #[arg(
        long,
        value_name = "SIZE",
        allow_hyphen_values = true,
        conflicts_with = "connections"
    )]
    size: Option<Amount>,
    /// As large as SPECweb99 asks for N simultaneous connections: 122 + 3.22 N MB
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    connections: Option<u64>,
    /// specweb99, specweb99-dynamic, specweb96, uniform or from-log [default: specweb99, or what
    /// the other words say]
    #[arg(long, value_name = "PROFILE")]
    profile: Option<Profile>,
    /// The length of each file (uniform)
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    file_size: Option<Amount>,
    /// How many files (uniform)
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    count: Option<u64>,
    /// An access log in common or combined format, - for standard input (from-log)
    #[arg(long, value_name = "ACCESS_LOG")]
    log: Option<PathBuf>,
    /// Another number gives files of the same names and sizes with other contents
    #[arg(long, value_name = "N", default_value_t = 1, allow_hyphen_values = true, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: u64,
    #[command(flatten)]
    common: Common,
}

/// Compares a set with its manifest: missing and extra files, sizes, contents.
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

/// Says what a set consists of, and how much of it most requests need.
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
  headway lab exec NAME server -- headway fileset read DIR --requests 200000 --seed 7

Files are read whole and in the order in which `headway load` with that seed would ask for them, by one thread.
Exit codes: 0 done, 1 failed, 2 wrong use.";

/// Reads files as requests for them would, so that the page cache is as full as after so many.
#[derive(Debug, Args)]
#[command(after_help = READ_EXAMPLES)]
struct Read {
    /// The directory of the set
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// How many files to read
    #[arg(long, short = 'n', value_name = "N", allow_hyphen_values = true)]
    requests: u64,
    /// Of the order in which they are read
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        allow_hyphen_values = true
    )]
    seed: u64,
    /// Print nothing but trouble
    #[arg(long, short)]
    quiet: bool,
}

#[derive(Debug, Args)]
struct Common {
    /// Threads that work at once [default: one a processor, 8 at most]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// Print nothing but trouble
    #[arg(long, short)]
    quiet: bool,
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
            write!(out, "{}", log_in_words(&seen))?;
        }
        let directory = self.directory.display();
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

    /// What the words ask for, and what a log consisted of.
    fn shape(&self) -> Result<(Shape, Option<Seen>), Failure> {
        let profile = self.profile();
        self.refuse_strangers(profile)?;
        let shape = match profile {
            Profile::SpecWeb99 => Shape::specweb99(self.bytes()?),
            Profile::SpecWeb99Dynamic => Shape::specweb99_dynamic(self.bytes()?),
            Profile::SpecWeb96 => Shape::specweb96(self.bytes()?),
            Profile::Uniform => {
                let (Some(size), Some(count)) = (self.file_size, self.count) else {
                    return Err(wrong("a uniform set needs both --file-size and --count"));
                };
                if size.0 == 0 {
                    return Err(wrong(
                        "--file-size: 0 bytes hold nothing to send; give 1 or more",
                    ));
                }
                Shape::uniform(count, size.0)
            }
            Profile::FromLog => return self.site().map(|(shape, seen)| (shape, Some(seen))),
        };
        match shape {
            Ok(shape) => Ok((shape, None)),
            Err(ShapeError::Empty) => Err(wrong(
                "a file set needs at least one file; give a number above 0",
            )),
            Err(error) => Err(wrong(&error.to_string())),
        }
    }

    /// The one that was named, or the one whose words were used.
    fn profile(&self) -> Profile {
        self.profile.unwrap_or(if self.log.is_some() {
            Profile::FromLog
        } else if self.file_size.is_some() || self.count.is_some() {
            Profile::Uniform
        } else {
            Profile::SpecWeb99
        })
    }

    /// A word that the profile would ignore is a mistake.
    fn refuse_strangers(&self, profile: Profile) -> Result<(), Failure> {
        use Profile::{FromLog, SpecWeb96, SpecWeb99, SpecWeb99Dynamic, Uniform};
        let specweb = [SpecWeb99, SpecWeb99Dynamic, SpecWeb96];
        let words = [
            ("--size", self.size.is_some(), &specweb[..]),
            ("--connections", self.connections.is_some(), &specweb),
            ("--file-size", self.file_size.is_some(), &[Uniform]),
            ("--count", self.count.is_some(), &[Uniform]),
            ("--log", self.log.is_some(), &[FromLog]),
        ];
        for (word, given, profiles) in words {
            if given && !profiles.contains(&profile) {
                return Err(wrong(&format!(
                    "{word} does not belong to the profile {profile}; see headway fileset create --help"
                )));
            }
        }
        Ok(())
    }

    /// The size of a SPECweb set.
    fn bytes(&self) -> Result<u64, Failure> {
        match (self.size, self.connections) {
            (Some(Amount(0)), _) => Err(wrong(
                "--size: a file set needs at least one file; give a size above 0",
            )),
            (Some(size), _) => Ok(size.0),
            (None, Some(0)) => Err(wrong("--connections: give at least 1")),
            (None, Some(connections)) => Ok(fileset::specweb_bytes(connections)),
            (None, None) => Err(wrong("how large? give --size 1.5GB or --connections 400")),
        }
    }

    fn site(&self) -> Result<(Shape, Seen), Failure> {
        let Some(log) = &self.log else {
            return Err(wrong("the profile from-log needs --log ACCESS_LOG"));
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
            write!(out, "{}", findings_in_words(&verified))?;
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
                    "{}: {files} files, {bytes}: {compared} as the manifest says",
                    self.directory.display()
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
            "; it was interrupted: give the `fileset create` command again to go on"
        };
        anyhow::anyhow!(
            "{} is not what its manifest says: {}{advice}",
            self.directory.display(),
            found.join(", ")
        )
    }
}

/// The names that were kept, by kind.
fn findings_in_words(verified: &Verified) -> String {
    let mut text = String::new();
    for (kind, found) in verified.kinds() {
        for example in &found.examples {
            text += &format!("{kind}: {}\n", example.escape_debug());
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
        let popularity = Popularity::new(&manifest);
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
            "no; give the `fileset create` command again to go on"
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

    fn json(&self, manifest: &Manifest, popularity: &Popularity) -> serde_json::Value {
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
            let (directory, requests) = (self.directory.display(), self.requests);
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

/// What was left out, since a set that lacks half of a site should not surprise anybody later.
fn log_in_words(seen: &Seen) -> String {
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
            "left out: paths that lead upwards or hold control characters",
        ),
        (seen.hidden, "left out: hidden names"),
        (seen.long, "left out: names too long for a file system"),
        (
            seen.unknown_size,
            "left out: only ever answered 304, so the size is not known",
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

fn wrong(words: &str) -> Failure {
    Failure::Use(words.to_owned())
}

/// One line on a terminal's standard error that is written over and over.
struct ProgressLine {
    verb: &'static str,
    begun: Instant,
    shown: bool,
    on: bool,
}

impl ProgressLine {
    fn new(verb: &'static str, quiet: bool) -> ProgressLine {
        ProgressLine {
            verb,
            begun: Instant::now(),
            shown: false,
            on: !quiet && io::stderr().is_terminal(),
        }
    }

    fn show(&mut self, progress: Progress) {
        if !self.on {
            return;
        }
        self.shown = true;
        let (done, total) = (progress.bytes_done, progress.bytes_total);
        let text = if progress.syncing {
            format!("{} {}; waiting for the disk", Amount(total), self.verb)
        } else {
            let rate = done as f64 / self.begun.elapsed().as_secs_f64().max(1e-3);
            let percent = done as f64 * 100.0 / total.max(1) as f64;
            let left_s = (total.saturating_sub(done)) as f64 / rate.max(1.0);
            let (done, total, rate) = (Amount(done), Amount(total), Amount(rate as u64));
            format!(
                "{percent:3.0} %  {done} of {total} {}  {rate}/s  {left_s:.0} s left",
                self.verb
            )
        };
        // Carriage return and "erase to the end of the line". A closed terminal is no reason to
        // stop.
        let _ = write!(io::stderr(), "\r{text}\x1b[K");
    }

    fn clear(&self) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
