//! The page: what comes after what, and the frame around it.
//!
//! One file that needs nothing else: the style sheet is inside, no script, no font, no picture from
//! elsewhere. A Content-Security-Policy says so to the browser too, so that even a word that
//! escaped escaping loads nothing.

use std::fmt::Write;

use crate::GENERATOR_META;
use crate::html::{escaped, shortened};
use crate::section::{self, Section};
use crate::subject::Subject;
use crate::units::counted;

pub(crate) const STYLE: &str = include_str!("page.css");
pub(crate) const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/// The whole document.
pub(crate) fn html(subjects: &[Subject]) -> String {
    let sections: Vec<Section> = [
        section::specweb99::section(subjects),
        section::profile::section(subjects),
        section::distribution::section(subjects),
        section::inversion::section(subjects),
        section::overload::section(subjects),
        section::size::section(subjects),
        section::timeline::section(subjects),
        section::server::section(subjects),
        section::breakdown::section(subjects),
        section::blocked::section(subjects),
        section::comparison::section(subjects),
        Some(section::environment::section(subjects)),
    ]
    .into_iter()
    .flatten()
    .collect();
    let mut out = String::with_capacity(1 << 19);
    head(&mut out, subjects);
    header(&mut out, subjects, &sections);
    out.push_str(&section::verdict::html(subjects));
    let _ = write!(
        out,
        "</header><section id=\"headline\"><h2>Headline figures</h2><p>{}</p>{}</section>",
        escaped(&about_headline(subjects)),
        section::headline::html(subjects)
    );
    for section in &sections {
        let (id, title) = (section.id, section.title);
        let _ = write!(out, "<section id=\"{id}\"><h2>{title}</h2>");
        if !section.lead.is_empty() {
            let _ = write!(out, "<p>{}</p>", escaped(&section.lead));
        }
        section.parts.iter().for_each(|part| out.push_str(part));
        out.push_str("</section>");
    }
    let _ = writeln!(
        out,
        "<footer>Made by headway report {} from {}. Times are from the intended start of a request to its last \
         byte unless a figure tooltip otherwise; percentiles are exact to 0.1 %; small figures below others are 95 % \
         intervals by bootstrap.</footer></main></body></html>",
        env!("CARGO_PKG_VERSION"),
        counted(subjects.len() as u64, "run directory").replace("directorys", "directories")
    );
    out
}

fn head(out: &mut String, subjects: &[Subject]) {
    let _ = write!(
        out,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         {GENERATOR_META}<title>{} – Headway report</title><style>{STYLE}</style></head>\
         <body><main>",
        escaped(&title(subjects))
    );
}

fn header(out: &mut String, subjects: &[Subject], sections: &[Section]) {
    let _ = write!(
        out,
        "<header><p class=\"eyebrow\">Headway report</p><h1>{}</h1><p class=\"about\">{}</p><nav aria-label=\"Contents\">\
         <a href=\"#headline\">Headline figures</a>",
        escaped(&title(subjects)),
        escaped(&about(subjects))
    );
    for section in sections {
        let _ = write!(out, "<a href=\"#{}\">{}</a>", section.id, section.title);
    }
    out.push_str("</nav>");
}

/// The runs' names while they are few, else their number.
fn title(subjects: &[Subject]) -> String {
    let names: Vec<String> = subjects
        .iter()
        .map(|subject| shortened(&subject.name, if subjects.len() == 1 { 90 } else { 36 }))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    match names.len() {
        0..=4 => section::listed(&names),
        many => format!("{many} runs, from {} to {}", names[0], names[many - 1]),
    }
}

/// When, where, with what, as far as it is the same for all.
fn about(subjects: &[Subject]) -> String {
    let mut facts = Vec::new();
    let same = |value: fn(&Subject) -> String| {
        let first = value(subjects.first()?);
        let all = subjects.iter().all(|subject| value(subject) == first);
        (all && !first.is_empty()).then_some(first)
    };
    facts.extend(same(|s| {
        s.description.started.get(..10).unwrap_or_default().into()
    }));
    facts.extend(
        same(|s| s.description.environment.host.clone()).map(|host| format!("measured on {host}")),
    );
    facts.extend(same(|s| {
        let set = s.chosen().and_then(|one| one.description.fileset.as_ref());
        set.or(s.description.fileset.as_ref())
            .map_or(String::new(), |set| {
                format!(
                    "{} set of {}",
                    set.profile,
                    crate::units::bytes(set.bytes as f64)
                )
            })
    }));
    facts.join(" · ")
}

fn about_headline(subjects: &[Subject]) -> String {
    let profiles: Vec<&Subject> = subjects
        .iter()
        .filter(|subject| subject.relative().is_some())
        .collect();
    let base = "Response time, from the intended start of a request to its last byte.";
    let Some(first) = profiles.first().and_then(|subject| subject.relative()) else {
        return base.into();
    };
    let equal = profiles.iter().all(|subject| {
        subject
            .relative()
            .is_some_and(|load| crate::subject::same_load(load, first))
    });
    if equal {
        format!(
            "{base} Profiles at relative load {first:.2}: each server gets that share of the \
             capacity below its name."
        )
    } else {
        format!("{base} Profiles at the load below their names; they have none in common.")
    }
}
