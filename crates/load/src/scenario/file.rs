//! The TOML of a scenario: its keys, and every check with line and column.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use super::extract::{Extract, Place};
use super::rows::{CsvEnd, Rows};
use super::template::{Filter, Source, Template};
use super::{STEPS_MAX, Scenario, ScenarioError, Step};
use crate::checksum::Checksum;
use crate::cli_types::Time;
use crate::engine::{BODY_BYTES_MAX, Method, is_token};
use crate::fail_if::Condition;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct FileText {
    csv: Option<Spanned<PathBuf>>,
    csv_end: Option<Spanned<CsvEnd>>,
    #[serde(default)]
    headers: BTreeMap<String, Spanned<String>>,
    step: Spanned<Vec<StepText>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct StepText {
    name: Option<Spanned<String>>,
    weight: Option<Spanned<u32>>,
    method: Option<Spanned<String>>,
    path: Spanned<String>,
    #[serde(default)]
    headers: BTreeMap<String, Spanned<String>>,
    body: Option<Spanned<String>>,
    think: Option<Spanned<String>>,
    status: Option<Spanned<u16>>,
    #[serde(default)]
    fail_if: Vec<Spanned<String>>,
    #[serde(default)]
    extract: BTreeMap<String, Spanned<ExtractText>>,
    #[serde(default)]
    then: Vec<StepText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ExtractText {
    header: Option<String>,
    json: Option<String>,
    regex: Option<String>,
}

/// Headers that follow from something else.
const OWN_HEADERS: [&str; 3] = ["connection", "content-length", "transfer-encoding"];

/// Parses and checks a scenario.
pub(super) fn parse(path: &Path, text: &str) -> Result<Scenario, ScenarioError> {
    let reader = Reader { path, text };
    let parsed: FileText = toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        reader.mistake(at, error.message())
    })?;
    let rows = reader.rows(&parsed)?;
    let mut builder = Builder {
        reader,
        common: &parsed.headers,
        rows,
        steps: Vec::new(),
        flows: Vec::new(),
        values: 0,
    };
    for step in parsed.step.get_ref() {
        builder.flow(step)?;
    }
    if builder.flows.is_empty() {
        return Err(builder.reader.mistake(0, "there is no [[step]]"));
    }
    let mut checksum = Checksum::new();
    checksum.update(text.as_bytes());
    if let Some(rows) = &builder.rows {
        checksum.update(format!("{rows:?}").as_bytes());
    }
    Ok(Scenario {
        path: path.to_owned(),
        checksum: format!("{:016x}", checksum.value()),
        steps: builder.steps,
        flows: builder.flows,
        values: builder.values,
        rows: builder.rows,
    })
}

/// The file, for the places of mistakes.
#[derive(Clone, Copy)]
struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Reader<'_> {
    fn mistake(&self, at: usize, what: impl Into<String>) -> ScenarioError {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |end| end + 1);
        ScenarioError::Mistake {
            path: self.path.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            what: what.into(),
        }
    }

    /// The place of a placeholder in a string; escapes do not move it.
    fn placeholder(&self, span: &Range<usize>, number: usize) -> usize {
        let raw = self.text.get(span.clone()).unwrap_or_default();
        let mut places = raw.match_indices("{{");
        span.start + places.nth(number).map_or(0, |(at, _)| at)
    }

    fn rows(&self, parsed: &FileText) -> Result<Option<Rows>, ScenarioError> {
        let Some(csv) = &parsed.csv else {
            return match &parsed.csv_end {
                None => Ok(None),
                Some(end) => {
                    Err(self.mistake(end.span().start, "csv-end needs a CSV file; add csv"))
                }
            };
        };
        let folder = self.path.parent().unwrap_or(Path::new(""));
        let path = folder.join(csv.get_ref());
        let end = parsed.csv_end.as_ref().map(|end| *end.get_ref());
        let rows = Rows::read(&path, end.unwrap_or_default()).map_err(|why| {
            let what = format!("reading {}: {why}", path.display());
            self.mistake(csv.span().start, what)
        })?;
        Ok(Some(rows))
    }
}

/// The steps that have been read so far.
struct Builder<'a> {
    reader: Reader<'a>,
    common: &'a BTreeMap<String, Spanned<String>>,
    rows: Option<Rows>,
    steps: Vec<Step>,
    flows: Vec<(u8, u32)>,
    /// The most values that a flow takes out of responses.
    values: usize,
}

/// The variables that the steps of a flow have taken out of responses.
type Variables = BTreeMap<String, usize>;

