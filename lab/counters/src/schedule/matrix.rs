//! The matrix of pairwise slow-downs: what it means, how it is read and written, and what is
//! refused.
//!
//! The head row and the first column name the programs, in the same order; the cell that joins them
//! may hold any word. An entry is the slow-down of its row's program beside its column's: 1.35
//! means that it takes 35 % longer than alone; below 1, that the co-runner helps it. The diagonal
//! (a program beside itself) takes no part in a schedule and may be empty.

use std::collections::HashSet;

use headway_base::format::counted;

use super::csv;

/// As many programs as can be paired in a few seconds.
pub const PROGRAMS_MAX: usize = 1000;

/// No slow-down is larger; a larger number is rather a time that was mistaken for one.
pub const SLOW_DOWN_MAX: f64 = 1e6;

/// Why something is no matrix of slow-downs.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MatrixError {
    /// Nothing is in it.
    #[error(
        "it is empty; a matrix has a head row and a first column of program names, separated by commas"
    )]
    Empty,
    /// The text is not comma-separated values.
    #[error("line {line}: {why}")]
    Malformed {
        /// Counted from 1.
        line: usize,
        /// The mistake.
        why: &'static str,
    },
    /// There are no programs to pair.
    #[error(
        "the head row names {} (separated by commas); 2 to {PROGRAMS_MAX} can be paired",
        counted(*.0 as u64, "program", "programs")
    )]
    Programs(usize),
    /// A program without a name.
    #[error("a program has no name; each needs one, in the head row and in the first column")]
    Nameless,
    /// Two programs of one name.
    #[error("two programs are named {0:?}; each needs a name of its own")]
    Duplicate(String),
    /// A row with too few or too many entries.
    #[error(
        "line {line}: the row of {program:?} has {} under {}; the matrix must be square",
        counted(*entries as u64, "entry", "entries"), counted(*programs as u64, "name", "names")
    )]
    Row {
        /// Counted from 1.
        line: usize,
        /// The row's name.
        program: String,
        /// The entries that the row has.
        entries: usize,
        /// The entries that the row must have: one for each program.
        programs: usize,
    },
    /// Too few or too many rows.
    #[error(
        "it has {} under {}; the matrix must be square",
        counted(*rows as u64, "row", "rows"), counted(*programs as u64, "name", "names")
    )]
    Rows {
        /// The rows that the matrix has.
        rows: usize,
        /// The rows that the matrix must have: one for each program.
        programs: usize,
    },
    /// Rows in another order than columns.
    #[error(
        "line {line}: the row is named {row:?} where the head row has {column:?}; both must have the same order"
    )]
    Order {
        /// Counted from 1.
        line: usize,
        /// The row's name.
        row: String,
        /// The column's name.
        column: String,
    },
    /// An entry that is no slow-down.
    #[error("the slow-down of {row:?} beside {column:?} is {entry:?}; it must be a number above 0 and at most {max}: time beside the other ÷ time alone", max = SLOW_DOWN_MAX)]
    Entry {
        /// The row's name.
        row: String,
        /// The column's name.
        column: String,
        /// The text of the entry.
        entry: String,
    },
}

/// Programs and the slow-down of each beside each other one.
#[derive(Clone, Debug, PartialEq)]
pub struct SlowDowns {
    names: Vec<String>,
    /// Row by row; 1 on the unused diagonal.
    entries: Vec<f64>,
}

impl SlowDowns {
    /// A matrix from its entries: `of(row, column)` is the slow-down of `row` beside `column`; the
    /// diagonal is not asked for.
    ///
    /// # Errors
    /// [`MatrixError`] for too few or too many programs, names that are missing or the same, and
    /// entries that are not above 0.
    pub fn new(
        names: Vec<String>,
        mut of: impl FnMut(usize, usize) -> f64,
    ) -> Result<SlowDowns, MatrixError> {
        check_names(&names)?;
        let count = names.len();
        let mut entries = vec![1.0; count * count];
        for at in (0..count * count).filter(|at| at / count != at % count) {
            let (row, column) = (at / count, at % count);
            entries[at] = of(row, column);
            if !is_slow_down(entries[at]) {
                return Err(bad_entry(&names, row, column, &entries[at].to_string()));
            }
        }
        Ok(SlowDowns { names, entries })
    }

