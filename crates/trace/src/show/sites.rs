//! Time by call site: section 2.5.5 of the paper.

use super::Style;
use crate::model::{LocationTotals, Trace};
use crate::table::Table;
use crate::units::{NONE, grouped, percent, time};

pub(super) fn table(trace: &Trace, style: &Style) -> String {
    if trace.sites.is_empty() {
        return String::new();
    }
    let all_ns: u64 = trace.sites.iter().map(|site| site.wall_ns).sum();
    let mut table = Table::new(&[
        "TIME",
        "SHARE",
        "CALLS",
        "SLEEPS",
        "ASLEEP",
        "FAULTS",
        "<CALL",
        "<MOSTLY ON",
        "<CALL SITE",
    ]);
    let (rows, more) = style.first(&trace.sites, "call sites");
    for site in rows {
        table.row(vec![
            time(site.wall_ns),
            percent(site.wall_ns, all_ns),
            grouped(site.count),
            grouped(site.slept.count),
            time(site.slept.total_ns),
            faults(site),
            site.call.clone(),
            mostly_on(site),
            trace
                .locations
                .get(site.location)
                .map_or(NONE.into(), |location| location.description()),
        ]);
    }
    let lines = table.lines(style.width, |text| style.columns(text));
    style.heading("Call sites") + "\n" + &lines + &more
}

/// Major faults stand out: they waited for a disk.
fn faults(site: &LocationTotals) -> String {
    match (site.faults_minor, site.faults_major) {
        (0, 0) => NONE.to_owned(),
        (minor, 0) => grouped(minor),
        (minor, major) => format!("{}+{}", grouped(minor), grouped(major)),
    }
}

fn mostly_on(site: &LocationTotals) -> String {
    let first = site.sleeps.iter().max_by_key(|sleep| sleep.total_ns);
    first.map_or(NONE.into(), |sleep| sleep.label.to_string())
}
