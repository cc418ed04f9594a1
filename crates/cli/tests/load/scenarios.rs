//! `headway load --scenario`, and `headway scenario`.

use super::https::Https;
use super::{finished, headway, load, read_json, serving};
use headway_latency::Run;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// A server that remembers requests, and gives everyone the same token.
struct Shop {
    url: String,
    /// Request line, `Authorization` and body.
    seen: Arc<Mutex<Vec<(String, String, String)>>>,
}

impl Shop {
    fn open() -> Shop {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/api", listener.local_addr().unwrap());
        let seen: Arc<Mutex<Vec<_>>> = Arc::default();
        let kept = Arc::clone(&seen);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let kept = Arc::clone(&kept);
                std::thread::spawn(move || while answer(&client, &kept).is_some() {});
            }
        });
        Shop { url, seen }
    }

    fn requests(&self) -> Vec<(String, String, String)> {
        self.seen.lock().unwrap().clone()
    }
}

fn answer(client: &TcpStream, seen: &Mutex<Vec<(String, String, String)>>) -> Option<()> {
    let mut reader = BufReader::new(client);
    let (mut head, mut line) = (Vec::new(), String::new());
    while reader.read_line(&mut line).ok()? > 0 && line != "\r\n" {
        head.push(line.trim_end().to_owned());
        line.clear();
    }
    let request = head.first()?.clone();
    let header = |name: &str| {
        let found = head.iter().find_map(|line| line.strip_prefix(name));
        found.unwrap_or_default().to_owned()
    };
    let length = header("Content-Length: ").parse().unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let status = if request.contains("/missing") {
        "404 Not Found"
    } else if request.contains("/old") {
        "302 Found\r\nLocation: https://other.example/api/new?a=b#c"
    } else {
        "200 OK"
    };
    seen.lock().unwrap().push((
        request,
        header("Authorization: "),
        String::from_utf8(body).unwrap(),
    ));
    let text = r#"{"token": "t7"}"#;
    let response = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{text}",
        text.len()
    );
    (&*client).write_all(response.as_bytes()).ok()
}

const SCENARIO: &str = r#"
csv = "users.csv"

[[step]]
name = "log in"
weight = 3
path = "/login"
method = "POST"
body = '{"user": "{{row.user}}", "id": "{{uuid}}"}'
extract = { token = { json = "/token" } }

[[step.then]]
name = "items"
path = "/items?of={{row.user}}"
headers = { Authorization = "Bearer {{token}}" }
fail-if = ["p99 > 1us"]

[[step]]
name = "missing"
path = "/missing"
fail-if = ["errors < 1"]
"#;

