//! The result of a study from the measurements that there are: tables filled, claims decided.
//!
//! Nothing is measured here, so a changed rule is decided again at once by `headway-lab study
//! run`, which finds every measurement done.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::SystemTime;

use headway_latency::StudyResult;
use headway_latency::ready::ReadyEvents;
use headway_latency::run::{Format, Verdict};
use headway_latency::study::claim::{self, Absent, Measured, Repeats, worse};
use headway_latency::study::evidence::RunEvidence;
use headway_latency::study::expression::{Expression, Reference, parse_rule};
use headway_latency::study::quantity::{HEADLINE_QUANTITIES, Quantity};
use headway_latency::study::result::{
    ClaimOutcome, ClaimResult, EnvironmentResult, FORMAT_NAME, FORMAT_VERSION, Figure, Measurement,
    OurCell, OurRow, PaperRow, Repeat, ServerResult, Table,
};
use headway_load::client::rfc3339;
use toml::Spanned;

use super::check;
use super::collect::{CollectedMeasurement, MeasurementCache, NotCollected};
use super::file;
use super::resolve::{Measure, Study};
use super::spec::Spec;
use super::store::Store;
use crate::servers::available;

mod notes;

/// Points of a distribution that a result keeps.
const CDF_POINTS: usize = 100;

/// Steps of a timeline that a result keeps.
const TIMELINE_POINTS: usize = 120;

/// The results of studies, in their order.
pub fn results(studies: &[Study], store: &Store, command: &[String]) -> Vec<StudyResult> {
    let cache = RefCell::new(MeasurementCache::new(store));
    let of = |study: &Study| {
        View {
            study,
            cache: &cache,
        }
        .result(command)
    };
    studies.iter().map(of).collect()
}

/// A study that reads the cache.
struct View<'a, 'b> {
    study: &'a Study,
    cache: &'a RefCell<MeasurementCache<'b>>,
}

impl View<'_, '_> {
    fn result(&self, command: &[String]) -> StudyResult {
        let study = self.study;
        let measurements = self.measurements();
        let repeats = measurements
            .iter()
            .flat_map(|measurement| &measurement.repeats);
        let waiting = repeats
            .filter(|repeat| repeat.failed.as_deref() == Some(UNTRIED))
            .count();
        StudyResult {
            format: Format {
                name: FORMAT_NAME.to_owned(),
                version: FORMAT_VERSION,
            },
            number: study.number,
            name: study.name.clone(),
            title: study.title.clone(),
            source: study.source.clone(),
            question: study.question.clone(),
            notes: self.notes(),
            differences: study.file.differences.clone(),
            scale: study.scale.to_string(),
            made: rfc3339(SystemTime::now()),
            complete: waiting == 0,
            command: command.to_vec(),
            machine: self.machine(),
            environments: self.environments(),
            servers: self.servers(),
            tables: study
                .file
                .table
                .iter()
                .map(|table| self.table(table.get_ref()))
                .collect(),
            figures: self.figures(),
            claims: study
                .file
                .claim
                .iter()
                .map(|claim| self.claim(claim.get_ref()))
                .collect(),
            measurements,
        }
    }

    fn get(&self, spec: &Spec) -> Result<Rc<CollectedMeasurement>, NotCollected> {
        self.cache.borrow_mut().get(spec)
    }

    /// Every measurement that this scale asks for.
    fn specs<'s>(&'s self, measure: &'s Measure) -> impl Iterator<Item = Spec> + 's {
        let pairs = measure
            .servers
            .iter()
            .flat_map(|server| measure.points.iter().map(move |point| (server, point)));
        pairs.flat_map(move |(server, point)| {
            (1..=measure.repeats)
                .filter_map(move |repeat| self.study.spec(measure, server, point, repeat))
        })
    }

    /// The closed loops that shares are taken of.
    fn capacities<'s>(&'s self, measure: &'s Measure) -> impl Iterator<Item = Spec> + 's {
        let servers = measure.servers.iter();
        servers.flat_map(move |server| self.repeats(measure, server, "capacity"))
    }

    /// The repeats of a server at a point; at `capacity` those that shares are taken of if no point
    /// asks for others.
    fn repeats(&self, measure: &Measure, server: &str, point: &str) -> Vec<Spec> {
        if point == "capacity" && measure.has_capacities() {
            let choice = self.study.choice(server);
            let of = |repeat| Some(Study::capacity(measure, None, choice?, repeat));
            return (1..=measure.usual.repeats).filter_map(of).collect();
        }
        let of = |repeat| self.study.spec(measure, server, point, repeat);
        (1..=measure.repeats).filter_map(of).collect()
    }

