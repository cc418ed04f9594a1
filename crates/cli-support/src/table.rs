//! Columns that line up.

use headway_latency::format::printable;

/// Rows under a head, two spaces in; the first column to the left, the others to the right.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let head: Vec<String> = head.iter().map(|&word| word.to_owned()).collect();
    let shown = |row: &Vec<String>| -> Vec<String> {
        row.iter()
            .map(|cell| printable(cell).into_owned())
            .collect()
    };
    let lines: Vec<Vec<String>> = std::iter::once(head)
        .chain(rows.iter().map(shown))
        .collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_with_multibyte_letters() {
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
