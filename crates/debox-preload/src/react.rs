//! Reactions to a record, as the environment ordered them.

use std::sync::atomic::{AtomicU32, Ordering};

use headway_debox::Record;
use headway_debox::policy::ReactionRule;

/// Orders beyond these are as if they had not been given.
const ORDERS_MAX: usize = 8;

/// How often each rule has reacted in this process; a forked child continues its parent's count.
static FIRED: [AtomicU32; ORDERS_MAX] = [const { AtomicU32::new(0) }; ORDERS_MAX];

/// How many records have met the conditions of each rule, for rules with `every=N`.
static MET: [AtomicU32; ORDERS_MAX] = [const { AtomicU32::new(0) }; ORDERS_MAX];

/// Executes the rules whose conditions a record meets.
#[inline]
pub fn react(orders: &[ReactionRule], record: &Record, site: u64) {
    for ((order, fired), met) in orders.iter().zip(&FIRED).zip(&MET) {
        let when = &order.trigger.when;
        if when.meets(record, site)
            && met
                .fetch_add(1, Ordering::Relaxed)
                .is_multiple_of(when.one_in.max(1))
        {
            carry_out(order, fired, record, site);
        }
    }
}

#[cold]
fn carry_out(order: &ReactionRule, fired: &AtomicU32, record: &Record, site: u64) {
    let times_max = order.trigger.times_max;
    let before = fired.fetch_add(1, Ordering::Relaxed);
    if times_max == 0 || before < times_max {
        // A failure cannot be reported: the streams belong to the program.
        let _ = order.act(record, site);
    }
}