    /// The machine of the first run that is there.
    fn machine(&self) -> headway_latency::run::Environment {
        let measures = self.study.measures.iter();
        let mut found = measures
            .flat_map(|measure| self.specs(measure))
            .filter_map(|spec| self.get(&spec).ok());
        found
            .next()
            .map(|collected| collected.evidence.description.environment.clone())
            .unwrap_or_default()
    }

    fn environments(&self) -> Vec<EnvironmentResult> {
        let mut found: Vec<EnvironmentResult> = Vec::new();
        for measure in &self.study.measures {
            if found
                .iter()
                .any(|known| known.name == measure.environment_name)
            {
                continue;
            }
            let failures = self
                .specs(measure)
                .filter_map(|spec| match self.get(&spec) {
                    Err(NotCollected::Failed(why)) if why.starts_with("the environment") => {
                        Some(why)
                    }
                    _ => None,
                });
            let mut missing: BTreeSet<String> = failures.collect();
            missing.extend(self.incomplete(measure));
            found.push(EnvironmentResult {
                name: measure.environment_name.clone(),
                summary: measure.environment.describe(),
                missing: missing.into_iter().collect(),
            });
        }
        found
    }

    /// What was not as it should have been in some of the measurements, with an example.
    fn incomplete(&self, measure: &Measure) -> Option<String> {
        let collected: Vec<_> = self
            .specs(measure)
            .filter_map(|spec| self.get(&spec).ok())
            .collect();
        let mut concerned = collected
            .iter()
            .filter(|one| !one.record.missing.is_empty());
        let example = concerned.next()?;
        Some(format!(
            "in {} of {} measurements, such as {} at {}: {}",
            1 + concerned.count(),
            collected.len(),
            example.record.spec.server.kind,
            example.record.spec.point_text(),
            example.record.missing.join("; ")
        ))
    }

    fn servers(&self) -> Vec<ServerResult> {
        let of = |(name, server): (&String, &super::resolve::Named)| {
            let kind = server.choice.kind;
            let installed = available(kind);
            ServerResult {
                name: name.clone(),
                label: server.label.clone(),
                kind: kind.to_string(),
                peer: kind.is_peer(),
                version: self
                    .version(name)
                    .or(installed.as_ref().ok().map(|found| found.version.clone())),
                unavailable: installed.err().map(|reason| reason.to_string()),
            }
        };
        self.study.servers.iter().map(of).collect()
    }

    /// The version that was measured.
    fn version(&self, server: &str) -> Option<String> {
        let choice = self.study.choice(server)?;
        let measures = self.study.measures.iter();
        let mut specs = measures.flat_map(|measure| self.specs(measure));
        specs.find_map(|spec| match spec.server == *choice {
            true => self.get(&spec).ok()?.record.version.clone(),
            false => None,
        })
    }

    fn measurements(&self) -> Vec<Measurement> {
        let wanted = self.wanted();
        let mut found = Vec::new();
        for measure in &self.study.measures {
            let quantities = self.quantities(&measure.name);
            let capacity = "capacity".to_owned();
            let capacity = self.study.shows_capacities(measure).then_some(&capacity);
            for server in &measure.servers {
                for point in capacity.into_iter().chain(&measure.points) {
                    let repeats = self
                        .repeats(measure, server, point)
                        .iter()
                        .map(|spec| {
                            self.repeat(spec, &quantities, wanted.contains(measure.name.as_str()))
                        })
                        .collect();
                    found.push(Measurement {
                        measure: measure.name.clone(),
                        environment: measure.environment_name.clone(),
                        server: server.clone(),
                        point: point.clone(),
                        repeats,
                    });
                }
            }
        }
        found
    }

    /// Measures of which a figure is drawn.
    fn wanted(&self) -> BTreeSet<&str> {
        let figures = self.study.file.figure.iter().map(Spanned::get_ref);
        figures.map(|figure| figure.measure.as_str()).collect()
    }

    /// The quantities that tables and claims take of a measure, and the headline ones.
    fn quantities(&self, measure: &str) -> Vec<Quantity> {
        let mut quantities: BTreeSet<Quantity> = HEADLINE_QUANTITIES
            .iter()
            .filter_map(|name| Quantity::parse(name).ok())
            .collect();
        let mut add = |expression: &Expression| {
            let references = expression.references().into_iter();
            let here = references.filter(|reference| reference.measure == measure);
            quantities.extend(here.map(|reference| reference.quantity.clone()));
        };
        for table in self.study.file.table.iter().map(Spanned::get_ref) {
            for row in table.ours.iter().map(Spanned::get_ref) {
                let rows = check::rows(self.study, table, row);
                let texts = rows.iter().flat_map(|row| &row.cells);
                texts
                    .filter_map(|text| Expression::parse(text).ok())
                    .for_each(|found| add(&found));
            }
        }
        let claims = self.study.file.claim.iter().map(Spanned::get_ref);
        let rules = claims.filter_map(|claim| parse_rule(claim.rule.as_ref()?.get_ref()).ok());
        rules.flatten().for_each(|compared| {
            add(&compared.left);
            add(&compared.right);
        });
        quantities.into_iter().collect()
    }

