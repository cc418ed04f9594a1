//! What this machine can count, and which configurations it can be.

use clap::Args;
use headway_counters::events::{Meaning, appendix, table as events};
use headway_counters::machine::{Machine, Watchdog};
use headway_counters::smt::configuration::Choice;
use headway_counters::smt::{Configuration, Setting, SmtControl, Topology};
use serde_json::{Value, json};

use super::{numbers, print, print_json, table};
use crate::Failure;

/// List the events that this machine can count, their names on this CPU, and why others are
/// unavailable.
#[derive(Debug, Args)]
pub struct ListEvents {
    /// List the events of the dissertation (Table A.1), each with its present equivalent
    #[arg(long)]
    appendix: bool,
    /// Show another CPU core of the table: zen4, golden-cove, neoverse-v1 …
    #[arg(long, value_name = "CORE")]
    core: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Print which of the five configurations of Table 4.3 this machine has, and why others are
/// unavailable.
#[derive(Debug, Args)]
pub struct Configurations {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ListEvents {
    pub fn run(&self) -> Result<(), Failure> {
        if let Some(name) = &self.core {
            return self.print_core(name);
        }
        let machine = Machine::current();
        match (self.appendix, self.json) {
            (true, false) => print(&appendix_table(&machine)),
            (true, true) => print_json(&json!(
                appendix()
                    .iter()
                    .map(|row| appendix_json(row, &machine))
                    .collect::<Vec<_>>()
            )),
            (false, true) => print_json(&machine_json(&machine)),
            (false, false) => print(&machine_text(&machine)),
        }
    }

