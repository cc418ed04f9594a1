//! All measurements of all studies, each once, in the order in which they are made.
//!
//! One environment after the other, since each is a lab of its own and only one is up. In it
//! capacities come first, because shares are taken of them, then knees; then repeat by repeat, and
//! in each repeat server by server, so that a drift of the machine meets all servers alike. What one server
//! has to do in one repeat is a *session*: it is started, its caches are filled, and its points
//! follow, those that ask for more later ([`super::run`] knows the rates). A point with a fault is
//! last, since the state it leaves is unknown. A measure whose order is by points has a session
//! for each point of each server.

use std::collections::BTreeSet;

use super::resolve::{Measure, Sequence, Study};
use super::spec::{CapacityOf, Environment, Point, ServerChoice, Spec};

/// What is to be measured.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub(super) groups: Vec<EnvironmentGroup>,
    /// Measurements that were asked for more than once.
    shared: usize,
}

/// Everything in one environment.
#[derive(Clone, Debug)]
pub(super) struct EnvironmentGroup {
    pub environment: Environment,
    pub sessions: Vec<Session>,
}

/// One server, started once.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub server: ServerChoice,
    pub specs: Vec<Spec>,
}

impl Session {
    fn of(spec: &Spec) -> Session {
        Session {
            server: spec.server.clone(),
            specs: vec![spec.clone()],
        }
    }
}

impl Plan {
    /// Of these studies; `only` leaves servers out whose name in the study it does not contain.
    pub fn new(studies: &[Study], only: &[String]) -> Plan {
        let mut collected = CollectedSpecs::default();
        for study in studies {
            collected.add(study, only);
        }
        let mut groups: Vec<EnvironmentGroup> = Vec::new();
        for Wanted { spec, .. } in &collected.specs {
            if !groups
                .iter()
                .any(|group| group.environment == spec.environment)
            {
                groups.push(EnvironmentGroup {
                    environment: spec.environment.clone(),
                    sessions: Vec::new(),
                });
            }
        }
        for group in &mut groups {
            let specs = collected.specs.iter();
            let here: Vec<&Wanted> = specs
                .filter(|wanted| wanted.spec.environment == group.environment)
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
        groups.map(|group| group.environment.describe()).collect()
    }

    pub(super) fn specs(&self) -> impl Iterator<Item = &Spec> {
        let sessions = self.groups.iter().flat_map(|group| &group.sessions);
        sessions.flat_map(|session| &session.specs)
    }
}

/// A measurement that a study asks for.
struct Wanted {
    spec: Spec,
    order: Sequence,
}

/// Specifications in the order of the studies, each once.
#[derive(Default)]
struct CollectedSpecs {
    specs: Vec<Wanted>,
    keys: BTreeSet<String>,
    shared: usize,
}

impl CollectedSpecs {
    fn add(&mut self, study: &Study, only: &[String]) {
        for measure in &study.measures {
            let wanted = |name: &&String| only.is_empty() || only.contains(name);
            let servers: Vec<&String> = measure.servers.iter().filter(wanted).collect();
            for (server, point) in pairs(&servers, measure) {
                for repeat in 1..=measure.repeats {
                    let Some(spec) = study.spec(measure, server, point, repeat) else {
                        continue;
                    };
                    self.add_needed(measure, &spec);
                    self.insert(spec, measure.order, true);
                }
            }
            for server in servers.iter().filter(|_| study.shows_capacities(measure)) {
                self.add_capacities(study, measure, server);
            }
        }
    }

    fn add_needed(&mut self, measure: &Measure, spec: &Spec) {
        for server in spec.needs() {
            for repeat in 1..=measure.usual.repeats {
                let capacity = Study::capacity(measure, spec.elsewhere(), &server, repeat);
                if let Some(knee) = spec.share_of_knee() {
                    let knee = Study::knee(measure, &capacity, knee);
                    self.insert(knee, Sequence::Servers, false);
                }
                self.insert(capacity, Sequence::Servers, false);
            }
        }
    }