    fn repeat(&self, spec: &Spec, quantities: &[Quantity], drawn: bool) -> Repeat {
        let mut repeat = Repeat {
            repeat: spec.repeat,
            key: spec.key(),
            ..Repeat::default()
        };
        let collected = match self.get(spec) {
            Ok(collected) => collected,
            Err(nothing) => {
                repeat.failed = Some(nothing.reason());
                return repeat;
            }
        };
        let evidence = &collected.evidence;
        repeat.rate_rps = collected.record.rate_rps;
        (repeat.verdict, repeat.reasons) = verdict(evidence);
        let taken = quantities
            .iter()
            .filter_map(|quantity| Some((quantity.to_string(), quantity.take(evidence).ok()?)));
        repeat.values = taken.collect::<BTreeMap<_, _>>();
        if drawn {
            draw(&mut repeat, evidence);
        }
        repeat
    }

    fn table(&self, table: &file::Table) -> Table {
        let paper = table.paper.iter().map(Spanned::get_ref);
        let ours = table.ours.iter().map(Spanned::get_ref);
        Table {
            title: table.title.clone(),
            unit: table.unit.clone(),
            digits: table.digits,
            corner: table.corner.clone(),
            columns: table.columns.clone(),
            draw: table.draw.clone(),
            log: table.log,
            paper: paper
                .map(|row| PaperRow {
                    row: row.row.clone(),
                    cells: row.cells.clone(),
                })
                .collect(),
            ours: ours.flat_map(|row| self.rows(table, row)).collect(),
        }
    }

    fn rows(&self, table: &file::Table, row: &file::OurRow) -> Vec<OurRow> {
        let found = check::rows(self.study, table, row);
        let of = |found: check::ResolvedRow| OurRow {
            row: found.name,
            beside: row.beside.clone(),
            cells: match row.absent {
                Some(_) => Vec::new(),
                None => found.cells.iter().map(|text| self.cell(text)).collect(),
            },
            absent: row.absent.clone(),
        };
        found.into_iter().map(of).collect()
    }

    fn cell(&self, text: &str) -> OurCell {
        match Expression::parse(text) {
            Ok(expression) => claim::cell(text, &expression, self),
            Err(error) => OurCell {
                expression: text.to_owned(),
                missing: Some(error.to_string()),
                ..OurCell::default()
            },
        }
    }

    fn figures(&self) -> Vec<Figure> {
        let of = |figure: &file::Figure| {
            let measure = self.study.measure(&figure.measure);
            let (servers, points) = measure
                .map(|measure| (measure.servers.clone(), measure.points.clone()))
                .unwrap_or_default();
            let point = |point: &&String| {
                figure
                    .points
                    .iter()
                    .any(|word| word == "*" || word == *point)
            };
            Figure {
                title: figure.title.clone(),
                kind: figure.kind.clone(),
                measure: figure.measure.clone(),
                servers: self.study.expand(&figure.servers, &servers),
                points: points.iter().filter(point).cloned().collect(),
            }
        };
        self.study
            .file
            .figure
            .iter()
            .map(|figure| of(figure.get_ref()))
            .collect()
    }

    fn claim(&self, written: &file::Claim) -> ClaimResult {
        let mut result = ClaimResult {
            text: written.text.clone(),
            source: written.source.clone(),
            expected: written
                .expected
                .clone()
                .unwrap_or_else(|| ClaimOutcome::Confirmed.name().to_owned()),
            explain: written.explain.clone(),
            ..ClaimResult::default()
        };
        if let Some(why) = &written.untestable {
            result.outcome = ClaimOutcome::Untestable;
            result.why = vec![why.clone()];
            return result;
        }
        let text = written
            .rule
            .as_ref()
            .map(|rule| rule.get_ref().clone())
            .unwrap_or_default();
        match parse_rule(&text) {
            Err(error) => {
                result.outcome = ClaimOutcome::Untestable;
                result.why = vec![error.to_string()];
            }
            Ok(rule) => {
                let decision = claim::decide(&rule, self);
                result.outcome = decision.outcome;
                result.why = decision.why;
                result.comparisons = decision.comparisons;
                result.caveats = decision.caveats;
            }
        }
        result.rule = Some(text);
        result
    }
}

