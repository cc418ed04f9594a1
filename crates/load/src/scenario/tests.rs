use super::*;
use crate::engine::{Client, Conversation};
use headway_latency::Outcome;

fn read(text: &str) -> Result<Scenario, String> {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("s.toml");
    std::fs::write(
        folder.path().join("users.csv"),
        "user,key\nann,1\nbob,\"a\nb\"\n",
    )
    .expect("a file");
    std::fs::write(&path, text).expect("a file");
    let folder = format!("{}/", folder.path().display());
    Scenario::read(&path).map_err(|error| error.to_string().replace(&folder, ""))
}

fn client(text: &str) -> Box<dyn Client> {
    let scenario = Arc::new(read(text).expect("a scenario"));
    Users::new(scenario, "/api", Protocol::Http1, 1, None).client(3)
}

/// The next request of a client.
fn request(client: &mut dyn Client, flow: u32) -> String {
    client.choose(flow);
    let mut out = Vec::new();
    client.form(b"Host: a\r\nUser-Agent: h\r\n\r\n", &mut out);
    String::from_utf8(out).expect("text")
}

const SHOP: &str = r#"
csv = "users.csv"
headers = { Accept = "text/html", X-Who = "{{client}}" }

[[step]]
name = "log in"
weight = 3
path = "/login?u={{row.user}}"
headers = { accept = "application/json", user-agent = "me" }
body = '{"n": {{counter}}}'
status = 201
think = "250ms"
extract = { token = { json = "/token" }, place = { header = "Location" } }
fail-if = ["p99 > 50ms", "errors > 1%"]

[[step.then]]
method = "DELETE"
path = "/items/{{place}}"
headers = { Authorization = "Bearer {{token}}" }

[[step]]
path = "/"
method = "HEAD"
"#;

#[test]
fn flow_goes_on_with_values_of_the_response_before() {
    let mut user = client(SHOP);
    let first = request(&mut *user, 0);
    assert_eq!(
        first,
        "POST /api/login?u=ann HTTP/1.1\r\nX-Who: 3\r\naccept: application/json\r\n\
         user-agent: me\r\nContent-Length: 8\r\nHost: a\r\n\r\n{\"n\": 1}"
    );
    assert!(!user.facts().repeats && user.facts().class == 0);
    user.field("location", b"a/7");
    user.body(b"{\"token\": ");
    user.body(b"\"t7\"}");
    assert_eq!(user.judge(201, 16), Outcome::Ok);
    user.ended(Outcome::Ok);
    assert!(user.continues());
    assert_eq!(user.pause(), Duration::from_millis(250));
    let second = request(&mut *user, 1);
    assert!(
        second.starts_with("DELETE /api/items/a%2F7 HTTP/1.1\r\n"),
        "{second}"
    );
    assert!(second.contains("\r\nAuthorization: Bearer t7\r\nHost: a\r\nUser-Agent: h\r\n\r\n"));
    assert_eq!(user.facts().class, 1);
    user.ended(Outcome::Ok);
    assert!(!user.continues());
    let other = request(&mut *user, 1);
    assert!(
        other.starts_with("HEAD /api/ HTTP/1.1\r\nAccept: text/html\r\n"),
        "{other}"
    );
    assert!(user.is_head());
    user.ended(Outcome::Ok);
    // The third flow has the first row again, after the second one.
    let third = request(&mut *user, 0);
    assert!(
        third.contains("u=ann") && third.ends_with("{\"n\": 3}"),
        "{third}"
    );
}

#[test]
fn flow_ends_when_a_response_is_not_good_or_lacks_a_value() {
    let cases = [
        (200, Some("a"), &b"{\"token\": \"t\"}"[..], Outcome::Status),
        (201, None, b"{\"token\": \"t\"}", Outcome::Content),
        (201, Some("a"), b"{\"other\": \"t\"}", Outcome::Content),
        (201, Some("a"), b"{\"token\": \"t", Outcome::Content),
        // It would add a line to the header of the follow-up.
        (
            201,
            Some("a"),
            b"{\"token\": \"t\\r\\nX: 1\"}",
            Outcome::Content,
        ),
        (201, Some("a"), b"{\"token\": \"t\"}", Outcome::Ok),
    ];
    for (status, location, body, expected) in cases {
        let mut user = client(SHOP);
        request(&mut *user, 0);
        if let Some(location) = location {
            user.field("Location", location.as_bytes());
        }
        user.body(body);
        assert_eq!(user.judge(status, 0), expected, "{status} {body:?}");
        user.ended(expected);
        assert_eq!(user.continues(), expected == Outcome::Ok);
    }
    let mut user = client(SHOP);
    request(&mut *user, 0);
    user.field("Location", b"a");
    user.body(b"{\"token\": \"t\"}");
    user.body(&vec![b' '; SEARCHED_BYTES_MAX]);
    assert_eq!(
        user.judge(201, 0),
        Outcome::Content,
        "longer than what is searched"
    );
}

