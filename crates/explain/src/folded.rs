//! The time of requests as folded stacks, which flame-graph programs draw:
//! `server;phase;what the thread did;…;file TIME_US`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::collector::Collector;
use crate::parts::{At, Cause, Doing};

impl Collector {
    /// One line per stack, whole microseconds at the end. Of the stored requests.
    pub fn folded(&self, server: &str) -> String {
        let mut sums: BTreeMap<(u32, At), u64> = BTreeMap::new();
        for (cause, at, ns) in self.stored.iter().flat_map(|stored| &stored.parts) {
            *sums.entry((*cause, *at)).or_default() += ns;
        }
        let mut lines: BTreeMap<String, u64> = BTreeMap::new();
        for ((cause, at), ns) in sums {
            let Some(cause) = self.causes.get(cause as usize) else {
                continue;
            };
            *lines.entry(self.stack(server, cause, at)).or_default() += ns;
        }
        let mut out = String::new();
        for (stack, ns) in lines {
            let _ = writeln!(out, "{stack} {}", ns.div_ceil(1000));
        }
        out
    }

    fn stack(&self, server: &str, cause: &Cause, at: At) -> String {
        let mut frames = vec![server.to_owned(), cause.phase.name().to_owned()];
        if cause.for_others {
            frames.push("for other requests".to_owned());
        }
        match &cause.doing {
            Doing::Asleep { call, label } => {
                let call = call.map_or("page fault".into(), headway_debox::calls::display_name);
                frames.extend([call.into_owned(), label.name().to_owned()]);
            }
            doing => frames.push(crate::text::doing_in_words(doing)),
        }
        let name = |number: u32| self.names.name(number);
        frames.extend(at.symbol.map(|number| format!("{}_[k]", name(number))));
        frames.extend(at.file.map(|number| name(number).to_owned()));
        // A semicolon would be another frame.
        let frames: Vec<String> = frames
            .iter()
            .map(|frame| frame.replace([';', '\n'], "_"))
            .collect();
        frames.join(";")
    }
}

#[cfg(test)]
mod tests {
    use headway_debox::Label;

    use crate::collector::{Collector, Stored};
    use crate::parts::{At, Cause, Doing, Phase};

    #[test]
    fn time_is_added_up_by_phase_call_and_file() {
        let mut collector = Collector::default();
        let at = At {
            file: collector.names.request("/srv/a;b"),
            symbol: Some(collector.names.symbol("request_wait_answer")),
            ..At::default()
        };
        let doing = Doing::Asleep {
            call: headway_debox::calls::number("openat"),
            label: Label::Fuse,
        };
        let cause = |phase, doing, for_others| Cause {
            phase,
            doing,
            for_others,
        };
        collector.causes = vec![
            cause(Phase::ReceiveQueue, doing, true),
            cause(Phase::Service, Doing::Running, false),
        ];
        for _ in 0..2 {
            collector.stored.push(Stored {
                total_ns: 3_000,
                line: None,
                status: None,
                parts: vec![(0, at, 2_000), (1, At::default(), 1_000)],
            });
        }
        let expected = "nginx;receive queue;for other requests;openat;fuse;request_wait_answer_[k];/srv/a_b 4\n\
                        nginx;service;running 2\n";
        assert_eq!(collector.folded("nginx"), expected);
    }
}