    /// Reads comma-separated values.
    ///
    /// # Errors
    /// [`MatrixError`] with the line or the programs.
    ///
    /// ```
    /// use headway_counters::schedule::SlowDowns;
    /// let matrix = SlowDowns::parse("program,gzip,mcf\ngzip,,1.25\nmcf,1.75,\n")?;
    /// assert_eq!(matrix.slow_down(1, 0), 1.75); // mcf while gzip runs beside it
    /// # Ok::<(), headway_counters::schedule::MatrixError>(())
    /// ```
    pub fn parse(text: &str) -> Result<SlowDowns, MatrixError> {
        let records = csv::records(text)
            .map_err(|csv::Malformed { line, why }| MatrixError::Malformed { line, why })?;
        let (head, rows) = records.split_first().ok_or(MatrixError::Empty)?;
        let names = head.fields[1..].to_vec();
        check_names(&names)?;
        for (record, column) in rows.iter().zip(&names) {
            check_row(record, column, names.len())?;
        }
        if rows.len() != names.len() {
            let (rows, programs) = (rows.len(), names.len());
            return Err(MatrixError::Rows { rows, programs });
        }
        for (at, record) in rows.iter().enumerate() {
            check_diagonal(&names, at, &record.fields[at + 1])?;
        }
        let mut wrong = None;
        let matrix = SlowDowns::new(names.clone(), |row, column| {
            let entry = &rows[row].fields[column + 1];
            let value = entry.parse().unwrap_or(f64::NAN);
            if !is_slow_down(value) && wrong.is_none() {
                // The words of the file say more than the number that they became.
                wrong = Some(bad_entry(&names, row, column, entry));
            }
            value
        });
        wrong.map_or(matrix, Err)
    }

    /// Comma-separated values as [`SlowDowns::parse`] reads them, with four decimals and an empty
    /// diagonal.
    pub fn to_csv(&self) -> String {
        let mut text = String::from("program");
        for name in &self.names {
            text += &format!(",{}", csv::quoted(name));
        }
        text.push('\n');
        for (row, name) in self.names.iter().enumerate() {
            text += &csv::quoted(name);
            for column in 0..self.names.len() {
                text.push(',');
                if row != column {
                    text += &format!("{:.4}", self.slow_down(row, column));
                }
            }
            text.push('\n');
        }
        text
    }

    /// The programs' names, in the order of rows and columns.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Time of `program` while `beside` runs next to it, over its time alone; 1 beside itself,
    /// whatever was read there.
    ///
    /// # Panics
    /// For a number that no program has.
    pub fn slow_down(&self, program: usize, beside: usize) -> f64 {
        self.entries[program * self.names.len() + beside]
    }
}

/// Programs with equal names are an error.
///
/// # Errors
/// [`MatrixError::Programs`], [`MatrixError::Nameless`] or [`MatrixError::Duplicate`].
pub fn check_names(names: &[String]) -> Result<(), MatrixError> {
    if !(2..=PROGRAMS_MAX).contains(&names.len()) {
        return Err(MatrixError::Programs(names.len()));
    }
    let mut seen = HashSet::new();
    for name in names {
        if name.trim().is_empty() {
            return Err(MatrixError::Nameless);
        }
        if !seen.insert(name) {
            return Err(MatrixError::Duplicate(name.clone()));
        }
    }
    Ok(())
}

fn check_row(record: &csv::CsvRecord, column: &str, programs: usize) -> Result<(), MatrixError> {
    let (line, row) = (record.line, record.fields[0].clone());
    let entries = record.fields.len() - 1;
    if row != column {
        let column = column.to_owned();
        return Err(MatrixError::Order { line, row, column });
    }
    if entries != programs {
        return Err(MatrixError::Row {
            line,
            program: row,
            entries,
            programs,
        });
    }
    Ok(())
}

