//! What an attempt injected and what its record said, as rows for `bench/debox-ground-truth`: written before
//! anything is asserted, so that a wrong record is in the evidence, too.

use std::fs::OpenOptions;
use std::io::Write;

use headway_debox::{Label, Record};

use crate::truth::Block;

/// Names the file rows are appended to; without it nothing is written.
const FILE: &str = "HEADWAY_GROUND_TRUTH_EVIDENCE";

/// Injected blocks that were found under their label, and sleeps that were not injected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub injected: u32,
    pub found: u32,
    pub invented: u32,
}

impl Counts {
    /// Counts labels in two lists, which have each label once at most.
    pub fn of(expected: &[(Label, u32)], seen: &[(Label, u32)]) -> Counts {
        let of = |list: &[(Label, u32)], wanted| {
            let found = list.iter().find(|(label, _)| *label == wanted);
            found.map_or(0, |(_, count)| *count)
        };
        let sum = |list: &[(Label, u32)]| list.iter().map(|(_, count)| count).sum::<u32>();
        let found = expected
            .iter()
            .map(|(label, count)| (*count).min(of(seen, *label)))
            .sum();
        Counts {
            injected: sum(expected),
            found,
            invented: sum(seen) - found,
        }
    }
}

/// `case,call,label,injected,found,invented,least_ns,most_ns,asleep_ns`; the last three are empty
/// where no injector measured the time.
pub fn write(record: &Record, expected: &[(Label, u32)], counts: Counts, blocks: &[Block]) {
    let Some(path) = std::env::var_os(FILE) else {
        return;
    };
    let case = std::thread::current();
    let labels: Vec<String> = expected
        .iter()
        .map(|(label, _)| label.to_string())
        .collect();
    let times = match blocks {
        [] => ",,".to_owned(),
        _ => {
            let (least_ns, most_ns) = limits(blocks);
            format!("{least_ns},{most_ns},{}", asleep_ns(record))
        }
    };
    let row = format!(
        "{},{},{},{},{},{},{times}\n",
        case.name().unwrap_or("(a thread of a case)"),
        headway_debox::calls::name(record.number),
        labels.join("+"),
        counts.injected,
        counts.found,
        counts.invented
    );
    let file = OpenOptions::new().append(true).create(true).open(path);
    (file.and_then(|mut file| file.write_all(row.as_bytes()))).expect("evidence can be written");
}

/// How long the blocks lasted, by the injector's clock: no shorter, no longer.
pub fn limits(blocks: &[Block]) -> (u64, u64) {
    let least = |block: &Block| block.end_ns.0.saturating_sub(block.begin_ns.1);
    let most = |block: &Block| block.end_ns.1.saturating_sub(block.begin_ns.0);
    (
        blocks.iter().map(least).sum(),
        blocks.iter().map(most).sum(),
    )
}

/// Time asleep without the wait for a CPU after the release, which is no part of what was
/// injected.
pub fn asleep_ns(record: &Record) -> u64 {
    let waited_ns = (record.wakeup_ns.unwrap_or(0)).saturating_sub(record.preemptions.total_ns);
    record.blocked_ns().saturating_sub(waited_ns)
}

#[test]
fn missing_and_additional_labels_are_distinguished_when_labels_differ() {
    let expected = [(Label::Pipe, 2), (Label::Futex, 1)];
    let seen = [(Label::Pipe, 1), (Label::PageIo, 3)];
    assert_eq!(
        Counts::of(&expected, &seen),
        Counts {
            injected: 3,
            found: 1,
            invented: 3
        }
    );
}
