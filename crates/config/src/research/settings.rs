//! The keys of the table `[research]`, as they were written.

use toml::Spanned;
use toml::de::DeValue;

use super::presets::Preset;
use crate::error::Findings;
use crate::keys::{Key, Setting, Table, Topic, Twice, table};
use crate::research::{SendOrder, SendVariant};
use crate::settings::from_command_line;
use crate::units::{Bytes, OneOrMany};
use crate::value::{Accepts, Form, Value, Written, texts};
use crate::{Opening, Settings};

table! {
    /// The table `[research]`.
    ResearchSettings, "research" {
        /// Server of the papers to imitate.
        ///
        /// flash, flash-sendfile, fd-pass, no-mmap, new-flash, headway: set `opening` and `send-method`;
        /// the first four may block on disk. Micro-servers, which set how connections are accepted: accept1,
        /// accept-inf, accept25, eager, eager+full, eager+close, cm, accept25+cache. They also have
        /// events = select, backlog = 128, defer-accept = false and caching = false as defaults.
        preset: Preset, Research, "headway", "\"flash\"";
        /// How a file that is not cached is opened.
        ///
        /// With probe-then-pass, a helper opens what is not in the kernel's name cache. With
        /// pass-descriptor, a helper opens every new file. With touch-and-reopen, a helper looks it
        /// up, then the event loop opens it and may block. The preset sets the default. Except with
        /// probe-then-pass, the default of `revalidate` is 60s.
        opening: Opening, Research, "probe-then-pass", "\"pass-descriptor\"";
        /// How files are sent: sendfile-resident, sendfile-plain, sendfile-recent, sendfile-mapped, mmap.
        ///
        /// It replaces `send`, and small files are not cached by default. sendfile-resident checks
        /// residency first. So does sendfile-plain, whose header does not wait for the file (MSG_MORE). The
        /// others may block on disk. The preset sets the default.
        send_method: SendVariant, Research, "that of send", "\"mmap\"";
        /// Bytes of files mapped (mmap, sendfile-mapped) or assumed resident (sendfile-recent) per worker.
        mapped_max: Bytes, Research, "four fifths of the memory", "\"1GiB\"";
        /// Close a file once it is mapped; only with send-method = mmap.
        ///
        /// The file cache keeps its name. If its mapping is released, the event loop opens it again by that
        /// name, and may block. The preset flash has true as its default.
        close_mapped: bool, Research, "false", "true";
        /// Read from a new connection at once, without asking the event mechanism.
        ///
        /// The accept… presets have false as their default.
        eager_read: bool, Research, "true", "false";
        /// Write a response at once, without asking the event mechanism.
        ///
        /// The accept… presets have false as their default.
        eager_write: bool, Research, "true", "false";
        /// Which of the connections that can send long responses sends first: ready or shortest.
        ///
        /// With ready, those that became ready first. With shortest, those with the fewest bytes left
        /// (shortest remaining processing time, SRPT). A long response may then wait for ever.
        send_order: SendOrder, Research, "ready", "\"shortest\"";
        /// Accept connections also whenever one has closed; not with accept-batch = auto.
        ///
        /// The presets eager+close and cm have true as their default.
        accept_on_close: bool, Research, "false", "true";
        /// Limit accepting only as the micro-servers did: by accept-batch and max-connections.
        ///
        /// Then a batch without a limit lasts as long as connections arrive, even if that is for ever;
        /// otherwise it ends after 250 ms. Also, no silent connection is closed for a new one.
        original_limits: bool, Research, "false", "true";
        /// Read from a connection until no data is left.
        ///
        /// The presets eager+full and cm have true as their default.
        full_read: bool, Research, "false", "true";
        /// Cache paths, open files and small responses between requests.
        ///
        /// The micro-server presets have false as their default, except accept25+cache.
        caching: bool, Research, "true", "false";
        /// Wake every worker for each connection to the shared socket; needs listeners = shared.
        thundering_herd: bool, Research, "false", "true";
        /// Block the event loop for 1 ms at one of this many requests.
        stall_every: u32, Research, "never", "1000";
        /// Prefixes of direct locations whose programs return their responses over a pipe.
        pipe: OneOrMany<String>, Research, "none", "\"/app/\"";
        /// Prefixes of cgi locations whose programs the worker itself starts, instead of the spawner.
        fork_in_server: OneOrMany<String>, Research, "none", "\"/cgi-bin/\"";
    }
}

texts! {
    Preset: "choice", "NAME", "", Text, "the name of a preset in quotes";
    Opening: "choice", "METHOD", "", Text, "one of the methods in quotes";
    SendOrder: "choice", "ORDER", "", Text, "one of the orders in quotes";
    SendVariant: "choice", "METHOD", "", Text, "one of the methods in quotes";
}

impl Value for ResearchSettings {
    const FORM: Form = Form::TABLE;

    fn parse(_: &str) -> Result<Self, String> {
        Err("write it in the configuration file".into())
    }

    fn read(from: Written<'_, '_>, to: &mut Findings<'_>) -> Option<Self> {
        match (from.value.get_ref(), to.research) {
            (DeValue::Table(table), Some(research)) => Some((research.read)(table, from.path, to)),
            _ => {
                let problem = "write it as a table: [research] on a line of its own";
                to.usage_error(from.path, Some(from.value.span()), problem.into());
                None
            }
        }
    }
}

/// Puts the table of the command line over the settings of a file. A preset replaces the settings
/// it stands for: how files are opened and sent, or how connections are accepted.
pub(super) fn overlay(settings: &mut Settings, over: ResearchSettings) {
    let own = settings
        .research
        .get_or_insert_with(|| from_command_line(ResearchSettings::default()))
        .get_mut();
    if let Some(preset) = &over.preset {
        (own.opening, own.send_method, settings.send) = (None, None, None);
        if preset.get_ref().micro_server().is_some() {
            (settings.accept_batch, settings.response_cache_max) = (None, None);
            settings.early_reject = None;
            (own.eager_read, own.eager_write, own.caching) = (None, None, None);
            (own.full_read, own.accept_on_close) = (None, None);
        }
    }
    own.replace(over);
}
