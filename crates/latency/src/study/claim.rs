//! Deciding: the value of an expression over measurements, and whether a claim's rule holds.
//!
//! The intervals of the quantities are carried through the expression by [`DRAWS`] draws with a
//! fixed seed, so the same measurements always give the same result. A comparison that is true in
//! 97.5 % of the draws is *confirmed*, one that is true in at most 2.5 % is *not confirmed*, and
//! between the two it is *inconclusive*. A quantity that could not be measured makes the claim
//! *untestable*, with the reason. One that is not measured yet leaves it inconclusive, also inside
//! an aggregate. A run with the verdict invalid decides nothing, and neither does a single repeat:
//! what differs from one run to the next is in no interval of one.

use super::estimate::Estimate;
use super::expression::{Aggregate, Arithmetic, Compared, Expression, Order, Reference};
use super::result::{ClaimOutcome, Comparison, OurCell, Value};
use crate::analysis::Interval;
use crate::run::Verdict;

use headway_base::random::SplitMix64;

/// How often chance is asked.
pub const DRAWS: usize = 2_000;

/// The share of draws on one side that decides.
pub const CONFIDENCE: f64 = 0.975;

const SEED: u64 = 2006;

const SINGLE: &str = "a single repeat decides nothing; measure three, with --repeats 3";

/// The repeats of one quantity of one server at one point.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Repeats {
    /// A value a repeat.
    pub values: Vec<Value>,
    /// The worst verdict of their clients.
    pub verdict: Verdict,
    /// The reasons why it could not be measured.
    pub reasons: Vec<String>,
    /// What else a reader has to know, such as repeats that failed.
    pub caveats: Vec<String>,
}

/// Why there is no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Absent {
    /// Not measured yet; an aggregate over all servers has to wait for it.
    Untried(String),
    /// The value cannot be measured.
    Impossible(String),
}

impl Absent {
    /// The reason as text.
    pub fn reason(self) -> String {
        match self {
            Absent::Untried(why) | Absent::Impossible(why) => why,
        }
    }

    fn outcome(&self) -> ClaimOutcome {
        match self {
            Absent::Untried(_) => ClaimOutcome::Inconclusive,
            Absent::Impossible(_) => ClaimOutcome::Untestable,
        }
    }
}

/// Access to the measurements of a study.
pub trait Measured {
    /// The single references that one stands for, groups and `*` resolved.
    fn members(&self, reference: &Reference) -> Vec<Reference>;
    /// The repeats behind a single reference.
    ///
    /// # Errors
    /// Why there are none.
    fn find(&self, reference: &Reference) -> Result<Repeats, Absent>;
}

/// A decided rule.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// The outcome of the whole.
    pub outcome: ClaimOutcome,
    /// Why the rule is not decided or cannot be tested.
    pub why: Vec<String>,
    /// Each comparison.
    pub comparisons: Vec<Comparison>,
    /// What a reader has to know.
    pub caveats: Vec<String>,
}

