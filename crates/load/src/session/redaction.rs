//! Hides passwords, tokens and cookies. People share run directories, so these must not have secrets.

/// The text that replaces a secret.
const HIDDEN: &str = "(hidden)";

/// Headers with secrets for a value.
const SECRET_HEADERS: [&str; 4] = [
    "authorization",
    "cookie",
    "proxy-authorization",
    "x-api-key",
];

/// Options with secrets for a value.
const SECRET_OPTIONS: [&str; 3] = ["--user", "--bearer", "--cookie"];

/// Options with a header for a value.
const HEADER_OPTIONS: [&str; 2] = ["-H", "--header"];

/// A header for the description of a run.
pub(super) fn header((name, value): &(String, String)) -> String {
    match is_secret(name) {
        true => format!("{name}: {HIDDEN}"),
        false => format!("{name}: {value}"),
    }
}

fn is_secret(name: &str) -> bool {
    let mut secrets = SECRET_HEADERS.iter();
    secrets.any(|secret| secret.eq_ignore_ascii_case(name.trim()))
}

/// A command line without the values of secret options and headers.
///
/// ```
/// let command = ["load", "--bearer", "abc", "-HCookie: a=b"].map(String::from);
/// let shown = headway_load::session::without_secrets(&command);
/// assert_eq!(shown, ["load", "--bearer", "(hidden)", "-HCookie: (hidden)"]);
/// ```
pub fn without_secrets(command: &[String]) -> Vec<String> {
    let mut before = "";
    let shown = command.iter().map(|argument| {
        let shown = hide(before, argument);
        before = argument;
        shown
    });
    shown.collect()
}

/// An argument without secrets, which depends on the argument before it.
fn hide(before: &str, argument: &str) -> String {
    if SECRET_OPTIONS.contains(&before) {
        return HIDDEN.to_owned();
    }
    if HEADER_OPTIONS.contains(&before) {
        return hide_header("", argument);
    }
    match argument.split_once('=') {
        Some((option, _)) if SECRET_OPTIONS.contains(&option) => {
            return format!("{option}={HIDDEN}");
        }
        Some(("--header", header)) => return hide_header("--header=", header),
        _ => {}
    }
    match argument.strip_prefix("-H") {
        Some(header) => hide_header("-H", header),
        None => argument.to_owned(),
    }
}

fn hide_header(option: &str, text: &str) -> String {
    match text.split_once(':') {
        Some((name, _)) if is_secret(name.trim_start_matches('=')) => {
            format!("{option}{name}: {HIDDEN}")
        }
        _ => format!("{option}{text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_is_hidden_however_it_is_written() {
        let cases = [
            (&["--user", "me:pw"][..], &["--user", "(hidden)"][..]),
            (&["--bearer", "pw"], &["--bearer", "(hidden)"]),
            (&["--bearer=pw"], &["--bearer=(hidden)"]),
            (&["--cookie", "id=pw"], &["--cookie", "(hidden)"]),
            (&["--cookie=id=pw"], &["--cookie=(hidden)"]),
            (
                &["-H", "authorization: pw"],
                &["-H", "authorization: (hidden)"],
            ),
            (&["-HX-API-Key:pw"], &["-HX-API-Key: (hidden)"]),
            (&["--header=Cookie: pw"], &["--header=Cookie: (hidden)"]),
            (
                &["--header", "Cookie: pw"],
                &["--header", "Cookie: (hidden)"],
            ),
            (&["-H", "Accept: a"], &["-H", "Accept: a"]),
            (&["--header=Accept: a"], &["--header=Accept: a"]),
            (
                &["http://a/?a=b", "--rate", "5"],
                &["http://a/?a=b", "--rate", "5"],
            ),
            (&["--bearer"], &["--bearer"]),
        ];
        for (command, shown) in cases {
            let command: Vec<String> = command.iter().map(ToString::to_string).collect();
            assert_eq!(without_secrets(&command), shown);
        }
    }
}
