//! An analysis as tables, as comma-separated values and as a picture.

use headway_counters::schedule::{Analysis, Schedule, SlowDowns};
use headway_report::{Cumulative, cumulative_svg};

use super::CDF_MARK;
use headway_cli_support::table::table;
use headway_latency::format::count;

/// What is printed.
pub fn tables(matrix: &SlowDowns, found: &Analysis) -> String {
    let (programs, pairs) = (found.programs, found.best.pairs.len());
    let pairs = if pairs == 1 {
        "1 pair".into()
    } else {
        format!("{pairs} pairs")
    };
    let alone = if found.best.alone.is_some() {
        " and one alone"
    } else {
        ""
    };
    let (trials, seed) = (count(found.random.trials), found.seed);
    let mut text = format!(
        "{programs} programs in {pairs}{alone}; {trials} random schedules, seed {seed}\n\n"
    );
    text += &speed_ups(found);
    let points = found.ideal_over_random * 100.0;
    text += &format!(
        "\nAn ideal scheduler gains {points:.2} percentage points of speed-up over the mean of random ones.\n"
    );
    text += &format!("\nBest schedule\n{}", schedule(matrix, &found.best));
    text += &format!("\nWorst schedule\n{}", schedule(matrix, &found.worst));
    text + &format!(
        "\nA new random pairing each round: speed-ups of schedulers\n{}",
        rounds_table(found)
    )
}

fn speed_ups(found: &Analysis) -> String {
    let row = |name: String, speed_up: f64| vec![name, percent(speed_up)];
    let mut rows = vec![
        row("worst (exact)".into(), found.worst.speed_up),
        row("random: minimum".into(), found.random.min),
    ];
    for quantile in &found.quantiles {
        let share = (quantile.share * 100.0).round();
        rows.push(row(
            format!("random: {share} % have at most"),
            quantile.speed_up,
        ));
    }
    rows.extend([
        row("random: maximum".into(), found.random.max),
        row("random: mean".into(), found.random.mean),
        row("best (exact)".into(), found.best.speed_up),
    ]);
    table(&["schedules", "speed-up"], &rows)
}

fn schedule(matrix: &SlowDowns, of: &Schedule) -> String {
    let index = |name: &String| matrix.names().iter().position(|other| other == name);
    let slow_down = |a: &String, b: &String| match (index(a), index(b)) {
        (Some(a), Some(b)) => format!("{:.3}", matrix.slow_down(a, b)),
        // Names of a schedule are those of its matrix.
        _ => String::new(),
    };
    let mut rows: Vec<Vec<String>> = of
        .pairs
        .iter()
        .map(|[a, b]| vec![plain(a), slow_down(a, b), plain(b), slow_down(b, a)])
        .collect();
    rows.extend(
        of.alone
            .iter()
            .map(|name| vec![plain(name), "alone".into()]),
    );
    table(&["program", "slow-down", "beside", "slow-down"], &rows)
}

fn rounds_table(found: &Analysis) -> String {
    let rows: Vec<Vec<String>> = found
        .rounds
        .iter()
        .map(|after| {
            let speed_ups = [after.min, after.p5, after.mean, after.p95, after.max];
            std::iter::once(after.rounds.to_string())
                .chain(speed_ups.map(percent))
                .collect()
        })
        .collect();
    table(
        &["rounds", "minimum", "5 %", "mean", "95 %", "maximum"],
        &rows,
    )
}

/// A name as one line of a terminal can show it: a command may hold line ends and worse.
fn plain(name: &str) -> String {
    const CHARS_MAX: usize = 48;
    let shown: String = name
        .chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect();
    if shown.chars().count() <= CHARS_MAX {
        return shown;
    }
    shown.chars().take(CHARS_MAX - 1).chain(['…']).collect()
}

fn percent(speed_up: f64) -> String {
    format!("{:.2} %", speed_up * 100.0)
}

/// The distribution of the random schedules.
pub fn cdf(found: &Analysis) -> String {
    let points = found.random.cdf.iter();
    let lines = points.map(|point| format!("{:.6},{}\n", point.speed_up * 100.0, point.share));
    format!("{CDF_MARK}\n{}", lines.collect::<String>())
}

/// The distribution in the form of Figure 4.22, with the exact ends.
pub fn svg(found: &Analysis) -> String {
    let of_random = &found.random;
    let points: Vec<(f64, f64)> = of_random
        .cdf
        .iter()
        .map(|point| (point.speed_up * 100.0, point.share))
        .collect();
    let named = [
        ("worst schedule", found.worst.speed_up),
        ("mean of random schedules", of_random.mean),
        ("best schedule", found.best.speed_up),
    ];
    let marked =
        named.map(|(name, speed_up)| (speed_up * 100.0, format!("{name}: {}", percent(speed_up))));
    let [min, mean, max] =
        [of_random.min, of_random.mean, of_random.max].map(|s| format!("{:.1}", s * 100.0));
    let [worst, best] = [&found.worst, &found.best].map(|schedule| percent(schedule.speed_up));
    let trials = count(of_random.trials);
    cumulative_svg(&Cumulative {
        title: &format!(
            "Speed-ups of {trials} random schedules of {} programs",
            found.programs
        ),
        description: &format!(
            "Random: {min} to {max} %, mean {mean} %. Exact: worst {worst}, best {best}."
        ),
        x_title: &format!(
            "speed-up (%): random {min} to {max}, mean {mean}; exact worst {worst}, best {best} (dotted)"
        ),
        y_title: &format!("share of {trials} random schedules"),
        points: &points,
        marked: &marked,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_fits_a_line_when_it_is_a_long_command() {
        assert_eq!(plain("gzip -9 <a"), "gzip -9 <a");
        assert_eq!(plain("a\nb\u{1b}[1m"), "a?b?[1m");
        let long = plain(&"x".repeat(100));
        assert!(long.chars().count() == 48 && long.ends_with('…'));
    }
}
