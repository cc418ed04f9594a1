//! What calls slept on: by kernel location (Table 2.5), and by label and call (Table 2.4).

use std::collections::BTreeMap;

use headway_debox::Label;

use super::Style;
use crate::model::{SleepAt, Trace};
use crate::table::Table;
use crate::units::{NONE, counted, grouped, percent, time};

/// Sleeps that are one row: of one label, kernel symbol and line.
#[derive(Default)]
struct RowSum {
    count: u64,
    total_ns: u64,
    max_ns: u64,
    waiters: Waiters,
}

/// Other tasks asleep on the same resource, if they were counted.
#[derive(Default)]
struct Waiters {
    /// Sleeps with counted waiters.
    sleeps: u64,
    entry_total: u64,
    exit_total: u64,
    entry_max: u64,
    exit_max: u64,
}

impl RowSum {
    fn add(&mut self, sleep: &SleepAt) {
        self.count += sleep.count;
        self.total_ns += sleep.total_ns;
        self.max_ns = self.max_ns.max(sleep.max_ns);
        if let (Some(entry_max), Some(exit_max)) = (sleep.waiters_entry_max, sleep.waiters_exit_max)
        {
            let waiters = &mut self.waiters;
            waiters.sleeps += sleep.count;
            waiters.entry_total += sleep.waiters_entry_total.unwrap_or(0);
            waiters.exit_total += sleep.waiters_exit_total.unwrap_or(0);
            waiters.entry_max = waiters.entry_max.max(entry_max);
            waiters.exit_max = waiters.exit_max.max(exit_max);
        }
    }
}

impl Waiters {
    /// On average, when a sleep began and when it ended.
    fn mean(&self) -> String {
        let mean = |total: u64| format!("{:.1}", total as f64 / self.sleeps as f64);
        match self.sleeps {
            0 => NONE.to_owned(),
            _ => format!("{}/{}", mean(self.entry_total), mean(self.exit_total)),
        }
    }

    /// The largest counts.
    fn largest(&self) -> String {
        match self.sleeps {
            0 => NONE.to_owned(),
            _ => format!("{}/{}", grouped(self.entry_max), grouped(self.exit_max)),
        }
    }
}

/// Time, label, kernel function. Voluntary waits, such as those for events, come last.
pub(super) fn waits(trace: &Trace, style: &Style) -> String {
    let mut sums: BTreeMap<(Label, Option<&str>, Option<String>), RowSum> = BTreeMap::new();
    for sleep in trace.sites.iter().flat_map(|site| &site.sleeps) {
        let key = (sleep.label, sleep.symbol.as_deref(), sleep.source_line());
        sums.entry(key).or_default().add(sleep);
    }
    let title = style.heading("What it waited for") + "\n";
    if sums.is_empty() {
        return match trace.sites.is_empty() {
            true => String::new(),
            false => title + &nothing(trace),
        };
    }
    let mut rows: Vec<_> = sums.into_iter().collect();
    rows.sort_by_key(|((label, ..), sum)| (label.is_idle(), std::cmp::Reverse(sum.total_ns)));
    let all_ns: u64 = rows.iter().map(|(_, sum)| sum.total_ns).sum();
    let waiters = rows.iter().any(|(_, sum)| sum.waiters.sleeps > 0);
    let mut headings = vec![
        "TIME",
        "SHARE",
        "SLEEPS",
        "LONGEST",
        "<LABEL",
        "<KERNEL FUNCTION",
    ];
    if waiters {
        headings.insert(4, "OTHERS IN/OUT");
        headings.insert(5, "AT MOST");
    }
    let mut table = Table::new(&headings);
    let (shown, more) = style.first(&rows, "locations");
    for ((label, symbol, line), sum) in shown {
        let mut cells = vec![
            time(sum.total_ns),
            percent(sum.total_ns, all_ns),
            grouped(sum.count),
            time(sum.max_ns),
            label.to_string(),
            function_and_line(*symbol, line.as_deref()),
        ];
        if waiters {
            cells.insert(4, sum.waiters.mean());
            cells.insert(5, sum.waiters.largest());
        }
        table.row(cells);
    }
    title + &table.lines(style.width, |text| style.columns(text)) + &more
}