impl Builder<'_> {
    /// A step and its follow-ups.
    fn flow(&mut self, first: &StepText) -> Result<(), ScenarioError> {
        let weight = first.weight.as_ref().map_or(1, |weight| *weight.get_ref());
        if let Some(zero) = first.weight.as_ref().filter(|_| weight == 0) {
            let what = "a weight is at least 1; leave the step out instead";
            return Err(self.reader.mistake(zero.span().start, what));
        }
        let mut variables = Variables::new();
        let begin = self.steps.len();
        self.step(first, &mut variables)?;
        self.flows.push((begin as u8, weight));
        for follow_up in &first.then {
            let wrong = |at: usize, what| Err(self.reader.mistake(at, what));
            if let Some(weight) = &follow_up.weight {
                return wrong(weight.span().start, "a follow-up has no weight of its own");
            }
            if let Some(nested) = follow_up.then.first() {
                let what = "a follow-up has no follow-ups; write it after this one";
                return wrong(nested.path.span().start, what);
            }
            let next = self.steps.len();
            self.step(follow_up, &mut variables)?;
            self.steps[next - 1].next = Some(next as u8);
        }
        self.values = self.values.max(variables.len());
        let own = begin..self.steps.len();
        self.mark_header_values(own);
        Ok(())
    }

    /// A value that stands in a header must not add lines to it.
    fn mark_header_values(&mut self, own: Range<usize>) {
        let steps = &mut self.steps[own];
        let sources = steps
            .iter()
            .flat_map(|step| step.headers.iter().flat_map(|(_, value)| value.sources()));
        let used: Vec<usize> = sources
            .filter_map(|source| match source {
                Source::Variable(at) => Some(*at),
                _ => None,
            })
            .collect();
        for extract in steps.iter_mut().flat_map(|step| &mut step.extracts) {
            extract.is_in_header = used.contains(&extract.variable);
        }
    }

    fn step(&mut self, text: &StepText, variables: &mut Variables) -> Result<(), ScenarioError> {
        let path = self.path(&text.path, variables)?;
        let body = match &text.body {
            Some(body) => Some(self.template(body, Filter::Raw, variables)?),
            None => None,
        };
        if let Some(body) = text
            .body
            .as_ref()
            .filter(|one| one.get_ref().len() > BODY_BYTES_MAX)
        {
            return Err(self
                .reader
                .mistake(body.span().start, "a body has at most 16 MiB"));
        }
        let default = if body.is_some() {
            Method::Post
        } else {
            Method::Get
        };
        let method = self.parsed(text.method.as_ref())?.unwrap_or(default);
        let default_name = format!("{} {}", method.name(), text.path.get_ref());
        let name = text.name.as_ref().map(|name| name.get_ref().clone());
        let name = name.unwrap_or(default_name);
        let at = text
            .name
            .as_ref()
            .map_or(text.path.span(), Spanned::span)
            .start;
        if self.steps.iter().any(|step| step.name == name) {
            let what = format!("two steps are called `{name}`; give each a name of its own");
            return Err(self.reader.mistake(at, what));
        }
        if self.steps.len() == STEPS_MAX {
            let what = format!("a scenario has at most {STEPS_MAX} steps");
            return Err(self.reader.mistake(at, what));
        }
        let headers = self.headers(text, variables)?;
        let think = self.parsed::<Time>(text.think.as_ref())?;
        let status = text.status.as_ref().map(|status| *status.get_ref());
        if let Some(status) = text
            .status
            .as_ref()
            .filter(|one| !(200..600).contains(one.get_ref()))
        {
            let what = "a final status is from 200 to 599";
            return Err(self.reader.mistake(status.span().start, what));
        }
        let conditions = text.fail_if.iter().map(|one| self.condition(one));
        let conditions = conditions.collect::<Result<_, _>>()?;
        // A value is known from the next step on.
        let extracts = self.extracts(text, variables)?;
        self.steps.push(Step {
            name,
            method,
            path,
            headers,
            body,
            think: think.map_or(Duration::ZERO, |Time(think)| think),
            status,
            extracts,
            conditions,
            next: None,
        });
        Ok(())
    }

    fn path(
        &self,
        text: &Spanned<String>,
        variables: &Variables,
    ) -> Result<Template, ScenarioError> {
        let start = text.span().start;
        let path = self.template(text, Filter::Url, variables)?;
        let raw = text.get_ref();
        if !raw.starts_with('/') && !path.is_path() {
            return Err(self.reader.mistake(start, "a path begins with /"));
        }
        // Spaces are allowed in placeholders only.
        let mut outside = raw.clone();
        while let Some((begin, end)) = outside.find("{{").zip(outside.find("}}")) {
            if end < begin {
                break;
            }
            outside.replace_range(begin..end + 2, "");
        }
        match outside.chars().find(|c| !c.is_ascii_graphic()) {
            None => Ok(path),
            Some(odd) => {
                let what = format!("{odd:?} has to be written as %XX in a path");
                Err(self.reader.mistake(start, what))
            }
        }
    }

    /// The step's headers, and those of all steps that it does not replace.
    fn headers(
        &self,
        text: &StepText,
        variables: &Variables,
    ) -> Result<Vec<(String, Template)>, ScenarioError> {
        let replaced = |name: &str| {
            let mut own = text.headers.keys();
            own.any(|own| own.eq_ignore_ascii_case(name))
        };
        let common = self.common.iter().filter(|(name, _)| !replaced(name));
        let mut headers: Vec<(String, Template)> = Vec::new();
        for (name, value) in common.chain(&text.headers) {
            let at = value.span().start;
            let wrong = |what: String| Err(self.reader.mistake(at, what));
            if !is_token(name) {
                return wrong(format!("`{name}` is not the name of a header"));
            }
            if OWN_HEADERS.iter().any(|own| own.eq_ignore_ascii_case(name)) {
                return wrong(format!("{name} cannot be set: it follows from the request"));
            }
            let template = self.template(value, Filter::Raw, variables)?;
            if value.get_ref().bytes().any(|byte| byte.is_ascii_control()) {
                return wrong(format!("{name}: a header value has no control characters"));
            }
            for source in template.sources() {
                let (Source::Column(column), Some(rows)) = (source, &self.rows) else {
                    continue;
                };
                if let Some(line) = rows.unprintable(*column) {
                    let column = &rows.columns[*column];
                    return wrong(format!(
                        "{name}: column `{column}` of the CSV file has a control character near line {line}"
                    ));
                }
            }
            headers.push((name.clone(), template));
        }
        Ok(headers)
    }

    fn condition(&self, text: &Spanned<String>) -> Result<Condition, ScenarioError> {
        let at = text.span().start;
        let condition: Condition = text
            .get_ref()
            .parse()
            .map_err(|what: String| self.reader.mistake(at, what))?;
        match condition.fits_a_step() {
            true => Ok(condition),
            false => {
                let what = "a step has latencies and errors; use --fail-if for the whole run";
                Err(self.reader.mistake(at, what))
            }
        }
    }

    fn extracts(
        &self,
        text: &StepText,
        variables: &mut Variables,
    ) -> Result<Vec<Extract>, ScenarioError> {
        let mut extracts = Vec::new();
        for (name, place) in &text.extract {
            let at = place.span().start;
            let wrong = |what: String| self.reader.mistake(at, what);
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
            let is_known = ["uuid", "counter", "client"].contains(&name.as_str());
            if is_known || name.is_empty() || !name.chars().all(is_name) {
                let what = format!("`{name}` cannot be the name of a variable");
                return Err(wrong(what));
            }
            let place = match place.get_ref() {
                ExtractText {
                    header: Some(name),
                    json: None,
                    regex: None,
                } => Ok(Place::Header(name.clone())),
                ExtractText {
                    header: None,
                    json: Some(pointer),
                    regex: None,
                } => Place::json(pointer),
                ExtractText {
                    header: None,
                    json: None,
                    regex: Some(regex),
                } => Place::regex(regex),
                _ => Err("give one of header, json and regex".to_owned()),
            };
            let next = variables.len();
            let variable = *variables.entry(name.clone()).or_insert(next);
            extracts.push(Extract {
                variable,
                place: place.map_err(wrong)?,
                is_in_header: false,
            });
        }
        Ok(extracts)
    }

    fn template(
        &self,
        text: &Spanned<String>,
        default: Filter,
        variables: &Variables,
    ) -> Result<Template, ScenarioError> {
        let parsed = Template::parse(text.get_ref(), default, &mut |name| {
            source(name, self.rows.as_ref(), variables)
        });
        parsed.map_err(|error| {
            let at = self.reader.placeholder(&text.span(), error.placeholder);
            self.reader.mistake(at, error.what)
        })
    }

    fn parsed<T: FromStr<Err = String>>(
        &self,
        text: Option<&Spanned<String>>,
    ) -> Result<Option<T>, ScenarioError> {
        let Some(text) = text else { return Ok(None) };
        let parsed = text.get_ref().parse();
        let parsed = parsed.map_err(|what: String| self.reader.mistake(text.span().start, what));
        parsed.map(Some)
    }
}

/// What a name in a template stands for.
fn source(name: &str, rows: Option<&Rows>, variables: &Variables) -> Result<Source, String> {
    if let Some(variable) = name.strip_prefix("env.") {
        return match std::env::var(variable) {
            Ok(value) => Ok(Source::Text(value)),
            Err(_) => Err(format!("the environment has no variable `{variable}`")),
        };
    }
    if let Some(column) = name.strip_prefix("row.") {
        let Some(rows) = rows else {
            return Err(format!(
                "`{name}` needs a CSV file; add csv = \"FILE\" at the top"
            ));
        };
        let at = rows.columns.iter().position(|known| known == column);
        return at.map(Source::Column).ok_or_else(|| {
            let columns = rows.columns.join(", ");
            format!("the CSV file has no column `{column}`; it has {columns}")
        });
    }
    match name {
        "uuid" => Ok(Source::Uuid),
        "counter" => Ok(Source::Counter),
        "client" => Ok(Source::Client),
        _ => variables.get(name).copied().map(Source::Variable).ok_or_else(|| {
            format!(
                "no variable `{name}`; there are uuid, counter, client, row.COLUMN, env.NAME, and what \
                 earlier steps of the flow extract"
            )
        }),
    }
}
