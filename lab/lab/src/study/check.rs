//! Whether everything that a study's tables, figures and claims refer to is measured, at some scale
//! at least.

use headway_latency::study::expression::{Expression, Reference, parse_rule};
use std::collections::BTreeSet;
use std::ops::Range;
use toml::Spanned;

use super::StudyError;
use super::file::{OurRow, Table};
use super::resolve::{Study, Texts};

const FIGURE_KINDS: [&str; 6] = ["cdf", "deciles", "ready", "runnable", "timeline", "blocked"];
const DRAW_KINDS: [&str; 2] = ["lines", "dots"];

/// A row of ours, with its server put in.
pub(super) struct ResolvedRow {
    pub name: String,
    pub cells: Vec<String>,
}

/// Checks a study that was read.
pub(super) fn check(study: &Study, texts: Texts<'_>) -> Result<(), StudyError> {
    let checker = Checker { study, texts };
    checker.measures()?;
    for table in &study.file.table {
        checker.table(table)?;
    }
    for figure in &study.file.figure {
        let (span, figure) = (figure.span(), figure.get_ref());
        if !FIGURE_KINDS.contains(&figure.kind.as_str()) {
            let why = format!(
                "no kind of figure {:?}: {}",
                figure.kind,
                FIGURE_KINDS.join(", ")
            );
            return Err(texts.error(span, why));
        }
        for server in &figure.servers {
            for point in &figure.points {
                checker.measurement(&figure.measure, server, point, span.clone())?;
            }
        }
    }
    for claim in &study.file.claim {
        let (span, claim) = (claim.span(), claim.get_ref());
        match (&claim.rule, &claim.untestable) {
            (Some(rule), None) => checker.rule(rule)?,
            (None, Some(_)) => {}
            _ => {
                let why = "a claim has either a rule, or untestable = \"why\"";
                return Err(texts.error(span, why));
            }
        }
    }
    Ok(())
}

/// The rows that one entry of the file stands for.
pub(super) fn rows(study: &Study, table: &Table, row: &OurRow) -> Vec<ResolvedRow> {
    let keys = if table.keys.is_empty() {
        &table.columns
    } else {
        &table.keys
    };
    let with = |server: Option<&str>| {
        let put = |text: &str, column: Option<&String>| {
            let text = match server {
                Some(name) => text.replace("{server}", name),
                None => text.to_owned(),
            };
            column.map_or(text.clone(), |key| text.replace("{column}", key))
        };
        let label = server
            .and_then(|name| study.servers.get(name))
            .map(|found| found.label.as_str());
        ResolvedRow {
            name: row.row.replace("{server}", label.unwrap_or_default()),
            cells: match &row.cell {
                Some(cell) => keys
                    .iter()
                    .map(|key| put(cell.get_ref(), Some(key)))
                    .collect(),
                None => {
                    let cells = row.cells.iter().enumerate();
                    cells
                        .map(|(at, cell)| put(cell.get_ref(), keys.get(at)))
                        .collect()
                }
            },
        }
    };
    if row.each.is_empty() {
        return vec![with(None)];
    }
    let among = servers_of_first_cell(study, keys, row);
    let servers = study.expand(&row.each, &among);
    servers.iter().map(|server| with(Some(server))).collect()
}

/// The servers of the measure that the first cell refers to first; where the columns are measures,
/// those that all of them have.
fn servers_of_first_cell(study: &Study, keys: &[String], row: &OurRow) -> Vec<String> {
    let cell = row.cell.as_ref().or(row.cells.first());
    let text = cell.map_or("", |cell| cell.get_ref());
    let of = |key: &String| {
        let expression = Expression::parse(&text.replace("{column}", key)).ok()?;
        let first = expression.references().into_iter().next()?;
        Some(study.measure(&first.measure)?.servers_ever.clone())
    };
    let mut measures = keys.iter().filter_map(of);
    let first = measures.next().unwrap_or_default();
    measures.fold(first, |mut common, servers| {
        common.retain(|name| servers.contains(name));
        common
    })
}

/// Whether a table, a figure or a claim asks for what the servers of a measure can do at most.
pub(super) fn needs_capacity(study: &Study, measure: &str) -> bool {
    let needs = |expression: &Expression| {
        let mut references = expression.references().into_iter();
        references.any(|found| found.measure == measure && has_capacity(&found.point))
    };
    let file = &study.file;
    let in_tables = file.table.iter().map(Spanned::get_ref).any(|table| {
        let ours = table.ours.iter().map(Spanned::get_ref);
        let mut cells = ours
            .flat_map(|row| rows(study, table, row))
            .flat_map(|row| row.cells);
        cells.any(|cell| Expression::parse(&cell).is_ok_and(|expression| needs(&expression)))
    });
    let in_figures = file.figure.iter().map(Spanned::get_ref).any(|figure| {
        figure.measure == measure && figure.points.iter().any(|point| has_capacity(point))
    });
    let rules = file
        .claim
        .iter()
        .filter_map(|claim| claim.get_ref().rule.as_ref());
    let in_claims = rules
        .filter_map(|rule| parse_rule(rule.get_ref()).ok())
        .flatten()
        .any(|compared| needs(&compared.left) || needs(&compared.right));
    in_tables || in_figures || in_claims
}

fn has_capacity(points: &str) -> bool {
    points.split('|').any(|point| point.trim() == "capacity")
}

struct Checker<'a> {
    study: &'a Study,
    texts: Texts<'a>,
}