fn write(folder: &Path, scenario: &str, rows: u32) -> String {
    let users: String = (0..rows).map(|row| format!("user {row}\n")).collect();
    std::fs::write(folder.join("users.csv"), format!("user\n{users}")).unwrap();
    let path = folder.join("shop.toml");
    std::fs::write(&path, scenario).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn scenario_is_carried_out_and_its_steps_are_told_apart() {
    for options in [&["-c", "4"][..], &["--rate", "400", "--threads", "2"]] {
        let folder = tempfile::tempdir().unwrap();
        let scenario = write(folder.path(), SCENARIO, 1000);
        let run = folder.path().join("run");
        let shop = Shop::open();
        let arguments = ["load", &shop.url, "--scenario", &scenario, "-n", "80"];
        let output = ["-o", run.to_str().unwrap(), "--json"];
        let (code, out, err) = headway(&[&arguments[..], options, &output].concat());
        assert_eq!(code, 3, "{err}");
        assert!(err.contains("step `items`: p99 is"), "{err}");
        assert!(!err.contains("step `missing`"), "{err}");
        let json: serde_json::Value = serde_json::from_str(&out).unwrap();
        let steps = json["analysis"]["by_step"].as_array().unwrap();
        let count = |step: usize, figure: &str| steps[step][figure].as_u64().unwrap();
        let [logins, items, missing] = [0, 1, 2].map(|step| count(step, "requests"));
        // A flow is a login with what follows, or a request that fails.
        assert_eq!((logins, logins + missing), (items, 80), "{options:?}");
        assert!((40..80).contains(&logins), "{logins}");
        assert_eq!([0, 1, 2].map(|step| count(step, "errors")), [0, 0, missing]);

        let requests = shop.requests();
        assert_eq!(requests.len() as u64, logins + items + missing);
        let of = |begin: &str| {
            let found = requests.iter().filter(|(line, ..)| line.starts_with(begin));
            found.collect::<Vec<_>>()
        };
        for (line, authorization, _) in of("GET /api/items?of=user%20") {
            assert!(
                line.ends_with(" HTTP/1.1") && authorization == "Bearer t7",
                "{line}"
            );
        }
        // Each flow has a row and a UUID of its own.
        let bodies: BTreeSet<&str> = of("POST /api/login ")
            .iter()
            .map(|(_, _, body)| body.as_str())
            .collect();
        assert_eq!(bodies.len() as u64, logins);

        let rows: Vec<_> = Run::open(&run)
            .unwrap()
            .rows()
            .unwrap()
            .flat_map(Result::unwrap)
            .collect();
        let of_class = |class| rows.iter().filter(|row| row.class == class).count() as u64;
        assert_eq!([0, 1, 2].map(of_class), [logins, items, missing]);
        let names = &read_json(&run.join("run.json"))["load"]["scenario"]["steps"];
        assert_eq!(*names, serde_json::json!(["log in", "items", "missing"]));
        let (code, out, err) = headway(&["analyze", run.to_str().unwrap()]);
        assert_eq!(code, 0, "{err}");
        assert!(
            out.contains("\nSteps\n") && out.contains("\n  log in "),
            "{out}"
        );
    }
}

#[test]
fn redirect_is_followed_by_a_step() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[[step]]\npath = '/old'\nstatus = 302\nextract = { to = { header = 'Location' } }\n\
         [[step.then]]\npath = '{{to | path}}'\n";
    let scenario = write(folder.path(), text, 1);
    let shop = Shop::open();
    let (code, _, err) = load(&[&shop.url, "--scenario", &scenario, "-n", "5", "-c", "1"]);
    assert_eq!(code, 0, "{err}");
    let lines: Vec<String> = shop.requests().into_iter().map(|(line, ..)| line).collect();
    let pair = ["GET /api/old HTTP/1.1", "GET /api/new?a=b HTTP/1.1"];
    assert_eq!(lines, pair.repeat(5));
}

#[test]
fn run_ends_with_the_rows_of_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let text = "csv = 'users.csv'\ncsv-end = 'stop'\n[[step]]\npath = '/{{row.user}}'\n";
    let scenario = write(folder.path(), text, 7);
    let shop = Shop::open();
    let options = [shop.url.as_str(), "--scenario", &scenario];
    let (code, _, err) = load(&options);
    assert_eq!(code, 0, "{err}");
    let mut seen: Vec<String> = shop.requests().into_iter().map(|(line, ..)| line).collect();
    seen.sort_unstable();
    let all: Vec<String> = (0..7)
        .map(|row| format!("GET /api/user%20{row} HTTP/1.1"))
        .collect();
    assert_eq!(seen, all);
    for agent in ["0/2", "1/2"] {
        assert_eq!(load(&[&options[..], &["--agent", agent]].concat()).0, 0);
    }
    let mut seen: Vec<String> = shop
        .requests()
        .into_iter()
        .skip(7)
        .map(|(line, ..)| line)
        .collect();
    seen.sort_unstable();
    assert_eq!(seen, all, "agents share the rows");
    let (code, _, err) = load(&[&options[..], &["--warmup", "1s"]].concat());
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("leave out --warmup"), "{err}");
}

#[test]
fn pause_belongs_to_the_client_and_not_to_the_latency() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[[step]]\npath = '/a'\nthink = '300ms'\n[[step.then]]\npath = '/b'\n";
    let scenario = write(folder.path(), text, 1);
    for options in [&["-c", "1"][..], &["--rate", "100"]] {
        let shop = Shop::open();
        let run = folder.path().join(options.concat());
        let arguments = ["load", &shop.url, "--scenario", &scenario, "-n", "1"];
        let output = ["-o", run.to_str().unwrap()];
        let (code, _, err) = headway(&[&arguments[..], options, &output].concat());
        assert_eq!(code, 0, "{err}");
        let rows: Vec<_> = Run::open(&run)
            .unwrap()
            .rows()
            .unwrap()
            .flat_map(Result::unwrap)
            .collect();
        assert_eq!(rows.len(), 2, "{options:?}");
        let gap_ns = rows[1].intended_ns - rows[0].end_ns;
        assert_eq!(gap_ns / 1_000_000, 300, "{rows:?}");
        assert_eq!(rows[0].connection, rows[1].connection);
    }
}