impl Measured for View<'_, '_> {
    fn members(&self, reference: &Reference) -> Vec<Reference> {
        let Some(measure) = self.study.measure(&reference.measure) else {
            return Vec::new();
        };
        let split = |text: &str| {
            text.split('|')
                .map(|part| part.trim().to_owned())
                .collect::<Vec<_>>()
        };
        let servers = self
            .study
            .expand(&split(&reference.server), &measure.servers_ever);
        let mut members = Vec::new();
        for server in servers {
            for point in split(&reference.point) {
                let points = match point.as_str() {
                    "*" => measure.points.clone(),
                    _ => vec![point],
                };
                members.extend(points.into_iter().map(|point| Reference {
                    server: server.clone(),
                    point,
                    ..reference.clone()
                }));
            }
        }
        members
    }

    fn find(&self, reference: &Reference) -> Result<Repeats, Absent> {
        let Reference {
            quantity,
            measure,
            server,
            point,
        } = reference;
        let unknown = || Absent::Impossible("no such measure".to_owned());
        let measure = self.study.measure(measure).ok_or_else(unknown)?;
        let capacity = point == "capacity" && measure.has_capacities();
        if !(capacity || measure.points.contains(point)) || !measure.servers.contains(server) {
            return Err(Absent::Impossible(format!(
                "{server} at {point} is not measured at scale {}",
                self.study.scale
            )));
        }
        let mut found = Repeats::default();
        let mut failures = Vec::new();
        let mut untried = false;
        for spec in self.repeats(measure, server, point) {
            let collected = match self.get(&spec) {
                Ok(collected) => collected,
                Err(nothing) => {
                    untried |= matches!(nothing, NotCollected::Untried);
                    failures.push(nothing.reason());
                    continue;
                }
            };
            match quantity.take(&collected.evidence) {
                Ok(value) => found.values.push(value),
                Err(why) => {
                    failures.push(why);
                    continue;
                }
            }
            let (verdict, reasons) = verdict(&collected.evidence);
            found.verdict = worse(found.verdict, verdict);
            let new = reasons
                .into_iter()
                .filter(|reason| !found.reasons.contains(reason))
                .collect::<Vec<_>>();
            found.reasons.extend(new);
        }
        let failed = failures.len();
        let Some(first) = failures.into_iter().next() else {
            return Ok(found);
        };
        match found.values.is_empty() {
            true => {
                let why = format!("{quantity} of {server} at {point}: {first}");
                Err(match untried {
                    true => Absent::Untried(why),
                    false => Absent::Impossible(why),
                })
            }
            false => {
                let what = if untried { "are missing" } else { "failed" };
                found.caveats.push(format!(
                    "{failed} of {} repeats {what}: {first}",
                    measure.repeats
                ));
                Ok(found)
            }
        }
    }
}

/// The text for a measurement that has not been tried; see [`NotCollected::reason`].
const UNTRIED: &str = "not measured yet";

fn verdict(evidence: &RunEvidence) -> (Verdict, Vec<String>) {
    let client = evidence.description.client.clone().unwrap_or_default();
    (client.verdict, client.reasons)
}

/// What figures are drawn from, in few points.
fn draw(repeat: &mut Repeat, evidence: &RunEvidence) {
    if let Some(rows) = &evidence.rows {
        let analysis = &rows.analysis;
        let cdf = analysis
            .response
            .as_ref()
            .map(|response| response.cdf.clone());
        repeat.cdf = thin(cdf.unwrap_or_default(), CDF_POINTS);
        repeat.deciles = Some(analysis.deciles);
        let points = &analysis.timeline.points;
        let every = points.len().div_ceil(TIMELINE_POINTS).max(1);
        repeat.timeline = points.iter().step_by(every).copied().collect();
        repeat.timeline_step_s = analysis.timeline.step_s * every as f64;
    }
    let ready = evidence.server.as_ref().and_then(ReadyEvents::from_status);
    repeat.ready = ready.map(|ready| ready.buckets).unwrap_or_default();
    repeat.runnable = evidence
        .runnable
        .as_ref()
        .map(|found| found.samples.clone())
        .unwrap_or_default();
    repeat.sleeps = evidence
        .sleeps
        .as_ref()
        .map(|found| found.counts.clone())
        .unwrap_or_default();
}

/// Every n-th point, and the last one.
fn thin<T: Copy>(points: Vec<T>, most: usize) -> Vec<T> {
    let every = points.len().div_ceil(most).max(1);
    let last = points.last().copied();
    let mut thin: Vec<T> = points.iter().step_by(every).copied().collect();
    if points.len() > 1 && !(points.len() - 1).is_multiple_of(every) {
        thin.extend(last);
    }
    thin
}
