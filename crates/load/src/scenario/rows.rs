//! The CSV file of a scenario: its first line has the names of the columns, and each flow takes the next
//! row.

use std::path::Path;

use serde::Deserialize;

/// What happens after the last row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CsvEnd {
    /// The first row comes again.
    #[default]
    Recycle,
    /// No further flow begins.
    Stop,
}

/// All rows, in memory.
#[derive(Debug)]
pub(super) struct Rows {
    pub columns: Vec<String>,
    rows: Vec<Vec<String>>,
    pub end: CsvEnd,
}

impl Rows {
    /// Reads a file.
    ///
    /// # Errors
    /// Why the file cannot be used, with the line where there is one.
    pub(super) fn read(path: &Path, end: CsvEnd) -> Result<Rows, String> {
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
        Rows::parse(&text, end)
    }

    fn parse(text: &str, end: CsvEnd) -> Result<Rows, String> {
        let mut reader = csv::ReaderBuilder::new().from_reader(text.as_bytes());
        let columns = reader.headers().map_err(|error| error.to_string())?;
        let columns: Vec<String> = columns.iter().map(|name| name.trim().to_owned()).collect();
        let mut rows = Vec::new();
        for record in reader.records() {
            let record = record.map_err(|error| error.to_string())?;
            rows.push(record.iter().map(str::to_owned).collect());
        }
        match rows.is_empty() {
            true => Err("it has no row after the names of the columns".to_owned()),
            false => Ok(Rows { columns, rows, end }),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The row with this number, from the first one again after the last.
    pub(super) fn row(&self, number: u64) -> &[String] {
        &self.rows[(number % self.rows.len() as u64) as usize]
    }

    /// The line of the first row that has a control character in this column.
    pub(super) fn unprintable(&self, column: usize) -> Option<usize> {
        let has = |row: &Vec<String>| row[column].bytes().any(|byte| byte.is_ascii_control());
        self.rows.iter().position(has).map(|row| row + 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_names_of_the_first_line_and_begin_again() {
        let text = "user, age\nann,\"3,0\"\nbob,41\n";
        let rows = Rows::parse(text, CsvEnd::Recycle).expect("two rows");
        assert_eq!(rows.columns, ["user", "age"]);
        assert_eq!(rows.row(0), ["ann", "3,0"]);
        assert_eq!(rows.row(3), ["bob", "41"]);
        assert_eq!(rows.unprintable(0), None);
    }

    #[test]
    fn line_is_named_when_a_row_is_wrong() {
        let error = Rows::parse("a,b\n1,2\n3\n", CsvEnd::Stop).expect_err("a short row");
        assert!(error.contains("line: 3"), "{error}");
        let error = Rows::parse("a,b\n", CsvEnd::Stop).expect_err("no row");
        assert!(error.contains("no row"), "{error}");
        let rows = Rows::parse("a\n1\n\"2\r\n\"\n", CsvEnd::Stop).expect("two rows");
        assert_eq!(rows.unprintable(0), Some(3));
    }
}
