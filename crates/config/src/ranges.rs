//! Values within their allowed ranges, and small accessors for settings.

use std::ops::{Range, RangeInclusive};
use toml::Spanned;

use super::error::Findings;
use super::keys::{Setting, Tables};
use super::units::{Bytes, Millis};

const DAY_MS: u64 = 24 * 3_600_000;

pub(crate) fn number<T>(
    key: &str,
    item: &Setting<T>,
    default: T,
    bounds: RangeInclusive<T>,
    to: &mut Findings<'_>,
) -> T
where
    T: Copy + PartialOrd + std::fmt::Display,
{
    let Some(item) = item else {
        return default;
    };
    let value = *item.get_ref();
    if !bounds.contains(&value) {
        let problem = format!(
            "{value} is not within {} to {}",
            bounds.start(),
            bounds.end()
        );
        to.usage_error(key, Some(item.span()), problem);
    }
    value
}

pub(crate) fn size(
    key: &str,
    item: &Setting<Bytes>,
    default: u64,
    bounds: RangeInclusive<u64>,
    to: &mut Findings<'_>,
) -> u64 {
    let item = item
        .as_ref()
        .map(|item| Spanned::new(item.span(), *item.get_ref()));
    number(
        key,
        &item,
        Bytes(default),
        Bytes(*bounds.start())..=Bytes(*bounds.end()),
        to,
    )
    .0
}

pub(crate) fn time(
    key: &str,
    item: &Setting<Millis>,
    default: u64,
    least: u64,
    to: &mut Findings<'_>,
) -> u64 {
    number(
        key,
        item,
        Millis(default),
        Millis(least)..=Millis(DAY_MS),
        to,
    )
    .0
}

pub(crate) fn value<T: Copy>(item: &Setting<T>) -> Option<T> {
    item.as_ref().map(|item| *item.get_ref())
}

/// The tables of a list; none where there is no list.
pub(crate) fn tables<T>(item: &Setting<Tables<T>>) -> &[Spanned<T>] {
    item.as_ref().map_or(&[], |item| item.get_ref())
}

pub(crate) fn span<T>(item: &Setting<T>) -> Option<Range<usize>> {
    item.as_ref().map(Spanned::span)
}
