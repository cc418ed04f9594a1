//! Whether the figures below may be believed, before any figure: per run the client's verdict with
//! its reasons, and an alarm above them if a run is suspect, invalid, incomplete, or could not be
//! read.

use std::fmt::Write;

use headway_latency::run::{ClientInfo, Verdict};

use super::listed;
use crate::html::{escaped, shortened};
use crate::subject::{Measurement, Subject};
use crate::units::{measured, percent};

/// How much a run can be trusted, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Trust {
    Valid,
    Unknown,
    Suspect,
    Incomplete,
    Invalid,
    Unreadable,
}

impl Trust {
    fn word(self) -> &'static str {
        match self {
            Trust::Valid => "valid",
            Trust::Unknown => "not judged",
            Trust::Suspect => "suspect",
            Trust::Incomplete => "incomplete",
            Trust::Invalid => "invalid",
            Trust::Unreadable => "unreadable",
        }
    }

    fn class(self) -> &'static str {
        match self {
            Trust::Valid => "valid",
            Trust::Unknown => "unknown",
            Trust::Suspect | Trust::Incomplete => "suspect",
            Trust::Invalid | Trust::Unreadable => "invalid",
        }
    }

    /// A sign that differs by shape, not by colour only: tick, question mark, triangle, cross.
    fn sign(self) -> &'static str {
        match self.class() {
            "valid" => "M12 2.5a9.5 9.5 0 1 0 .01 0zM7.5 12.4l3.2 3.2 6-6.6",
            "unknown" => {
                "M12 2.5a9.5 9.5 0 1 0 .01 0zM9.3 9.4a2.8 2.8 0 1 1 4 2.6c-.9.5-1.3 1-1.3 2M12 17v.2"
            }
            "suspect" => "M12 3 1.8 21h20.4zM12 9.5v5M12 17.6v.2",
            _ => "M8 2.5h8l5.5 5.5v8L16 21.5H8L2.5 16V8zM8.6 8.6l6.8 6.8M15.4 8.6l-6.8 6.8",
        }
    }
}

/// The verdicts of all runs.
pub(crate) fn html(subjects: &[Subject]) -> String {
    let judged: Vec<_> = subjects
        .iter()
        .map(|subject| (subject, judge(subject)))
        .collect();
    let mut out = warning(&judged);
    out.push_str("<ul class=\"verdicts\">");
    for (subject, (trust, reasons)) in &judged {
        let (class, word, sign, name) = (
            trust.class(),
            trust.word(),
            trust.sign(),
            escaped(&subject.name),
        );
        let _ = write!(
            out,
            "<li class=\"{class}\"><svg viewBox=\"0 0 24 24\" aria-hidden=\"true\"><path d=\"{sign}\"/></svg>\
             <h3>{name}</h3><div><p><span class=\"word\">{word}</span> <span class=\"soft\">{}</span></p>",
            escaped(&scope(subject))
        );
        for reason in reasons {
            let _ = write!(out, "<p>{}</p>", escaped(reason));
        }
        out.push_str("</div></li>");
    }
    out + "</ul>"
}

fn warning(judged: &[(&Subject, (Trust, Vec<String>))]) -> String {
    let worst = judged.iter().map(|(_, (trust, _))| *trust).max();
    let Some(worst) = worst.filter(|trust| *trust >= Trust::Suspect) else {
        return String::new();
    };
    let groups = [
        Trust::Unreadable,
        Trust::Invalid,
        Trust::Incomplete,
        Trust::Suspect,
    ];
    let sentences: Vec<String> = groups
        .into_iter()
        .filter_map(|wanted| {
            let names: Vec<String> = judged
                .iter()
                .filter(|(_, (trust, _))| *trust == wanted)
                .map(|(subject, _)| shortened(&subject.name, 44))
                .collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let verb = if names.len() == 1 { "is" } else { "are" };
            (!names.is_empty()).then(|| format!("{} {verb} {}.", listed(&names), wanted.word()))
        })
        .collect();
    let advice = match worst {
        Trust::Suspect => "Read the reasons before you rely on the figures.",
        Trust::Incomplete => "The figures show what was measured until it stopped.",
        _ => "Do not draw conclusions from these figures.",
    };
    let text = escaped(&format!("{} {advice}", sentences.join(" ")));
    format!(
        "<p class=\"alarm {}\" role=\"alert\">{text}</p>",
        worst.class()
    )
}

