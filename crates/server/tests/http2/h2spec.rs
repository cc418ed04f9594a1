//! h2spec, which checks each rule of RFC 9113 and RFC 7541. It is not part of Headway.

use std::process::Command;

use headway_test_support::{find_go_program, skip};

use crate::site::*;
use crate::tls::tools::Secured;

/// Runs it in strict mode. `None` if it is not installed, otherwise how many cases have passed, and those that have
/// failed.
fn h2spec(test: &str, address: &str, options: &[&str]) -> Option<(usize, Vec<String>)> {
    let Some(program) = find_go_program("h2spec") else {
        skip(test, "h2spec is not installed");
        return None;
    };
    let (host, port) = address.rsplit_once(':').unwrap();
    let mut command = Command::new(program);
    command.args([
        "--strict",
        "--path",
        "/file.txt",
        "--host",
        host,
        "--port",
        port,
    ]);
    let output = command.args(options).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let is_failure = |line: &&str| line.starts_with('×');
    let lines = text.lines().map(str::trim);
    let mut failed: Vec<String> = lines.filter(is_failure).map(str::to_owned).collect();
    // Each is shown again at the end.
    failed.sort();
    failed.dedup();
    // 146 tests, 145 passed, 0 skipped, 1 failed
    let words: Vec<&str> = text.split_whitespace().collect();
    let at = words.iter().rposition(|word| *word == "passed,");
    let passed = at.and_then(|at| words[at - 1].parse().ok());
    Some((passed.unwrap_or_else(|| panic!("{text}")), failed))
}

/// Needs: the program h2spec
#[test]
fn h2spec_passes_over_tls() {
    let secured = Secured::start("");
    let options = ["--tls", "--insecure"];
    let Some(result) = h2spec("h2spec_passes_over_tls", secured.address(), &options) else {
        return;
    };
    assert_eq!(result, (146, vec![]));
    is_well(&secured.server);
}

/// Needs: the program h2spec
#[test]
fn h2spec_passes_in_the_clear_except_for_what_is_http_1() {
    let site = Site::new();
    let server = site.serve_configured("");
    let name = "h2spec_passes_in_the_clear_except_for_what_is_http_1";
    let Some((passed, failed)) = h2spec(name, &server.address, &[]) else {
        return;
    };
    // It sends a line of text, which gets 400 where HTTP/1.1 is spoken, too (RFC 9112, 3).
    assert_eq!(failed, ["× 2: Sends invalid connection preface"]);
    assert_eq!(passed, 145);
    is_well(&server);
}
