//! Columns that line up, and numbers a person can read: three digits and a unit.

/// How text is set off.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Headings are bold.
    pub bold: bool,
}

impl Style {
    /// A heading on a line of its own.
    pub fn heading(self, text: &str) -> String {
        if self.bold {
            format!("\n\u{1b}[1m{text}\u{1b}[0m\n")
        } else {
            format!("\n{text}\n")
        }
    }
}

/// Rows under a head, two spaces in; the first column to the left, the others to the right.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let head: Vec<String> = head.iter().map(|&word| word.to_owned()).collect();
    let lines: Vec<&Vec<String>> = std::iter::once(&head).chain(rows).collect();
    let columns = lines.iter().map(|line| line.len()).max().unwrap_or(0);
    let width = |column: usize| {
        lines
            .iter()
            .filter_map(|line| line.get(column))
            .map(|cell| cell.chars().count())
            .max()
    };
    let widths: Vec<usize> = (0..columns)
        .map(|column| width(column).unwrap_or(0))
        .collect();
    let mut text = String::new();
    for line in lines {
        let cells = line.iter().zip(&widths).enumerate();
        let padded = cells.map(|(at, (cell, width))| {
            if at == 0 {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            }
        });
        text.push_str(format!("  {}", padded.collect::<Vec<_>>().join("  ")).trim_end());
        text.push('\n');
    }
    text
}

/// Three digits of a time, in the unit that fits.
pub fn time(us: f64) -> String {
    let (value, unit) = match us.abs() {
        size if size >= 999_500.0 => (us / 1e6, "s"),
        size if size >= 999.5 => (us / 1e3, "ms"),
        _ => (us, "µs"),
    };
    format!("{} {unit}", digits(value))
}

/// A time with its sign, for differences.
pub fn signed_time(us: f64) -> String {
    if us > 0.0 {
        format!("+{}", time(us))
    } else {
        time(us)
    }
}

/// Three digits, no exponent.
pub fn digits(value: f64) -> String {
    match value.abs() {
        size if size >= 99.95 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A whole number with its thousands set off.
pub fn count(value: u64) -> String {
    let plain = value.to_string();
    let mut text = String::new();
    for (at, digit) in plain.chars().enumerate() {
        if at > 0 && (plain.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A rate: thousands set off when it is large, three digits when it is small.
pub fn rate(value: f64) -> String {
    if value >= 999.5 {
        count(value.round() as u64)
    } else {
        digits(value)
    }
}

/// A share in percent. What is not zero never reads as zero, what is not all never as all.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent > 0.0 && percent < 0.005 {
        "<0.01 %".into()
    } else if (99.995..100.0).contains(&percent) {
        ">99.99 %".into()
    } else {
        format!("{percent:.2} %")
    }
}

/// Bytes in the unit that fits, powers of 1024.
pub fn bytes(value: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let at = (0..4)
        .take_while(|at| value >= 999.5 * 1024_f64.powi(*at))
        .count();
    let value = value / 1024_f64.powi(at as i32);
    let text = if at == 0 {
        format!("{value:.0}")
    } else {
        digits(value)
    };
    format!("{text} {}", units[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits_when_they_are_small_or_large() {
        let expected = [
            (0.0, "0.00 µs"),
            (0.5, "0.50 µs"),
            (12.34, "12.3 µs"),
            (999.4, "999 µs"),
            (999.6, "1.00 ms"),
            (123_456.0, "123 ms"),
            (999_600.0, "1.00 s"),
            (3e6, "3.00 s"),
            (-2500.0, "-2.50 ms"),
        ];
        for (us, text) in expected {
            assert_eq!(time(us), text);
        }
        assert_eq!(
            (signed_time(5.0), signed_time(-5.0)),
            ("+5.00 µs".into(), "-5.00 µs".into())
        );
    }

    #[test]
    fn shares_never_read_as_none_or_all_when_they_are_not() {
        let expected = [
            (0.0, "0.00 %"),
            (1e-6, "<0.01 %"),
            (0.5, "50.00 %"),
            (0.999_999, ">99.99 %"),
            (1.0, "100.00 %"),
        ];
        for (share, text) in expected {
            assert_eq!(percent(share), text);
        }
    }

    #[test]
    fn thousands_are_set_off_when_a_number_is_large() {
        assert_eq!(
            ["0", "999", "1,000", "12,345,678"],
            [0, 999, 1000, 12_345_678]
                .map(count)
                .each_ref()
                .map(String::as_str)
        );
        assert_eq!(
            (rate(12.3), rate(99_999.6)),
            ("12.3".into(), "100,000".into())
        );
        assert_eq!(
            (bytes(102.0), bytes(1024.0), bytes(921_600.0)),
            ("102 B".into(), "1.00 KiB".into(), "900 KiB".into())
        );
    }

    #[test]
    fn columns_line_up_when_words_have_other_letters() {
        let rows = vec![
            vec!["µ".into(), "1".into()],
            vec!["abc".into(), "22".into()],
        ];
        assert_eq!(
            table(&["", "n"], &rows),
            "        n\n  µ     1\n  abc  22\n"
        );
    }
}