/// The kernel's function, with its line where that is known.
fn function_and_line(symbol: Option<&str>, line: Option<&str>) -> String {
    let symbol = symbol.unwrap_or(NONE);
    line.map_or_else(|| symbol.to_owned(), |line| format!("{symbol} ({line})"))
}

/// Zero sleeps are a finding only if sleeps could be seen.
fn nothing(trace: &Trace) -> String {
    let blind =
        |level: &headway_debox::TraceLevel| matches!(level, headway_debox::TraceLevel::Off { .. });
    if trace.programs.iter().any(|program| blind(&program.level)) {
        "not known: sleeps could not be seen, see below\n".to_owned()
    } else {
        format!(
            "nothing: none of {} slept\n",
            counted(trace.calls(), "call", "calls")
        )
    }
}

/// A label's column: its name and count, then its calls.
struct Column {
    label: Label,
    count: u64,
    calls: Vec<(String, u64)>,
}

/// The paper's Table 2.4: each column is a label with the number of sleeps on it, and below it the
/// calls they happened in.
pub(super) fn by_call(trace: &Trace, style: &Style) -> String {
    let columns = columns(trace);
    if columns.is_empty() {
        return String::new();
    }
    let mut out = style.heading("Sleeps by label and call") + "\n";
    let mut rest = &columns[..];
    // As many columns side by side as the terminal holds; the others below.
    while !rest.is_empty() {
        let fit = columns_that_fit(rest, style.width);
        let (now, later) = rest.split_at(fit);
        if rest.len() < columns.len() {
            out.push('\n');
        }
        out.push_str(&side_by_side(now).lines(style.width, |text| style.columns(text)));
        rest = later;
    }
    out
}

fn columns(trace: &Trace) -> Vec<Column> {
    let mut counts: BTreeMap<Label, BTreeMap<&str, u64>> = BTreeMap::new();
    for site in &trace.sites {
        for sleep in &site.sleeps {
            let calls = counts.entry(sleep.label).or_default();
            *calls.entry(site.call.as_str()).or_default() += sleep.count;
        }
    }
    let column = |(label, calls): (Label, BTreeMap<&str, u64>)| {
        let mut calls: Vec<(String, u64)> = calls
            .into_iter()
            .map(|(call, count)| (call.to_owned(), count))
            .collect();
        calls.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        Column {
            label,
            count: calls.iter().map(|(_, count)| count).sum(),
            calls,
        }
    };
    let mut columns: Vec<Column> = counts.into_iter().map(column).collect();
    columns.sort_by_key(|column| (column.label.is_idle(), std::cmp::Reverse(column.count)));
    columns
}

impl Column {
    fn heading(&self) -> String {
        format!("{}/{}", self.label, grouped(self.count))
    }

    fn cells(&self) -> impl Iterator<Item = String> + '_ {
        self.calls
            .iter()
            .map(|(call, count)| format!("{call}/{}", grouped(*count)))
    }

    fn width(&self) -> usize {
        let widths = self.cells().map(|cell| cell.chars().count());
        widths
            .max()
            .unwrap_or(0)
            .max(self.heading().chars().count())
    }
}

fn columns_that_fit(columns: &[Column], width: usize) -> usize {
    let mut used = 0;
    let fits = |column: &&Column| {
        used += column.width() + 2;
        used <= width + 2
    };
    columns.iter().take_while(fits).count().max(1)
}

fn side_by_side(columns: &[Column]) -> Table {
    let headings: Vec<String> = columns
        .iter()
        .map(|column| format!("<{}", column.heading()))
        .collect();
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    let mut table = Table::new(&headings);
    let cells: Vec<Vec<String>> = columns
        .iter()
        .map(|column| column.cells().collect())
        .collect();
    let rows = cells.iter().map(Vec::len).max().unwrap_or(0);
    for row in 0..rows {
        let cell = |column: &Vec<String>| column.get(row).cloned().unwrap_or_default();
        table.row(cells.iter().map(cell).collect());
    }
    table
}
