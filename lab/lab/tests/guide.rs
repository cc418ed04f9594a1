//! The disks which the research book shows can be made.

use headway_lab::disk::DiskSpec;

#[test]
fn disk_models_of_the_research_book_are_parsed() {
    let chapter = include_str!("../../../docs/research/src/lab.md");
    let blocks = chapter.split("```toml\n").skip(1);
    let texts = blocks.map(|block| block.split("```").next().unwrap());
    let disks: Vec<DiskSpec> = texts
        .filter(|text| text.contains("size_bytes"))
        .map(|text| toml::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}")))
        .collect();
    let models: Vec<_> = disks.iter().map(|disk| disk.model.to_string()).collect();
    assert_eq!(models, ["ide-5400", "custom"]);
    assert_eq!(disks[0].faults.0.len(), 1);
}
