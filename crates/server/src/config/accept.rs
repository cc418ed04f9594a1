//! Settings that say how connections are accepted: the options of Brecht and Ostrowski's
//! micro-server and the servers they named.
//!
//! The options are those of their section 4.1, under their names. A named server of their Table 1
//! is a row of [`MicroServer`]; an option that contradicts its row is an error. The other defaults
//! are those of their section 5: `select`, a backlog of 128, no deferred accept, 15,000
//! connections, and no cache.
//!
//! Early rejection and shared listeners, which none of them had, are here as well.
//!
//! Headway's own defaults differ. It reads and writes at once and chooses the accept batch by load.
//! The kernel holds a connection until its request arrives, so that an eager read finds data.

use std::fmt::{self, Display};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::error::Findings;
use super::keys::Setting;
use super::ranges::{span, value};
use super::settings::Settings;
use super::strategy::{Preset, words};
use super::units::AcceptBatch;

words! {
    /// The treatment of connections when more arrive, for longer than a burst, than can be served.
    EarlyReject, "kind of rejection" {
        /// Excess connections wait in the accept queue.
        #[default]
        Off = "off",
        /// Excess connections get 503 and are closed.
        Status = "503",
        /// Excess connections are reset.
        Reset = "reset",
    }
}

words! {
    /// Which sockets workers accept from.
    ListenerMode, "listener mode" {
        /// One socket per worker; the kernel distributes connections by a hash (`SO_REUSEPORT`).
        #[default]
        Reuseport = "reuseport",
        /// One socket for all; the kernel wakes one worker per connection (`EPOLLEXCLUSIVE`), and
        /// the workers balance their load.
        Shared = "shared",
        /// One socket for all, and every worker wakes.
        SharedThundering = "shared-thundering",
    }
}

/// The accept batch where `auto` does not apply: with the presets flash to new-flash and with
/// `accept-on-close`.
const FIXED_BATCH: AcceptBatch = AcceptBatch::Most(25);

/// Default backlog of the micro-server (section 4.1).
const MICRO_SERVER_BACKLOG: u32 = 128;

/// Default backlog of Headway.
const BACKLOG: u32 = 1024;

/// Highest backlog that is accepted.
const BACKLOG_MAX: i64 = 1 << 20;

/// A server of Table 1: how it accepts connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MicroServer {
    count: AcceptBatch,
    eager: bool,
    full_read: bool,
    on_close: bool,
    /// `None`: off unless configured. Only their section 7 has a server that is named after its
    /// cache.
    caching: Option<bool>,
}

impl Preset {
    /// Returns the row of Table 1; `None` for presets that are not named after how they accept.
    pub(super) fn micro_server(self) -> Option<MicroServer> {
        let plain = |count| MicroServer {
            count: AcceptBatch::Most(count),
            eager: false,
            full_read: false,
            on_close: false,
            caching: None,
        };
        let eager = |full_read, on_close| MicroServer {
            eager: true,
            full_read,
            on_close,
            ..plain(0)
        };
        Some(match self {
            Preset::Accept1 => plain(1),
            Preset::AcceptInf => plain(0),
            Preset::Accept25 => plain(25),
            Preset::Eager => eager(false, false),
            Preset::EagerFull => eager(true, false),
            Preset::EagerClose => eager(false, true),
            Preset::Cm => eager(true, true),
            Preset::Accept25Cache => MicroServer {
                caching: Some(true),
                ..plain(25)
            },
            _ => return None,
        })
    }
}

/// The checked settings for accepting connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AcceptSettings {
    pub batch: AcceptBatch,
    pub eager_read: bool,
    pub eager_write: bool,
    pub on_close: bool,
    pub full_read: bool,
    pub caching: bool,
    pub early_reject: EarlyReject,
    pub listeners: ListenerMode,
    /// A micro-server preset is set, so its other defaults apply.
    pub micro: bool,
}

