use super::*;
use crate::study::expression::parse_rule;
use std::collections::BTreeMap;

/// Synthetic repeats by server; `mean_ms(d, SERVER, 1%)`.
#[derive(Default)]
struct Synthetic(BTreeMap<String, Result<Repeats, Absent>>);

impl Synthetic {
    fn with(mut self, server: &str, repeats: &[f64]) -> Synthetic {
        self.0.insert(server.into(), Ok(found(repeats, None)));
        self
    }

    fn with_interval(mut self, server: &str, value: f64, low: f64, high: f64) -> Synthetic {
        let interval = Some(Interval { low, high });
        self.0.insert(server.into(), Ok(found(&[value], interval)));
        self
    }

    fn without(mut self, server: &str, why: &str) -> Synthetic {
        let absent = Absent::Impossible(why.into());
        self.0.insert(server.into(), Err(absent));
        self
    }

    fn before(mut self, server: &str) -> Synthetic {
        let absent = Absent::Untried(format!("{server}: not measured yet"));
        self.0.insert(server.into(), Err(absent));
        self
    }

    fn judged(mut self, server: &str, verdict: Verdict, reason: &str) -> Synthetic {
        if let Some(Ok(found)) = self.0.get_mut(server) {
            found.verdict = verdict;
            found.reasons = vec![reason.into()];
        }
        self
    }

    fn decide(&self, rule: &str) -> Decision {
        decide(&parse_rule(rule).expect("a rule"), self)
    }
}

fn found(repeats: &[f64], interval: Option<Interval>) -> Repeats {
    let value = |&value: &f64| Value { value, interval };
    Repeats {
        values: repeats.iter().map(value).collect(),
        ..Repeats::default()
    }
}

impl Measured for Synthetic {
    fn members(&self, reference: &Reference) -> Vec<Reference> {
        let all = self.0.keys();
        let meant = all.filter(|server| reference.server == "all" || reference.server == **server);
        meant
            .map(|server| Reference {
                server: server.clone(),
                ..reference.clone()
            })
            .collect()
    }

    fn find(&self, reference: &Reference) -> Result<Repeats, Absent> {
        self.0[&reference.server].clone()
    }
}

#[test]
fn claim_is_confirmed_when_every_repeat_confirms_it() {
    let measured = Synthetic::default()
        .with("fast", &[1.0, 1.1, 0.9])
        .with("slow", &[10.0, 10.5, 9.5]);
    let decision = measured.decide("mean_ms(d, slow, 1%) / mean_ms(d, fast, 1%) >= 3");
    assert_eq!(decision.outcome, ClaimOutcome::Confirmed);
    assert!(decision.why.is_empty(), "{:?}", decision.why);
    let comparison = &decision.comparisons[0];
    let left = comparison.left.expect("a ratio");
    assert!((left - 10.0).abs() < 1e-9, "{left}");
    let interval = comparison.left_interval.expect("an interval");
    assert!(
        interval.low > 3.0 && interval.low < 10.0 && interval.high > 10.0,
        "{interval:?}"
    );
}

#[test]
fn claim_is_not_confirmed_when_every_repeat_contradicts_it() {
    let measured = Synthetic::default()
        .with("fast", &[1.0, 1.1, 0.9])
        .with("slow", &[2.0, 2.1, 1.9]);
    let decision = measured.decide("mean_ms(d, slow, 1%) / mean_ms(d, fast, 1%) >= 3");
    assert_eq!(decision.outcome, ClaimOutcome::NotConfirmed);
}

#[test]
fn claim_is_not_decided_when_the_interval_crosses() {
    let measured = Synthetic::default()
        .with("fast", &[1.0, 1.5, 0.5])
        .with("slow", &[3.0, 3.5, 2.5]);
    let decision = measured.decide("mean_ms(d, slow, 1%) / mean_ms(d, fast, 1%) >= 3");
    assert_eq!(decision.outcome, ClaimOutcome::Inconclusive);
    assert!(
        decision.why[0].contains("of the draws"),
        "{:?}",
        decision.why
    );
}

#[test]
fn single_repeat_decides_nothing_however_narrow_its_interval_is() {
    let measured = Synthetic::default()
        .with_interval("narrow", 3.2, 3.1, 3.3)
        .with("count", &[0.0])
        .with("three", &[9.0, 9.1, 9.2]);
    for rule in [
        "mean_ms(d, narrow, 1%) > 3",
        "mean_ms(d, narrow, 1%) > 4",
        "loop_blocked(d, count, 1%) <= 0",
        "mean_ms(d, three, 1%) > 2 * mean_ms(d, narrow, 1%)",
        "max(mean_ms(d, all, 1%)) > 8",
    ] {
        let decision = measured.decide(rule);
        assert_eq!(decision.outcome, ClaimOutcome::Inconclusive, "{rule}");
        assert_eq!(decision.why, [SINGLE], "{rule}");
        assert!(decision.comparisons[0].left.is_some(), "it is still shown");
    }
    let decided = measured.decide("mean_ms(d, three, 1%) > 8");
    assert_eq!(decided.outcome, ClaimOutcome::Confirmed);
}

