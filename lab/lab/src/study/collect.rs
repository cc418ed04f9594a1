//! Reading a measurement again: everything it left behind, as [`RunEvidence`].

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::rc::Rc;

use headway_latency::Run;
use headway_latency::breakdown::{self, Breakdown, TracedCalls};
use headway_latency::study::evidence::{Collector, RunEvidence, Sleeps};
use serde::de::DeserializeOwned;

use super::spec::{Point, Spec};
use super::store::{Record, Store};

/// A measurement that has ended.
pub(super) struct CollectedMeasurement {
    pub record: Record,
    pub evidence: RunEvidence,
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
    known: HashMap<String, Result<Rc<CollectedMeasurement>, NotCollected>>,
}

impl<'a> MeasurementCache<'a> {
    pub fn new(store: &'a Store) -> MeasurementCache<'a> {
        MeasurementCache {
            store,
            known: HashMap::new(),
        }
    }

    pub fn get(&mut self, spec: &Spec) -> Result<Rc<CollectedMeasurement>, NotCollected> {
        let key = spec.key();
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let found = self.read(&key);
        self.known.insert(key, found.clone());
        found
    }

    fn read(&self, key: &str) -> Result<Rc<CollectedMeasurement>, NotCollected> {
        let record = self.store.record(key).ok_or(NotCollected::Untried)?;
        if let Some(why) = &record.failed {
            return Err(NotCollected::Failed(why.clone()));
        }
        let key = match (&record.spec.point, record.rate_rps) {
            // What is known of a knee is the run at its rate.
            (Point::Knee(_), Some(rate)) => record.spec.at_rate(rate).key(),
            _ => key.to_owned(),
        };
        let evidence = evidence(&self.store.directory(&key)).map_err(NotCollected::Failed)?;
        Ok(Rc::new(CollectedMeasurement { record, evidence }))
    }
}

fn evidence(directory: &Path) -> Result<RunEvidence, String> {
    let run = Run::open(directory.join("run")).map_err(|error| error.to_string())?;
    let mut collector = Collector::new(run.description());
    for batch in run.rows().map_err(|error| error.to_string())? {
        let batch = batch.map_err(|error| error.to_string())?;
        batch.iter().for_each(|row| collector.push(row));
    }
    let other = Run::open(directory.join("background")).ok();
    let background = other
        .as_ref()
        .map(|run| run.analysis().map_err(|error| error.to_string()));
    let trace: Option<serde_json::Value> = json(&directory.join("run/trace.json"));
    Ok(RunEvidence {
        description: run.description().clone(),
        rows: Some(collector.finish()),
        background: background.transpose()?,
        server: run.server(),
        disk: json(&directory.join("disk.json")),
        usage: json(&directory.join("usage.json")),
        runnable: json(&directory.join("runnable.json")),
        breakdown: trace
            .as_ref()
            .and_then(|trace| broken_down(&run, other.as_ref(), trace)),
        sleeps: trace.as_ref().and_then(Sleeps::from_trace),
    })
}

/// The parts of the response time of a run, whose server had `other` clients at the same time.
fn broken_down(run: &Run, other: Option<&Run>, trace: &serde_json::Value) -> Option<Breakdown> {
    let epoch = run.description().epoch_unix_ns;
    let calls = TracedCalls::from_json(trace, epoch)?;
    let flights = breakdown::flights(run).ok()?;
    let others = other.map_or(Some(Vec::new()), |other| {
        let shift = i128::from(other.description().epoch_unix_ns) - i128::from(epoch);
        let flights = breakdown::flights(other).ok()?;
        Some(flights.iter().map(|flight| flight.shifted(shift)).collect())
    })?;
    Breakdown::of(&flights, &others, &calls)
}

/// A file that exists only if there was an observer.
fn json<T: DeserializeOwned>(file: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(file).ok()?).ok()
}