    /// Of a server whose shares are another one's, since a table may show its own as well.
    fn add_capacities(&mut self, study: &Study, measure: &Measure, server: &str) {
        let Some(choice) = study.choice(server) else {
            return;
        };
        for repeat in 1..=measure.usual.repeats {
            let capacity = Study::capacity(measure, None, choice, repeat);
            self.insert(capacity, Sequence::Servers, false);
        }
    }

    fn insert(&mut self, spec: Spec, order: Sequence, is_requested: bool) {
        match self.keys.insert(spec.key()) {
            true => self.specs.push(Wanted { spec, order }),
            false => self.shared += usize::from(is_requested),
        }
    }
}

/// Every server at every point, in the order of the measure.
fn pairs<'a>(servers: &[&'a String], measure: &'a Measure) -> Vec<(&'a str, &'a str)> {
    let points = &measure.points;
    let by_server = || {
        let of = |server: &&'a String| {
            let server = server.as_str();
            points.iter().map(move |point| (server, point.as_str()))
        };
        servers.iter().flat_map(of).collect()
    };
    let by_point = || {
        let at = |point: &'a String| {
            let point = point.as_str();
            servers.iter().map(move |server| (server.as_str(), point))
        };
        points.iter().flat_map(at).collect()
    };
    match measure.order {
        Sequence::Servers => by_server(),
        Sequence::Points => by_point(),
    }
}

/// Capacities, then knees, then everything else; each by repeat.
fn sessions(wanted: &[&Wanted]) -> Vec<Session> {
    let stage = |wanted: &Wanted| match wanted.spec.point {
        Point::Capacity if wanted.spec.observe.is_none() => 0,
        Point::Knee(_) => 1,
        _ => 2,
    };
    let of = |number: i32| {
        let here = wanted.iter().copied();
        let here: Vec<&Wanted> = here.filter(|wanted| stage(wanted) == number).collect();
        rounds(&here)
    };
    (0..3).flat_map(of).collect()
}

/// Repeat by repeat. In each the servers have their sessions one after the other; then, where it is
/// by points, each point.
fn rounds(wanted: &[&Wanted]) -> Vec<Session> {
    let repeats = wanted.iter().map(|wanted| wanted.spec.repeat).max();
    let mut sessions = Vec::new();
    for repeat in 1..=repeats.unwrap_or(0) {
        let mut by_server: Vec<Session> = Vec::new();
        let mut by_point: Vec<Session> = Vec::new();
        for Wanted { spec, order } in wanted.iter().filter(|wanted| wanted.spec.repeat == repeat) {
            let mut known = by_server.iter_mut();
            match order {
                Sequence::Points => by_point.push(Session::of(spec)),
                Sequence::Servers => match known.find(|session| session.server == spec.server) {
                    Some(session) => session.specs.push(spec.clone()),
                    None => by_server.push(Session::of(spec)),
                },
            }
        }
        for session in &mut by_server {
            // A stable order: it only moves the faults to the end.
            session.specs.sort_by_key(|spec| spec.fault.is_some());
        }
        sessions.extend(by_server);
        sessions.extend(by_point);
    }
    sessions
}

/// What a point asks for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RateRequest {
    /// Requests per second; nothing for a closed loop.
    pub rate: Option<f64>,
    /// Why capacities were passed over: the best, or the slowest, is of the others.
    pub without: Vec<String>,
}

/// The rate of a point, from what the capacities, or the knees, are.
pub(super) fn rate(
    spec: &Spec,
    capacity: &dyn Fn(&ServerChoice) -> Result<f64, String>,
) -> Result<RateRequest, String> {
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
        Point::Capacity | Point::Knee(_) => None,
        Point::Rate(rate) => Some(*rate),
        Point::Share { share, of, .. } => Some(
            share
                * match of {
                    CapacityOf::Own => capacity(&spec.server)?,
                    CapacityOf::Server(server) => capacity(server)?,
                    CapacityOf::Highest(servers) => all(servers)?.into_iter().fold(0.0, f64::max),
                    CapacityOf::Lowest(servers) => {
                        all(servers)?.into_iter().fold(f64::INFINITY, f64::min)
                    }
                },
        ),
    };
    Ok(RateRequest { rate, without })
}

#[cfg(test)]
mod tests;
