//! What a worker, the master and the log process tell each other, and the pages that the master makes of it.
#![no_main]

use headway_control::{FromLog, FromWorker, ToLog, ToWorker};
use headway_metrics::{
    MasterStatus, Overview, Skew, Snapshot, prometheus, status::history::History, status::page,
};
use libfuzzer_sys::fuzz_target;
use serde::{Serialize, de::DeserializeOwned};

fuzz_target!(|bytes: &[u8]| {
    again::<ToWorker>(bytes);
    again::<ToLog>(bytes);
    again::<FromLog>(bytes);
    if let Some(FromWorker::Snapshot { snapshot, .. }) = again(bytes) {
        show(*snapshot);
    }
});

/// What is read can be written, and reads back as the same text.
fn again<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let message: T = serde_json::from_slice(bytes).ok()?;
    let text = serde_json::to_vec(&message).expect("what was read can be written");
    let second: T = serde_json::from_slice(&text).expect("what was written can be read");
    assert_eq!(serde_json::to_vec(&second).expect("as before"), text);
    Some(message)
}

fn show(snapshot: Snapshot) {
    let workers = vec![snapshot];
    let overview = Overview {
        version: String::new(),
        host_name: String::new(),
        off: Vec::new(),
        time_ms: 1,
        master: MasterStatus::default(),
        total: Snapshot::total(&workers),
        skew: Skew::of(&workers),
        workers,
        unresponsive: Vec::new(),
    };
    // A metric has one line, however a host or an upstream is named.
    for line in prometheus::render(&overview).lines() {
        assert!(
            line.starts_with('#') || line.starts_with("headway_") || line.is_empty(),
            "{line}"
        );
    }
    assert!(page::render(&overview, &History::default()).ends_with("</html>\n"));
}
