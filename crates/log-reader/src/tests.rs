use std::io::Write;

use headway_latency::{Outcome, Row};

use super::{Format, LogError, Summary, read};

fn of(text: &str, format: Option<&str>) -> Result<(Summary, Vec<Row>), LogError> {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(text.as_bytes()).expect("written");
    let format = format.map(|text| text.parse::<Format>().expect("a format"));
    let mut rows = Vec::new();
    let summary = read(file.path(), format.as_ref(), |row| rows.push(*row))?;
    Ok((summary, rows))
}

/// Format, start since the first in milliseconds, microseconds taken, status, bytes.
#[track_caller]
fn assert_read(text: &str, format: &str, expected: &[(u64, u64, u16, u64)]) {
    let (summary, rows) = of(text, None).expect("it is read");
    let seen: Vec<(u64, u64, u16, u64)> = (rows.iter())
        .map(|row| {
            let taken_us = (row.end_ns - row.start_ns) / 1_000;
            (row.start_ns / 1_000_000, taken_us, row.status, row.bytes)
        })
        .collect();
    assert_eq!(
        (summary.format.as_str(), seen.as_slice()),
        (format, expected)
    );
}

#[test]
fn log_of_nginx_is_read_when_it_ends_with_the_request_time() {
    assert_read(
        "192.0.2.1 - - [26/Nov/2026:10:00:01 +0000] \"GET / HTTP/1.1\" 200 1892 \"-\" \"a b\" 0.005\n\
         192.0.2.1 - - [26/Nov/2026:10:00:02 +0000] \"GET /x HTTP/1.1\" 404 0 \"-\" \"-\" 1.000 more\n",
        "nginx",
        &[(0, 5_000, 200, 1892), (5, 1_000_000, 404, 0)],
    );
}

#[test]
fn log_of_apache_is_read_when_it_ends_with_microseconds() {
    assert_read(
        "192.0.2.1 - u [26/Nov/2026:10:00:01 +0000] \"GET /\\\"q\\\" HTTP/1.1\" 200 1892 \"-\" \"a\" 5123\n\
         192.0.2.1 - - [26/Nov/2026:10:00:02 +0000] \"GET / HTTP/1.1\" 304 - \"-\" \"b\" 80\n",
        "apache",
        &[(0, 5_123, 200, 1892), (1000, 80, 304, 0)],
    );
}

#[test]
fn logs_of_caddy_haproxy_and_envoy_are_read() {
    assert_read(
        "{\"level\":\"info\",\"ts\":1795687201.25,\"request\":{\"uri\":\"/\"},\"duration\":0.25,\"size\":12,\"status\":200}\n",
        "JSON",
        &[(0, 250_000, 200, 12)],
    );
    let haproxy = "192.0.2.1:4000 [26/Nov/2026:10:00:01.123] front back/one 0/0/1/7/9 200 1234 - - ---- 1/1/0/0/0 0/0 \"GET / HTTP/1.1\"\n";
    assert_read(haproxy, "haproxy", &[(0, 9_000, 200, 1234)]);
    let syslog = format!("Nov 26 10:00:01 host haproxy[77]: {haproxy}");
    assert_read(&syslog, "haproxy", &[(0, 9_000, 200, 1234)]);
    assert_read(
        "[2026-11-26T10:00:01.310Z] \"POST /a HTTP/2\" 503 UF 154 20 226 100 \"-\" \"curl\"\n",
        "envoy",
        &[(0, 226_000, 503, 20)],
    );
}

#[test]
fn format_can_be_given() {
    let text = "GET / 12 0.5 [26/Nov/2026:10:00:01 +0000] 200\n";
    let nginx = "$request_method $uri $bytes_sent $request_time [$time_local] $status";
    let (summary, rows) = of(text, Some(nginx)).expect("it is read");
    assert_eq!((summary.requests, rows[0].bytes), (1, 12));
    let apache = "%m %U %O %T %t %>s";
    let (_, rows) = of(text, Some(apache)).expect("it is read");
    assert_eq!(rows[0].end_ns - rows[0].start_ns, 500_000_000);
    for wrong in [
        "",
        "combined",
        "$status",
        "%t %s",
        "$time_local$request_time",
    ] {
        let error = wrong.parse::<Format>().expect_err(wrong);
        assert!(error.to_string().contains("$request_time"), "{error}");
    }
}

#[test]
fn lines_without_a_latency_are_counted_apart() {
    let good = "h - - [26/Nov/2026:10:00:01 +0000] \"GET / HTTP/1.1\" 500 1 \"-\" \"-\" 0.010\n";
    let text = format!("{good}{good}{}garbage\n\n", good.replace("0.010", "-"));
    let (summary, rows) = of(&text, None).expect("it is read");
    assert_eq!(
        (summary.requests, summary.untimed, summary.unreadable),
        (2, 1, 1)
    );
    assert_eq!(rows[0].error, Outcome::Status);
    assert_eq!(summary.epoch_unix_ns, 1_795_687_200_990_000_000);
}

#[test]
fn log_without_latencies_is_an_error_which_says_what_to_add() {
    let combined = "h - - [26/Nov/2026:10:00:01 +0000] \"GET / HTTP/1.1\" 200 1 \"-\" \"-\"\n";
    let error = of(combined, None).expect_err("no time taken").to_string();
    assert!(
        error.contains("$request_time") && error.contains("%D"),
        "{error}"
    );
    assert!(of("", None).is_err());
    let error = of("x\n", Some("nginx"))
        .expect_err("another format")
        .to_string();
    assert!(error.contains("format nginx"), "{error}");
}

proptest::proptest! {
    #[test]
    fn no_line_is_a_panic(line: Vec<u8>) {
        let templates = ["nginx", "apache", "haproxy", "envoy", "json"];
        for format in templates {
            let _ = format.parse::<Format>().expect("a format").entry(&line);
        }
    }

    #[test]
    fn no_format_is_a_panic(text: String) {
        let _ = text.parse::<Format>();
    }
}