/// Returns the effective settings and reports contradictions.
pub(super) fn accept_settings(from: &Settings, to: &mut Findings<'_>) -> AcceptSettings {
    let preset = value(&from.preset).unwrap_or_default();
    let named = preset.micro_server();
    let usual = named.unwrap_or(MicroServer {
        count: default_batch(preset, from),
        eager: true,
        full_read: false,
        on_close: false,
        caching: None,
    });
    let settings = AcceptSettings {
        batch: value(&from.accept_batch).unwrap_or(usual.count),
        eager_read: value(&from.eager_read).unwrap_or(usual.eager),
        eager_write: value(&from.eager_write).unwrap_or(usual.eager),
        on_close: value(&from.accept_on_close).unwrap_or(usual.on_close),
        full_read: value(&from.full_read).unwrap_or(usual.full_read),
        caching: value(&from.caching).unwrap_or(usual.caching.unwrap_or(named.is_none())),
        early_reject: value(&from.early_reject).unwrap_or_default(),
        listeners: value(&from.listeners).unwrap_or_default(),
        micro: named.is_some(),
    };
    check_auto_has_no_preset(preset, from, to);
    check_auto_without_accept_on_close(settings, from, to);
    check_early_reject_has_auto(settings, from, to);
    if named.is_some() {
        check_preset_options(preset, usual, from, to);
        check_eager_write_has_eager_read(from, to);
    }
    if !settings.caching && value(&from.response_cache_max).is_some_and(|bytes| bytes.0 > 0) {
        let problem = "with caching = false there is no response cache; remove one of the two";
        to.usage_error(
            "response-cache-max",
            span(&from.response_cache_max),
            problem.into(),
        );
    }
    settings
}

/// The default accept batch of presets that are not micro-servers.
fn default_batch(preset: Preset, from: &Settings) -> AcceptBatch {
    let on_close = value(&from.accept_on_close) == Some(true);
    match preset == Preset::Headway && !on_close {
        true => AcceptBatch::Auto,
        false => FIXED_BATCH,
    }
}

/// Reports options that contradict the named server.
fn check_preset_options(
    preset: Preset,
    named: MicroServer,
    from: &Settings,
    to: &mut Findings<'_>,
) {
    let switch = |key: &'static str, given: &Setting<bool>, is: bool| {
        let word = if is { "on" } else { "off" };
        (
            key,
            differs(given, is).map(|place| (place, word.to_owned())),
        )
    };
    // Eager writing without eager reading has its own message.
    let eager_write = match (&from.eager_write, named.eager) {
        (Some(_), false) => &None,
        (given, _) => given,
    };
    // `auto` with a preset has its own message.
    let count = match value(&from.accept_batch) {
        Some(AcceptBatch::Auto) => None,
        _ => differs(&from.accept_batch, named.count),
    };
    let all = [
        (
            "accept-batch",
            count.map(|place| (place, named.count.to_string())),
        ),
        switch("eager-read", &from.eager_read, named.eager),
        switch("eager-write", eager_write, named.eager),
        switch("full-read", &from.full_read, named.full_read),
        switch("accept-on-close", &from.accept_on_close, named.on_close),
    ];
    let caching = named
        .caching
        .map(|caching| switch("caching", &from.caching, caching));
    for (key, found) in all.into_iter().chain(caching) {
        if let Some((place, is)) = found {
            let problem = format!("the preset {preset} has {key} {is}; remove one of the two");
            to.usage_error(key, Some(place), problem);
        }
    }
}

/// The servers of the papers had fixed batches, so `auto` cannot be combined with them.
fn check_auto_has_no_preset(preset: Preset, from: &Settings, to: &mut Findings<'_>) {
    if value(&from.accept_batch) == Some(AcceptBatch::Auto) && preset != Preset::Headway {
        let problem = format!(
            "accept-batch = \"auto\" cannot be combined with preset = \"{preset}\"; remove one of the two"
        );
        to.usage_error("accept-batch", span(&from.accept_batch), problem);
    }
}