/// Decides a rule: confirmed if all comparisons are, not confirmed if any is not.
///
/// ```
/// use headway_latency::study::claim::{Absent, Measured, Repeats, decide};
/// use headway_latency::study::expression::{Reference, parse_rule};
/// use headway_latency::study::result::{ClaimOutcome, Value};
///
/// /// Three repeats of each server.
/// struct Means;
///
/// impl Measured for Means {
///     fn members(&self, reference: &Reference) -> Vec<Reference> {
///         vec![reference.clone()]
///     }
///
///     fn find(&self, reference: &Reference) -> Result<Repeats, Absent> {
///         let means_ms = match reference.server.as_str() {
///             "headway" => [1.0, 1.1, 1.2],
///             "nginx" => [9.0, 9.1, 9.2],
///             other => return Err(Absent::Impossible(format!("{other} is not installed"))),
///         };
///         let values = means_ms.map(|value| Value { value, ..Value::default() });
///         Ok(Repeats { values: values.into(), ..Repeats::default() })
///     }
/// }
///
/// let rule = parse_rule("mean_ms(disk, headway, 95%) < mean_ms(disk, nginx, 95%)")?;
/// assert_eq!(decide(&rule, &Means).outcome, ClaimOutcome::Confirmed);
/// let rule = parse_rule("mean_ms(disk, headway, 95%) < mean_ms(disk, h2o, 95%)")?;
/// assert_eq!(decide(&rule, &Means).outcome, ClaimOutcome::Untestable);
/// # Ok::<(), headway_latency::study::expression::ExpressionError>(())
/// ```
pub fn decide(rule: &[Compared], measured: &dyn Measured) -> Decision {
    let mut decision = Decision::default();
    for compared in rule {
        let comparison = compare(compared, measured, &mut decision);
        decision.comparisons.push(comparison);
    }
    let any = |outcome: ClaimOutcome| {
        let mut all = decision.comparisons.iter();
        all.any(|comparison| comparison.outcome == outcome)
    };
    decision.outcome = if any(ClaimOutcome::NotConfirmed) {
        ClaimOutcome::NotConfirmed
    } else if any(ClaimOutcome::Untestable) {
        ClaimOutcome::Untestable
    } else if any(ClaimOutcome::Inconclusive) {
        ClaimOutcome::Inconclusive
    } else {
        ClaimOutcome::Confirmed
    };
    if !matches!(
        decision.outcome,
        ClaimOutcome::Inconclusive | ClaimOutcome::Untestable
    ) {
        // The reasons of a part that decided nothing remain as remarks.
        let remarks = std::mem::take(&mut decision.why);
        decision.caveats.extend(remarks);
    }
    unique(&mut decision.why);
    unique(&mut decision.caveats);
    decision
}

fn compare(compared: &Compared, measured: &dyn Measured, decision: &mut Decision) -> Comparison {
    let mut comparison = Comparison {
        text: compared.text.clone(),
        operator: compared.order.sign().to_owned(),
        ..Comparison::default()
    };
    let mut binder = Binder::new(measured);
    let sides = binder
        .bind(&compared.left)
        .and_then(|left| Ok((left, binder.bind(&compared.right)?)));
    decision.caveats.append(&mut binder.caveats);
    let (left, right) = match sides {
        Ok(sides) => sides,
        Err(absent) => {
            comparison.outcome = absent.outcome();
            decision.why.push(absent.reason());
            return comparison;
        }
    };
    let centre = binder.centre();
    (comparison.left, comparison.right) = (finite(left.at(&centre)), finite(right.at(&centre)));
    let (mut lefts, mut rights) = (Vec::with_capacity(DRAWS), Vec::with_capacity(DRAWS));
    binder.draw(|values| {
        lefts.push(left.at(values));
        rights.push(right.at(values));
    });
    let support = share(compared.order, &lefts, &rights);
    comparison.support = Some(support);
    if binder.uncertain {
        comparison.left_interval = interval(lefts);
        comparison.right_interval = interval(rights);
    }
    comparison.outcome = match support {
        _ if binder.single => ClaimOutcome::Inconclusive,
        most if most >= CONFIDENCE => ClaimOutcome::Confirmed,
        least if least <= 1.0 - CONFIDENCE => ClaimOutcome::NotConfirmed,
        _ => ClaimOutcome::Inconclusive,
    };
    if binder.single {
        decision.why.push(SINGLE.to_owned());
    } else if comparison.outcome == ClaimOutcome::Inconclusive {
        decision.why.push(format!(
            "{}: true in {:.0} % of the draws from the intervals",
            compared.text,
            support * 100.0
        ));
    }
    apply_verdict(&binder, &mut comparison, decision);
    comparison
}

/// Figures that may be the client's own decide nothing.
fn apply_verdict(binder: &Binder, comparison: &mut Comparison, decision: &mut Decision) {
    match binder.verdict {
        Verdict::Valid => {}
        Verdict::Suspect => decision.caveats.extend(binder.reasons.iter().cloned()),
        Verdict::Invalid => {
            comparison.outcome = ClaimOutcome::Inconclusive;
            decision.why.extend(binder.reasons.iter().cloned());
        }
    }
}

