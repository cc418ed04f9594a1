//! The structure of the page: what is there for which runs, what is said when something is missing, that nothing
//! foreign gets in.

mod support;

use support::{Behaviour, Example};

#[test]
#[ignore = "writes example pages for a look with one's own eyes; needs HEADWAY_EXAMPLE_PAGES=DIRECTORY"]
fn example_pages() {
    let Some(out) = std::env::var_os("HEADWAY_EXAMPLE_PAGES") else {
        return;
    };
    let out = std::path::PathBuf::from(out);
    let scratch = tempfile::tempdir().expect("a directory");
    let loads = [0.2, 0.4, 0.6, 0.8, 0.9, 0.95];
    let examples = [
        Example::new("steady", Behaviour::Steady, 9000.0),
        Example::new("blocking", Behaviour::Blocking, 6500.0),
        Example::new("stalling", Behaviour::Stalling, 5200.0),
    ];
    let mut paths = Vec::new();
    for example in examples {
        let path = scratch.path().join(&example.label);
        example.write_profile(&path, &loads, 1);
        paths.push(path);
    }
    let begin = std::time::Instant::now();
    let report = headway_report::Report::read(&paths).expect("runs just written");
    let read = begin.elapsed();
    let html = report.html();
    println!(
        "read {read:?}, all {:?}, {} bytes",
        begin.elapsed(),
        html.len()
    );
    std::fs::write(out.join("three.html"), html).expect("an example page");
}