#[test]
fn mistake_in_a_scenario_is_a_usage_error_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "[[step]]\npath = '/{{item}}'\n", 1);
    for arguments in [
        &["load", "http://127.0.0.1:1/", "--scenario", &path][..],
        &["scenario", "check", &path],
    ] {
        let (code, _, err) = headway(arguments);
        assert_ne!(code, 0);
        assert!(
            err.contains("shop.toml: line 2, column 10: no variable `item`"),
            "{err}"
        );
    }
    let both = ["http://127.0.0.1:1/", "--scenario", &path, "--data", "x"];
    assert_eq!(load(&both).0, 2);
    let absent = load(&["http://127.0.0.1:1/", "--scenario", "/no/file"]);
    assert_eq!(absent.0, 1);
    assert!(absent.2.contains("/no/file"), "{}", absent.2);
}

const HAR: &str = r#"{"log": {"entries": [
        {"startedDateTime": "2026-01-02T10:00:00.000Z", "time": 100, "request": {"method": "GET",
         "url": "https://shop.example/items?x=%7B%7B", "headers": [{"name": "Cookie", "value": "a=b"},
         {"name": "Accept", "value": "text/html"}]}, "response": {"status": 200}},
        {"startedDateTime": "2026-01-02T10:00:00.050Z", "request": {"method": "GET",
         "url": "https://cdn.example/a.css"}},
        {"startedDateTime": "2026-01-02T10:00:00.300Z", "time": 5, "request": {"method": "POST",
         "url": "https://shop.example/items?x=1", "headers": [], "postData": {"text": "{{\"a\": 1}}"}},
         "response": {"status": 200}}
    ]}}"#;

const API: &str = r##"{"openapi": "3.0.1", "info": {"title": "Shop"}, "servers": [{"url": "https://a/v1/"}],
        "paths": {"/items/{id}": {"parameters": [{"$ref": "#/components/parameters/Id"}],
            "get": {"operationId": "item", "responses": {"200": {}}, "parameters": [
                {"name": "q", "in": "query", "required": true, "example": "a b&c"}]},
            "put": {"requestBody": {"content": {"application/json": {"schema":
                {"$ref": "#/components/schemas/Item"}}}}, "responses": {"200": {}}}}},
        "components": {"parameters": {"Id": {"name": "id", "in": "path", "schema": {"type": "integer"}}},
            "schemas": {"Item": {"type": "object", "properties": {"name": {"type": "string"},
                "parent": {"$ref": "#/components/schemas/Item"}, "tags": {"type": "array",
                "items": {"type": "string", "enum": ["new"]}}}}}}}"##;

