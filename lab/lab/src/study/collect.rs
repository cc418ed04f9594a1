//! Reading a measurement again: everything it left behind, as [`Evidence`].

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::rc::Rc;

use headway_latency::Run;
use headway_latency::study::evidence::{Collector, Evidence, Sleeps};
use serde::de::DeserializeOwned;

use super::spec::Spec;
use super::store::{Record, Store};

/// A measurement that has ended.
pub(super) struct Collected {
    pub record: Record,
    pub evidence: Evidence,
}

/// Why there is nothing to collect.
#[derive(Clone, Debug)]
pub(super) enum NotCollected {
    /// The measurement was not tried.
    Untried,
    /// The measurement failed.
    Failed(String),
}

impl NotCollected {
    pub fn reason(&self) -> String {
        match self {
            NotCollected::Untried => "not measured yet".to_owned(),
            NotCollected::Failed(why) => why.clone(),
        }
    }
}

/// Reads each measurement once, however many studies look at it.
pub(super) struct MeasurementCache<'a> {
    store: &'a Store,
    known: HashMap<String, Result<Rc<Collected>, NotCollected>>,
}

impl<'a> MeasurementCache<'a> {
    pub fn new(store: &'a Store) -> MeasurementCache<'a> {
        MeasurementCache {
            store,
            known: HashMap::new(),
        }
    }

    pub fn get(&mut self, spec: &Spec) -> Result<Rc<Collected>, NotCollected> {
        let key = spec.key();
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let found = self.read(&key);
        self.known.insert(key, found.clone());
        found
    }

    fn read(&self, key: &str) -> Result<Rc<Collected>, NotCollected> {
        let record = self.store.record(key).ok_or(NotCollected::Untried)?;
        if let Some(why) = &record.failed {
            return Err(NotCollected::Failed(why.clone()));
        }
        let evidence = evidence(&self.store.place(key)).map_err(NotCollected::Failed)?;
        Ok(Rc::new(Collected { record, evidence }))
    }
}

fn evidence(place: &Path) -> Result<Evidence, String> {
    let run = Run::open(place.join("run")).map_err(|error| error.to_string())?;
    let mut collector = Collector::new(run.description());
    for batch in run.rows().map_err(|error| error.to_string())? {
        let batch = batch.map_err(|error| error.to_string())?;
        batch.iter().for_each(|row| collector.push(row));
    }
    let background = Run::open(place.join("background")).ok();
    let background = background.map(|run| run.analysis().map_err(|error| error.to_string()));
    let trace: Option<serde_json::Value> = json(&place.join("run/trace.json"));
    Ok(Evidence {
        description: run.description().clone(),
        rows: Some(collector.finish()),
        background: background.transpose()?,
        server: run.server(),
        disk: json(&place.join("disk.json")),
        usage: json(&place.join("usage.json")),
        runnable: json(&place.join("runnable.json")),
        sleeps: trace.as_ref().and_then(Sleeps::from_trace),
    })
}

/// A file that exists only if there was an observer.
fn json<T: DeserializeOwned>(file: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(file).ok()?).ok()
}
