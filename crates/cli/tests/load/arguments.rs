//! Invalid arguments: exit code 2, a reason, and no file.

use super::{headway, load};

fn refused(arguments: &[&str], part: &str) {
    let (code, out, err) = load(arguments);
    assert_eq!((code, out.as_str()), (2, ""), "{arguments:?}: {err}");
    assert!(err.contains(part), "{arguments:?}: {err}");
}

const URL: &str = "http://127.0.0.1:1/";

#[test]
fn number_is_a_usage_error_when_it_is_zero_or_malformed() {
    refused(&[URL, "--rate", "0"], "above 0");
    refused(&[URL, "--rate", "-5"], "not a rate");
    refused(&[URL, "--rate", "nan"], "not a rate");
    refused(&[URL, "--requests-per-connection", "0"], "unlimited");
    refused(&[URL, "--connections", "0"], "1 or more");
    refused(&[URL, "-c", "-3"], "1 or more");
    refused(&[URL, "-n", "0"], "1 or more");
    refused(&[URL, "--duration", "0"], "--duration 0");
    refused(&[URL, "--duration", "-1s"], "not a time");
    refused(&[URL, "--timeout", "3 parsecs"], "not a time");
    refused(&[URL, "--bandwidth", "-400kbit"], "not a bandwidth");
    refused(&[URL, "--bandwidth", "7bit"], "a byte, or more");
    refused(&[URL, "--seed", "-1"], "not a seed");
    refused(&[URL, "--schedule", "100:5s,0:5s"], "above 0");
    refused(&[URL, "--schedule", "100"], "no time");
    refused(&[URL, "--connections", "99999999"], "at most");
}

#[test]
fn url_is_a_usage_error_when_malformed() {
    refused(&["ftp://127.0.0.1/"], "https://");
    refused(&["http://:80/"], "no host");
    refused(&["http://127.0.0.1:99999/"], "not a port");
    refused(&["unix:"], "path of a socket");
    refused(&[], "URL");
}

#[test]
fn contradicting_options_are_a_usage_error() {
    refused(&[URL, "--rate", "5", "--closed"], "cannot be used with");
    refused(
        &[URL, "--rate", "5", "--schedule", "5:1s"],
        "cannot be used with",
    );
    refused(
        &[URL, "--rate", "5", "--think", "1s"],
        "cannot be used with",
    );
    refused(&[URL, "--arrivals", "constant"], "--rate or --schedule");
    refused(&[URL, "--verify"], "--fileset");
    refused(
        &[URL, "--fileset", "a", "--paths", "b"],
        "cannot be used with",
    );
    refused(&[URL, "--source", "::1"], "IPv4 and IPv6");
    refused(&["http://127.0.0.1:1/a", "http://127.0.0.2:1/b"], "--paths");
}

#[test]
fn options_of_other_tools_get_a_hint() {
    refused(&[URL, "-t", "0"], "1 to 256");
    refused(&[URL, "-X", "CONNECT"], "GET, HEAD, POST");
    refused(&[URL, "-H", "Accept"], "'Accept: text/html'");
    refused(
        &[URL, "-H", "Connection: close"],
        "--requests-per-connection",
    );
    refused(&[URL, "-X", "HEAD", "--verify", "--fileset", "x"], "HEAD");
}

#[test]
fn profile_without_points_is_a_usage_error() {
    for (arguments, part) in [
        (["--loads", "0"], "above 0"),
        (["--loads", "-20"], "not a list of loads"),
        (["--loads", ""], "not a list of loads"),
        (["--loads", "99999999999"], "at most 10000"),
        (["--repeats", "0"], "1 or more"),
        (["--capacity", "0"], "above 0"),
    ] {
        let (code, _, err) = headway(&[&["profile", URL], arguments.as_slice()].concat());
        assert_eq!(code, 2, "{arguments:?}: {err}");
        assert!(err.contains(part), "{arguments:?}: {err}");
    }
}

#[test]
fn help_has_examples_and_exit_codes() {
    for command in ["load", "profile"] {
        let (code, out, _) = headway(&[command, "--help"]);
        assert_eq!(code, 0);
        assert!(
            out.contains(&format!("headway {command} http://127.0.0.1:8080/")),
            "{out}"
        );
        assert!(out.contains("Exit codes: 0 success"), "{out}");
    }
}
