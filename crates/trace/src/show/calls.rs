//! Each call's times as the program could measure them and in band: the paper's Table 2.1.
//!
//! The two differ by the time the thread was preempted, which says something about the load of the
//! machine and nothing about the call. The in-band median is known without a histogram of its own:
//! preempted calls are few, and taking them all off the top moves the rank of the median by no more
//! than their number.

use std::collections::BTreeMap;

use super::Style;
use crate::model::{Bucket, LocationTotals, Trace};
use crate::table::Table;
use crate::units::{NONE, grouped, time, time_or_none};

/// A call of all sites.
#[derive(Default)]
pub(crate) struct Sum {
    pub count: u64,
    pub errors: u64,
    pub wall_ns: u64,
    pub wall_min_ns: Option<u64>,
    pub wall_max_ns: u64,
    pub in_band_min_ns: Option<u64>,
    pub in_band_max_ns: Option<u64>,
    pub preemptions: u64,
    pub preempted_ns: u64,
    pub slept: u64,
    pub faults_minor: u64,
    pub faults_major: u64,
    pub buckets: Vec<Bucket>,
}

impl Sum {
    fn add(&mut self, site: &LocationTotals) {
        self.count += site.count;
        self.errors += site.errors;
        self.wall_ns += site.wall_ns;
        self.wall_min_ns = crate::trace_builder::min_known(self.wall_min_ns, site.wall_min_ns);
        self.wall_max_ns = self.wall_max_ns.max(site.wall_max_ns);
        self.in_band_min_ns =
            crate::trace_builder::min_known(self.in_band_min_ns, site.in_band_min_ns);
        self.in_band_max_ns = self.in_band_max_ns.max(site.in_band_max_ns);
        self.preemptions += site.preemptions.count;
        self.preempted_ns += site.preemptions.total_ns;
        self.slept += site.slept.count;
        self.faults_minor += site.faults_minor;
        self.faults_major += site.faults_major;
        for bucket in &site.histogram {
            match self
                .buckets
                .iter_mut()
                .find(|sum| sum.from_ns == bucket.from_ns)
            {
                Some(sum) => sum.count += bucket.count,
                None => self.buckets.push(*bucket),
            }
        }
        self.buckets.sort_by_key(|bucket| bucket.from_ns);
    }

    /// The length that the call of this rank (from 1, by length) had: the middle of its bucket.
    fn at_rank(&self, rank: u64) -> Option<u64> {
        let mut below = 0;
        let bucket = self.buckets.iter().find(|bucket| {
            below += bucket.count;
            below >= rank.max(1)
        })?;
        let middle = bucket
            .to_ns
            .map_or(bucket.from_ns, |to| bucket.from_ns.midpoint(to));
        // No middle lies outside what was really measured. The shortest call of a running process may be newer
        // than the longest, and so above it.
        Some(
            middle
                .max(self.wall_min_ns.unwrap_or(0))
                .min(self.wall_max_ns),
        )
    }

    fn median(&self) -> Option<u64> {
        self.at_rank(self.count.div_ceil(2))
    }

    /// `None` if the number of preempted calls could move it into another bucket.
    fn in_band_median(&self) -> Option<u64> {
        let rank = self.count.div_ceil(2);
        let lowest = self.at_rank(rank.saturating_sub(self.preemptions));
        let median = self.at_rank(rank);
        (lowest == median).then_some(median).flatten()
    }
}

/// Every call and its sums, longest in total first.
pub(crate) fn sums(trace: &Trace) -> Vec<(&str, Sum)> {
    let mut sums: BTreeMap<&str, Sum> = BTreeMap::new();
    for site in &trace.sites {
        sums.entry(&site.call).or_default().add(site);
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.wall_ns));
    sums
}

