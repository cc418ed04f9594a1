//! Options that say which calls are kept and how to react, translated for `headway_debox::policy`.

use clap::Args;
use headway_debox::policy::{Filter, ReactionRule};
use headway_server::config::units::Bytes;
use headway_trace::launch::PreloadOptions;

use super::Failure;

/// Policy options.
#[derive(Debug, Args)]
#[group(skip)]
#[command(
    next_help_heading = "Which calls to keep one by one (those that meet all given conditions)"
)]
pub struct Arguments {
    /// Calls that took longer than this
    #[arg(long, value_name = "TIME")]
    slower_than: Option<String>,
    /// These system calls
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    call: Vec<String>,
    /// Calls that slept on these resources: page-io, inode-lock, futex, pipe, …
    #[arg(long, value_name = "LABEL,…", value_delimiter = ',')]
    label: Vec<String>,
    /// Every call [default: calls that slept]
    #[arg(long, conflicts_with_all = ["slower_than", "slept", "one_in"])]
    every_call: bool,
    /// Calls that slept; the default without a condition
    #[arg(long, hide_short_help = true)]
    slept: bool,
    /// One in N of the calls that meet the other conditions
    #[arg(long, value_name = "N", hide_short_help = true)]
    one_in: Option<u32>,
    /// Calls made at these call sites: function, file:line or return address
    ///
    /// A return address (0x…) needs a program at a fixed address, or `setarch -R`.
    #[arg(
        long,
        value_name = "SITE,…",
        value_delimiter = ',',
        hide_short_help = true
    )]
    site: Vec<String>,
    /// Record the program's stack with each kept call
    #[arg(long, help_heading = "What to record", hide_short_help = true)]
    stacks: bool,
    /// Measure how long a thread waits for a CPU after each sleep
    #[arg(long, help_heading = "What to record", hide_short_help = true)]
    wakeup: bool,
    /// Memory for kept calls in each process (64KiB, 16MiB, or a number of bytes)
    #[arg(long, value_name = "SIZE", help_heading = "What to record", value_parser = log_bytes, hide_short_help = true)]
    log_size: Option<u64>,
    /// Also trace programs that are started with an environment of their own
    #[arg(long, help_heading = "What to record", hide_short_help = true)]
    follow_all: bool,
    /// Act inside the program when a call meets --when: stack, core, abort or hook=COMMAND
    ///
    /// `stack` prints the stack. `core` dumps the core of a forked copy while the program runs on.
    /// `abort` ends the program. `hook=COMMAND` runs a shell command.
    #[arg(
        long,
        value_name = "ACTION",
        help_heading = "Reactions",
        hide_short_help = true
    )]
    react: Vec<String>,
    /// When to react, conditions separated by commas
    ///
    /// slower-than=TIME, slept, call=A+B, label=A+B, site=0xA+0xB, every=N.
    #[arg(
        long,
        value_name = "CONDITIONS",
        requires = "react",
        help_heading = "Reactions",
        hide_short_help = true
    )]
    when: Vec<String>,
    /// React at most N times in each process; 0 = no limit
    #[arg(
        long,
        value_name = "N",
        requires = "react",
        default_value_t = 10,
        help_heading = "Reactions",
        hide_short_help = true
    )]
    times: u32,
}

impl Arguments {
    /// The orders for the preload library, checked. `everything` is true if an output needs each
    /// call.
    pub fn options(&self, everything: bool) -> Result<PreloadOptions, Failure> {
        self.check_sites()?;
        let keep = self.policy_text(everything);
        keep.parse::<Filter>()
            .map_err(|error| Failure::Usage(error.to_string()))?;
        let mut react = Vec::new();
        for action in &self.react {
            react.push(self.order(action)?);
        }
        Ok(PreloadOptions {
            keep,
            react,
            stacks: self.stacks,
            wakeup: self.wakeup,
            log_bytes: self.log_size,
            follow_all: self.follow_all,
        })
    }

    /// Names of call sites. They are resolved after the program has run; calls of other sites are
    /// then dropped from the trace.
    pub fn site_names(&self) -> Option<&[String]> {
        let names = self.site.iter().any(|site| !is_address(site));
        names.then_some(&self.site)
    }

    /// Refuses combinations that cannot work, since names are resolved after the run.
    pub fn check_sites(&self) -> Result<(), Failure> {
        let wrong = |text: &str| Err(Failure::Usage(format!("--site: {text}")));
        if self.site_names().is_none() {
            return Ok(());
        }
        if self.site.iter().any(|site| is_address(site)) {
            return wrong("give either names or addresses");
        }
        if self.site.iter().any(String::is_empty) {
            return wrong("a name is empty");
        }
        match self.one_in {
            Some(_) => wrong(
                "--one-in counts the calls of all call sites; leave it out, or give addresses",
            ),
            None => Ok(()),
        }
    }

    /// The conditions as a policy.
    pub fn policy_text(&self, everything: bool) -> String {
        let mut conditions = Vec::new();
        conditions.extend(
            self.slower_than
                .as_ref()
                .map(|length| format!("slower={length}")),
        );
        conditions.extend(self.slept.then(|| "slept".to_owned()));
        conditions.extend(self.one_in.map(|n| format!("every={n}")));
        for (name, list) in [
            ("call", &self.call),
            ("label", &self.label),
            ("site", &self.site),
        ] {
            let later = name == "site" && self.site_names().is_some();
            if !list.is_empty() && !later {
                conditions.push(format!("{name}={}", list.join("+")));
            }
        }
        match conditions.is_empty() {
            true if self.every_call || everything || self.site_names().is_some() => {
                "all".to_owned()
            }
            true => "slept".to_owned(),
            false => conditions.join(","),
        }
    }

    /// Refuses options that work only inside the traced program.
    pub fn reject_in_band_options(&self) -> Result<(), Failure> {
        for (given, name) in [
            (!self.react.is_empty(), "--react"),
            (self.follow_all, "--follow-all"),
            (self.log_size.is_some(), "--log-size"),
        ] {
            if given {
                return Err(Failure::Usage(format!(
                    "{name} acts inside the traced program; it cannot be used with -p or --attach"
                )));
            }
        }
        Ok(())
    }

    fn order(&self, action: &str) -> Result<String, Failure> {
        // The variable that carries them separates reactions by semicolons.
        if action.contains(';') {
            return Err(Failure::Usage(format!(
                "--react `{action}`: a hook's command may not contain a semicolon; use && or a script"
            )));
        }
        let conditions: Vec<String> = self
            .when
            .iter()
            .map(|when| when.replace("slower-than=", "slower="))
            .collect();
        let order = format!("{},times={}:{action}", conditions.join(","), self.times);
        let order = order.trim_start_matches(',').to_owned();
        order
            .parse::<ReactionRule>()
            .map_err(|error| Failure::Usage(format!("--react {action}: {error}")))?;
        Ok(order)
    }
}

/// The size of the log of kept calls: a number of bytes, or a size with its unit.
fn log_bytes(text: &str) -> Result<u64, String> {
    let Bytes(bytes) = text.parse()?;
    match bytes {
        4096..0x4_0000_0000 => Ok(bytes),
        _ => Err("use a size from 4KiB to 16GiB".to_owned()),
    }
}

/// Whether a text is meant as an address: `0x401a2c`, or hexadecimal digits that begin with 0 to 9.
fn is_address(text: &str) -> bool {
    let digits = |text: &str| text.bytes().all(|digit| digit.is_ascii_hexdigit());
    text.starts_with("0x") || text.starts_with(|first: char| first.is_ascii_digit()) && digits(text)
}
