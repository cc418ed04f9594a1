//! Users and groups by name or number.
//!
//! Names come from /etc/passwd and /etc/group alone; whoever keeps them elsewhere gives the number.

/// A user's number.
pub fn user(text: &str) -> Result<u32, String> {
    number("user", text, "/etc/passwd")
}

/// A group's number.
pub fn group(text: &str) -> Result<u32, String> {
    number("group", text, "/etc/group")
}

/// Both files have the name first and the number third.
fn number(what: &str, text: &str, file: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let table = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    let mut lines = table.lines().map(|line| line.split(':'));
    let found = lines.find_map(|mut words| {
        (words.next() == Some(text)).then(|| words.nth(1).and_then(|word| word.parse().ok()))?
    });
    found.ok_or_else(|| format!("there is no {what} {text:?} in {file}; give the number instead"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_is_found_when_the_name_is_in_the_table() {
        assert_eq!(user("root"), Ok(0));
        assert_eq!(group("root"), Ok(0));
        assert_eq!(user("4711"), Ok(4711));
        let error = user("no-such-user").expect_err("nobody has this name");
        assert!(error.contains("give the number"), "{error}");
    }
}
