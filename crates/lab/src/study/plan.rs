//! All measurements of all studies, each once, in the order in which they are made.
//!
//! One environment after the other, since each is a lab of its own and only one is up. In it capacities come first, because
//! shares are taken of them; then repeat by repeat, and in each repeat server by server, so that a drift of the machine meets
//! all servers alike. What one server has to do in one repeat is a *session*: it is started, its caches are filled, and its
//! points follow, those that ask for more later ([`super::run`] knows the rates). A point with a fault is last, since nobody
//! knows what state it leaves.

use std::collections::BTreeSet;

use super::resolve::Study;
use super::spec::{Environment, Of, Point, ServerChoice, Spec};

/// What is to be measured.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub(super) groups: Vec<Group>,
    /// Measurements that were asked for more than once.
    shared: usize,
}

/// Everything in one environment.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub environment: Environment,
    pub sessions: Vec<Session>,
}

/// One server, started once.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub server: ServerChoice,
    pub specs: Vec<Spec>,
}

impl Plan {
    /// Of these studies; `only` leaves servers out whose name in the study it does not contain.
    pub fn new(studies: &[Study], only: &[String]) -> Plan {
        let mut collected = Collected::default();
        for study in studies {
            collected.add(study, only);
        }
        let mut groups: Vec<Group> = Vec::new();
        for spec in &collected.specs {
            if !groups
                .iter()
                .any(|group| group.environment == spec.environment)
            {
                groups.push(Group {
                    environment: spec.environment.clone(),
                    sessions: Vec::new(),
                });
            }
        }
        for group in &mut groups {
            let specs = collected.specs.iter();
            let here: Vec<&Spec> = specs
                .filter(|spec| spec.environment == group.environment)
                .collect();
            group.sessions = sessions(&here);
        }
        Plan {
            groups,
            shared: collected.shared,
        }
    }

    /// How many measurements there are.
    pub fn len(&self) -> usize {
        self.specs().count()
    }

    /// Whether there is nothing to measure.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// How many measurements a second request was spared.
    pub fn shared(&self) -> usize {
        self.shared
    }

    /// Seconds of load alone.
    pub fn load_s(&self) -> f64 {
        self.specs().map(Spec::length_s).sum()
    }

    /// The environments in their order, one line each.
    pub fn environments(&self) -> Vec<String> {
        let groups = self.groups.iter();
        groups.map(|group| group.environment.words()).collect()
    }

    pub(super) fn specs(&self) -> impl Iterator<Item = &Spec> {
        let sessions = self.groups.iter().flat_map(|group| &group.sessions);
        sessions.flat_map(|session| &session.specs)
    }
}

/// Specifications in the order of the studies, each once.
#[derive(Default)]
struct Collected {
    specs: Vec<Spec>,
    keys: BTreeSet<String>,
    shared: usize,
}

impl Collected {
    fn add(&mut self, study: &Study, only: &[String]) {
        for measure in &study.measures {
            let wanted = |name: &&String| only.is_empty() || only.contains(name);
            for server in measure.servers.iter().filter(wanted) {
                for point in &measure.points {
                    for repeat in 1..=measure.repeats {
                        let Some(spec) = study.spec(measure, server, point, repeat) else {
                            continue;
                        };
                        self.add_needed(measure, &spec);
                        self.insert(spec, true);
                    }
                }
                if study.shows_capacities(measure) {
                    self.add_capacities(study, measure, server);
                }
            }
        }
    }

    fn add_needed(&mut self, measure: &super::resolve::Measure, spec: &Spec) {
        for server in spec.needs() {
            for repeat in 1..=measure.usual.repeats {
                let capacity = Study::capacity(measure, spec.elsewhere(), &server, repeat);
                self.insert(capacity, false);
            }
        }
    }

    /// Of a server whose shares are another one's, since a table may show its own as well.
    fn add_capacities(&mut self, study: &Study, measure: &super::resolve::Measure, server: &str) {
        let Some(choice) = study.choice(server) else {
            return;
        };
        for repeat in 1..=measure.usual.repeats {
            self.insert(Study::capacity(measure, None, choice, repeat), false);
        }
    }

    fn insert(&mut self, spec: Spec, asked: bool) {
        match self.keys.insert(spec.key()) {
            true => self.specs.push(spec),
            false => self.shared += usize::from(asked),
        }
    }
}

/// Capacities, then everything else; each by repeat and server.
fn sessions(specs: &[&Spec]) -> Vec<Session> {
    let is_capacity = |spec: &&Spec| spec.point == Point::Capacity && spec.observe.is_none();
    let (first, second): (Vec<&Spec>, Vec<&Spec>) = specs.iter().copied().partition(is_capacity);
    let mut sessions = rounds(&first);
    sessions.extend(rounds(&second));
    sessions
}

fn rounds(specs: &[&Spec]) -> Vec<Session> {
    let repeats = specs.iter().map(|spec| spec.repeat).max().unwrap_or(0);
    let mut sessions = Vec::new();
    for repeat in 1..=repeats {
        let mut round: Vec<Session> = Vec::new();
        for spec in specs.iter().filter(|spec| spec.repeat == repeat) {
            let known = round
                .iter()
                .position(|session| session.server == spec.server);
            let at = known.unwrap_or_else(|| {
                round.push(Session {
                    server: spec.server.clone(),
                    specs: Vec::new(),
                });
                round.len() - 1
            });
            round[at].specs.push((*spec).clone());
        }
        for session in &mut round {
            // A stable order: it only moves the faults to the end.
            session.specs.sort_by_key(|spec| spec.fault.is_some());
        }
        sessions.extend(round);
    }
    sessions
}

/// What a point asks for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Asked {
    /// Requests a second; nothing for a closed loop.
    pub rate: Option<f64>,
    /// Why capacities were passed over: the best, or the slowest, is of the others.
    pub without: Vec<String>,
}

/// The rate of a point, from what the capacities are.
pub(super) fn rate(
    spec: &Spec,
    capacity: &dyn Fn(&ServerChoice) -> Result<f64, String>,
) -> Result<Asked, String> {
    let mut without = Vec::new();
    let mut all = |servers: &[ServerChoice]| {
        let mut known = Vec::new();
        for server in servers {
            match capacity(server) {
                Ok(capacity) => known.push(capacity),
                Err(why) => without.push(why),
            }
        }
        match (known.is_empty(), without.first()) {
            (false, _) => Ok(known),
            (true, Some(why)) => Err(why.clone()),
            (true, None) => Err("there is no such server in the measure".to_owned()),
        }
    };
    let rate = match &spec.point {
        Point::Capacity => None,
        Point::Rate(rate) => Some(*rate),
        Point::Share { share, of, .. } => Some(
            share
                * match of {
                    Of::Own => capacity(&spec.server)?,
                    Of::Server(server) => capacity(server)?,
                    Of::Highest(servers) => all(servers)?.into_iter().fold(0.0, f64::max),
                    Of::Lowest(servers) => all(servers)?.into_iter().fold(f64::INFINITY, f64::min),
                },
        ),
    };
    Ok(Asked { rate, without })
}

#[cfg(test)]
mod tests;
