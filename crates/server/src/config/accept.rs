//! How new clients are taken: the options of Brecht and Ostrowski's micro-server, and the servers
//! they named.
//!
//! The options are those of their section 4.1, with their words. A named server of their Table 1 is
//! a row of [`MicroServer`]: what it says holds, so an option that says otherwise is refused
//! instead of making a server that bears a name it has not earned. Around them stand the defaults
//! of their section 5: `select`, a queue of 128, a connection told as soon as its handshake is
//! over, 15,000 connections, and no cache.
//!
//! What none of them had stands here, too: whether those who cannot be served are turned away, and
//! whether workers share their listeners.
//!
//! Headway's own defaults are other ones. It reads and writes at once, and decides from what it
//! sees how many it takes; and the kernel keeps a client back until its request is there, so that
//! an eager read finds something.

use std::fmt::{self, Display};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::check::{span, value};
use super::error::Findings;
use super::settings::{Item, Settings};
use super::strategy::{Preset, words};
use super::units::AcceptBatch;

words! {
    /// What is done with clients when more come, for longer than a burst lasts, than can be served.
    EarlyReject, "way of early rejection" {
        /// They wait in the kernel's queue, or for room in it.
        #[default]
        Off = "off",
        /// They are answered 503 and closed.
        Status = "503",
        /// Their connections are reset.
        Reset = "reset",
    }
}

words! {
    /// Which sockets workers accept from.
    ListenerMode, "way of sharing listeners" {
        /// Each has its own, among which the kernel chooses by a hash (`SO_REUSEPORT`).
        #[default]
        Reuseport = "reuseport",
        /// One for all; the kernel wakes one worker for a client, in turn (`EPOLLEXCLUSIVE`), and
        /// each takes its share.
        Shared = "shared",
        /// One for all, and all are woken.
        SharedThundering = "shared-thundering",
    }
}

/// Connections that are accepted at most a wake-up where nobody has said and `auto` cannot be: by
/// the stages of the Flash line, and with a round for each connection that closes.
const FIXED_COUNT: AcceptBatch = AcceptBatch::Most(25);

/// The accept queue of the micro-server where nobody has said (section 4.1, `--backlog`).
const MICRO_LISTEN_QUEUE: u32 = 128;

/// The accept queue of Headway.
const LISTEN_QUEUE: u32 = 1024;

/// No queue of this length or beyond is meant.
const LISTEN_QUEUE_MOST: i64 = 1 << 20;

/// A server of Table 1: how it takes clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MicroServer {
    count: AcceptBatch,
    eager: bool,
    full_read: bool,
    on_close: bool,
    /// `None`: without, unless somebody wants one. Their section 7 alone has a server that is named
    /// after it.
    caching: Option<bool>,
}

impl Preset {
    /// What a server of Table 1 does; `None` for the servers that are not named after how they take
    /// clients.
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

/// How new clients are taken, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    pub count: AcceptBatch,
    pub eager_read: bool,
    pub eager_write: bool,
    pub on_close: bool,
    pub full_read: bool,
    pub caching: bool,
    pub early_reject: EarlyReject,
    pub listeners: ListenerMode,
    /// A server of Table 1 was asked for, so the defaults around it are theirs.
    pub micro: bool,
}

/// What holds, and what contradicts.
pub(super) fn policy(from: &Settings, to: &mut Findings<'_>) -> Policy {
    let preset = value(&from.preset).unwrap_or_default();
    let named = preset.micro_server();
    let usual = named.unwrap_or(MicroServer {
        count: usual_count(preset, from),
        eager: true,
        full_read: false,
        on_close: false,
        caching: None,
    });
    let policy = Policy {
        count: value(&from.accept_batch).unwrap_or(usual.count),
        eager_read: value(&from.eager_read).unwrap_or(usual.eager),
        eager_write: value(&from.eager_write).unwrap_or(usual.eager),
        on_close: value(&from.accept_on_close).unwrap_or(usual.on_close),
        full_read: value(&from.full_read).unwrap_or(usual.full_read),
        caching: value(&from.caching).unwrap_or(usual.caching.unwrap_or(named.is_none())),
        early_reject: value(&from.early_reject).unwrap_or_default(),
        listeners: value(&from.listeners).unwrap_or_default(),
        micro: named.is_some(),
    };
    auto_is_ours(preset, from, to);
    auto_takes_in_turns(policy, from, to);
    rejects_only_by_control(policy, from, to);
    if named.is_some() {
        bears_its_name(preset, usual, from, to);
        writes_only_from_a_read(from, to);
    }
    if !policy.caching && value(&from.response_cache_max).is_some_and(|bytes| bytes.0 > 0) {
        let problem =
            "without caching nothing is kept that it could bound; leave out one of the two";
        to.wrong(
            "response-cache-max",
            span(&from.response_cache_max),
            problem.into(),
        );
    }
    policy
}