#[test]
fn imported_scenario_can_be_used() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let shop = Shop::open();
    std::fs::write(file("a.har"), HAR).unwrap();
    std::fs::write(file("api.json"), API).unwrap();
    let made = |arguments: &[&str], name: &str| {
        let (code, out, err) = headway(&[&["scenario"], arguments].concat());
        assert_eq!(code, 0, "{err}");
        std::fs::write(file(name), &out).unwrap();
        let (code, steps, problem) = headway(&["scenario", "check", &file(name)]);
        assert_eq!(code, 0, "{problem}\n{out}");
        (out, steps, err)
    };
    let (text, steps, notes) = made(&["from-har", &file("a.har")], "har.toml");
    assert_eq!(steps, "GET /items\nPOST /items\n");
    assert!(
        text.contains("think = \"200ms\"") && !text.contains("Cookie"),
        "{text}"
    );
    assert!(notes.contains("1 requests to other hosts"), "{notes}");
    let (_, steps, notes) = made(&["from-openapi", &file("api.json")], "api.toml");
    assert_eq!(steps, "item\n");
    assert!(notes.contains("--writes"), "{notes}");
    let (_, steps, _) = made(&["from-openapi", &file("api.json"), "--writes"], "api.toml");
    assert_eq!(steps, "item\nPUT /items/{id}\n");
    for (name, flows) in [("har.toml", "1"), ("api.toml", "40")] {
        let arguments = [
            shop.url.as_str(),
            "--scenario",
            &file(name),
            "-n",
            flows,
            "-c",
            "1",
        ];
        let (code, _, err) = load(&arguments);
        assert_eq!(code, 0, "{err}");
    }
    let requests = shop.requests();
    assert_eq!(requests[0].0, "GET /api/items?x=%7B%7B HTTP/1.1");
    assert_eq!(requests[1].2, "{{\"a\": 1}}");
    let lines: BTreeSet<&str> = requests[2..]
        .iter()
        .map(|(line, ..)| line.as_str())
        .collect();
    let item = "GET /api/v1/items/1?q=a%20b%26c HTTP/1.1";
    assert_eq!(
        lines.into_iter().collect::<Vec<_>>(),
        [item, "PUT /api/v1/items/1 HTTP/1.1"]
    );
    let body = requests
        .iter()
        .find(|(line, ..)| line.starts_with("PUT"))
        .unwrap();
    let body: serde_json::Value = serde_json::from_str(&body.2).unwrap();
    assert_eq!(
        (&body["name"], &body["tags"][0]),
        (&"name".into(), &"new".into())
    );
    assert!(body["parent"]["name"].is_string(), "{body}");
}

#[test]
fn import_says_what_a_file_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(file("a.har"), HAR).unwrap();
    std::fs::write(file("api.json"), API).unwrap();
    std::fs::write(file("har.toml"), SCENARIO).unwrap();
    for (arguments, part) in [
        (&["from-har", &file("api.json")][..], "not an HTTP archive"),
        (
            &["from-har", &file("a.har"), "--host", "b"],
            "no request to b",
        ),
        (&["from-openapi", &file("a.har")], "OpenAPI 3"),
        (&["from-openapi", &file("har.toml")], "convert YAML first"),
    ] {
        let (code, _, err) = headway(&[&["scenario"], arguments].concat());
        assert_eq!(code, 1, "{err}");
        assert!(err.contains(part), "{err}");
    }
}

#[test]
fn scenario_is_carried_out_over_https_and_http2() {
    let https = Https::start();
    std::fs::write(https.path("site/login.json"), r#"{"id": "index.html"}"#).unwrap();
    let certificate = https.path("cert.pem");
    let folder = tempfile::tempdir().unwrap();
    let text = "[[step]]\npath = '/login.json'\nextract = { id = { json = '/id' }, \
                type = { header = 'Content-Type' } }\n[[step.then]]\npath = '/{{id}}'\n\
                headers = { X-Type = '{{type}}', X-Long = '{{env.LONG}}' }\n\
                [[step]]\npath = '/'\nmethod = 'POST'\nbody = '{{uuid}}'\nstatus = 405\n";
    let scenario = write(folder.path(), text, 1);
    let common = [
        "load",
        &https.url,
        "--cacert",
        &certificate,
        "--scenario",
        &scenario,
    ];
    for options in [
        &["-c", "2", "-n", "60"][..],
        &["-c", "2", "-n", "60", "--http2", "--streams", "4"],
        &[
            "--rate",
            "200",
            "-n",
            "60",
            "--http2",
            "--streams",
            "4",
            "--threads",
            "2",
        ],
    ] {
        let mut command = serving::headway();
        // Longer than a frame, in the header of the follow-up.
        command.env("LONG", "x".repeat(7_000));
        command.args(common).args(options).arg("--json");
        let (code, out, err) = finished(&mut command);
        assert_eq!(code, 0, "{err}");
        let json: serde_json::Value = serde_json::from_str(&out).unwrap();
        let steps = json["analysis"]["by_step"].as_array().unwrap();
        let of = |step: usize| steps[step]["requests"].as_u64().unwrap();
        assert_eq!((of(0), of(0) + of(2)), (of(1), 60), "{steps:?}");
        assert_eq!(json["summary"]["errors"], 0, "{out}");
    }
    https.server.stop();
}
