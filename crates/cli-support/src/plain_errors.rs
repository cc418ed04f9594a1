//! Error messages in plain words: what parsers and the standard library say in terms of Rust is
//! said in terms of the file.

/// The message without the number of a system error, and with the parsers' terms replaced, line by
/// line.
pub fn plain(message: &str) -> String {
    let text = without_error_numbers(message);
    text.lines().map(plain_line).collect::<Vec<_>>().join("\n")
}

/// The text without the number that the standard library adds to the words of a system error, as in
/// `No such file or directory (os error 2)`.
fn without_error_numbers(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
                plain += rest
            }
            _ => plain = plain + " (os error " + part,
        }
    }
    plain
}

fn plain_line(line: &str) -> String {
    for start in ["invalid type: ", "invalid value: "] {
        if let Some((before, rest)) = line.split_once(start)
            && let Some((found, wanted)) = rest.split_once(", expected ")
        {
            // A position stands behind the type.
            let (wanted, position) =
                wanted.split_at(wanted.find(" at line ").unwrap_or(wanted.len()));
            return format!(
                "{before}expected {}, found {}{position}",
                expected(wanted),
                found_kind(found)
            );
        }
    }
    for (start, middle, reads, then) in [
        (
            "unknown variant `",
            "`, expected one of ",
            "` is not known; known are ",
            "`",
        ),
        (
            "unknown variant `",
            "`, expected ",
            "` is not known; known is ",
            "`",
        ),
        (
            "unknown field `",
            "`, expected one of ",
            "`; the keys are ",
            "there is no key `",
        ),
        (
            "unknown field `",
            "`, expected ",
            "`; the only keys are ",
            "there is no key `",
        ),
    ] {
        if let Some((before, rest)) = line.split_once(start)
            && let Some((name, known)) = rest.split_once(middle)
        {
            return format!("{before}{then}{name}{reads}{known}");
        }
    }
    if let Some((before, rest)) = line.split_once("missing field `")
        && let Some((name, after)) = rest.split_once('`')
    {
        return format!("{before}the key `{name}` is missing{after}");
    }
    if let Some((before, rest)) = line.split_once("EOF while parsing ") {
        return format!("{before}the text ends within {rest}");
    }
    line.to_owned()
}

/// What a parser wants, by its name of the type.
fn expected(wanted: &str) -> &str {
    match wanted {
        "u8" | "u16" | "u32" | "u64" | "usize" | "i8" | "i16" | "i32" | "i64" | "isize" => {
            "a whole number"
        }
        "f32" | "f64" => "a number",
        "a string" | "a borrowed string" => "a text",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "a table",
        name if name.starts_with("struct ") => "a table",
        name => name,
    }
}

/// What a parser has found.
fn found_kind(found: &str) -> String {
    for (name, plain) in [
        ("string ", "the text "),
        ("integer ", "the number "),
        ("floating point ", "the number "),
        ("boolean ", ""),
        ("sequence", "a list"),
        ("map", "a table"),
    ] {
        if let Some(rest) = found.strip_prefix(name) {
            return format!("{plain}{rest}");
        }
    }
    found.to_owned()
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn number_of_a_system_error_is_removed_and_other_text_stays() {
        for (text, wanted) in [
            (
                "a: No such file or directory (os error 2)",
                "a: No such file or directory",
            ),
            ("a (os error 2): b (os error 111); c", "a: b; c"),
            (
                "a (os error two) and (os error 3",
                "a (os error two) and (os error 3",
            ),
            ("", ""),
        ] {
            assert_eq!(plain(text), wanted);
        }
    }

    #[derive(serde::Deserialize, Debug)]
    #[serde(rename_all = "lowercase")]
    #[allow(dead_code, reason = "only its errors are looked at")]
    enum Colour {
        Red,
        Blue,
        Green,
    }

    #[derive(serde::Deserialize, Debug)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only its errors are looked at")]
    struct File {
        size: u32,
        colour: Option<Colour>,
        on: Option<bool>,
    }

    #[test]
    fn error_messages_of_parsers_have_no_types_of_rust() {
        for (text, wanted) in [
            (
                r#"{"size": "a"}"#,
                r#"expected a whole number, found the text "a""#,
            ),
            (
                r#"{"size": -1}"#,
                "expected a whole number, found the number `-1`",
            ),
            (
                r#"{"size": 1, "on": 2}"#,
                "expected true or false, found the number `2`",
            ),
            (
                r#"{"size": 1, "colour": "pink"}"#,
                "`pink` is not known; known are `red`, `blue`, `green`",
            ),
            (
                r#"{"size": 1, "sise": 2}"#,
                "there is no key `sise`; the keys are `size`, `colour`, `on`",
            ),
            ("{}", "the key `size` is missing"),
            (r#"{"size": "#, "the text ends within a value"),
        ] {
            let error = serde_json::from_str::<File>(text)
                .expect_err("a mistake")
                .to_string();
            let message = plain(&error);
            let (reason, _position) = message.split_once(" at line ").unwrap_or((&message, ""));
            assert_eq!(reason, wanted, "{error}");
        }
    }
}
