//! Tests of the limits on what the papers' presets keep of files.

use std::fs;

use super::tools::{contents, root};
use crate::support::{Served, config};

const FILES: usize = 30;
const SIZE: usize = 300_000;
const BOUND: u64 = 2 << 20;

/// Serves files of several times the limit, each twice.
fn serve_all(preset: &str) -> headway_server::metrics::Counters {
    let root = root();
    for number in 0..FILES {
        fs::write(root.path().join(number.to_string()), contents(0, SIZE)).unwrap();
    }
    let text = format!("research.preset = '{preset}'\nresearch.mapped-max = '2MiB'");
    let mut served = Served::start(config(root.path(), &text));
    for number in (0..FILES).flat_map(|number| [number, number]) {
        assert!(served.get(&format!("/{number}")).body == contents(0, SIZE));
    }
    served.snapshot().counters
}

#[test]
fn mappings_are_unmapped_when_they_exceed_the_limit() {
    for preset in ["flash", "fd-pass"] {
        let counters = serve_all(preset);
        assert!(
            counters.mapping_cache_bytes <= BOUND,
            "{preset}: {}",
            counters.mapping_cache_bytes
        );
        let made = counters.mapping_cache_entries + counters.mapping_cache_evictions;
        assert_eq!(made, 2 * FILES as u64, "{preset}: each window once");
        assert!(
            counters.mapping_cache_entries > 4,
            "{preset}: and the bound is used"
        );
    }
}

#[test]
fn recent_use_is_dropped_when_it_exceeds_the_limit() {
    let counters = serve_all("no-mmap");
    assert!(
        counters.recent_cache_bytes <= BOUND,
        "{}",
        counters.recent_cache_bytes
    );
    assert!(counters.recent_cache_entries > 4);
    assert_eq!(
        counters.recent_cache_misses,
        2 * FILES as u64,
        "each window once"
    );
    assert_eq!(
        (counters.mapping_cache_bytes, counters.mapping_cache_entries),
        (0, 0)
    );
}

#[test]
fn no_chunk_is_mapped_or_recorded_when_the_preset_does_neither() {
    for preset in ["new-flash", "headway"] {
        let counters = serve_all(preset);
        assert_eq!(
            (
                counters.mapping_cache_entries,
                counters.recent_cache_entries
            ),
            (0, 0),
            "{preset}"
        );
        assert_eq!(
            (counters.mapping_cache_resident, counters.recent_cache_hits),
            (0, 0),
            "{preset}"
        );
    }
}
