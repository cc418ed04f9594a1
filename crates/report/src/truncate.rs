//! How much of a foreign word gets onto the page: names, addresses and reasons in `run.json` have
//! no limit of their own.
//!
//! A name is repeated at every curve, table and panel, so that a label of a megabyte made a page of
//! a hundred. Cut here, once, when a run is read: the sections show what they are given. What is
//! cut ends with an ellipsis, and a list that is cut with how many are missing. The rows are not
//! touched, and nothing is judged by a word that was cut.

use headway_latency::run::RunDescription;

use crate::html::shortened;

/// Characters of a name that is repeated.
const NAME_CHARS_MAX: usize = 120;
/// Characters of a value that is shown once: an address, a path, a word of the command, a reason.
const VALUE_CHARS_MAX: usize = 1000;
/// Values of one kind that are shown.
const VALUES_MAX: usize = 50;
/// Words of a command.
const WORDS_MAX: usize = 500;

/// Cuts every word of a description that has no limit of its own.
pub(crate) fn limit_lengths(description: &mut RunDescription) {
    cut_all(description.label.iter_mut(), NAME_CHARS_MAX);
    cut(&mut description.started, NAME_CHARS_MAX);
    list(&mut description.command, WORDS_MAX);
    list(&mut description.targets, VALUES_MAX);
    if let Some(server) = &mut description.server {
        cut(&mut server.field, VALUE_CHARS_MAX);
        cut_all(
            server.name.iter_mut().chain(&mut server.version),
            NAME_CHARS_MAX / 2,
        );
    }
    if let Some(set) = &mut description.fileset {
        cut(&mut set.path, VALUE_CHARS_MAX);
        cut_all([&mut set.profile, &mut set.checksum], NAME_CHARS_MAX);
    }
    if let Some(client) = &mut description.client {
        list(&mut client.reasons, VALUES_MAX);
    }
    if let Some(info) = &mut description.specweb99 {
        for one in &mut info.iterations {
            list(&mut one.reasons, VALUES_MAX);
        }
        let kinds = info.iterations.iter_mut().flat_map(|one| &mut one.kinds);
        cut_all(kinds.map(|kind| &mut kind.kind), NAME_CHARS_MAX);
    }
    environment(&mut description.environment);
}

fn environment(of: &mut headway_latency::run::Environment) {
    let values = [
        &mut of.host,
        &mut of.kernel,
        &mut of.cpu_model,
        &mut of.client_affinity,
        &mut of.headway_version,
    ];
    cut_all(values.into_iter().chain(&mut of.governor), VALUE_CHARS_MAX);
    let extra = std::mem::take(&mut of.extra).into_iter().take(VALUES_MAX);
    of.extra = extra
        .map(|(name, value)| {
            (
                shortened(&name, NAME_CHARS_MAX),
                shortened(&value, VALUE_CHARS_MAX),
            )
        })
        .collect();
}

/// Keeps a number of values; the last one says how many were left out.
pub(crate) fn list(values: &mut Vec<String>, most: usize) {
    let more = values.len().saturating_sub(most);
    values.truncate(most);
    cut_all(values.iter_mut(), VALUE_CHARS_MAX);
    if more > 0 {
        values.push(format!("… and {more} more"));
    }
}

/// The sentences about what is missing.
pub(crate) fn missing(sentences: &mut Vec<String>) {
    list(sentences, VALUES_MAX);
}

fn cut_all<'a>(values: impl IntoIterator<Item = &'a mut String>, most: usize) {
    values.into_iter().for_each(|value| cut(value, most));
}

fn cut(word: &mut String, most: usize) {
    // Counting bytes first keeps the usual case free of a copy.
    if word.len() > most {
        *word = shortened(word, most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortened_list_says_how_many_are_missing() {
        let mut values: Vec<String> = (0..7).map(|n| n.to_string()).collect();
        list(&mut values, 7);
        assert_eq!(values.len(), 7);
        list(&mut values, 5);
        assert_eq!(values, ["0", "1", "2", "3", "4", "… and 2 more"]);
    }
}
