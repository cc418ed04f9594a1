//! Sequences of records no kernel can be made to produce on demand, above all torn ones.

use headway_os::perf::Record;
use proptest::prelude::*;

use super::Aggregator;
use crate::report::{Report, SITES_MAX, TraceLevel, Wait};

crate::call_kinds! {
    pub(crate) enum Call {
        EventWait = "epoll_wait",
        Receive = "recvfrom",
        Send = "sendto",
        Sendfile = "sendfile",
    }
    wait = EventWait
}

fn report_of(aggregator: &Aggregator<Call>) -> Report {
    let mut report = Report {
        level: TraceLevel::Stacks,
        calls: Default::default(),
        waits: Wait::default(),
        sleeps: Vec::new(),
        preemptions: Wait::default(),
        lost_records: 0,
        sites_dropped: 0,
    };
    aggregator.fill(&mut report, None);
    report
}

/// What a aggregator reports after one drain of these records during `recvfrom`.
fn report_after(records: &[Record<'_>]) -> Report {
    let mut aggregator = Aggregator::new();
    for record in records {
        aggregator.record(Some(Call::Receive), *record);
    }
    aggregator.end_drain(Some(Call::Receive));
    report_of(&aggregator)
}

fn sample(stack: &[u64]) -> Record<'_> {
    Record::Sample { time_ns: 0, stack }
}

fn out(time_ns: u64) -> Record<'static> {
    Record::SwitchOut {
        time_ns,
        preempted: false,
    }
}

fn preempted(time_ns: u64) -> Record<'static> {
    Record::SwitchOut {
        time_ns,
        preempted: true,
    }
}

fn back(time_ns: u64) -> Record<'static> {
    Record::SwitchIn { time_ns }
}

#[test]
fn sleeps_add_up_when_they_share_a_stack() {
    let report = report_after(&[
        sample(&[7, 8]),
        out(10),
        back(15),
        sample(&[7, 8]),
        out(20),
        back(22),
        sample(&[9]),
        out(30),
        back(31),
    ]);
    assert_eq!(report.sleeps.len(), 2);
    let site = &report.sleeps[0];
    assert_eq!(site.stack, [7, 8]);
    assert_eq!((site.count, site.total_ns, site.max_ns), (2, 7, 5));
    assert_eq!((report.blocked_count(), report.blocked_ns()), (3, 8));
}

#[test]
fn sleep_counts_without_a_length_when_its_end_is_lost() {
    let report = report_after(&[sample(&[7]), out(10)]);
    assert_eq!((report.blocked_count(), report.blocked_ns()), (1, 0));
    assert_eq!(report.sleeps[0].stack, [7]);
}

#[test]
fn length_is_not_taken_across_when_records_between_are_lost() {
    let report = report_after(&[out(10), Record::Lost { count: 4 }, back(1000)]);
    assert_eq!((report.blocked_count(), report.blocked_ns()), (1, 0));
    assert_eq!(report.lost_records, 4);
}

#[test]
fn stack_is_not_taken_over_when_the_sleep_it_belongs_to_is_lost() {
    let report = report_after(&[sample(&[7]), Record::Lost { count: 2 }, out(10), back(12)]);
    assert!(report.sleeps[0].stack.is_empty());
}

#[test]
fn nothing_is_counted_when_only_the_end_is_there() {
    let report = report_after(&[back(1000)]);
    assert_eq!(report.blocked_count(), 0);
}

#[test]
fn stack_of_a_preemption_is_forgotten_when_a_sleep_without_one_follows() {
    let report = report_after(&[sample(&[7]), preempted(1), back(3), out(10), back(12)]);
    assert_eq!(
        (report.preemptions.count, report.preemptions.total_ns),
        (1, 2)
    );
    assert!(report.sleeps[0].stack.is_empty());
}

#[test]
fn count_and_time_stay_exact_when_there_are_too_many_sites() {
    let mut aggregator = Aggregator::new();
    let sleeps = SITES_MAX as u64 + 10;
    for address in 0..sleeps {
        aggregator.record(Some(Call::Sendfile), sample(&[address]));
        aggregator.record(Some(Call::Sendfile), out(100));
        aggregator.record(Some(Call::Sendfile), back(103));
    }
    let report = report_of(&aggregator);
    assert_eq!(report.sleeps.len(), SITES_MAX + 1);
    assert_eq!(report.sites_dropped, 10);
    assert_eq!(report.blocked_count(), sleeps);
    assert_eq!(report.blocked_ns(), 3 * sleeps);
    let unplaced = report.sleeps.iter().find(|site| site.stack.is_empty());
    assert_eq!(unplaced.expect("one without a place").count, 10);
}

#[test]
fn lost_records_are_those_of_the_kernel_when_it_is_ahead_of_the_ring() {
    let mut aggregator = Aggregator::new();
    aggregator.record(Some(Call::Send), Record::Lost { count: 3 });
    let mut report = report_of(&aggregator);
    aggregator.fill(&mut report, Some(5));
    assert_eq!(report.lost_records, 5);
}

#[derive(Clone, Debug)]
enum Step {
    Sample(u64),
    Out { time_ns: u64, preempted: bool },
    In(u64),
    Lost(u64),
    Settle,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1..100_u64).prop_map(Step::Sample),
        (0..1000_u64, any::<bool>())
            .prop_map(|(time_ns, preempted)| Step::Out { time_ns, preempted }),
        (0..1000_u64).prop_map(Step::In),
        (1..5_u64).prop_map(Step::Lost),
        Just(Step::Settle),
    ]
}

proptest! {
    #[test]
    fn every_switch_out_counts_once_when_records_come_in_any_order(
        steps in prop::collection::vec((step(), 0..Call::ALL.len()), 0..400),
    ) {
        let mut aggregator = Aggregator::new();
        let (mut sleeps, mut preemptions, mut lost) = (0, 0, 0);
        for (step, call) in steps {
            let call = Some(Call::ALL[call]);
            match step {
                Step::Sample(address) => aggregator.record(call, sample(&[address])),
                Step::Out { time_ns, preempted } => {
                    if preempted { preemptions += 1 } else { sleeps += 1 }
                    aggregator.record(call, Record::SwitchOut { time_ns, preempted });
                }
                Step::In(time_ns) => aggregator.record(call, back(time_ns)),
                Step::Lost(count) => {
                    lost += count;
                    aggregator.record(call, Record::Lost { count });
                }
                Step::Settle => aggregator.end_drain(call),
            }
        }
        aggregator.end_drain(None);
        let report = report_of(&aggregator);
        prop_assert_eq!(report.blocked_count() + report.waits.count, sleeps);
        prop_assert_eq!(report.preemptions.count, preemptions);
        prop_assert_eq!(report.lost_records, lost);
        let located = report.sleeps.iter().filter(|site| !site.stack.is_empty());
        prop_assert!(located.count() <= SITES_MAX);
        for site in &report.sleeps {
            prop_assert!(site.max_ns <= site.total_ns);
        }
    }
}
