//! Which records are kept, and what happens at once: from options to the words of `headway_debox::policy`.

use clap::Args;
use headway_debox::policy::{Filter, Order};
use headway_trace::launch::Orders;

use super::Failure;

/// Policy options.
#[derive(Debug, Args)]
#[group(skip)]
#[command(
    next_help_heading = "Which calls are kept one by one (all conditions given have to be met)"
)]
pub struct Arguments {
    /// Those that took longer
    #[arg(long, value_name = "LENGTH")]
    slower_than: Option<String>,
    /// Those that slept; this is the default if no condition is given
    #[arg(long)]
    slept: bool,
    /// All of them
    #[arg(long, conflicts_with_all = ["slower_than", "slept", "one_in"])]
    every_call: bool,
    /// One in N
    #[arg(long, value_name = "N")]
    one_in: Option<u32>,
    /// These system calls
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    call: Vec<String>,
    /// Those that slept on these resources
    #[arg(long, value_name = "LABEL,…", value_delimiter = ',')]
    label: Vec<String>,
    /// Those made at these places: function, file:line, or return address (0x…; of a program at a
    /// fixed address, or under `setarch -R`)
    #[arg(long, value_name = "PLACE,…", value_delimiter = ',')]
    site: Vec<String>,
    /// Keep the program's stack with each
    #[arg(long, help_heading = "What is recorded")]
    stacks: bool,
    /// Ask after each sleep how long the thread then waited for a processor
    #[arg(long, help_heading = "What is recorded")]
    wakeup: bool,
    /// Room for kept calls in each process, in bytes
    #[arg(long, value_name = "BYTES", help_heading = "What is recorded", value_parser = clap::value_parser!(u64).range(4096..1 << 34))]
    log_size: Option<u64>,
    /// Follow also into programs that are started with an environment of their own
    #[arg(long, help_heading = "What is recorded")]
    follow_all: bool,
    /// React in the program: stack (print it), core (dump one of a fork), abort, or hook=COMMAND
    #[arg(long, value_name = "ACTION", help_heading = "Reactions")]
    react: Vec<String>,
    /// When to react: slower-than=LENGTH, slept, call=A+B, label=A+B, site=0xA+0xB, every=N, joined
    /// by commas
    #[arg(
        long,
        value_name = "CONDITIONS",
        requires = "react",
        help_heading = "Reactions"
    )]
    when: Vec<String>,
    /// How often at most, in each process; 0 for always
    #[arg(
        long,
        value_name = "N",
        requires = "react",
        default_value_t = 10,
        help_heading = "Reactions"
    )]
    times: u32,
}

impl Arguments {
    /// The orders for the preload library, checked; `everything` if an output needs each call.
    pub fn orders(&self, everything: bool) -> Result<Orders, Failure> {
        self.check_sites()?;
        let keep = self.keep(everything);
        keep.parse::<Filter>()
            .map_err(|error| Failure::Use(error.to_string()))?;
        let mut react = Vec::new();
        for action in &self.react {
            react.push(self.order(action)?);
        }
        Ok(Orders {
            keep,
            react,
            stacks: self.stacks,
            wakeup: self.wakeup,
            log_bytes: self.log_size,
            follow_all: self.follow_all,
        })
    }

    /// Names of places, which nobody knows before the program has run: calls from elsewhere are
    /// dropped from the trace.
    pub fn site_names(&self) -> Option<&[String]> {
        let names = self.site.iter().any(|site| !is_address(site));
        names.then_some(&self.site)
    }

    /// Names are looked at later than addresses, and later than one in N is counted.
    pub fn check_sites(&self) -> Result<(), Failure> {
        let wrong = |text: &str| Err(Failure::Use(format!("--site: {text}")));
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
            Some(_) => {
                wrong("--one-in counts the calls from all places; leave it out, or give addresses")
            }
            None => Ok(()),
        }
    }

    /// The conditions in one line.
    pub fn keep(&self, everything: bool) -> String {
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

    /// What only the program itself can do is no option of an observer.
    pub fn refuse_in_band_only(&self) -> Result<(), Failure> {
        for (given, name) in [
            (!self.react.is_empty(), "--react"),
            (self.follow_all, "--follow-all"),
            (self.log_size.is_some(), "--log-size"),
        ] {
            if given {
                return Err(Failure::Use(format!(
                    "{name} works in the traced program itself; leave out -p or --attach"
                )));
            }
        }
        Ok(())
    }

    fn order(&self, action: &str) -> Result<String, Failure> {
        // The variable that carries them separates reactions by semicolons.
        if action.contains(';') {
            return Err(Failure::Use(format!(
                "--react `{action}`: a hook's command may not hold a semicolon; use && or a script"
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
            .parse::<Order>()
            .map_err(|error| Failure::Use(format!("--react {action}: {error}")))?;
        Ok(order)
    }
}

/// `0x401a2c`, or the digits alone if they begin with one that no name begins with. Whether it is a
/// right one is seen later.
fn is_address(text: &str) -> bool {
    let digits = |text: &str| text.bytes().all(|digit| digit.is_ascii_hexdigit());
    text.starts_with("0x") || text.starts_with(|first: char| first.is_ascii_digit()) && digits(text)
}