#[test]
fn intervals_of_the_runs_decide_when_there_are_two_repeats() {
    let interval = |low, high| Some(Interval { low, high });
    let mut measured = Synthetic::default();
    let mut add = |server: &str, interval| {
        let found = found(&[3.2, 3.2], interval);
        measured.0.insert(server.into(), Ok(found));
    };
    add("wide", interval(1.0, 6.0));
    add("narrow", interval(3.1, 3.3));
    add("count", None);
    let outcome = |rule: &str| measured.decide(rule).outcome;
    assert_eq!(
        outcome("mean_ms(d, wide, 1%) > 3"),
        ClaimOutcome::Inconclusive
    );
    assert_eq!(
        outcome("mean_ms(d, narrow, 1%) > 3"),
        ClaimOutcome::Confirmed
    );
    assert_eq!(
        outcome("mean_ms(d, narrow, 1%) > 4"),
        ClaimOutcome::NotConfirmed
    );
    assert_eq!(
        outcome("mean_ms(d, count, 1%) > 3"),
        ClaimOutcome::Confirmed
    );
}

#[test]
fn comparisons_decide_the_claim_when_a_rule_has_several() {
    let measured = Synthetic::default()
        .with("a", &[1.0, 1.0, 1.0])
        .with("b", &[5.0, 5.0, 5.0])
        .with("unsure", &[1.0, 2.0, 3.0])
        .without("gone", "h2o: not installed");
    let outcome = |rule: &str| measured.decide(rule).outcome;
    let (yes, no) = ("mean_ms(d, a, 1%) < 2", "mean_ms(d, b, 1%) < 2");
    let (unsure, gone) = ("mean_ms(d, unsure, 1%) < 2", "mean_ms(d, gone, 1%) < 2");
    assert_eq!(
        outcome(&format!("{yes} and {yes}")),
        ClaimOutcome::Confirmed
    );
    assert_eq!(
        outcome(&format!("{yes} and {no}")),
        ClaimOutcome::NotConfirmed
    );
    assert_eq!(
        outcome(&format!("{yes} and {unsure}")),
        ClaimOutcome::Inconclusive
    );
    assert_eq!(
        outcome(&format!("{unsure} and {no}")),
        ClaimOutcome::NotConfirmed
    );
    assert_eq!(
        outcome(&format!("{yes} and {gone}")),
        ClaimOutcome::Untestable
    );
}

#[test]
fn claim_cannot_be_tested_when_what_it_names_was_not_measured() {
    let measured = Synthetic::default()
        .with("a", &[1.0, 1.0, 1.0])
        .without("gone", "h2o: not installed");
    let decision = measured.decide("mean_ms(d, gone, 1%) > 1");
    assert_eq!(decision.outcome, ClaimOutcome::Untestable);
    assert_eq!(decision.why, ["h2o: not installed"]);
    // The aggregate is computed without it, and says so.
    let decision = measured.decide("min(mean_ms(d, all, 1%)) >= 1");
    assert_eq!(decision.outcome, ClaimOutcome::Confirmed);
    assert_eq!(decision.caveats, ["left out: h2o: not installed"]);
    let several = measured.decide("mean_ms(d, all, 1%) > 1");
    assert!(several.why[0].contains("min()"), "{:?}", several.why);
}

#[test]
fn claim_over_all_is_inconclusive_while_one_is_not_measured() {
    let measured = Synthetic::default()
        .with("a", &[1.0, 1.0, 1.0])
        .before("b")
        .without("gone", "h2o: not installed");
    for rule in [
        "min(mean_ms(d, all, 1%)) >= 1",
        "mean_ms(d, b, 1%) >= 1",
        "mean_ms(d, a, 1%) <= max(mean_ms(d, b, 1%), 5)",
    ] {
        let decision = measured.decide(rule);
        assert_eq!(decision.outcome, ClaimOutcome::Inconclusive, "{rule}");
        assert_eq!(decision.why, ["b: not measured yet"], "{rule}");
    }
}

#[test]
fn claim_is_inconclusive_when_the_client_was_the_limit() {
    let measured = Synthetic::default().with("a", &[5.0, 5.0, 5.0]).judged(
        "a",
        Verdict::Invalid,
        "the loop was busy",
    );
    let decision = measured.decide("mean_ms(d, a, 1%) > 1");
    assert_eq!(decision.outcome, ClaimOutcome::Inconclusive);
    assert_eq!(decision.why, ["d, a, 1%: the loop was busy"]);
    let suspect =
        Synthetic::default()
            .with("a", &[5.0, 5.0, 5.0])
            .judged("a", Verdict::Suspect, "late");
    let decision = suspect.decide("mean_ms(d, a, 1%) > 1");
    assert_eq!(decision.outcome, ClaimOutcome::Confirmed);
    assert_eq!(decision.caveats, ["d, a, 1%: late"]);
}

#[test]
fn equal_references_share_a_draw() {
    let measured = Synthetic::default().with("a", &[1.0, 2.0, 3.0]);
    let decision = measured.decide("mean_ms(d, a, 1%) - mean_ms(d, a, 1%) >= 0");
    assert_eq!(decision.outcome, ClaimOutcome::Confirmed);
    assert_eq!(decision.comparisons[0].support, Some(1.0));
}

#[test]
fn empty_cell_has_a_reason() {
    let measured = Synthetic::default()
        .with("a", &[2.0, 2.0, 2.0])
        .with("zero", &[0.0])
        .without("gone", "not installed");
    let of = |text: &str| {
        let expression = Expression::parse(text).expect("an expression");
        cell(text, &expression, &measured)
    };
    assert_eq!(of("mean_ms(d, a, 1%) * 2").value, Some(4.0));
    assert_eq!(
        of("mean_ms(d, gone, 1%)").missing.as_deref(),
        Some("not installed")
    );
    let divided = of("mean_ms(d, a, 1%) / mean_ms(d, zero, 1%)");
    assert_eq!(
        (divided.value, divided.missing.as_deref()),
        (None, Some("divided by nothing"))
    );
}
