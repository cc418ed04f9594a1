//! Totals as text: by call and label, and by call site.

use std::collections::BTreeMap;
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

fn by_site(text: &mut String, sites: &[SiteTotals]) {
    let _ = writeln!(
        text,
        "\n{:<18} {:>9} {:>12} {:>10} {:>10} {:>8} {:>9} {:>7}  called from",
        "call", "count", "wall ms", "max ms", "cpu ms", "slept", "preempted", "faults"
    );
    for site in sites.iter().take(SITES_SHOWN) {
        let _ = writeln!(
            text,
            "{:<18} {:>9} {:>12.3} {:>10.3} {:>10.3} {:>8} {:>9} {:>7}  {}",
            site.name,
            site.count,
            ms(site.wall_ns),
            ms(site.max_ns),
            ms(site.cpu_ns),
            site.slept,
            site.preemptions.count,
            site.faults_minor + site.faults_major,
            place(site)
        );
    }
    if let Some(rest) = sites.len().checked_sub(SITES_SHOWN + 1) {
        let _ = writeln!(text, "and {} more; --json shows all", rest + 1);
    }
}

fn place(site: &SiteTotals) -> String {
    let file = match &site.place {
        Some(place) => {
            let name = place.file.rsplit('/').next().unwrap_or_default();
            format!("{name}+{:#x}", place.offset)
        }
        None => format!("{:#x}", site.site),
    };
    format!("{file} in {}", site.pid)
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}