/// Draws without a number (nothing divided by nothing) count half, for they say nothing.
fn share(order: Order, lefts: &[f64], rights: &[f64]) -> f64 {
    let one = |(&left, &right): (&f64, &f64)| match left.is_nan() || right.is_nan() {
        true => 0.5,
        false => f64::from(u8::from(order.is_true(left, right))),
    };
    lefts.iter().zip(rights).map(one).sum::<f64>() / lefts.len().max(1) as f64
}

/// The cell of a table.
pub fn cell(text: &str, expression: &Expression, measured: &dyn Measured) -> OurCell {
    let mut cell = OurCell {
        expression: text.to_owned(),
        ..OurCell::default()
    };
    let mut binder = Binder::new(measured);
    let bound = binder.bind(expression);
    cell.verdict = binder.verdict;
    cell.reasons = [binder.reasons.as_slice(), binder.caveats.as_slice()].concat();
    unique(&mut cell.reasons);
    match bound {
        Err(absent) => cell.missing = Some(absent.reason()),
        Ok(bound) => {
            cell.value = finite(bound.at(&binder.centre()));
            if cell.value.is_none() {
                cell.missing = Some("divided by nothing".to_owned());
            }
            if binder.uncertain {
                let mut draws = Vec::with_capacity(DRAWS);
                binder.draw(|values| draws.push(bound.at(values)));
                cell.interval = interval(draws);
            }
        }
    }
    cell
}

/// An expression whose references are indices of estimates.
enum Bound {
    Number(f64),
    Estimate(usize),
    Absolute(Box<Bound>),
    Negative(Box<Bound>),
    Binary(Arithmetic, Box<Bound>, Box<Bound>),
    Aggregate(Aggregate, Vec<Bound>),
}

impl Bound {
    fn at(&self, values: &[f64]) -> f64 {
        match self {
            Bound::Number(number) => *number,
            Bound::Estimate(index) => values[*index],
            Bound::Absolute(inner) => inner.at(values).abs(),
            Bound::Negative(inner) => -inner.at(values),
            Bound::Aggregate(kind, members) => {
                kind.of(members.iter().map(|member| member.at(values)).collect())
            }
            Bound::Binary(operator, left, right) => {
                let (left, right) = (left.at(values), right.at(values));
                match operator {
                    Arithmetic::Add => left + right,
                    Arithmetic::Subtract => left - right,
                    Arithmetic::Multiply => left * right,
                    Arithmetic::Divide => left / right,
                }
            }
        }
    }
}

/// Finds what an expression refers to; the same reference is the same draw wherever it stands.
struct Binder<'a> {
    measured: &'a dyn Measured,
    known: Vec<Reference>,
    estimates: Vec<Estimate>,
    uncertain: bool,
    /// Something was measured once only.
    single: bool,
    verdict: Verdict,
    reasons: Vec<String>,
    caveats: Vec<String>,
}