#[test]
fn steps_have_names_conditions_and_weights() {
    let scenario = read(SHOP).expect("a scenario");
    let names = ["log in", "DELETE /items/{{place}}", "HEAD /"];
    assert_eq!(scenario.step_names(), names);
    let conditions: Vec<(usize, String)> = scenario
        .conditions()
        .map(|(at, condition)| (at, condition.to_string()))
        .collect();
    assert_eq!(
        conditions,
        [(0, "p99 > 50ms".to_owned()), (0, "errors > 1%".to_owned())]
    );
    let work = scenario.work();
    assert_eq!(work.documents.len(), 2);
    assert_eq!(work.documents[1].class, 2);
    let RequestOrder::Drawn(popularity) = &work.order else {
        panic!("drawn by weight")
    };
    let mut draws = popularity.draws(5);
    let first = (0..8_000).filter(|_| draws.next() == 0).count();
    // Four standard deviations.
    assert!(first.abs_diff(6_000) < 155, "{first}");
}

#[test]
fn rows_are_counted_when_the_run_stops_with_them() {
    let text = |end: &str| format!("csv = 'users.csv'\n{end}\n[[step]]\npath = '/'\n");
    let stops = read(&text("csv-end = 'stop'")).expect("a scenario");
    assert_eq!(stops.flows_max(None), Some(2));
    let of = |index| stops.flows_max(Some(AgentInfo { index, count: 3 }));
    assert_eq!([of(0), of(1), of(2)], [Some(1), Some(1), Some(0)]);
    let recycles = read(&text("")).expect("a scenario");
    assert_eq!(recycles.flows_max(None), None);
    assert_ne!(recycles.checksum(), stops.checksum());
}

/// A scenario, and what is said of it.
const MISTAKES: [(&str, &str); 27] = [
    (
        "[[step]]\npath = '/a/{{item}}'\n",
        "line 2, column 12: no variable `item`",
    ),
    (
        "[[step]]\npath = \"/\\u0061/{{uuid}}{{item}}\"\n",
        "line 2, column 25: no variable `item`",
    ),
    (
        "[[step]]\npath = '/'\nbody = '''\n{{x'''\n",
        "line 4, column 1: `{{` has no `}}`",
    ),
    (
        "[[step]]\npath = '/'\nthing = 1\n",
        "line 3, column 1: unknown field `thing`",
    ),
    ("[[step]]\nname = 'a'\n", "missing field `path`"),
    ("step = []\n", "there is no [[step]]"),
    (
        "[[step]]\npath = 'a'\n",
        "line 2, column 8: a path begins with /",
    ),
    (
        "[[step]]\npath = '/a b'\n",
        "column 8: ' ' has to be written as %XX",
    ),
    (
        "[[step]]\npath = '/'\nmethod = 'BREW'\n",
        "line 3, column 10: `BREW` requests",
    ),
    (
        "[[step]]\npath = '/'\nthink = '1 year'\n",
        "line 3, column 9",
    ),
    (
        "[[step]]\npath = '/'\nstatus = 99\n",
        "line 3, column 10: a final status",
    ),
    (
        "[[step]]\npath = '/'\nweight = 0\n",
        "line 3, column 10: a weight is at least 1",
    ),
    (
        "[[step]]\npath = '/'\n[[step]]\npath = '/'\n",
        "line 4, column 8: two steps are called `GET /`",
    ),
    (
        "[[step]]\npath = '/'\nfail-if = ['p99 > 5']\n",
        "line 3, column 12: `5` is not a time",
    ),
    (
        "[[step]]\npath = '/'\nfail-if = ['rate < 5']\n",
        "column 12: a step has latencies",
    ),
    (
        "[[step]]\npath = '/'\nheaders = { Host = '{{row.a}}' }\n",
        "column 21: `row.a` needs a CSV file",
    ),
    (
        "csv = 'users.csv'\n[[step]]\npath = '/{{row.age}}'\n",
        "no column `age`; it has user, key",
    ),
    (
        "csv = 'users.csv'\n[[step]]\npath = '/'\nheaders = { X = '{{row.key}}' }\n",
        "control character near line 3",
    ),
    (
        "csv = 'none.csv'\n[[step]]\npath = '/'\n",
        "line 1, column 7: reading none.csv",
    ),
    (
        "csv-end = 'stop'\n[[step]]\npath = '/'\n",
        "csv-end needs a CSV file",
    ),
    (
        "[[step]]\npath = '/{{env.NO_SUCH_THING}}'\n",
        "the environment has no variable `NO_SUCH_THING`",
    ),
    (
        "[[step]]\npath = '/'\nextract = { a = { json = 'b' } }\n",
        "line 3, column 17: `b` is not a JSON pointer",
    ),
    (
        "[[step]]\npath = '/'\nextract = { a = { json = '/b', regex = 'c' } }\n",
        "give one of header",
    ),
    (
        "[[step]]\npath = '/'\nextract = { uuid = { json = '/b' } }\n",
        "`uuid` cannot be the name",
    ),
    (
        "[[step]]\npath = '/{{a}}'\nextract = { a = { json = '/b' } }\n",
        "no variable `a`",
    ),
    (
        "[[step]]\npath = '/'\nheaders = { Content-Length = '1' }\n",
        "cannot be set",
    ),
    (
        "[[step]]\npath = '/'\n[[step.then]]\npath = '/b'\nweight = 2\n",
        "line 5, column 10: a follow-up has no weight",
    ),
];

#[test]
fn mistake_has_its_line_and_column() {
    for (text, part) in MISTAKES {
        let error = read(text).expect_err(text);
        assert!(error.starts_with("s.toml: line "), "{error}");
        assert!(error.contains(part), "{text}: {error}");
    }
}
