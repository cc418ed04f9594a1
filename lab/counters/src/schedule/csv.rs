//! Comma-separated values as RFC 4180 has them: records in, fields out, and a field in quotes where
//! it needs them.
//!
//! Line ends may be LF or CRLF, empty lines are passed over, a byte-order mark too. Space around a
//! field that is not quoted is not part of it. It does not guess another separator.

/// The fields of one record and the line it begins on, counted from 1.
#[derive(Debug, PartialEq)]
pub(super) struct CsvRecord {
    pub line: usize,
    pub fields: Vec<String>,
}

/// What is wrong with the text, and the line.
#[derive(Debug, PartialEq)]
pub(super) struct Malformed {
    pub line: usize,
    pub why: &'static str,
}

/// Splits a text into its records.
pub(super) fn records(text: &str) -> Result<Vec<CsvRecord>, Malformed> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut records = Vec::new();
    let (mut line, mut rest) = (1, text);
    while !rest.is_empty() {
        let begin = line;
        let mut fields = Vec::new();
        loop {
            let (field, lines, after) = field(rest).map_err(|why| Malformed { line, why })?;
            fields.push(field);
            line += lines;
            match after.strip_prefix(',') {
                Some(next) => rest = next,
                None => {
                    let after = after.strip_prefix('\r').unwrap_or(after);
                    rest = after.strip_prefix('\n').unwrap_or(after);
                    line += 1;
                    break;
                }
            }
        }
        if fields.len() > 1 || !fields[0].is_empty() {
            records.push(CsvRecord {
                line: begin,
                fields,
            });
        }
    }
    Ok(records)
}

/// One field, the line ends inside it, and what follows: a comma, a line end or nothing.
fn field(text: &str) -> Result<(String, usize, &str), &'static str> {
    let start = text.trim_start_matches([' ', '\t']);
    let Some(mut rest) = start.strip_prefix('"') else {
        let end = text.find([',', '\n']).unwrap_or(text.len());
        let (plain, after) = text.split_at(end);
        // A carriage return belongs to the line end that follows it.
        return Ok((plain.trim().to_owned(), 0, after));
    };
    let mut value = String::new();
    loop {
        let (part, after) = rest.split_once('"').ok_or("a quoted field has no end")?;
        value.push_str(part);
        match after.strip_prefix('"') {
            Some(next) => {
                value.push('"');
                rest = next;
            }
            None => {
                let after = after.trim_start_matches([' ', '\t']);
                if !(after.is_empty() || after.starts_with([',', '\n', '\r'])) {
                    return Err("something follows a quoted field before the comma");
                }
                let lines = value.matches('\n').count();
                return Ok((value, lines, after));
            }
        }
    }
}

/// A field as it is written.
pub(super) fn quoted(field: &str) -> String {
    let plain = !field.contains([',', '"', '\n', '\r']) && field.trim() == field;
    if plain {
        field.to_owned()
    } else {
        format!("\"{}\"", field.replace('"', "\"\""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Vec<Vec<String>> {
        let records = records(text).expect("well formed");
        records.into_iter().map(|record| record.fields).collect()
    }

    #[test]
    fn field_is_the_same_when_it_was_written_and_read_again() {
        for word in [
            "plain",
            "a,b",
            "say \"hi\"",
            " space ",
            "two\nlines",
            "cr\r",
            "",
        ] {
            let text = format!("x,{},y\n", quoted(word));
            assert_eq!(fields(&text), [["x", word, "y"]], "{text}");
        }
    }

    #[test]
    fn line_ends_marks_and_empty_lines_do_not_matter() {
        let wanted = [["a", "b"], ["c", ""]];
        for text in [
            "a,b\nc,\n",
            "\u{feff}a,b\r\nc,\r\n",
            "\n a , b\n\n\"c\" ,\n\n",
            "a,b\nc,",
        ] {
            assert_eq!(fields(text), wanted, "{text:?}");
        }
        let lines: Vec<usize> = records("\n\"a\nb\",c\n\nd,e")
            .unwrap()
            .iter()
            .map(|r| r.line)
            .collect();
        assert_eq!(lines, [2, 5]);
    }

    #[test]
    fn line_is_named_when_quotes_are_wrong() {
        assert_eq!(records("a,b\nc,\"d\n").unwrap_err().line, 2);
        assert_eq!(records("\"a\"b,c\n").unwrap_err().line, 1);
    }
}
