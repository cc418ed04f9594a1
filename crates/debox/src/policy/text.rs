//! Policies as text, for command lines and environment variables.
//!
//! ```text
//! slept                          every record of a call that slept
//! slower=1ms,call=open+openat    slow opens
//! every=100                      one call of a hundred
//! label=journal,times=3:stack    the stack, three times at most
//! ```

use std::fmt;
use std::str::FromStr;

use crate::calls;
use crate::labels::Label;
use crate::policy::{Filter, Reaction, Rule, Trigger};
use crate::record::Record;

/// The longest time that a condition can name: a year.
const TIME_MAX_NS: f64 = 365.0 * 86_400e9;

/// How a time is written.
const TIME_HINT: &str = "use a time such as 500us, 1ms or 2s (a bare number is seconds)";

/// A text that is not a policy.
///
/// ```
/// use headway_debox::policy::Filter;
///
/// let error = "slower=soon".parse::<Filter>().unwrap_err();
/// assert!(error.to_string().contains("500us, 1ms or 2s"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError(String);

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for PolicyError {}

/// Conditions separated by commas, all of which have to be met: `all`, `slept`, `slower=TIME`
/// (`500us`, `1ms`, `2s`, or a number of seconds), `every=N`, `call=NAME+NAME`,
/// `label=LABEL+LABEL`, `site=0xADDRESS+0xADDRESS`.
impl FromStr for Filter {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Filter, PolicyError> {
        conditions(text).and_then(|(filter, times)| match times {
            None => Ok(filter),
            Some(_) => Err(policy_error("times", "it limits reactions, not records")),
        })
    }
}

/// The conditions of a filter, and `times=N`.
impl FromStr for Trigger {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Trigger, PolicyError> {
        let (when, times) = conditions(text)?;
        Ok(Trigger {
            when,
            times_max: times.unwrap_or(0),
        })
    }
}

/// A reaction that a text can name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Prints the user stack: [`Reaction::Stack`].
    Stack,
    /// Writes a core file: [`Reaction::Core`].
    Core,
    /// Runs a command: [`Reaction::Hook`].
    Hook(String),
    /// Ends the process: [`Reaction::Abort`].
    Abort,
}

/// When to react and how, written `CONDITIONS:ACTION`. The conditions are those of a filter and
/// `times=N`; the action is `stack`, `core`, `abort` or `hook=COMMAND`.
///
/// Unlike a [`Rule`] it can be shared between threads; each user counts for itself.
///
/// ```
/// use headway_debox::policy::{Action, ReactionRule};
///
/// let rule: ReactionRule = "slower=10ms,times=3:hook=logger slow".parse()?;
/// assert_eq!(rule.action, Action::Hook("logger slow".into()));
/// assert_eq!(rule.trigger.times_max, 3);
/// # Ok::<(), headway_debox::policy::PolicyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReactionRule {
    /// When to react.
    pub trigger: Trigger,
    /// The action of the rule.
    pub action: Action,
}

impl ReactionRule {
    /// Returns whether records need their labels at once for this rule.
    pub fn needs_labels(&self) -> bool {
        !self.trigger.when.labels.is_empty()
            || matches!(self.action, Action::Stack | Action::Hook(_))
    }

    /// Executes the reaction, whatever the conditions.
    ///
    /// # Errors
    ///
    /// As [`Rule::apply`].
    pub fn execute(&self, record: &Record, site: u64) -> std::io::Result<()> {
        let reaction = match &self.action {
            Action::Stack => Reaction::Stack,
            Action::Core => Reaction::Core,
            Action::Hook(command) => Reaction::Hook(command.clone()),
            Action::Abort => Reaction::Abort,
        };
        Rule::new(Trigger::default(), reaction).apply(record, site)
    }
}

impl FromStr for ReactionRule {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<ReactionRule, PolicyError> {
        let (when, action) = text
            .split_once(':')
            .ok_or_else(|| policy_error(text, "a reaction is written CONDITIONS:ACTION"))?;
        let trigger = when.parse()?;
        let action = match action.trim() {
            "stack" => Action::Stack,
            "core" => Action::Core,
            "abort" => Action::Abort,
            other => match other.strip_prefix("hook=") {
                Some(command) => Action::Hook(command.to_owned()),
                None => {
                    return Err(policy_error(
                        other,
                        "use stack, core, abort or hook=COMMAND",
                    ));
                }
            },
        };
        Ok(ReactionRule { trigger, action })
    }
}