/// What was measured, in a few words.
fn scope(subject: &Subject) -> String {
    let measured = subject
        .measurements
        .iter()
        .filter(|one| one.analysis.is_some())
        .count();
    if subject.is_profile() {
        let points = subject.description.profile.as_ref().map_or(0, |profile| {
            profile
                .points
                .iter()
                .filter(|point| point.relative > 0.0)
                .count()
        });
        return format!("profile, {measured} of {points} measurements");
    }
    super::load_text(subject)
}

/// The worst of a run's measurements, and every reason once.
fn judge(subject: &Subject) -> (Trust, Vec<String>) {
    let mut reasons: Vec<String> = Vec::new();
    let mut trust = Trust::Valid;
    if !subject.description.complete {
        trust = Trust::Incomplete;
        reasons.push("The run was stopped before its end.".into());
    }
    reasons.extend(client_bound(subject));
    for one in &subject.measurements {
        let (found, why) = judge_one(subject, one);
        trust = trust.max(found);
        let why = match one.relative {
            Some(relative) if !why.is_empty() => {
                vec![format!("At load {relative:.2}: {}", why.join("; "))]
            }
            _ => why,
        };
        for reason in why {
            if !reasons.contains(&reason) {
                reasons.push(reason);
            }
        }
    }
    if subject.measurements.is_empty() {
        trust = trust.max(Trust::Unreadable);
        reasons.push("No measurement of this profile can be read.".into());
    } else if !subject.missing.is_empty() {
        trust = trust.max(Trust::Incomplete);
    }
    reasons.extend(subject.missing.iter().cloned());
    (trust, reasons)
}

/// The warning that the capacity is the client's. It makes every comparison of capacities doubtful,
/// but no point.
fn client_bound(subject: &Subject) -> Option<String> {
    let bound = subject.client_bound()?;
    let what = match bound.valid_rps {
        Some(rate) => format!(
            "{}/s, the highest rate that the client offers validly",
            measured(rate)
        ),
        None => "that rate, for which no valid run is known".into(),
    };
    // It is at work or it waits; the verdict of a point says which bound it met.
    let why = match bound.busy_share >= bound.waited_share {
        true => format!("busy {}", percent(bound.busy_share)),
        false => format!("waited for a CPU {}", percent(bound.waited_share)),
    };
    Some(format!(
        "Capacity is at least {}/s: the client is the bottleneck ({why} of the closed loop). \
         Loads are shares of {what}.",
        measured(bound.at_least_rps())
    ))
}

fn judge_one(subject: &Subject, one: &Measurement) -> (Trust, Vec<String>) {
    let mut reasons = Vec::new();
    let mut trust = match &one.description.client {
        None if one.description.complete => {
            reasons.push("The run does not say whether its client kept up.".into());
            Trust::Unknown
        }
        None => Trust::Unknown,
        Some(client) => of_client(client, &mut reasons),
    };
    if subject.is_profile() && !one.description.complete {
        trust = trust.max(Trust::Incomplete);
        reasons.push("stopped before its end.".into());
    }
    let counts = one.analysis.as_ref().map(|analysis| &analysis.counts);
    if counts.is_some_and(|counts| counts.requests > 0 && counts.complete == 0) {
        trust = trust.max(Trust::Suspect);
        reasons.push("Every request failed; all times are those of failed requests.".into());
    }
    if let Some(error) = &one.trouble {
        trust = Trust::Unreadable;
        reasons.push(format!("Its requests cannot be read: {error}"));
    }
    (trust, reasons)
}

fn of_client(client: &ClientInfo, reasons: &mut Vec<String>) -> Trust {
    reasons.extend(client.reasons.iter().cloned());
    match client.verdict {
        Verdict::Valid => Trust::Valid,
        Verdict::Suspect => Trust::Suspect,
        Verdict::Invalid => Trust::Invalid,
    }
}
