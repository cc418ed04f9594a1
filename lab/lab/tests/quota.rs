//! A CPU's quota that is lifted for a while, in a real control group.

use headway_lab::{Lab, LabSpec, missing};

#[test]
fn quota_is_lifted_and_restored_around_a_quick_task() {
    let test = "quota_is_lifted_and_restored_around_a_quick_task";
    let spec = LabSpec {
        cpu_share: Some(0.1),
        ..LabSpec::new(&format!("quota-{}", std::process::id()))
    };
    if let Some(lack) = missing(&spec).first() {
        return headway_test_support::skip(test, &lack.reason);
    }
    let lab = Lab::up(&spec).expect("a lab");
    let share = || Some(lab.status().ok()?.quota?.share);
    let lend = |yes| lab.lend_cpu(yes).ok().and_then(|()| share());
    let shares = [share(), lend(true), lend(false)];
    // Removed before anything is asserted.
    lab.down().expect("nothing is left");
    assert_eq!(shares, [0.1, 1.0, 0.1].map(Some));
}