/// The diagonal is not used, but a word or a negative number there is a sign that the file is
/// something else.
fn check_diagonal(names: &[String], at: usize, entry: &str) -> Result<(), MatrixError> {
    let is_good = entry.is_empty() || entry.parse().is_ok_and(is_slow_down);
    is_good
        .then_some(())
        .ok_or_else(|| bad_entry(names, at, at, entry))
}

fn is_slow_down(value: f64) -> bool {
    value > 0.0 && value <= SLOW_DOWN_MAX
}

fn bad_entry(names: &[String], row: usize, column: usize, entry: &str) -> MatrixError {
    MatrixError::Entry {
        row: names[row].clone(),
        column: names[column].clone(),
        entry: entry.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_matrix_is_read_when_one_was_written() {
        let names = ["gzip -9 <a,b", "say \"x\"", "mcf"]
            .map(String::from)
            .to_vec();
        let matrix =
            SlowDowns::new(names, |row, column| 1.0 + row as f64 + column as f64 / 8.0).unwrap();
        assert_eq!(SlowDowns::parse(&matrix.to_csv()).unwrap(), matrix);
        assert_eq!(matrix.slow_down(2, 0), 3.0);
        assert_eq!(matrix.slow_down(0, 2), 1.25);
    }

    #[test]
    fn text_that_is_no_matrix_is_rejected_with_the_reason() {
        let cases = [
            ("", "it is empty"),
            ("\n\n", "it is empty"),
            (
                "x,a\na,1\n",
                "names 1 program (separated by commas); 2 to 1000",
            ),
            ("x;a;b\na;1;2\n", "names 0 programs"),
            ("x,a,\na,1,2\n,1,2\n", "no name"),
            ("x,a,a\na,1,2\na,1,2\n", "two programs are named \"a\""),
            (
                "x,a,b\na,1\nb,1,2\n",
                "line 2: the row of \"a\" has 1 entry under 2 names",
            ),
            (
                "x,a,b\na,1,2\nb,1,2,3\n",
                "line 3: the row of \"b\" has 3 entries",
            ),
            (
                "x,a,b\na\nb,1,2\n",
                "line 2: the row of \"a\" has 0 entries under 2 names",
            ),
            (
                "x,a,b,c\na,1\nb,1,2,3\nc,1,2,3\n",
                "has 1 entry under 3 names",
            ),
            ("x,a,b\na,1,2\n", "it has 1 row under 2 names"),
            ("x,a,b\na,1,2\nb,1,2\nc,1,2\n", "it has 3 rows"),
            (
                "x,a,b\nb,1,2\na,1,2\n",
                "line 2: the row is named \"b\" where the head row has \"a\"",
            ),
            ("x,a,b\na,,-1\nb,1,\n", "of \"a\" beside \"b\" is \"-1\""),
            ("x,a,b\na,,0\nb,1,\n", "is \"0\""),
            ("x,a,b\na,,NaN\nb,1,\n", "is \"NaN\""),
            ("x,a,b\na,,inf\nb,1,\n", "is \"inf\""),
            ("x,a,b\na,,\nb,1,\n", "of \"a\" beside \"b\" is \"\""),
            (
                "x,a,b\na,,1.2\nb,fast,\n",
                "of \"b\" beside \"a\" is \"fast\"",
            ),
            ("x,a,b\na,-3,1.2\nb,1,\n", "of \"a\" beside \"a\" is \"-3\""),
            ("x,a,b\na,,2e6\nb,1,\n", "is \"2e6\""),
            (
                "x,\"a,b\na,,2e6\nb,1,\n",
                "line 1: a quoted field has no end",
            ),
        ];
        for (text, reason) in cases {
            let error = SlowDowns::parse(text).expect_err(text).to_string();
            assert!(error.contains(reason), "{text:?}: {error}");
        }
    }

    #[test]
    fn diagonal_is_not_read_when_it_holds_a_number() {
        let matrix = SlowDowns::parse("x,a,b\na,9,2\nb,3,\n").unwrap();
        assert_eq!((matrix.slow_down(0, 0), matrix.slow_down(0, 1)), (1.0, 2.0));
    }
}