/// The filter, and the limit of a reaction if there is one.
fn conditions(text: &str) -> Result<(Filter, Option<u32>), PolicyError> {
    let mut filter = Filter::default();
    let mut times = None;
    for condition in text.split(',').map(str::trim) {
        let (name, value) = condition.split_once('=').unwrap_or((condition, ""));
        let list = || value.split('+').map(str::trim);
        let number = || {
            value
                .parse()
                .map_err(|_| policy_error(condition, "use a whole number"))
        };
        match name {
            "all" | "" => {}
            "slept" => filter.slept = true,
            "slower" => filter.slower_than_ns = Some(time_ns(value)?),
            "every" => filter.one_in = number()?,
            "times" => times = Some(number()?),
            "call" => {
                for name in list() {
                    let call = calls::number(name).ok_or_else(|| {
                        policy_error(name, "this machine has no such system call")
                    })?;
                    filter.calls.push(call);
                }
            }
            "label" => {
                for name in list() {
                    let label = Label::from_name(name).ok_or_else(|| {
                        let all: Vec<&str> = Label::ALL.iter().map(|label| label.name()).collect();
                        policy_error(name, &format!("use one of {}", all.join(", ")))
                    })?;
                    filter.labels.push(label);
                }
            }
            "site" => {
                for address in list() {
                    let digits = address.strip_prefix("0x").unwrap_or(address);
                    let site = u64::from_str_radix(digits, 16)
                        .map_err(|_| policy_error(address, "use an address such as 0x401234"))?;
                    filter.sites.push(site);
                }
            }
            _ => {
                let known = "all, slept, slower=, every=, call=, label=, site=, times=";
                return Err(policy_error(condition, &format!("use {known}")));
            }
        }
    }
    Ok((filter, times))
}

/// A time with its unit, or a bare number of seconds.
fn time_ns(text: &str) -> Result<u64, PolicyError> {
    let number = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let scale = match &text[number.len()..] {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "" | "s" => 1e9,
        "m" => 60e9,
        _ => return Err(policy_error(text, TIME_HINT)),
    };
    match number.parse::<f64>() {
        Ok(number) if (0.0..=TIME_MAX_NS).contains(&(number * scale)) => {
            Ok((number * scale).round() as u64)
        }
        _ => Err(policy_error(text, TIME_HINT)),
    }
}

fn policy_error(what: &str, how: &str) -> PolicyError {
    PolicyError(format!("`{what}`: {how}"))
}

#[cfg(test)]
mod tests {
    use super::{Action, ReactionRule};
    use crate::labels::Label;
    use crate::policy::Filter;

    #[test]
    fn filter_has_every_condition_when_all_are_written() {
        let filter: Filter = "slept,slower=5ms,every=3,call=read+openat,label=pipe,site=0x10"
            .parse()
            .expect("a policy");
        let expected = Filter {
            one_in: 3,
            slower_than_ns: Some(5_000_000),
            slept: true,
            labels: vec![Label::Pipe],
            calls: vec![libc::SYS_read as u32, libc::SYS_openat as u32],
            sites: vec![0x10],
        };
        assert_eq!(filter, expected);
        assert_eq!("all".parse(), Ok(Filter::default()));
    }

    #[test]
    fn time_is_in_seconds_when_it_has_no_unit() {
        let slower_than_ns =
            |text: &str| text.parse::<Filter>().map(|filter| filter.slower_than_ns);
        assert_eq!(slower_than_ns("slower=2"), Ok(Some(2_000_000_000)));
        assert_eq!(slower_than_ns("slower=0.5"), Ok(Some(500_000_000)));
        assert_eq!(slower_than_ns("slower=1.5ms"), Ok(Some(1_500_000)));
        assert!(slower_than_ns("slower=-1").is_err());
    }

    #[test]
    fn rule_has_conditions_limit_and_action_when_written_with_a_colon() {
        let rule: ReactionRule = "slower=1s,times=2:hook=date: now".parse().expect("a rule");
        assert_eq!(rule.trigger.when.slower_than_ns, Some(1_000_000_000));
        assert_eq!(rule.trigger.times_max, 2);
        assert_eq!(rule.action, Action::Hook("date: now".to_owned()));
        assert!(rule.needs_labels());
    }

    #[test]
    fn policy_error_names_the_condition_and_the_remedy_when_it_cannot_be_parsed() {
        let message = |text: &str| text.parse::<Filter>().expect_err("no policy").to_string();
        assert!(message("slow=1ms").starts_with("`slow=1ms`: use all, slept"));
        assert!(message("slower=1h").contains("a time such as"));
        assert!(message("slower=99999999999s").contains("a time such as"));
        assert!(message("call=reed").contains("`reed`"));
        assert!(message("label=disk").contains("page-io"));
        assert!(message("times=2").contains("reactions"));
        let error = "slept:scream".parse::<ReactionRule>().expect_err("no rule");
        assert!(error.to_string().contains("hook=COMMAND"));
        assert!("slept".parse::<ReactionRule>().is_err());
    }
}
