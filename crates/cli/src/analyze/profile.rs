//! The table of a profile: one line per point, and the spread between repetitions.

use headway_cli_support::table::table;

use super::table::Style;
use super::text::{label, time_or_dash};
use headway_latency::format::{number, percent, printable, time_us};
use headway_latency::run::{ClientBound, Point, ProfileInfo, Verdict};
use headway_latency::{Analysis, Run};
use headway_load::profile::capacity_text;
use serde::Serialize;

/// One point with its figures.
pub struct Measured {
    /// The point's place in the profile.
    pub point: Point,
    /// The run directory of the point.
    pub run: Run,
    /// The figures of the point.
    pub analysis: Analysis,
}

/// A profile as JSON.
#[derive(Serialize)]
pub struct Listing<'a> {
    complete: bool,
    label: String,
    capacity_rps: Option<f64>,
    client_bound: Option<ClientBound>,
    points: Vec<Entry<'a>>,
}

#[derive(Serialize)]
struct Entry<'a> {
    point: &'a Point,
    analysis: &'a Analysis,
}

impl<'a> Listing<'a> {
    /// The points of a profile that were measured.
    pub fn of(run: &Run, measured: &'a [Measured]) -> Listing<'a> {
        let described = run.description();
        let info = described.profile.as_ref();
        Listing {
            complete: described.complete,
            label: label(run),
            capacity_rps: info.and_then(|profile| profile.capacity_rps),
            client_bound: info.and_then(|profile| profile.client_bound.clone()),
            points: measured
                .iter()
                .map(|one| Entry {
                    point: &one.point,
                    analysis: &one.analysis,
                })
                .collect(),
        }
    }
}

/// The table of all points.
pub fn text(run: &Run, measured: &[Measured], style: Style) -> String {
    let described = run.description();
    let profile = described.profile.clone().unwrap_or_default();
    let mut text = format!(
        "{} · profile · {}\n",
        label(run),
        printable(&described.started)
    );
    text.push_str(&progress(&profile, described.complete));
    if measured.is_empty() {
        return text;
    }
    let head = [
        "load",
        "offered/s",
        "answered/s",
        "errors",
        "mean",
        "p50",
        "p95",
        "p99",
        "p99.9",
        "inversion",
        "of random",
        "client",
    ];
    let rows: Vec<_> = measured.iter().map(row).collect();
    text.push_str(
        &style.heading("Latency profile (response time from the intended start, errors included)"),
    );
    text.push_str(&table(&head, &rows));
    text.push_str(&repeats(measured, style));
    text.push_str("\nDetails of a point: --point NAME, with a name from the first column.\n");
    text
}

fn progress(profile: &ProfileInfo, complete: bool) -> String {
    let done = profile.points.iter().filter(|point| point.done).count();
    let capacity = capacity_text(profile).unwrap_or("capacity not measured yet".into());
    let left = if complete {
        String::new()
    } else {
        "; incomplete: continue with the same `headway profile` command".into()
    };
    format!(
        "{capacity}; {done} of {} points measured{left}\n",
        profile.points.len()
    )
}

fn row(one: &Measured) -> Vec<String> {
    let analysis = &one.analysis;
    let errors = analysis.counts.errors as f64 / analysis.counts.requests.max(1) as f64;
    let response = analysis.response.as_ref();
    let figure = |value: fn(&headway_latency::analysis::Distribution) -> Option<f64>| {
        time_or_dash(response.and_then(value))
    };
    let inversion = analysis.inversion.as_ref();
    let share = |value: Option<f64>| value.map_or("–".into(), |value| format!("{value:.3}"));
    let client = match one
        .run
        .description()
        .client
        .as_ref()
        .map(|client| client.verdict)
    {
        None => "–",
        Some(Verdict::Valid) => "valid",
        Some(Verdict::Suspect) => "SUSPECT",
        Some(Verdict::Invalid) => "INVALID",
    };
    vec![
        super::name(&one.point).to_owned(),
        analysis.offered_rps.map_or("all".into(), number),
        number(analysis.achieved_rps),
        percent(errors),
        figure(|found| Some(found.mean_us)),
        figure(|found| Some(found.p50_us)),
        figure(|found| Some(found.p95_us)),
        figure(|found| Some(found.p99_us)),
        figure(|found| found.p99_9_us),
        share(inversion.map(|found| found.value)),
        share(inversion.and_then(|found| found.of_random)),
        client.into(),
    ]
}

/// Lowest to highest of each figure over the repetitions of a load; nothing when no load was
/// repeated.
fn repeats(measured: &[Measured], style: Style) -> String {
    // Runs that looked for what the client can offer differ in their rate.
    let same = |a: &Measured, b: &Measured| {
        a.point.relative == b.point.relative && !a.point.is_of_search() && !b.point.is_of_search()
    };
    let repeated = measured.chunk_by(same).filter(|group| group.len() > 1);
    let rows: Vec<Vec<String>> = repeated.map(spread).collect();
    if rows.is_empty() {
        return String::new();
    }
    let head = [
        "load",
        "times",
        "answered/s",
        "mean",
        "p50",
        "p95",
        "p99",
        "inversion",
    ];
    style.heading("Between repetitions (lowest – highest)") + &table(&head, &rows)
}

fn spread(group: &[Measured]) -> Vec<String> {
    let range = |value: &dyn Fn(&Analysis) -> Option<f64>, show: fn(f64) -> String| {
        let values: Vec<f64> = group
            .iter()
            .filter_map(|one| value(&one.analysis))
            .collect();
        let low = values.iter().copied().reduce(f64::min);
        let high = values.iter().copied().reduce(f64::max);
        low.zip(high).map_or("–".into(), |(low, high)| {
            format!("{} – {}", show(low), show(high))
        })
    };
    let response = |value: fn(&headway_latency::analysis::Distribution) -> f64| {
        range(
            &move |analysis: &Analysis| analysis.response.as_ref().map(value),
            time_us,
        )
    };
    let name = super::name(&group[0].point);
    let load = name.rsplit_once('-').map_or(name, |(load, _)| load);
    vec![
        load.to_owned(),
        group.len().to_string(),
        range(&|analysis| Some(analysis.achieved_rps), number),
        response(|found| found.mean_us),
        response(|found| found.p50_us),
        response(|found| found.p95_us),
        response(|found| found.p99_us),
        range(
            &|analysis| analysis.inversion.as_ref().map(|found| found.value),
            |value| format!("{value:.3}"),
        ),
    ]
}
