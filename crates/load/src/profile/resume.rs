//! Beginning a profile, or going on with one: only in the same words, since its points stand side by side.

use std::path::Path;

use super::{ProfileError, ProfileSettings};
use latency::run::description::{Kind, Point};
use latency::run::write_description;
use latency::{OpenError, Run, RunDescription, WriteError};

/// The description to go on from: a new one on disk, or that of a profile that was cut off, with the points marked that
/// are whole.
pub(super) fn begin(
    settings: &ProfileSettings,
    directory: &Path,
) -> Result<RunDescription, ProfileError> {
    let fresh = settings.describe()?;
    let found = match Run::open(directory) {
        Ok(run) => run.description().clone(),
        Err(OpenError::Absent(_) | OpenError::NotARun(_)) => {
            refuse_foreign(directory)?;
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

/// A directory that holds something else is nobody's to fill.
fn refuse_foreign(directory: &Path) -> Result<(), ProfileError> {
    let Ok(mut entries) = std::fs::read_dir(directory) else {
        // It does not exist, or writing to it will say why it cannot be used.
        return Ok(());
    };
    match entries.next() {
        Some(_) => Err(WriteError::Foreign(directory.to_owned()).into()),
        None => Ok(()),
    }
}

/// What was different when the profile was begun, in words: `connections 1024, not 64`.
fn difference(found: &RunDescription, fresh: &RunDescription) -> Option<String> {
    fn differs<T: PartialEq>(
        name: &str,
        then: &T,
        now: &T,
        word: impl Fn(&T) -> String,
    ) -> Option<String> {
        (then != now).then(|| format!("{name} {}, not {}", word(then), word(now)))
    }
    fn debug<T: std::fmt::Debug>(value: &T) -> String {
        format!("{value:?}")
    }
    fn number(value: &Option<u64>) -> String {
        value.map_or("of the default".to_owned(), |value| value.to_string())
    }
    let (then, now) = (&found.load, &fresh.load);
    let fileset = |of: &RunDescription| of.fileset.as_ref().map(|set| set.checksum.clone());
    let command = |of: &RunDescription, name: &str| of.environment.extra.get(name).cloned();
    let planned = |of: &RunDescription| {
        let points = of.profile.iter().flat_map(|profile| &profile.points);
        points
            .map(|point| point.directory.clone())
            .collect::<Vec<_>>()
    };
    // The capacity of a profile that looks for it is a result, so only a given one is compared.
    let given = |of: &RunDescription| {
        let profile = of.profile.as_ref()?;
        let searched = profile.points.iter().any(|point| point.relative == 0.0);
        profile.capacity_rps.filter(|_| !searched)
    };
    differs("the servers", &found.targets, &fresh.targets, debug)
        .or_else(|| differs("the file set", &fileset(found), &fileset(fresh), debug))
        .or_else(|| differs("connections", &then.connections, &now.connections, number))
        .or_else(|| {
            differs(
                "requests a connection",
                &then.requests_per_connection,
                &now.requests_per_connection,
                number,
            )
        })
        .or_else(|| differs("the points", &planned(found), &planned(fresh), debug))
        .or_else(|| differs("the capacity", &given(found), &given(fresh), debug))
        .or_else(|| differs("the load", then, now, debug))
        .or_else(|| {
            ["before_point", "after_point"].iter().find_map(|name| {
                let option = format!("--{}", name.replace('_', "-"));
                differs(&option, &command(found, name), &command(fresh, name), debug)
            })
        })
}

/// A point counts as done when its directory says so as well: it may have been removed to be measured again.
fn confirmed(mut description: RunDescription, directory: &Path) -> RunDescription {
    let whole = |point: &Point| {
        let run = Run::open(directory.join(&point.directory));
        run.is_ok_and(|run| run.description().complete)
    };
    for point in &mut description.profile.get_or_insert_default().points {
        // A run that ended just before the profile was killed is whole, although nobody has noted it.
        point.done = whole(point);
        if point.done && point.relative == 0.0 && point.rate_rps == 0.0 {
            let run = Run::open(directory.join(&point.directory));
            let summary = run.ok().and_then(|run| run.description().summary.clone());
            point.rate_rps = summary.map_or(0.0, |summary| summary.rate_rps);
        }
    }
    description
}