/// Of a server that is not named after it.
fn usual_count(preset: Preset, from: &Settings) -> AcceptBatch {
    let on_close = value(&from.accept_on_close) == Some(true);
    match preset == Preset::Headway && !on_close {
        true => AcceptBatch::Auto,
        false => FIXED_COUNT,
    }
}

/// Options that say otherwise than the name.
fn bears_its_name(preset: Preset, named: MicroServer, from: &Settings, to: &mut Findings<'_>) {
    let switch = |key: &'static str, given: &Item<bool>, is: bool| {
        let word = if is { "on" } else { "off" };
        (
            key,
            differs(given, is).map(|place| (place, word.to_owned())),
        )
    };
    // Eager writing without eager reading is told apart, with its own reason.
    let eager_write = match (&from.eager_write, named.eager) {
        (Some(_), false) => &None,
        (given, _) => given,
    };
    // `auto` is refused beside any preset, with its own reason.
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
            let problem = format!(
                "the preset {preset} is the server whose {key} is {is}; leave out one of the two"
            );
            to.wrong(key, Some(place), problem);
        }
    }
}

/// The servers of the papers had fixed counts, and are measured to compare with that.
fn auto_is_ours(preset: Preset, from: &Settings, to: &mut Findings<'_>) {
    if value(&from.accept_batch) == Some(AcceptBatch::Auto) && preset != Preset::Headway {
        let problem = format!(
            "auto is a policy of Headway's own, the preset {preset} a server of a paper, which had none; leave out \
             one of the two"
        );
        to.wrong("accept-batch", span(&from.accept_batch), problem);
    }
}

/// A round for each connection that closes would be a turn without end, which `auto` is there to
/// prevent.
fn auto_takes_in_turns(policy: Policy, from: &Settings, to: &mut Findings<'_>) {
    if policy.count == AcceptBatch::Auto && value(&from.accept_on_close) == Some(true) {
        let problem = "accept-batch = \"auto\" decides how many clients a turn takes, and this takes a round more for each connection \
                       that closes; leave out one of the two"
            .into();
        to.wrong("accept-on-close", span(&from.accept_on_close), problem);
    }
}

/// Who cannot be served in time is known to nobody but the controller.
fn rejects_only_by_control(policy: Policy, from: &Settings, to: &mut Findings<'_>) {
    if policy.early_reject != EarlyReject::Off && policy.count != AcceptBatch::Auto {
        let is_named = value(&from.preset).is_some_and(|preset| preset != Preset::Headway);
        let way_out = match value(&from.accept_on_close) {
            _ if is_named => "leave the preset out, which auto does not go with",
            Some(true) => "leave accept-on-close out, which auto does not go with",
            _ => "give accept-batch = \"auto\" in its place",
        };
        let problem = format!(
            "clients are turned away when the loop sees that more come than it can serve, and with accept-batch = {} it \
             does not look; {way_out}",
            policy.count
        );
        to.wrong("early-reject", span(&from.early_reject), problem);
    }
}

/// The place of a value that was given and is another one.
fn differs<T: Copy + PartialEq>(given: &Item<T>, named: T) -> Option<std::ops::Range<usize>> {
    let item: &Spanned<T> = given.as_ref()?;
    (*item.get_ref() != named).then(|| item.span())
}

/// Their `--eager-write` goes on with a connection that was just read from eagerly (section 4.1).
fn writes_only_from_a_read(from: &Settings, to: &mut Findings<'_>) {
    let read = value(&from.eager_read).unwrap_or(false);
    let named = value(&from.preset).and_then(Preset::micro_server);
    if value(&from.eager_write) == Some(true) && !read && named.is_some_and(|named| !named.eager) {
        let problem = "the micro-server writes eagerly to connections that it has read from eagerly; without \
                       --eager-read that is never. Take the preset eager, or leave the preset out: Headway itself \
                       can do one without the other";
        to.wrong("eager-write", span(&from.eager_write), problem.into());
    }
}

/// The length of the accept queue.
pub(super) fn backlog(
    from: &Settings,
    policy: Policy,
    somaxconn: u32,
    to: &mut Findings<'_>,
) -> u32 {
    let Some(item) = &from.backlog else {
        return match policy.micro {
            true => MICRO_LISTEN_QUEUE,
            false => LISTEN_QUEUE,
        };
    };
    let length = *item.get_ref();
    if !(1..=LISTEN_QUEUE_MOST).contains(&length) {
        // listen(2) takes a negative length for a very large one.
        let problem = format!(
            "{length} is no length for a queue: write 1 to {LISTEN_QUEUE_MOST}, and the kernel makes at most \
             {somaxconn} of it here (sysctl net.core.somaxconn)"
        );
        to.wrong("backlog", Some(item.span()), problem);
    }
    u32::try_from(length).unwrap_or(LISTEN_QUEUE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_servers_are_those_of_table_1() {
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
