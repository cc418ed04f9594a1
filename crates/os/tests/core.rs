//! A core of a forked copy. One test a process, since the core goes to the working directory.

use headway_os::process::core_of_a_fork;

#[test]
fn program_continues_when_its_copy_has_dumped_core() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    std::env::set_current_dir(directory.path()).expect("it exists");
    let before = std::process::id();
    core_of_a_fork().expect("a process can be created");
    assert_eq!(std::process::id(), before);
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").expect("procfs");
    let limit = rustix::process::getrlimit(rustix::process::Resource::Core);
    if pattern.contains(['|', '/']) || limit.maximum == Some(0) {
        return println!("the core went to {pattern}or nowhere; only the survival is checked");
    }
    let cores = std::fs::read_dir(directory.path())
        .expect("it exists")
        .count();
    assert_eq!(cores, 1);
}
