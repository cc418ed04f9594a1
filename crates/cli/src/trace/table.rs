//! Totals as text: by call and label, and by call site.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use debox::Label;
use debox_bpf::{SiteTotals, SleepTotals};

use super::attach::Outcome;

/// Rows of the table of call sites; the rest is one line.
const SITES_SHOWN: usize = 40;

/// Both tables and what was missed.
pub fn render(outcome: &Outcome) -> String {
    let mut text = format!(
        "{:.3} s {}\n",
        outcome.observed_ns as f64 / 1e9,
        outcome.rung
    );
    by_label(&mut text, &outcome.sites);
    by_site(&mut text, &outcome.sites);
    let _ = writeln!(text, "\n{}", outcome.lost);
    text
}

#[derive(Default)]
struct Sum {
    count: u64,
    total_ns: u64,
    max_ns: u64,
    wakeup_ns: u64,
    entry_sum: u64,
    exit_sum: u64,
    waiters_max: u64,
}

impl Sum {
    fn add(&mut self, sleep: &SleepTotals) {
        self.count += sleep.count;
        self.total_ns += sleep.total_ns;
        self.max_ns = self.max_ns.max(sleep.max_ns);
        self.wakeup_ns += sleep.wakeup_ns;
        self.entry_sum += sleep.waiters.entry_sum;
        self.exit_sum += sleep.waiters.exit_sum;
        self.waiters_max = self.waiters_max.max(sleep.waiters.entry_max);
    }
}

/// The paper's Table 2.4.
fn by_label(text: &mut String, sites: &[SiteTotals]) {
    let mut sums: BTreeMap<(&str, Label, &str), Sum> = BTreeMap::new();
    for site in sites {
        for sleep in &site.sleeps {
            let symbol = sleep.symbol.as_deref().unwrap_or("an unknown place");
            sums.entry((&site.name, sleep.label, symbol))
                .or_default()
                .add(sleep);
        }
    }
    let mut rows: Vec<_> = sums.into_iter().collect();
    rows.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.total_ns));
    let _ = writeln!(
        text,
        "\n{:<18} {:<14} {:>9} {:>12} {:>10} {:>11} {:>16}  kernel function",
        "call", "slept on", "sleeps", "total ms", "max ms", "wake-up ms", "waiters in/out"
    );
    for ((call, label, symbol), sum) in rows {
        let mean = |count: u64| count as f64 / sum.count.max(1) as f64;
        let waiters = format!(
            "{:.2}/{:.2} ≤{}",
            mean(sum.entry_sum),
            mean(sum.exit_sum),
            sum.waiters_max
        );
        let _ = writeln!(
            text,
            "{call:<18} {:<14} {:>9} {:>12.3} {:>10.3} {:>11.3} {waiters:>16}  {symbol}",
            label.name(),
            sum.count,
            ms(sum.total_ns),
            ms(sum.max_ns),
            ms(sum.wakeup_ns),
        );
    }
}

/// The sites of one call at one place in a program, whatever the process.
#[derive(Default)]
struct Place {
    processes: BTreeSet<u32>,
    count: u64,
    wall_ns: u64,
    blocked_ns: u64,
    max_ns: u64,
    cpu_ns: u64,
    slept: u64,
    preempted: u64,
    faults: u64,
}

impl Place {
    fn add(&mut self, site: &SiteTotals) {
        self.processes.insert(site.pid);
        self.count += site.count;
        self.wall_ns += site.wall_ns;
        self.blocked_ns += site.blocked_ns();
        self.max_ns = self.max_ns.max(site.max_ns);
        self.cpu_ns += site.cpu_ns;
        self.slept += site.slept;
        self.preempted += site.preemptions.count;
        self.faults += site.faults_minor + site.faults_major;
    }

    fn processes(&self) -> String {
        match self.processes.first() {
            Some(pid) if self.processes.len() == 1 => format!("process {pid}"),
            _ => format!("{} processes", self.processes.len()),
        }
    }
}

fn by_site(text: &mut String, sites: &[SiteTotals]) {
    let mut places: BTreeMap<(&str, String), Place> = BTreeMap::new();
    for site in sites {
        places
            .entry((&site.name, file_and_offset(site)))
            .or_default()
            .add(site);
    }
    let mut rows: Vec<_> = places.into_iter().collect();
    // A call under way has slept and not ended, so its wall time is still to come.
    rows.sort_by_key(|(_, place)| std::cmp::Reverse(place.wall_ns.max(place.blocked_ns)));
    let _ = writeln!(
        text,
        "\n{:<18} {:>9} {:>12} {:>10} {:>10} {:>8} {:>9} {:>7}  called from",
        "call", "count", "wall ms", "max ms", "cpu ms", "slept", "preempted", "faults"
    );
    for ((call, address), place) in rows.iter().take(SITES_SHOWN) {
        let _ = writeln!(
            text,
            "{call:<18} {:>9} {:>12.3} {:>10.3} {:>10.3} {:>8} {:>9} {:>7}  {address}, {}",
            place.count,
            ms(place.wall_ns),
            ms(place.max_ns),
            ms(place.cpu_ns),
            place.slept,
            place.preempted,
            place.faults,
            place.processes()
        );
    }
    if let Some(rest) = rows.len().checked_sub(SITES_SHOWN + 1) {
        let _ = writeln!(text, "and {} more; --json shows all", rest + 1);
    }
}

/// The file without its folders; the bare address where the process was gone too soon.
fn file_and_offset(site: &SiteTotals) -> String {
    match &site.place {
        Some(place) => {
            let name = place.file.rsplit('/').next().unwrap_or_default();
            format!("{name}+{:#x}", place.offset)
        }
        None => format!("{:#x}", site.site),
    }
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}
