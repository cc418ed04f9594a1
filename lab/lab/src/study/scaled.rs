//! Values that differ by scale: `{ quick = "130MB", full = "1GB" }` wherever a plain value may
//! stand.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How large everything is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    /// Minutes: small sets, small memory, one repeat.
    #[default]
    Quick,
    /// The papers' sizes.
    Full,
}

impl Scale {
    /// Both scales.
    pub const ALL: [Scale; 2] = [Scale::Quick, Scale::Full];

    /// The name of the scale.
    pub fn name(self) -> &'static str {
        match self {
            Scale::Quick => "quick",
            Scale::Full => "full",
        }
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Scale {
    type Err = String;

    fn from_str(text: &str) -> Result<Scale, String> {
        let found = Scale::ALL.into_iter().find(|scale| scale.name() == text);
        found.ok_or_else(|| format!("no scale {text:?}: quick or full"))
    }
}

/// A value, or one for each scale.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(
    untagged,
    expecting = "a value of another kind is expected here, or { quick = …, full = … } with two of them"
)]
pub enum Scaled<T> {
    /// One value for each scale.
    Both(QuickAndFull<T>),
    /// One value for all scales.
    One(T),
}

/// A value for each scale.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuickAndFull<T> {
    quick: T,
    full: T,
}

impl<T> Scaled<T> {
    /// The value at this scale.
    pub fn at(&self, scale: Scale) -> &T {
        match (self, scale) {
            (Scaled::One(value), _) => value,
            (Scaled::Both(both), Scale::Quick) => &both.quick,
            (Scaled::Both(both), Scale::Full) => &both.full,
        }
    }
}
