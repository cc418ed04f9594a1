//! A rule of `[[header]]`: which responses it is for, and what it does to one of their headers.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::strategy::named_values;

named_values! {
    /// What a rule does to its header.
    HeaderAction, "kind of action" {
        /// The header gets this value in place of any other.
        #[default]
        Set = "set",
        /// The header gets this value beside others.
        Append = "append",
        /// The header is left out.
        Remove = "remove",
    }
}

/// StatusRange of responses: all, those of success or of errors, a class, or one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusRange {
    first: u16,
    last: u16,
}

impl StatusRange {
    /// From 200 to 399: also redirects and 304.
    pub const SUCCESS: StatusRange = StatusRange::between(200, 399);
    const ERROR: StatusRange = StatusRange::between(400, 599);
    const ANY: StatusRange = StatusRange::between(100, 599);

    const fn between(first: u16, last: u16) -> StatusRange {
        StatusRange { first, last }
    }

    /// Whether `status` is one of them.
    pub fn contains(self, status: u16) -> bool {
        (self.first..=self.last).contains(&status)
    }

    /// How many there are.
    fn count(self) -> u32 {
        u32::from(self.last - self.first) + 1
    }
}

impl FromStr for StatusRange {
    type Err = String;

    fn from_str(text: &str) -> Result<StatusRange, String> {
        let unknown = || {
            format!(
                "`{text}` is not success, error, any, a class such as 4xx or a status such as 404"
            )
        };
        match text {
            "success" => return Ok(StatusRange::SUCCESS),
            "error" => return Ok(StatusRange::ERROR),
            "any" => return Ok(StatusRange::ANY),
            _ => {}
        }
        let (digits, is_class) = match text.strip_suffix("xx") {
            Some(digit) => (digit, true),
            None => (text, false),
        };
        let number: u16 = digits.parse().map_err(|_| unknown())?;
        match (is_class, number) {
            (true, 1..=5) => Ok(StatusRange::between(number * 100, number * 100 + 99)),
            (false, 100..=599) => Ok(StatusRange::between(number, number)),
            _ => Err(unknown()),
        }
    }
}

impl Display for StatusRange {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match *self {
            StatusRange::SUCCESS => out.write_str("success"),
            StatusRange::ERROR => out.write_str("error"),
            StatusRange::ANY => out.write_str("any"),
            StatusRange { first, last } if first == last => write!(out, "{first}"),
            StatusRange { first, .. } => write!(out, "{}xx", first / 100),
        }
    }
}

/// A rule of `[[header]]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeaderRule {
    /// How the path begins, with its leading slash.
    pub prefix: String,
    /// How the path ends; empty for any end.
    pub suffix: String,
    /// Media type in lower case, without parameters; empty for any, `image/*` for all of a kind.
    pub content_type: String,
    /// StatusRange of the responses.
    pub when: Vec<StatusRange>,
    /// What is done.
    pub action: HeaderAction,
    /// Name of the header.
    pub name: String,
    /// Value of the header; empty if it is removed.
    pub value: String,
}

impl HeaderRule {
    /// The rule that sets `Strict-Transport-Security` in all responses, whatever their status.
    pub fn of_hsts(seconds: u64) -> HeaderRule {
        HeaderRule {
            prefix: "/".into(),
            suffix: String::new(),
            content_type: String::new(),
            when: vec![StatusRange::ANY],
            action: HeaderAction::Set,
            name: "Strict-Transport-Security".into(),
            value: format!("max-age={seconds}"),
        }
    }

    /// The order of rules, from general to exact: by the length of the prefix, then that of the
    /// suffix, then the media type, then the number of statuses.
    pub fn exactness(&self) -> impl Ord + use<> {
        let media = match self.content_type.as_str() {
            "" => 0,
            kind if kind.ends_with("/*") => 1,
            _ => 2,
        };
        let statuses: u32 = self.when.iter().map(|some| some.count()).sum();
        let fewness = std::cmp::Reverse(statuses);
        (self.prefix.len(), self.suffix.len(), media, fewness)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_read_as_they_are_printed() {
        for text in ["success", "error", "any", "404", "100", "599", "4xx", "1xx"] {
            let read: StatusRange = text.parse().expect(text);
            assert_eq!(read.to_string(), text);
        }
        for text in [
            "", "600", "99", "0xx", "6xx", "xx", "4x", "Success", "-1", "4040",
        ] {
            assert!(text.parse::<StatusRange>().is_err(), "{text}");
        }
    }

    #[test]
    fn statuses_contain_their_bounds_and_nothing_else() {
        let contains = |text: &str, status| text.parse::<StatusRange>().unwrap().contains(status);
        for (text, inside, outside) in [
            ("success", [200, 304, 399], [199, 400, 101]),
            ("error", [400, 404, 599], [399, 200, 304]),
            ("any", [100, 304, 599], [99, 600, 0]),
            ("4xx", [400, 431, 499], [399, 500, 200]),
            ("404", [404, 404, 404], [403, 405, 200]),
        ] {
            assert!(
                inside.iter().all(|status| contains(text, *status)),
                "{text}"
            );
            assert!(
                !outside.iter().any(|status| contains(text, *status)),
                "{text}"
            );
        }
    }
}
