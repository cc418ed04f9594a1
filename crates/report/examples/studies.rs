//! Writes a page of invented studies, to look at with one's own eyes after a change of the style.
//!
//! ```text
//! cargo run -p headway-report --example studies -- FILE
//! ```

#[path = "../tests/support/study.rs"]
mod study;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::args().nth(1).ok_or("usage: studies FILE")?;
    let page = headway_report::study_page(&[study::full(7), study::full(8)]);
    std::fs::write(&file, &page)?;
    println!("{file}: {} bytes", page.len());
    Ok(())
}
