//! What the traced program must not notice. One test a process, since descriptors belong to all
//! threads.

use headway_debox::{Debox, Limits};

#[test]
fn no_descriptor_is_left_open_when_records_are_on() {
    let open = || {
        let listing = std::fs::read_dir("/proc/self/fd").expect("procfs");
        listing.count()
    };
    let before = open();
    let debox = Debox::enable(Limits::default());
    assert_eq!(open(), before);
    drop(debox);
}
