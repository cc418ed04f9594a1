//! The named servers. A [`Preset`] of the 2006 paper is a pair of methods: how a file is opened, and
//! how its bytes are found resident and sent. One of Brecht and Ostrowski's Table 1 is a
//! [`MicroServer`]: how connections are accepted. One list has both, because one name describes one
//! server.

use crate::research::SendVariant;
use crate::strategy::named_values;
use crate::{AcceptBatch, Opening};

named_values! {
    /// A server of the papers, or Headway.
    Preset, "preset" {
        /// Flash as it was published.
        Flash = "flash",
        /// Flash that sends with sendfile, beside its mappings.
        FlashSendfile = "flash-sendfile",
        /// Flash with helpers that pass descriptors.
        FdPass = "fd-pass",
        /// As fd-pass, without mappings.
        NoMmap = "no-mmap",
        /// As no-mmap, with a residency check that needs no mapping: New-Flash.
        NewFlash = "new-flash",
        /// Headway.
        #[default]
        Headway = "headway",
        /// The micro-server that accepts one connection per wakeup.
        Accept1 = "accept1",
        /// The micro-server that accepts all waiting connections.
        AcceptInf = "accept-inf",
        /// The micro-server that accepts at most 25.
        Accept25 = "accept25",
        /// As accept-inf, and each connection is read from and answered at once.
        Eager = "eager",
        /// As eager, and read until no data is left.
        EagerFull = "eager+full",
        /// As eager, and accepting also after each close.
        EagerClose = "eager+close",
        /// As eager+full and eager+close: the server of Chandra and Mosberger.
        Cm = "cm",
        /// As accept25, with the cache.
        Accept25Cache = "accept25+cache",
    }
}

/// A server of Table 1: how it accepts connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MicroServer {
    pub(super) count: AcceptBatch,
    pub(super) eager: bool,
    pub(super) full_read: bool,
    pub(super) on_close: bool,
    /// `None`: off unless configured. Only their section 7 has a server that is named after its
    /// cache.
    pub(super) caching: Option<bool>,
}

impl Preset {
    /// Returns its pair of methods.
    pub(super) fn methods(self) -> (Opening, Option<SendVariant>) {
        match self {
            Preset::Flash => (Opening::Touch, Some(SendVariant::Mmap)),
            Preset::FlashSendfile => (Opening::Touch, Some(SendVariant::SendfileMapped)),
            Preset::FdPass => (Opening::Pass, Some(SendVariant::Mmap)),
            Preset::NoMmap => (Opening::Pass, Some(SendVariant::SendfileRecent)),
            Preset::NewFlash => (Opening::Pass, Some(SendVariant::SendfileResident)),
            // The micro-servers differ only in how they accept.
            _ => (Opening::Probe, None),
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preset_names_parse_back_as_printed() {
        for preset in Preset::ALL {
            assert_eq!(preset.to_string().parse(), Ok(*preset));
            let json = serde_json::to_string(preset).unwrap();
            assert_eq!(json, format!("\"{preset}\""));
        }
        for method in SendVariant::ALL {
            assert_eq!(method.to_string().parse(), Ok(*method));
        }
        let error = "apache".parse::<Preset>().unwrap_err();
        assert!(
            error.contains("flash, flash-sendfile, fd-pass, no-mmap, new-flash, headway, accept1"),
            "{error}"
        );
    }

    #[test]
    fn presets_differ_in_one_step_each() {
        let steps: Vec<_> = Preset::ALL.iter().map(|preset| preset.methods()).collect();
        assert_eq!(steps[0].0, steps[1].0, "flash-sendfile changes the sending");
        assert_eq!(steps[0].1, steps[2].1, "fd-pass changes the opening alone");
        for pair in steps[2..5].windows(2) {
            assert_eq!(pair[0].0, pair[1].0, "then the sending alone");
            assert_ne!(pair[0].1, pair[1].1);
        }
    }

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
