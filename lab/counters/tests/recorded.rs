//! The metrics on counts of machines that are not here: each recording's own ratios come out again.

use std::collections::BTreeMap;

use headway_counters::count::{Count, Counts, Space};
use headway_counters::events::{Meaning, Scope};
use headway_counters::metrics::{Penalties, Served, cpi, figures};
use serde::Deserialize;

#[derive(Deserialize)]
struct Recording {
    #[serde(default)]
    bytes: f64,
    #[serde(default)]
    requests: f64,
    counts: BTreeMap<Meaning, f64>,
    published: BTreeMap<String, f64>,
    #[serde(default)]
    penalties: Penalties,
}

impl Recording {
    fn read(text: &str) -> Recording {
        toml::from_str(text).expect("a recording")
    }

    fn counts(&self) -> Counts {
        let count = |value: f64| Count {
            value,
            counted_share: 1.0,
            scope: Scope::Thread,
        };
        let all = self
            .counts
            .iter()
            .map(|(meaning, value)| (*meaning, count(*value)));
        Counts {
            spaces: BTreeMap::from([(Space::Both, all.collect())]),
            missing: BTreeMap::new(),
        }
    }

    fn served(&self) -> Served {
        Served {
            bytes: self.bytes,
            requests: self.requests,
            seconds: 1.0,
        }
    }
}

const RECORDINGS: [&str; 2] = [
    include_str!("data/nginx-amd.toml"),
    include_str!("data/xeon-2005.toml"),
];

#[test]
fn published_ratios_come_out_when_recorded_counts_are_put_in() {
    for text in RECORDINGS {
        let recording = Recording::read(text);
        let found = figures(&recording.counts(), &recording.served());
        assert!(!recording.published.is_empty());
        for (name, published) in &recording.published {
            let figure = found.iter().find(|figure| figure.name == name);
            let value = figure.and_then(|figure| figure.value).expect(name);
            // As printed: to a percent of the value.
            assert!(
                (value / published - 1.0).abs() < 0.01,
                "{name}: {value} instead of {published}"
            );
        }
    }
}

#[test]
fn caches_take_most_cycles_when_the_dissertations_xeon_is_broken_down() {
    let recording = Recording::read(RECORDINGS[1]);
    let found = cpi::breakdown(&recording.counts(), &recording.penalties);
    assert!((found.measured.expect("counted") - 1.0 / 0.33).abs() < 0.01);
    let cycles = |name: &str| {
        let component = found.components.iter().find(|one| one.name == name);
        component.expect("a component").cycles
    };
    // Section 4.4: "L1 and L2 misses are responsible for most of the cycles", TLB and
    // mispredictions are minor. There is no third level, so misses of the second go to memory.
    let caches = cycles("L1").expect("counted") + cycles("L3").expect("counted");
    let others = ["ITLB", "DTLB", "mispredictions"].map(|name| cycles(name).expect("counted"));
    assert!(caches > 2.0 * others.iter().sum::<f64>(), "{found:?}");
    assert_eq!(cycles("store buffers"), None, "not in the recording");
    assert!(!found.is_whole);
}
