//! The environment: where and what was measured, and the commands to do it again.

use headway_latency::run::{Arrivals, Mode, RunDescription};

use super::Section;
use crate::figure::sample;
use crate::html::escaped;
use crate::subject::Subject;
use crate::units::{bit_rate, bytes, counted, grouped, measured, percent, time};

type Facts = Vec<(String, String)>;

/// The section; always there.
pub(crate) fn section(subjects: &[Subject]) -> Section {
    let all: Vec<Facts> = subjects.iter().map(facts).collect();
    let everywhere =
        |fact: &&(String, String)| all.len() > 1 && all.iter().all(|facts| facts.contains(fact));
    let common: Facts = all
        .iter()
        .take(1)
        .flatten()
        .filter(everywhere)
        .cloned()
        .collect();
    let mut parts = vec!["<div class=\"facts\">".to_owned()];
    for (subject, facts) in subjects.iter().zip(&all) {
        let own: Facts = facts
            .iter()
            .filter(|fact| !common.contains(fact))
            .cloned()
            .collect();
        parts.push(one(subject, &own));
    }
    parts.push("</div>".into());
    if !common.is_empty() {
        parts.push(format!("<div class=\"facts\"><div class=\"panel common\"><h3>The same for all</h3>{}</div></div>", list(&common)));
    }
    Section {
        id: "environment",
        title: "Environment, and how to repeat it",
        lead: "Start the server first, then run the command on the client's machine.".into(),
        parts,
    }
}

fn one(subject: &Subject, facts: &Facts) -> String {
    let command = match subject.description.command.as_slice() {
        [] => "<p class=\"soft\">The run does not say which command made it.</p>".into(),
        command => format!("<pre>{}</pre>", escaped(&shell_quoted(command))),
    };
    let (sample, name, list) = (sample(subject.style), escaped(&subject.name), list(facts));
    format!("<div class=\"panel\"><h3>{sample}<span>{name}</span></h3>{command}{list}</div>")
}

fn list(facts: &Facts) -> String {
    let items: String = facts
        .iter()
        .map(|(name, value)| format!("<dt>{}</dt><dd>{}</dd>", escaped(name), escaped(value)))
        .collect();
    format!("<dl>{items}</dl>")
}

/// What is known about a run, name and value; unknown values are left out.
fn facts(subject: &Subject) -> Facts {
    let description = subject
        .chosen()
        .map_or(&subject.description, |one| &one.description);
    let mut facts = Facts::new();
    work(&mut facts, subject, description);
    load(&mut facts, description);
    client(&mut facts, description);
    machine(&mut facts, &subject.description);
    facts.retain(|(_, value)| !value.trim().is_empty());
    facts
}

fn fact(facts: &mut Facts, name: &str, value: impl Into<String>) {
    facts.push((name.into(), value.into()));
}

fn work(facts: &mut Facts, subject: &Subject, description: &RunDescription) {
    fact(facts, "run directory", subject.path.display().to_string());
    fact(facts, "started", &subject.description.started);
    if let Some(server) = description
        .server
        .as_ref()
        .or(subject.description.server.as_ref())
    {
        fact(facts, "server", &server.field);
    }
    fact(facts, "targets", description.targets.join(", "));
    if let Some(set) = &description.fileset {
        let text = format!(
            "{}, {} in {}, seed {}, {}",
            set.profile,
            bytes(set.bytes as f64),
            counted(set.files, "file"),
            set.seed,
            set.path
        );
        fact(facts, "file set", text);
    }
}