impl<'a> Binder<'a> {
    fn new(measured: &'a dyn Measured) -> Binder<'a> {
        Binder {
            measured,
            known: Vec::new(),
            estimates: Vec::new(),
            uncertain: false,
            single: false,
            verdict: Verdict::Valid,
            reasons: Vec::new(),
            caveats: Vec::new(),
        }
    }

    fn bind(&mut self, expression: &Expression) -> Result<Bound, Absent> {
        Ok(match expression {
            Expression::Number(number) => Bound::Number(*number),
            Expression::Absolute(inner) => Bound::Absolute(Box::new(self.bind(inner)?)),
            Expression::Negative(inner) => Bound::Negative(Box::new(self.bind(inner)?)),
            Expression::Binary(operator, left, right) => {
                let left = Box::new(self.bind(left)?);
                Bound::Binary(*operator, left, Box::new(self.bind(right)?))
            }
            Expression::Reference(reference) => {
                let members = self.measured.members(reference);
                match members.as_slice() {
                    [only] => self.bind_one(only)?,
                    [] => {
                        return Err(Absent::Impossible(format!(
                            "{reference}: there is no such measurement"
                        )));
                    }
                    _ => {
                        return Err(Absent::Impossible(format!(
                            "{reference} stands for several; put it into min(), max(), mean() …"
                        )));
                    }
                }
            }
            Expression::Aggregate(kind, members) => {
                Bound::Aggregate(*kind, self.bind_members(members)?)
            }
        })
    }

    /// Members that could not be measured are left out and named; an aggregate without members is
    /// untestable. Members that are still to be measured are not left out: the highest of some is
    /// not the highest of all.
    fn bind_members(&mut self, members: &[Expression]) -> Result<Vec<Bound>, Absent> {
        let mut bound = Vec::new();
        let mut missing = Vec::new();
        for member in members {
            let Expression::Reference(reference) = member else {
                bound.push(self.bind(member)?);
                continue;
            };
            for single in self.measured.members(reference) {
                match self.bind_one(&single) {
                    Ok(found) => bound.push(found),
                    Err(Absent::Impossible(why)) => missing.push(why),
                    Err(untried) => return Err(untried),
                }
            }
        }
        if bound.is_empty() {
            unique(&mut missing);
            let why = missing.join("; ");
            return Err(Absent::Impossible(if why.is_empty() {
                "there is no such measurement".to_owned()
            } else {
                why
            }));
        }
        let left_out = missing.into_iter().map(|why| format!("left out: {why}"));
        self.caveats.extend(left_out);
        Ok(bound)
    }

    fn bind_one(&mut self, reference: &Reference) -> Result<Bound, Absent> {
        if let Some(index) = self.known.iter().position(|known| known == reference) {
            return Ok(Bound::Estimate(index));
        }
        let found = self.measured.find(reference)?;
        let estimate = Estimate::of(&found.values)
            .ok_or_else(|| Absent::Impossible(format!("{reference}: no repeat")))?;
        self.uncertain |= estimate.interval.is_some();
        self.single |= found.values.len() == 1;
        self.verdict = worse(self.verdict, found.verdict);
        let Reference {
            measure,
            server,
            point,
            ..
        } = reference;
        let subject = format!("{measure}, {server}, {point}");
        let reasons = found.reasons.iter();
        self.reasons
            .extend(reasons.map(|reason| format!("{subject}: {reason}")));
        let caveats = found.caveats.iter();
        self.caveats
            .extend(caveats.map(|caveat| format!("{subject}: {caveat}")));
        self.known.push(reference.clone());
        self.estimates.push(estimate);
        Ok(Bound::Estimate(self.estimates.len() - 1))
    }

    fn centre(&self) -> Vec<f64> {
        self.estimates.iter().map(|found| found.value).collect()
    }

    fn draw(&self, mut each: impl FnMut(&[f64])) {
        let random = &mut SplitMix64(SEED);
        let mut values = vec![0.0; self.estimates.len()];
        for _ in 0..DRAWS {
            let drawn = values.iter_mut().zip(&self.estimates);
            drawn.for_each(|(value, estimate)| *value = estimate.draw(random));
            each(&values);
        }
    }
}

/// The graver of two verdicts.
pub fn worse(one: Verdict, other: Verdict) -> Verdict {
    let grade = |verdict: Verdict| match verdict {
        Verdict::Valid => 0,
        Verdict::Suspect => 1,
        Verdict::Invalid => 2,
    };
    if grade(other) > grade(one) {
        other
    } else {
        one
    }
}

fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

/// The middle 95 % of draws; `None` if some are not numbers, or nothing varies.
fn interval(mut draws: Vec<f64>) -> Option<Interval> {
    if draws.iter().any(|draw| !draw.is_finite()) {
        return None;
    }
    draws.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| draws[(share * (draws.len() - 1) as f64).round() as usize];
    let (low, high) = (at(1.0 - CONFIDENCE), at(CONFIDENCE));
    (low < high).then_some(Interval { low, high })
}

fn unique(sentences: &mut Vec<String>) {
    let mut seen = std::collections::BTreeSet::new();
    sentences.retain(|sentence| seen.insert(sentence.clone()));
}

#[cfg(test)]
mod tests;
