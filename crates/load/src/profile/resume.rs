//! Beginning a profile, or going on with one: only in the same words, since its points stand side
//! by side.

use std::path::Path;

use super::{ProfileError, ProfileSettings};
use headway_latency::run::description::{Arrivals, Kind, Point};
use headway_latency::run::write_description;
use headway_latency::{OpenError, Run, RunDescription, WriteError};

/// The description to start from: a new one, or that of an interrupted profile with its complete
/// points marked.
pub(super) fn begin(
    settings: &ProfileSettings,
    directory: &Path,
) -> Result<RunDescription, ProfileError> {
    let fresh = settings.describe()?;
    let found = match Run::open(directory) {
        Ok(run) => run.description().clone(),
        Err(OpenError::Absent(_) | OpenError::NotARun(_)) => {
            check_directory(directory)?;
            write_description(directory, &fresh, false)?;
            return Ok(fresh);
        }
        Err(error) => return Err(error.into()),
    };
    if found.kind != Kind::Profile {
        return Err(WriteError::OtherKind(directory.to_owned()).into());
    }
    if found.complete {
        return Err(WriteError::Finished(directory.to_owned()).into());
    }
    if let Some(what) = difference(&found, &fresh) {
        let path = directory.to_owned();
        return Err(ProfileError::Other { path, what });
    }
    Ok(confirmed(found, directory))
}

/// An error if the directory holds something other than a profile.
fn check_directory(directory: &Path) -> Result<(), ProfileError> {
    let Ok(mut entries) = std::fs::read_dir(directory) else {
        // It does not exist, or writing to it will say why it cannot be used.
        return Ok(());
    };
    match entries.next() {
        Some(_) => Err(WriteError::Foreign(directory.to_owned()).into()),
        None => Ok(()),
    }
}

/// What was different when the profile was begun: `connections 1024, not 64`.
fn difference(found: &RunDescription, fresh: &RunDescription) -> Option<String> {
    let (then, now) = (parameters(found), parameters(fresh));
    let different = then.into_iter().zip(now).find(|(then, now)| then != now);
    different.map(|((name, then), (_, now))| format!("{name} {then}, not {now}"))
}

/// Everything that the points of one profile have in common, as a person says it: name and value.
fn parameters(of: &RunDescription) -> Vec<(&'static str, String)> {
    fn or<T: ToString>(value: Option<T>, none: &str) -> String {
        value.map_or_else(|| none.to_owned(), |value| value.to_string())
    }
    let load = &of.load;
    let points = of.profile.iter().flat_map(|profile| &profile.points);
    // Searches are not parameters.
    let points = points.filter(|point| !point.is_of_search());
    let points: Vec<&str> = points.map(|point| point.directory.as_str()).collect();
    let arrivals = match load.arrivals {
        Some(Arrivals::Constant) => "constant",
        _ => "poisson",
    };
    let fileset = of.fileset.as_ref().map(|set| set.checksum.as_str());
    let extra = |name: &str, none: &str| or(of.environment.extra.get(name), none);
    vec![
        ("the servers", of.targets.join(" ")),
        ("the file set", or(fileset, "none")),
        ("the paths", extra("paths", "of the addresses")),
        ("the method", or(load.method.as_ref(), "GET")),
        ("the headers", format!("{:?}", load.headers)),
        ("HTTP/2 streams", or(load.streams, "none")),
        ("connections", or(load.connections, "of the default")),
        (
            "requests per connection",
            or(load.requests_per_connection, "unlimited"),
        ),
        ("the points", points.join(" ")),
        ("the capacity", or(given_capacity(of), "to be looked for")),
        ("the knee", extra("knee", "not to be looked for")),
        ("the arrivals", arrivals.to_owned()),
        ("a timeout in ms of", or(load.timeout_ms, "none")),
        ("a first pause in ms of", load.first_pause_ms.to_string()),
        (
            "bit/s per connection",
            or(load.bandwidth_bits_per_s, "unlimited"),
        ),
        ("a warm-up in seconds of", load.warmup_s.to_string()),
        ("a cool-down in seconds of", load.cooldown_s.to_string()),
        ("a duration in seconds of", or(load.duration_s, "none")),
        ("the seed", load.seed.to_string()),
        ("--verify", load.verify.to_string()),
        ("--cookies", load.cookies.to_string()),
        ("--source", extra("source", "of the default")),
        ("--cpu", extra("cpu", "of the default")),
        ("--before-point", extra("before_point", "none")),
        ("--after-point", extra("after_point", "none")),
    ]
}

/// The capacity of a profile that looks for it is a result, so only a given one is compared.
fn given_capacity(of: &RunDescription) -> Option<f64> {
    let profile = of.profile.as_ref()?;
    let searched = profile.points.iter().any(|point| point.relative == 0.0);
    profile.capacity_rps.filter(|_| !searched)
}

/// A point counts as done when its directory says so as well: it may have been removed to be
/// measured again.
fn confirmed(mut description: RunDescription, directory: &Path) -> RunDescription {
    let whole = |point: &Point| {
        let run = Run::open(directory.join(&point.directory));
        run.is_ok_and(|run| run.description().complete)
    };
    for point in &mut description.profile.get_or_insert_default().points {
        // A run that ended just before the profile was killed is complete, although the profile
        // does not say so yet.
        point.done = whole(point);
        if point.done && point.relative == 0.0 && point.rate_rps == 0.0 {
            let run = Run::open(directory.join(&point.directory));
            let summary = run.ok().and_then(|run| run.description().summary.clone());
            point.rate_rps = summary.map_or(0.0, |summary| summary.rate_rps);
        }
    }
    // A search continues after its last complete trial; an interrupted trial is repeated.
    let points = &mut description.profile.get_or_insert_default().points;
    points.retain(|point| point.done || !point.is_of_search());
    description
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_the_parameter_when_a_profile_continues_with_another() {
        let fresh = RunDescription::default();
        assert_eq!(difference(&fresh, &fresh), None);
        type Change = fn(&mut RunDescription);
        let cases: &[(Change, &str)] = &[
            (
                |d| d.load.timeout_ms = Some(250.5),
                "a timeout in ms of 250.5, not none",
            ),
            (|d| d.load.seed = 7, "the seed 7, not 0"),
            (|d| d.load.verify = true, "--verify true, not false"),
            (
                |d| d.load.warmup_s = 0.5,
                "a warm-up in seconds of 0.5, not 0",
            ),
            (
                |d| d.load.duration_s = Some(9.0),
                "a duration in seconds of 9, not none",
            ),
            (
                |d| d.load.bandwidth_bits_per_s = Some(400_000),
                "bit/s per connection 400000, not unlimited",
            ),
            (
                |d| d.load.arrivals = Some(Arrivals::Constant),
                "the arrivals constant, not poisson",
            ),
            (
                |d| drop(d.environment.extra.insert("cpu".into(), "1".into())),
                "--cpu 1, not of the default",
            ),
        ];
        for (change, expected) in cases {
            let mut found = fresh.clone();
            change(&mut found);
            assert_eq!(difference(&found, &fresh).as_deref(), Some(*expected));
        }
    }
}