    /// The table's rows for a core, whether or not it is here.
    fn print_core(&self, name: &str) -> Result<(), Failure> {
        let table_of_events = events();
        let Some(core) = table_of_events.core(name) else {
            let known: Vec<&str> = table_of_events.cores().map(|(name, _)| name).collect();
            return Err(Failure::Usage(format!(
                "--core {name}: the table knows {}",
                known.join(", ")
            )));
        };
        let rows: Vec<(Meaning, &headway_counters::events::Raw)> = table_of_events
            .meanings()
            .filter_map(|meaning| Some((meaning, table_of_events.event(meaning).raw.get(name)?)))
            .collect();
        if self.json {
            let rows = rows
                .iter()
                .map(|(meaning, raw)| json!({ "meaning": meaning, "event": raw }));
            return print_json(
                &json!({ "core": core.title, "source": core.source, "events": rows.collect::<Vec<_>>() }),
            );
        }
        let rows: Vec<Vec<String>> = rows
            .into_iter()
            .map(|(meaning, raw)| {
                let unit = raw.pmu.clone().unwrap_or_default();
                vec![
                    meaning.name(),
                    raw.name.clone(),
                    raw.code.clone(),
                    unit,
                    raw.file.clone(),
                ]
            })
            .collect();
        let text = table(&["meaning", "event", "code", "unit", "file"], &rows);
        print(&format!(
            "{}\nfiles are below {}\n\n{text}",
            core.title, core.source
        ))
    }
}

fn machine_text(machine: &Machine) -> String {
    let description = machine.description();
    let core = description
        .core
        .as_deref()
        .unwrap_or("a core that the table does not know");
    let counters = match description.counters {
        Some(counters) if description.has_core_counters => format!(
            "{counters} programmable counters a thread{}",
            if description.watchdog == Watchdog::Counts {
                ", the watchdog's left out"
            } else {
                ""
            }
        ),
        _ if description.has_core_counters => "CPU counters, their number unknown".into(),
        _ => "no CPU counters".into(),
    };
    let guest = if description.is_virtual {
        ", in a virtual machine"
    } else {
        ""
    };
    let mut text = format!("{}: {core}{guest}; {counters}\n", description.cpu);
    for notice in machine.notices() {
        text += &format!("{notice}\n");
    }
    let rows: Vec<Vec<String>> = events()
        .meanings()
        .map(|meaning| match machine.resolve(meaning) {
            Ok(found) => vec![meaning.name(), found.name],
            Err(absent) => vec![meaning.name(), format!("– ({absent})")],
        })
        .collect();
    text + "\n" + &table(&["meaning", "counted by"], &rows)
}

fn machine_json(machine: &Machine) -> Value {
    let events = events().meanings().map(|meaning| {
        let title = &events().event(meaning).title;
        match machine.resolve(meaning) {
            Ok(found) => json!({
                "meaning": meaning, "title": title, "event": found.name, "source": found.source, "scope": found.scope,
            }),
            Err(absent) => json!({ "meaning": meaning, "title": title, "absent": absent.to_string() }),
        }
    });
    json!({ "machine": machine.description(), "notices": machine.notices(), "events": events.collect::<Vec<_>>() })
}

fn appendix_table(machine: &Machine) -> String {
    let rows: Vec<Vec<String>> = appendix()
        .iter()
        .map(|row| {
            let today: Vec<String> = row.today.iter().map(|meaning| meaning.name()).collect();
            let here: Vec<String> = row
                .today
                .iter()
                .filter_map(|meaning| machine.resolve(*meaning).ok())
                .map(|found| found.name)
                .collect();
            let or_none = |names: Vec<String>| {
                if names.is_empty() {
                    "none".into()
                } else {
                    names.join(", ")
                }
            };
            vec![
                row.description.clone(),
                row.event.clone(),
                row.mask.clone(),
                or_none(today),
                or_none(here),
            ]
        })
        .collect();
    let mut text = table(
        &[
            "Xeon event (Table A.1)",
            "OProfile",
            "mask",
            "today",
            "on this machine",
        ],
        &rows,
    );
    text.push('\n');
    for row in appendix().iter().filter(|row| !row.why.is_empty()) {
        text += &format!(
            "{} ({} {}): {}\n",
            row.description, row.event, row.mask, row.why
        );
    }
    text
}

fn appendix_json(row: &headway_counters::events::table::AppendixRow, machine: &Machine) -> Value {
    let here = row
        .today
        .iter()
        .filter_map(|meaning| machine.resolve(*meaning).ok());
    let here: Vec<String> = here.map(|found| found.name).collect();
    json!({ "row": row, "here": here })
}

impl Configurations {
    pub fn run(&self) -> Result<(), Failure> {
        let topology = Topology::current();
        let settings: Vec<(Configuration, Setting)> = Configuration::ALL
            .into_iter()
            .map(|one| (one, one.on(&topology, &Choice::default())))
            .collect();
        if self.json {
            let settings = settings
                .iter()
                .map(|(configuration, setting)| setting_json(*configuration, setting));
            return print_json(
                &json!({ "topology": topology, "configurations": settings.collect::<Vec<_>>() }),
            );
        }
        print(&settings_text(&topology, &settings))
    }
}

fn setting_json(configuration: Configuration, setting: &Setting) -> Value {
    match setting {
        Setting::Possible(layout) => json!({
            "configuration": configuration,
            "server": layout.server,
            "client": layout.client,
            "changes": layout.changes.iter().map(|change| format!("{} = {}", change.file.display(), change.value)).collect::<Vec<_>>(),
            "remarks": layout.remarks,
        }),
        Setting::NeedsSmt => json!({ "configuration": configuration, "needs": "smt" }),
        Setting::Impossible(why) => json!({ "configuration": configuration, "impossible": why }),
    }
}

fn settings_text(topology: &Topology, settings: &[(Configuration, Setting)]) -> String {
    let cores = topology.cores();
    let smt = match topology.smt {
        SmtControl::On => "SMT is on",
        SmtControl::Off => "SMT is switched off",
        SmtControl::ForceOff => "SMT is switched off until the next boot",
        SmtControl::NotSupported => "no SMT",
        SmtControl::NotImplemented => "the kernel cannot switch SMT",
    };
    let mut text = format!(
        "{} cores, {} hardware threads online; {smt}\n",
        cores.len(),
        topology.online().len()
    );
    for (configuration, setting) in settings {
        text += &match setting {
            Setting::Possible(layout) => {
                let changes: Vec<String> = layout
                    .changes
                    .iter()
                    .map(|change| {
                        format!(
                            "; {} = {} while it lasts",
                            change.file.display(),
                            change.value
                        )
                    })
                    .collect();
                let remarks: Vec<String> = layout
                    .remarks
                    .iter()
                    .map(|remark| format!("\n          {remark}"))
                    .collect();
                format!(
                    "\n  {:<6}  server on {}, client on {}{}{}\n",
                    configuration.name(),
                    numbers(&layout.server),
                    numbers(&layout.client),
                    changes.concat(),
                    remarks.concat()
                )
            }
            Setting::NeedsSmt => format!(
                "\n  {:<6}  after SMT was switched on, which a run does and undoes\n",
                configuration.name()
            ),
            Setting::Impossible(why) => {
                format!("\n  {:<6}  cannot be had: {why}\n", configuration.name())
            }
        };
    }
    text
}