/// Accepting after every close would repeat within one loop iteration without end.
fn check_auto_without_accept_on_close(
    settings: AcceptSettings,
    from: &Settings,
    to: &mut Findings<'_>,
) {
    if settings.batch == AcceptBatch::Auto && value(&from.accept_on_close) == Some(true) {
        let problem =
            "it cannot be combined with accept-batch = \"auto\"; remove one of the two".into();
        to.usage_error("accept-on-close", span(&from.accept_on_close), problem);
    }
}

/// Only the admission controller knows which connections cannot be served.
fn check_early_reject_has_auto(settings: AcceptSettings, from: &Settings, to: &mut Findings<'_>) {
    if settings.early_reject != EarlyReject::Off && settings.batch != AcceptBatch::Auto {
        let is_named = value(&from.preset).is_some_and(|preset| preset != Preset::Headway);
        let way_out = match value(&from.accept_on_close) {
            _ if is_named => "remove the preset, which needs a fixed batch",
            Some(true) => "remove accept-on-close, which needs a fixed batch",
            _ => "set accept-batch = \"auto\" instead",
        };
        let problem = format!(
            "it needs accept-batch = \"auto\", which measures the load, but accept-batch is {}; {way_out}",
            settings.batch
        );
        to.usage_error("early-reject", span(&from.early_reject), problem);
    }
}

/// The place of a value that differs from that of the named server.
fn differs<T: Copy + PartialEq>(given: &Setting<T>, named: T) -> Option<std::ops::Range<usize>> {
    let item: &Spanned<T> = given.as_ref()?;
    (*item.get_ref() != named).then(|| item.span())
}

/// The eager write of the papers continues with a connection that was just read from eagerly
/// (section 4.1).
fn check_eager_write_has_eager_read(from: &Settings, to: &mut Findings<'_>) {
    let read = value(&from.eager_read).unwrap_or(false);
    let named = value(&from.preset).and_then(Preset::micro_server);
    if value(&from.eager_write) == Some(true) && !read && named.is_some_and(|named| !named.eager) {
        let problem = "in this preset eager writes need eager reads; use the preset eager, or remove the preset";
        to.usage_error("eager-write", span(&from.eager_write), problem.into());
    }
}

/// Returns the backlog.
pub(super) fn backlog(
    from: &Settings,
    settings: AcceptSettings,
    somaxconn: u32,
    to: &mut Findings<'_>,
) -> u32 {
    let Some(item) = &from.backlog else {
        return match settings.micro {
            true => MICRO_SERVER_BACKLOG,
            false => BACKLOG,
        };
    };
    let length = *item.get_ref();
    if !(1..=BACKLOG_MAX).contains(&length) {
        // listen(2) treats a negative length as a very large one.
        let problem = format!(
            "{length} is not within 1 to {BACKLOG_MAX}; the kernel allows at most {somaxconn} here (sysctl \
             net.core.somaxconn)"
        );
        to.usage_error("backlog", Some(item.span()), problem);
    }
    u32::try_from(length).unwrap_or(BACKLOG)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_of_the_micro_server_match_table_1() {
        let named: Vec<_> = Preset::ALL
            .iter()
            .filter_map(|preset| Some((preset.to_string(), preset.micro_server()?)))
            .map(|(name, of)| {
                let count = of.count.to_string();
                (name, count, of.eager, of.full_read, of.on_close)
            })
            .collect();
        let table = [
            ("accept1", 1, false, false, false),
            ("accept-inf", 0, false, false, false),
            ("accept25", 25, false, false, false),
            ("eager", 0, true, false, false),
            ("eager+full", 0, true, true, false),
            ("eager+close", 0, true, false, true),
            ("cm", 0, true, true, true),
            ("accept25+cache", 25, false, false, false),
        ];
        let table = table.map(|(name, count, eager, full, close)| {
            (name.to_owned(), count.to_string(), eager, full, close)
        });
        assert_eq!(named, table);
    }
}