impl Checker<'_> {
    fn measures(&self) -> Result<(), StudyError> {
        let mut names = BTreeSet::new();
        for (written, measure) in self.study.file.measure.iter().zip(&self.study.measures) {
            let span = written.span();
            if !names.insert(&measure.name) {
                let why = format!("there are two measures {:?}", measure.name);
                return Err(self.texts.error(span, why));
            }
            for point in &measure.points_ever {
                if self.study.point(measure, point).is_none() {
                    let why = format!(
                        "no point {point:?}: capacity, 80%, 80% of best-peer (best, slowest, or a server), 80% of best-peer in MEASURE, knee, 80% of knee, 80% of worst knee (best, best-peer, or a server), or 2300/s"
                    );
                    return Err(self.texts.error(span, why));
                }
            }
        }
        Ok(())
    }

    fn table(&self, table: &Spanned<Table>) -> Result<(), StudyError> {
        let (span, table) = (table.span(), table.get_ref());
        let wrong = |span: Range<usize>, why: String| Err(self.texts.error(span, why));
        let columns = table.columns.len();
        if !table.keys.is_empty() && table.keys.len() != columns {
            return wrong(
                span,
                format!("{columns} columns and {} keys", table.keys.len()),
            );
        }
        if table
            .draw
            .as_ref()
            .is_some_and(|draw| !DRAW_KINDS.contains(&draw.as_str()))
        {
            return wrong(span, "draw is \"lines\" or \"dots\"".to_owned());
        }
        for row in &table.paper {
            let found = row.get_ref().cells.len();
            if found != columns {
                return wrong(row.span(), format!("{columns} columns and {found} cells"));
            }
        }
        for row in &table.ours {
            let (span, row) = (row.span(), row.get_ref());
            if row.absent.is_some() {
                continue;
            }
            if row.cell.is_some() != row.cells.is_empty() {
                return wrong(
                    span,
                    "a row of ours has cell, cells, or absent = \"why\"".to_owned(),
                );
            }
            if row.cell.is_none() && row.cells.len() != columns {
                return wrong(
                    span,
                    format!("{columns} columns and {} cells", row.cells.len()),
                );
            }
            self.row(table, row, span)?;
        }
        Ok(())
    }

    fn row(&self, table: &Table, row: &OurRow, span: Range<usize>) -> Result<(), StudyError> {
        let known = |word: &String| {
            matches!(word.as_str(), "all" | "peers" | "presets")
                || self.study.servers.contains_key(word)
        };
        if let Some(word) = row.each.iter().find(|word| !known(word)) {
            return Err(self
                .texts
                .error(span, format!("each: no server {word:?} in any measure")));
        }
        let found = rows(self.study, table, row);
        if found.is_empty() {
            let why = "each: none of these servers is in the measure that the first cell asks for";
            return Err(self.texts.error(span, why));
        }
        for found in found {
            for (at, text) in found.cells.iter().enumerate() {
                let cell = row.cell.as_ref().or(row.cells.get(at));
                let span = cell.map_or(span.clone(), Spanned::span);
                let expression = Expression::parse(text)
                    .map_err(|error| self.texts.error(span.clone(), error.to_string()))?;
                self.references(&expression, span)?;
            }
        }
        Ok(())
    }

    fn rule(&self, rule: &Spanned<String>) -> Result<(), StudyError> {
        let parsed = parse_rule(rule.get_ref())
            .map_err(|error| self.texts.error(rule.span(), error.to_string()))?;
        for compared in &parsed {
            if !compared.left.has_number() && !compared.right.has_number() {
                let why = format!(
                    "{}: say how large the effect must be, as in `a > 1.1 * b`; a difference of any size is chance",
                    compared.text
                );
                return Err(self.texts.error(rule.span(), why));
            }
            self.references(&compared.left, rule.span())?;
            self.references(&compared.right, rule.span())?;
        }
        Ok(())
    }

    fn references(&self, expression: &Expression, span: Range<usize>) -> Result<(), StudyError> {
        for reference in expression.references() {
            let Reference {
                measure,
                server,
                point,
                ..
            } = reference;
            self.measurement(measure, server, point, span.clone())?;
            self.observer(reference, span.clone())?;
        }
        Ok(())
    }

    /// A figure of an observer is asked of a measure that has it.
    fn observer(&self, reference: &Reference, span: Range<usize>) -> Result<(), StudyError> {
        let written = self.study.file.measure.iter().map(Spanned::get_ref);
        let mut written = written.filter(|measure| measure.name == reference.measure);
        let has = written
            .next()
            .and_then(|measure| measure.observe.as_deref());
        match reference.quantity.observer() {
            Some(needed) if has != Some(needed) => {
                let why = format!(
                    "{reference}: the measure {:?} has no observe = {needed:?}",
                    reference.measure
                );
                Err(self.texts.error(span, why))
            }
            _ => Ok(()),
        }
    }

    fn measurement(
        &self,
        measure: &str,
        servers: &str,
        points: &str,
        span: Range<usize>,
    ) -> Result<(), StudyError> {
        let Some(found) = self.study.measure(measure) else {
            let why = format!("there is no measure {measure:?}");
            return Err(self.texts.error(span, why));
        };
        for server in servers.split('|').map(str::trim) {
            let group = matches!(server, "all" | "*" | "peers" | "presets");
            if !group && !found.servers_ever.iter().any(|known| known == server) {
                let why = format!("the measure {measure:?} has no server {server:?}");
                return Err(self.texts.error(span, why));
            }
        }
        for point in points.split('|').map(str::trim) {
            if point == "capacity" && found.has_capacities() {
                continue;
            }
            if point != "*" && !found.points_ever.iter().any(|known| known == point) {
                let why = format!(
                    "the measure {measure:?} has no point {point:?} at any scale; its points: {}",
                    found.points_ever.join(", ")
                );
                return Err(self.texts.error(span, why));
            }
        }
        Ok(())
    }
}
