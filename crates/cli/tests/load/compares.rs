//! `headway compare`.

use super::headway;
use super::responding::{GOOD, LATE, Responding, late_by};
use std::path::Path;

const FEW: [&str; 10] = [
    "--rounds", "5", "-d", "300ms", "--warmup", "0", "-c", "1", "--quiet", "--json",
];

fn compared(arguments: &[&str]) -> serde_json::Value {
    let (code, out, err) = headway(&[&["compare"], arguments, &FEW].concat());
    assert_eq!(code, 0, "{err}");
    serde_json::from_str(&out).unwrap()
}

#[test]
fn server_that_answers_later_is_slower_in_every_round() {
    let folder = tempfile::tempdir().unwrap();
    let all = folder.path().join("all");
    let order = folder.path().join("order");
    let note = format!("echo $HEADWAY_ROUND-$HEADWAY_SERVER >>{}", order.display());
    let (good, late) = (Responding::start(GOOD), Responding::start(late_by(30)));
    let output = ["-o", all.to_str().unwrap(), "--before-run", &note];
    let found = compared(&[&[good.url.as_str(), &late.url], &output[..]].concat());
    assert_eq!(found["rounds"], 5);
    let changes = found["others"][0]["comparison"]["changes"]
        .as_array()
        .unwrap();
    let of = |figure: &str| changes.iter().find(|one| one["figure"] == figure).unwrap();
    // Thirty milliseconds are many times what varies, also on a busy machine.
    assert_eq!(of("p50")["finding"], "slower", "{changes:?}");
    assert!(of("p50")["change"].as_f64().unwrap() > 1.0, "{changes:?}");
    let order = std::fs::read_to_string(order).unwrap();
    assert_eq!(order, "1-1\n1-2\n2-2\n2-1\n3-1\n3-2\n4-2\n4-1\n5-1\n5-2\n");
    for run in ["server-1-round-1", "server-2-round-5"] {
        assert!(Path::new(&all).join(run).join("run.json").is_file());
    }
}

#[test]
fn three_servers_are_compared_with_the_first() {
    let servers = [0; 3].map(|_| Responding::start(LATE));
    let urls: Vec<&str> = servers.iter().map(|server| server.url.as_str()).collect();
    let found = compared(&[&urls[..], &["--rate", "100"]].concat());
    assert_eq!(found["others"].as_array().unwrap().len(), 2);
    let (code, out, err) = headway(&[&["compare"], &urls[..2], &FEW[..9]].concat());
    assert_eq!(code, 0, "{err}");
    assert!(
        out.starts_with("A  http://") && out.contains("\nB  http://"),
        "{out}"
    );
    assert!(out.contains("95 % together"), "{out}");
}

#[test]
fn comparison_needs_two_servers_and_three_rounds() {
    let server = Responding::start(GOOD);
    for (arguments, part) in [
        (&[server.url.as_str()][..], "two or more URLs"),
        (&[&server.url, &server.url, "--rounds", "2"], "at least 3"),
    ] {
        let (code, _, err) = headway(&[&["compare"], arguments].concat());
        assert_eq!(code, 2, "{err}");
        assert!(err.contains(part), "{err}");
    }
    let failing = ["--before-run", "exit 3"];
    let (code, _, err) = headway(&[&["compare", &server.url, &server.url], &failing[..]].concat());
    assert_eq!(code, 1);
    assert!(err.contains("--before-run `exit 3`"), "{err}");
}