fn load(facts: &mut Facts, description: &RunDescription) {
    let load = &description.load;
    let mode = match (load.mode, load.arrivals) {
        (Mode::Closed, _) => "closed loop",
        (Mode::Open, Some(Arrivals::Poisson)) => "open loop, Poisson arrivals",
        (Mode::Open, Some(Arrivals::Constant)) => "open loop, constant arrivals",
        (Mode::Open, None) => "open loop",
    };
    let mut parts = vec![mode.to_owned()];
    parts.extend(load.rate_rps.map(|rate| format!("{}/s", measured(rate))));
    parts.extend(load.connections.map(|n| counted(n, "connection")));
    parts.extend(
        load.streams
            .map(|n| format!("HTTP/2 with {} each", counted(n, "stream"))),
    );
    parts.extend(
        load.requests_per_connection
            .map(|n| format!("{} on each", counted(n, "request"))),
    );
    fact(facts, "load", parts.join(", "));
    let mut span = vec![format!("{} warm-up", time(load.warmup_s * 1e9))];
    span.extend(
        load.duration_s
            .map(|s| format!("{} measured", time(s * 1e9))),
    );
    span.extend(load.requests.map(|n| counted(n, "request")));
    if load.cooldown_s > 0.0 {
        span.push(format!("{} cool-down", time(load.cooldown_s * 1e9)));
    }
    fact(facts, "length", span.join(", "));
    if let Some(ms) = load.timeout_ms {
        fact(facts, "timeout", time(ms * 1e6));
    }
    if load.think_ms > 0.0 {
        fact(facts, "think time", time(load.think_ms * 1e6));
    }
    if let Some(bits) = load.bandwidth_bits_per_s {
        fact(
            facts,
            "bandwidth",
            format!("{} on each connection", bit_rate(bits as f64)),
        );
    }
    fact(facts, "seed", load.seed.to_string());
    fact(
        facts,
        "content",
        if load.verify {
            "verified"
        } else {
            "length checked only"
        },
    );
}

fn client(facts: &mut Facts, description: &RunDescription) {
    let Some(client) = &description.client else {
        return;
    };
    let mut figures = Vec::new();
    figures.extend(
        client
            .busy_share
            .map(|share| format!("{} busy", percent(share))),
    );
    figures.extend(
        client
            .run_queue_delay_s
            .map(|s| format!("{} ready but not running", time(s * 1e9))),
    );
    figures.extend(
        client
            .lag_p99_us
            .map(|us| format!("p99 of lag {}", time(us * 1e3))),
    );
    figures.extend(
        client
            .lag_max_us
            .map(|us| format!("largest {}", time(us * 1e3))),
    );
    fact(facts, "client", figures.join(", "));
    let used = |used: Option<u64>, of: Option<u64>| {
        Some(format!("{} of {}", grouped(used?), grouped(of?)))
    };
    fact(
        facts,
        "ports",
        used(client.ports_used, client.ports_available).unwrap_or_default(),
    );
    fact(
        facts,
        "descriptors",
        used(client.descriptors_used, client.descriptors_limit).unwrap_or_default(),
    );
}

fn machine(facts: &mut Facts, description: &RunDescription) {
    let environment = &description.environment;
    fact(facts, "host", &environment.host);
    fact(facts, "kernel", &environment.kernel);
    if environment.cpus > 0 {
        let text = format!("{} × {}", environment.cpus, environment.cpu_model);
        fact(facts, "CPUs", text.trim_end_matches([' ', '×']));
    }
    fact(
        facts,
        "client on",
        match environment.client_affinity.as_str() {
            "" => String::new(),
            list => format!("CPUs {list}"),
        },
    );
    fact(
        facts,
        "governor",
        environment.governor.clone().unwrap_or_default(),
    );
    if environment.memory_bytes > 0 {
        fact(facts, "memory", bytes(environment.memory_bytes as f64));
    }
    fact(facts, "headway", &environment.headway_version);
    facts.extend(
        environment
            .extra
            .iter()
            .map(|(name, value)| (name.clone(), value.clone())),
    );
}

/// The words of a command as a shell reads them back.
pub(crate) fn shell_quoted(command: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    let quoted = |word: &String| match word.as_str() {
        text if !text.is_empty() && text.chars().all(plain) => text.to_owned(),
        text => format!("'{}'", text.replace('\'', "'\\''")),
    };
    command.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_can_be_pasted_when_arguments_have_blanks_and_quotes() {
        let arguments = ["headway", "load", "http://[::1]:80/a b", "it's", ""].map(String::from);
        assert_eq!(
            shell_quoted(&arguments),
            "headway load 'http://[::1]:80/a b' 'it'\\''s' ''"
        );
    }
}
