//! The effective values of `[research]`, and contradictions.
//!
//! The options on accepting are those of Brecht and Ostrowski's section 4.1, under their names. An
//! option that contradicts the named server of their Table 1 is an error. The other defaults are
//! those of their section 5: `select`, a backlog of 128, no deferred accept, 15,000 connections, and
//! no cache.
//!
//! Headway's own defaults differ. It reads and writes at once and chooses the accept batch by load.
//! The kernel holds a connection until its request arrives, so that an eager read finds data.

use headway_event::Mechanism;
use std::iter;
use std::num::NonZeroU32;
use std::ops::Range;
use toml::Spanned;

use super::prefixes;
use super::presets::{MicroServer, Preset};
use super::settings::ResearchSettings;
use crate::error::Findings;
use crate::keys::Setting;
use crate::memory::{CHUNK_CACHE_BYTES_LOWEST, default_mapped_bytes};
use crate::ranges::{size, span, tables, value};
use crate::research::{Defaults, ResearchConfig, SendVariant};
use crate::settings::LocationSettings;
use crate::{AcceptBatch, ListenerMode, Memory, Opening, Settings};

/// The accept batch where `auto` does not apply: with the presets flash to new-flash and with
/// `accept-on-close`.
const FIXED_BATCH: AcceptBatch = AcceptBatch::Most(25);

/// Default backlog of the micro-server (section 4.1).
const MICRO_SERVER_BACKLOG: u32 = 128;

/// Default of `revalidate` where there is no probe: another check costs the job of a helper.
const UNPROBED_REVALIDATE_MS: u64 = 60_000;

/// Returns what is in effect, and the defaults of other keys.
pub(super) fn check(
    from: &Settings,
    workers: usize,
    memory: Memory,
    to: &mut Findings<'_>,
) -> (ResearchConfig, Defaults) {
    let nothing = ResearchSettings::default();
    let own = from.research.as_ref().map_or(&nothing, Spanned::get_ref);
    let preset = value(&own.preset).unwrap_or_default();
    let named = preset.micro_server();
    let on_close = value(&own.accept_on_close) == Some(true);
    let usual = named.unwrap_or(MicroServer {
        count: match preset == Preset::Headway && !on_close {
            true => AcceptBatch::Auto,
            false => FIXED_BATCH,
        },
        eager: true,
        full_read: false,
        on_close: false,
        caching: None,
    });
    let mapped = default_mapped_bytes(workers, memory);
    let mapped_sizes = CHUNK_CACHE_BYTES_LOWEST..=1 << 46;
    let (opening, send_method) = preset.methods();
    let mut config = ResearchConfig {
        opening: value(&own.opening).unwrap_or(opening),
        // A way that was written in `send` is one of Headway.
        send_method: value(&own.send_method).or(send_method.filter(|_| from.send.is_none())),
        mapped_max_bytes: size("mapped-max", &own.mapped_max, mapped, mapped_sizes, to),
        close_mapped: false,
        eager_read: value(&own.eager_read).unwrap_or(usual.eager),
        eager_write: value(&own.eager_write).unwrap_or(usual.eager),
        send_order: value(&own.send_order).unwrap_or_default(),
        accept_on_close: value(&own.accept_on_close).unwrap_or(usual.on_close),
        original_limits: value(&own.original_limits).unwrap_or(false),
        full_read: value(&own.full_read).unwrap_or(usual.full_read),
        caching: value(&own.caching).unwrap_or(usual.caching.unwrap_or(named.is_none())),
        thundering_herd: value(&own.thundering_herd).unwrap_or(false),
        stall_every: stall_every(own, to),
        pipe: prefixes(&own.pipe).to_vec(),
        fork_in_server: prefixes(&own.fork_in_server).to_vec(),
    };
    config.close_mapped = close_mapped(&config, preset, own, to);
    check_auto(preset, usual.count, from, own, to);
    if let Some(named) = named {
        check_preset_options(preset, named, from, own, to);
        check_eager_write_has_eager_read(named, own, to);
    }
    check_without_cache(&config, from, to);
    check_herd(&config, from, own, to);
    check_prefixes(from, own, to);
    let defaults = defaults(&config, preset, usual.count, on_close);
    (config, defaults)
}

/// The defaults of other keys.
fn defaults(
    config: &ResearchConfig,
    preset: Preset,
    accept_batch: AcceptBatch,
    on_close: bool,
) -> Defaults {
    let basic = Defaults {
        accept_batch,
        revalidate_ms: match config.opening {
            Opening::Probe => Defaults::default().revalidate_ms,
            Opening::Touch | Opening::Pass => UNPROBED_REVALIDATE_MS,
        },
        caches_small_files: config.send_method.is_none(),
        fixed_batch: match on_close {
            _ if preset != Preset::Headway => Some("remove the preset, which needs a fixed batch"),
            true => Some("remove accept-on-close, which needs a fixed batch"),
            false => None,
        },
        ..Defaults::default()
    };
    match preset.micro_server() {
        None => basic,
        Some(_) => Defaults {
            backlog: MICRO_SERVER_BACKLOG,
            defer_accept: false,
            // Their paper measures select.
            events: Mechanism::Select,
            // It caches hardly any open files.
            connection_eighths: 7,
            ..basic
        },
    }
}

