//! Tables for a terminal: columns as wide as needed, numbers aligned right, text aligned left.

use std::borrow::Cow;
use std::fmt::Write as _;

use headway_base::format::printable;

/// Where a column's text stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Text is aligned at the left.
    Left,
    /// Numbers are aligned at the right.
    Right,
}

/// A table being filled.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

/// Spaces between two columns.
const GAP: &str = "  ";

impl Table {
    /// Creates a table with these columns; a heading that begins with `<` is that of a text column.
    pub fn new(headings: &[&str]) -> Table {
        let column = |heading: &&str| match heading.strip_prefix('<') {
            Some(heading) => (heading.to_owned(), Align::Left),
            None => ((*heading).to_owned(), Align::Right),
        };
        Table {
            columns: headings.iter().map(column).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; cells it does not have are empty. A cell is one line without control characters.
    pub fn row(&mut self, cells: Vec<String>) {
        let shown = |cell: String| match printable(&cell) {
            Cow::Owned(escaped) => escaped,
            Cow::Borrowed(_) => cell,
        };
        self.rows.push(cells.into_iter().map(shown).collect());
    }

    /// Whether the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The lines, cut to `width` columns; the heading is passed to `heading` to be made visible.
    pub fn lines(&self, width: usize, heading: impl Fn(&str) -> String) -> String {
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column));
                let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
                widest.max(self.columns[column].0.chars().count())
            })
            .collect();
        let headings: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        let mut out = heading(&cut(&self.line(&headings, &widths), width));
        out.push('\n');
        for row in &self.rows {
            out.push_str(&cut(&self.line(row, &widths), width));
            out.push('\n');
        }
        out
    }

    fn line(&self, cells: &[String], widths: &[usize]) -> String {
        let mut line = String::new();
        for (column, (_, align)) in self.columns.iter().enumerate() {
            let cell = cells.get(column).map_or("", String::as_str);
            let width = widths[column];
            let gap = if column == 0 { "" } else { GAP };
            let _ = match align {
                Align::Left => write!(line, "{gap}{cell:<width$}"),
                Align::Right => write!(line, "{gap}{cell:>width$}"),
            };
        }
        line.truncate(line.trim_end().len());
        line
    }
}

/// Cuts a text to `width` characters, the last of which is an ellipsis.
pub fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn columns_align_when_cells_differ_in_length() {
        let mut table = Table::new(&["<CALL", "COUNT", "<SITE"]);
        table.row(vec!["read".into(), "7".into(), "main".into()]);
        table.row(vec!["epoll_pwait2".into(), "1,234".into(), "µ_loop".into()]);
        let expected = "CALL          COUNT  SITE\n\
                        read              7  main\n\
                        epoll_pwait2  1,234  µ_loop\n";
        assert_eq!(table.lines(80, str::to_owned), expected);
        let narrow = table.lines(10, str::to_owned);
        assert!(
            narrow.lines().all(|line| line.chars().count() <= 10),
            "{narrow}"
        );
        assert!(narrow.contains('…'));
    }
}
