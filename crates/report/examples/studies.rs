//! Writes a page of studies, to look at with one's own eyes after a change of the style.
//!
//! ```text
//! cargo run -p headway-report --example studies -- FILE [RESULT.json…]
//! ```
//!
//! Without results the studies are invented and have every kind of table, figure, claim and error.

#[path = "../tests/support/study.rs"]
mod study;

use headway_latency::study::StudyResult;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments
        .next()
        .ok_or("usage: studies FILE [RESULT.json…]")?;
    let mut results = Vec::new();
    for result in arguments {
        results.push(StudyResult::from_json(&std::fs::read_to_string(result)?)?);
    }
    if results.is_empty() {
        results = vec![study::full(7), study::full(8)];
    }
    let page = headway_report::study_page(&results);
    std::fs::write(&file, &page)?;
    println!("{file}: {} bytes", page.len());
    Ok(())
}
