//! Points of a measure: from words such as `80% of best-peer in disk` or `110% of worst knee` to
//! whose capacity or knee is meant, and where it is taken.

use super::{Measure, Study};
use crate::study::spec::{CapacityOf, OtherEnvironment, Point};

/// The point itself, and the last word of a share of it.
const KNEE: &str = "knee";

/// Whether a point is a share of a knee.
pub(super) fn is_of_knee(point: &str) -> bool {
    let (point, _) = point.split_once(" in ").unwrap_or((point, ""));
    point.trim().ends_with(KNEE) && point.contains('%')
}

impl Study {
    /// A point from its words; `None` if they are none.
    pub(in crate::study) fn point(&self, measure: &Measure, text: &str) -> Option<Point> {
        if text == "capacity" {
            return Some(Point::Capacity);
        }
        if text == KNEE {
            return Some(Point::Knee(measure.knee));
        }
        if let Some(rate) = text.strip_suffix("/s") {
            let rate: f64 = rate.trim().parse().ok()?;
            return (rate > 0.0 && rate.is_finite()).then_some(Point::Rate(rate));
        }
        let (text, other) = match text.split_once(" in ") {
            Some((text, name)) => (text, Some(self.measure(name.trim())?)),
            None => (text, None),
        };
        let at = other.unwrap_or(measure);
        let (percent, of, knee) = match text.split_once(" of ") {
            Some((percent, words)) => match words.trim().strip_suffix(KNEE) {
                Some(whose) => (percent, self.knee_of(at, whose.trim())?, Some(at.knee)),
                None => (percent, self.capacity_of(at, words.trim())?, None),
            },
            None => (text, CapacityOf::Own, None),
        };
        let percent: f64 = percent.trim().strip_suffix('%')?.trim().parse().ok()?;
        let share = percent / 100.0;
        let elsewhere = other.map(|other| {
            Box::new(OtherEnvironment {
                environment: other.environment.clone(),
                workload: other.workload.clone(),
            })
        });
        (share > 0.0 && share <= 100.0).then_some(Point::Share {
            share,
            of,
            knee,
            elsewhere,
        })
    }

    /// The servers whose knee is meant: `worst`, otherwise a word as for capacities, or none.
    fn knee_of(&self, measure: &Measure, whose: &str) -> Option<CapacityOf> {
        match whose {
            "" => Some(CapacityOf::Own),
            "worst" => self.capacity_of(measure, "slowest"),
            other => self.capacity_of(measure, other),
        }
    }

    /// The servers whose capacity a word means, among those of a measure.
    fn capacity_of(&self, measure: &Measure, word: &str) -> Option<CapacityOf> {
        let choices = |ours_too: bool| {
            let names = measure.servers.iter();
            let meant = names.filter(|name| ours_too || self.is_peer(name));
            let choices = meant.filter_map(|name| self.choice(name).cloned());
            choices.collect::<Vec<_>>()
        };
        Some(match word {
            "best-peer" => CapacityOf::Highest(choices(false)),
            "best" => CapacityOf::Highest(choices(true)),
            "slowest" => CapacityOf::Lowest(choices(true)),
            name => CapacityOf::Server(Box::new(self.choice(name)?.clone())),
        })
    }
}