pub(super) fn table(trace: &Trace, style: &Style) -> String {
    let sums = sums(trace);
    if sums.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        "<CALL", "COUNT", "ERRORS", "SLEEPS", "TOTAL", "│", "MIN", "MEDIAN", "MEAN", "MAX", "│",
        "MIN", "MEDIAN", "MEAN", "MAX",
    ]);
    let (rows, more) = style.first(&sums, "calls");
    for (call, sum) in rows {
        let in_band_ns = sum.wall_ns.saturating_sub(sum.preempted_ns);
        let count = sum.count.max(1);
        table.row(vec![
            (*call).to_owned(),
            grouped(sum.count),
            or_nothing(sum.errors),
            or_nothing(sum.slept),
            time(sum.wall_ns),
            "│".into(),
            time_or_none(sum.wall_min_ns),
            time_or_none(sum.median()),
            time(sum.wall_ns / count),
            time(sum.wall_max_ns),
            "│".into(),
            time_or_none(sum.in_band_min_ns),
            time_or_none(sum.in_band_median()),
            time(in_band_ns / count),
            time_or_none(sum.in_band_max_ns),
        ]);
    }
    let lines = table.lines(style.width.max(150), str::to_owned);
    style.heading("Calls") + "\n" + &spanned(&lines, style) + &more
}

fn or_nothing(count: u64) -> String {
    if count == 0 {
        NONE.to_owned()
    } else {
        grouped(count)
    }
}

/// A line above the columns that says which four belong together.
fn spanned(lines: &str, style: &Style) -> String {
    let (columns, rows) = lines.split_once('\n').unwrap_or((lines, ""));
    let bars: Vec<usize> = columns
        .chars()
        .enumerate()
        .filter(|(_, letter)| *letter == '│')
        .map(|(at, _)| at)
        .collect();
    let above = match bars[..] {
        [user, in_band] => format!(
            "{:user$}│{:^between$}│  measured in band",
            "",
            "measured by the program",
            between = in_band - user - 1
        ),
        _ => String::new(),
    };
    let width = style.width;
    let fits = lines.lines().all(|line| line.chars().count() <= width);
    let text = format!(
        "{}\n{}\n{rows}",
        style.columns(&above),
        style.columns(columns)
    );
    if fits || bars.len() != 2 {
        return text;
    }
    // Too narrow: the in-band columns are left out, the others stay complete.
    let narrow = |line: &str| {
        let line: String = line.chars().take(bars[1]).collect();
        line.trim_end().to_owned() + "\n"
    };
    let note = "(in-band times: a terminal of 130 columns, --width 130, or --json)\n";
    let rows: String = rows.lines().map(narrow).collect();
    style.columns(narrow(columns).trim_end()) + "\n" + &rows + note
}

#[cfg(test)]
mod tests {
    use super::Sum;
    use crate::model::Bucket;

    fn sum(counts: &[(u64, u64)], preemptions: u64) -> Sum {
        let bucket = |&(from_ns, count): &(u64, u64)| Bucket {
            from_ns,
            to_ns: Some(from_ns * 2),
            count,
        };
        Sum {
            count: counts.iter().map(|(_, count)| count).sum(),
            wall_max_ns: u64::MAX,
            preemptions,
            buckets: counts.iter().map(bucket).collect(),
            ..Sum::default()
        }
    }

    #[test]
    fn in_band_median_is_that_of_the_program_when_few_calls_were_preempted() {
        let few = sum(&[(64, 10), (128, 100), (4096, 5)], 3);
        assert_eq!(few.median(), Some(192));
        assert_eq!(few.in_band_median(), Some(192));
    }

    #[test]
    fn median_is_the_longest_when_the_shortest_is_above_it() {
        let mut running = sum(&[(64, 1)], 0);
        (running.wall_min_ns, running.wall_max_ns) = (Some(90), 80);
        assert_eq!(running.median(), Some(80));
    }

    #[test]
    fn in_band_median_is_unknown_when_preempted_calls_could_move_it() {
        let many = sum(&[(64, 10), (128, 5)], 0);
        assert_eq!(many.in_band_median(), Some(96));
        let many = sum(&[(64, 7), (128, 8)], 3);
        assert_eq!((many.median(), many.in_band_median()), (Some(192), None));
    }
}
