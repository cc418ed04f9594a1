//! Environment variables in texts of the configuration file: `${NAME}`, or `${NAME:-DEFAULT}` for a
//! variable that may be missing or empty. `$${` stands for `${`.

use std::borrow::Cow;

/// Replaces the variables of a text.
///
/// # Errors
/// What is wrong, as a message.
pub(crate) fn expand(
    text: &str,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Cow<'_, str>, String> {
    if !text.contains("${") {
        return Ok(text.into());
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        if let Some(escaped) = rest[..at].strip_suffix('$') {
            out.push_str(escaped);
            out.push_str("${");
            rest = &rest[at + 2..];
            continue;
        }
        out.push_str(&rest[..at]);
        let inner = &rest[at + 2..];
        let end = inner.find('}').ok_or_else(|| {
            format!(
                "`{}` has no end; write ${{NAME}}, or $${{ for ${{",
                &rest[at..]
            )
        })?;
        out.push_str(&value(&inner[..end], &variable)?);
        rest = &inner[end + 1..];
    }
    out.push_str(rest);
    Ok(out.into())
}

fn value(written: &str, variable: impl Fn(&str) -> Option<String>) -> Result<String, String> {
    let (name, default) = match written.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (written, None),
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if name.is_empty() || !name.bytes().all(is_plain) {
        return Err(format!(
            "`{name}` is not the name of an environment variable; write ${{NAME}}, or $${{ for ${{"
        ));
    }
    let set = variable(name);
    match (set, default) {
        (Some(value), None) => Ok(value),
        (Some(value), Some(_)) if !value.is_empty() => Ok(value),
        (_, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(format!(
            "the environment variable {name} is not set; set it, or write ${{{name}:-DEFAULT}}"
        )),
    }
}

/// The text for which [`expand`] gives this one.
pub(crate) fn escape(text: &str) -> String {
    text.replace("${", "$${")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> Result<String, String> {
        let variable = |name: &str| match name {
            "PORT" => Some("8080".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        expand(text, variable).map(Cow::into_owned)
    }

    #[test]
    fn variables_are_replaced_and_defaults_used() {
        for (text, expected) in [
            ("plain $path.html {a}", "plain $path.html {a}"),
            (":${PORT}", ":8080"),
            ("${PORT}${PORT}/", "80808080/"),
            ("${PORT:-1}", "8080"),
            ("${EMPTY:-1}", "1"),
            ("a${EMPTY}b", "ab"),
            ("${NONE:-/srv/www}", "/srv/www"),
            ("${NONE:-}", ""),
            ("$${PORT}", "${PORT}"),
            ("$$${PORT}", "$${PORT}"),
        ] {
            assert_eq!(expanded(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn variable_is_an_error_when_it_is_missing_or_malformed() {
        for (text, part) in [
            ("${NONE}", "NONE is not set"),
            ("${PORT", "has no end"),
            ("${}", "is not the name"),
            ("${A B}", "is not the name"),
            ("${:-x}", "is not the name"),
        ] {
            let error = expanded(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn escaped_text_expands_to_itself() {
        for text in ["a", "${PORT}", "$${PORT}", "${", "$$"] {
            assert_eq!(expanded(&escape(text)).as_deref(), Ok(text));
        }
    }
}
