//! Reactions to a record, as the environment ordered them.

use std::sync::atomic::{AtomicU32, Ordering};

use headway_debox::Record;
use headway_debox::policy::ReactionRule;

/// Further rules are ignored.
const RULES_MAX: usize = 8;

/// How often each rule has reacted in this process; a forked child continues its parent's count.
static REACTION_COUNTS: [AtomicU32; RULES_MAX] = [const { AtomicU32::new(0) }; RULES_MAX];

/// How many records have met the conditions of each rule, for rules with `every=N`.
static MATCH_COUNTS: [AtomicU32; RULES_MAX] = [const { AtomicU32::new(0) }; RULES_MAX];

/// Executes the rules whose conditions a record meets.
#[inline]
pub fn react(rules: &[ReactionRule], record: &Record, site: u64) {
    for ((rule, fired), met) in rules.iter().zip(&REACTION_COUNTS).zip(&MATCH_COUNTS) {
        let when = &rule.trigger.when;
        if when.meets(record, site)
            && met
                .fetch_add(1, Ordering::Relaxed)
                .is_multiple_of(when.one_in.max(1))
        {
            execute_rule(rule, fired, record, site);
        }
    }
}

#[cold]
fn execute_rule(rule: &ReactionRule, fired: &AtomicU32, record: &Record, site: u64) {
    let times_max = rule.trigger.times_max;
    let before = fired.fetch_add(1, Ordering::Relaxed);
    if times_max == 0 || before < times_max {
        // A failure cannot be reported: the streams belong to the program.
        let _ = rule.execute(record, site);
    }
}