/// Reports options that contradict the named server.
fn check_preset_options(
    preset: Preset,
    named: MicroServer,
    from: &Settings,
    own: &ResearchSettings,
    to: &mut Findings<'_>,
) {
    let switch = |key: &'static str, given: &Setting<bool>, is: bool| {
        let word = if is { "on" } else { "off" };
        (
            key,
            differs(given, is).map(|position| (position, word.to_owned())),
        )
    };
    // Eager writing without eager reading has its own message.
    let eager_write = match (&own.eager_write, named.eager) {
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
            count.map(|position| (position, named.count.to_string())),
        ),
        switch("eager-read", &own.eager_read, named.eager),
        switch("eager-write", eager_write, named.eager),
        switch("full-read", &own.full_read, named.full_read),
        switch("accept-on-close", &own.accept_on_close, named.on_close),
    ];
    let caching = named
        .caching
        .map(|caching| switch("caching", &own.caching, caching));
    for (key, found) in all.into_iter().chain(caching) {
        if let Some((position, is)) = found {
            let problem = format!("the preset {preset} has {key} {is}; remove one of the two");
            to.usage_error(key, Some(position), problem);
        }
    }
}

/// The position of a value that differs from that of the named server.
fn differs<T: Copy + PartialEq>(given: &Setting<T>, named: T) -> Option<Range<usize>> {
    let item: &Spanned<T> = given.as_ref()?;
    (*item.get_ref() != named).then(|| item.span())
}

/// The servers of the papers had fixed batches, so `auto` cannot be combined with them. Nor can it
/// with accepting after every close, which would repeat within one loop iteration without end.
fn check_auto(
    preset: Preset,
    usual: AcceptBatch,
    from: &Settings,
    own: &ResearchSettings,
    to: &mut Findings<'_>,
) {
    let given = value(&from.accept_batch);
    if given == Some(AcceptBatch::Auto) && preset != Preset::Headway {
        let problem = format!(
            "accept-batch = \"auto\" cannot be combined with preset = \"{preset}\"; remove one of the two"
        );
        to.usage_error("accept-batch", span(&from.accept_batch), problem);
    }
    let batch = given.unwrap_or(usual);
    if batch == AcceptBatch::Auto && value(&own.accept_on_close) == Some(true) {
        let problem =
            "it cannot be combined with accept-batch = \"auto\"; remove one of the two".into();
        to.usage_error("accept-on-close", span(&own.accept_on_close), problem);
    }
}

/// The eager write of the papers continues with a connection that was just read from eagerly
/// (section 4.1).
fn check_eager_write_has_eager_read(
    named: MicroServer,
    own: &ResearchSettings,
    to: &mut Findings<'_>,
) {
    let read = value(&own.eager_read).unwrap_or(false);
    if value(&own.eager_write) == Some(true) && !read && !named.eager {
        let problem = "in this preset eager writes need eager reads; use the preset eager, or remove the preset";
        to.usage_error("eager-write", span(&own.eager_write), problem.into());
    }
}

fn check_without_cache(config: &ResearchConfig, from: &Settings, to: &mut Findings<'_>) {
    if !config.caching && value(&from.response_cache_max).is_some_and(|bytes| bytes.0 > 0) {
        let problem = "with caching = false there is no response cache; remove one of the two";
        to.usage_error(
            "response-cache-max",
            span(&from.response_cache_max),
            problem.into(),
        );
    }
}

/// Only what is written from a mapping needs no descriptor.
fn close_mapped(
    config: &ResearchConfig,
    preset: Preset,
    own: &ResearchSettings,
    to: &mut Findings<'_>,
) -> bool {
    let maps = config.send_method == Some(SendVariant::Mmap);
    if value(&own.close_mapped) == Some(true) && !maps {
        let problem = "it needs send-method = \"mmap\"; the others send from open files";
        to.usage_error("close-mapped", span(&own.close_mapped), problem.into());
    }
    maps && value(&own.close_mapped).unwrap_or(preset == Preset::Flash)
}

fn stall_every(own: &ResearchSettings, to: &mut Findings<'_>) -> Option<NonZeroU32> {
    let given = value(&own.stall_every)?;
    let every = NonZeroU32::new(given);
    if every.is_none() {
        let problem = "0 is not a number of requests; remove it, and the loop never stalls";
        to.usage_error("stall-every", span(&own.stall_every), problem.into());
    }
    every
}

/// With a socket per worker there is no herd.
fn check_herd(
    config: &ResearchConfig,
    from: &Settings,
    own: &ResearchSettings,
    to: &mut Findings<'_>,
) {
    let listeners = value(&from.listeners).unwrap_or_default();
    if config.thundering_herd && listeners != ListenerMode::Shared {
        let problem = "it needs listeners = \"shared\", one socket for all workers";
        to.usage_error(
            "thundering-herd",
            span(&own.thundering_herd),
            problem.into(),
        );
    }
}

/// Reports a prefix with which there is no location of the right kind.
fn check_prefixes(from: &Settings, own: &ResearchSettings, to: &mut Findings<'_>) {
    let of_hosts = tables(&from.host).iter().map(Spanned::get_ref);
    let lists = iter::once(&from.location).chain(of_hosts.map(|host| &host.location));
    let all: Vec<&LocationSettings> = lists.flat_map(tables).map(Spanned::get_ref).collect();
    let prefixes_of = |is_kind: fn(&LocationSettings) -> bool| {
        let of_kind = all.iter().filter(|location| is_kind(location));
        let prefixes = of_kind.filter_map(|location| location.prefix.as_ref());
        prefixes.map(Spanned::get_ref).collect::<Vec<_>>()
    };
    let direct = prefixes_of(|location| location.direct.is_some());
    let cgi = prefixes_of(|location| value(&location.cgi).unwrap_or(false));
    for (key, item, kind, known) in [
        ("pipe", &own.pipe, "direct", direct),
        ("fork-in-server", &own.fork_in_server, "cgi", cgi),
    ] {
        for prefix in prefixes(item) {
            if !known.contains(&prefix) {
                let problem = format!("no {kind} location has the prefix `{prefix}`");
                to.usage_error(key, span(item), problem);
            }
        }
    }
}
