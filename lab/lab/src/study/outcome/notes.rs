//! What a reader has to know of how a study was measured.

use std::collections::BTreeSet;

use headway_latency::format;

use super::View;
use crate::study::resolve::{Measure, Study};
use crate::study::spec::{Point, ServerChoice, Spec};
use headway_load::knee::ANSWERED_MIN;

impl View<'_, '_> {
    /// The author's, and what a reader has to know of how it was measured.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = self.study.file.notes.clone();
        let measures = self.study.measures.iter();
        let builds: BTreeSet<String> = measures
            .flat_map(|measure| self.specs(measure).chain(self.capacities(measure)))
            .filter_map(|spec| {
                let build = self.get(&spec).ok()?.record.build.clone();
                Some(build.unwrap_or_else(|| "one that was not noted".to_owned()))
            })
            .collect();
        if builds.len() > 1 {
            let builds: Vec<String> = builds.into_iter().collect();
            notes.push(format!(
                "Measured with {} builds of headway ({}): what differs between servers may be what differs between builds.",
                builds.len(),
                builds.join(", ")
            ));
        }
        notes.extend(self.knees());
        notes
    }

    /// The knees that points are, or are shares of: a sentence for each limit and environment.
    fn knees(&self) -> Vec<String> {
        let mut searches: Vec<Spec> = Vec::new();
        for measure in &self.study.measures {
            for search in self
                .specs(measure)
                .flat_map(|spec| searches_for(measure, &spec))
            {
                if !searches.contains(&search) {
                    searches.push(search);
                }
            }
        }
        let mut sentences: Vec<(Spec, Vec<String>)> = Vec::new();
        for search in searches {
            let Ok(collected) = self.get(&search) else {
                continue;
            };
            let rate = collected.record.rate_rps.unwrap_or_default();
            let found = format!("{} {}/s", self.label(&search.server), format::number(rate));
            let alike = |(other, _): &&mut (Spec, _)| {
                other.point == search.point && other.environment == search.environment
            };
            match sentences.iter_mut().find(alike) {
                Some((_, all)) => all.push(found),
                None => sentences.push((search, vec![found])),
            }
        }
        sentences.into_iter().filter_map(sentence).collect()
    }

    fn label(&self, choice: &ServerChoice) -> String {
        let mut servers = self.study.servers.values();
        let found = servers.find(|server| server.choice == *choice);
        found.map_or_else(|| choice.kind.to_string(), |server| server.label.clone())
    }
}

/// The searches that a measurement is, or is a share of.
fn searches_for(measure: &Measure, spec: &Spec) -> Vec<Spec> {
    if matches!(spec.point, Point::Knee(_)) {
        return vec![spec.clone()];
    }
    let Some(knee) = spec.share_of_knee() else {
        return Vec::new();
    };
    let servers = spec.needs();
    let of = |server: &ServerChoice| {
        let capacity = |repeat| Study::capacity(measure, spec.elsewhere(), server, repeat);
        let repeats = 1..=measure.usual.repeats;
        repeats
            .map(|repeat| Study::knee(measure, &capacity(repeat), knee))
            .collect::<Vec<_>>()
    };
    servers.iter().flat_map(of).collect()
}

fn sentence((search, found): (Spec, Vec<String>)) -> Option<String> {
    let Point::Knee(knee) = search.point else {
        return None;
    };
    Some(format!(
        "Knees ({}, at least {} answered, mean at most {}): {}.",
        search.environment.describe(),
        format::percent(ANSWERED_MIN),
        format::time_us(knee.mean_ms * 1e3),
        found.join(", ")
    ))
}
