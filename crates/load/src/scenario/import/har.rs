//! HTTP archives (HAR 1.2), as browsers save them.
//!
//! The requests to one host become one flow, in their order. Gaps between them become think times.
//! Cookies are left out, since a scenario has no cookies of its own; `Authorization` becomes a variable of
//! the environment.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{FileOut, ImportError, Imported, StepOut, literal, sendable};

/// A shorter gap is the browser's, not the user's.
const THINK_MIN_MS: f64 = 50.0;
/// A longer gap is a pause of the recording.
const THINK_MAX_MS: f64 = 60_000.0;

#[derive(Deserialize)]
struct Archive {
    log: Log,
}

#[derive(Deserialize)]
struct Log {
    entries: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    #[serde(default)]
    started_date_time: String,
    #[serde(default)]
    time: f64,
    request: Request,
    response: Option<Response>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request {
    method: String,
    url: String,
    #[serde(default)]
    headers: Vec<Named>,
    post_data: Option<PostData>,
}

#[derive(Deserialize)]
struct Response {
    #[serde(default)]
    status: i64,
}

#[derive(Deserialize)]
struct Named {
    name: String,
    value: String,
}

#[derive(Deserialize)]
struct PostData {
    #[serde(default)]
    text: String,
}

/// Headers that belong to the browser, to its cache or to the connection.
const LEFT_OUT: [&str; 14] = [
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "cookie",
    "user-agent",
    "accept-encoding",
    "referer",
    "origin",
    "if-none-match",
    "if-modified-since",
    "cache-control",
    "pragma",
    "upgrade-insecure-requests",
];

/// Makes a scenario from an archive. Without a host it is that of the first request.
///
/// ```
/// let archive = r#"{"log": {"entries": [
///     {"request": {"method": "GET", "url": "https://a.example/b?c=d"}}
/// ]}}"#;
/// let imported = headway_load::scenario::from_har(archive, None)?;
/// assert!(imported.text.contains("path = \"/b?c=d\""));
/// # Ok::<(), headway_load::scenario::ImportError>(())
/// ```
///
/// # Errors
/// The text is not an archive, or has no request to the host.
pub fn from_har(text: &str, host: Option<&str>) -> Result<Imported, ImportError> {
    let archive: Archive = serde_json::from_str(text)
        .map_err(|error| ImportError(format!("it is not an HTTP archive (HAR): {error}")))?;
    let entries = &archive.log.entries;
    let first = entries.iter().find_map(|entry| split(&entry.request.url));
    let Some((first, _)) = first else {
        return Err(ImportError(
            "it has no request with http:// or https://".to_owned(),
        ));
    };
    let host = host.unwrap_or(first);
    let mut notes = Vec::new();
    let (mut steps, mut others, mut methods) = (Vec::new(), 0_u64, 0_u64);
    let mut last_end_ms = None;
    for entry in entries {
        let Some((_, path)) = split(&entry.request.url).filter(|(found, _)| *found == host) else {
            others += 1;
            continue;
        };
        if entry
            .request
            .method
            .parse::<crate::engine::Method>()
            .is_err()
        {
            methods += 1;
            continue;
        }
        let start_ms = clock_ms(&entry.started_date_time);
        if let (Some(start_ms), Some(end_ms), Some(before)) =
            (start_ms, last_end_ms, steps.last_mut())
        {
            think(before, start_ms - end_ms);
        }
        last_end_ms = start_ms.map(|start_ms| start_ms + entry.time);
        steps.push(step(entry, path));
    }
    if others > 0 {
        notes.push(format!(
            "{others} requests to other hosts are left out; name one with --host"
        ));
    }
    if methods > 0 {
        notes.push(format!(
            "{methods} requests with other methods are left out"
        ));
    }
    let mut steps = steps.into_iter();
    let Some(mut first) = steps.next() else {
        return Err(ImportError(format!("it has no request to {host}")));
    };
    first.then = steps.collect();
    let all = std::iter::once(&first).chain(&first.then);
    if all
        .clone()
        .any(|step| step.headers.contains_key("Authorization"))
    {
        notes.push(
            "set AUTHORIZATION in the environment: the recorded value is not copied".to_owned(),
        );
    }
    let head =
        format!("# From an HTTP archive of {host}. One flow: the requests in their order.\n");
    let text = FileOut { step: vec![first] }.text(&head)?;
    Ok(Imported { text, notes })
}

fn step(entry: &Entry, path: &str) -> StepOut {
    let request = &entry.request;
    let mut headers = BTreeMap::new();
    for Named { name, value } in &request.headers {
        let lower = name.to_ascii_lowercase();
        let is_own = name.starts_with(':') || lower.starts_with("sec-");
        if is_own || LEFT_OUT.contains(&lower.as_str()) {
            continue;
        }
        match lower.as_str() {
            "authorization" => {
                headers.insert(
                    "Authorization".to_owned(),
                    "{{env.AUTHORIZATION}}".to_owned(),
                );
            }
            _ => {
                headers.insert(name.clone(), literal(value));
            }
        }
    }
    let name = path.split('?').next().unwrap_or(path);
    let body = request.post_data.as_ref().map(|data| literal(&data.text));
    let status = entry
        .response
        .as_ref()
        .and_then(|one| u16::try_from(one.status).ok());
    StepOut {
        name: format!("{} {name}", request.method.to_ascii_uppercase()),
        method: Some(request.method.to_ascii_uppercase()),
        path: sendable(&literal(path)),
        // 304 was an answer to the cache of the browser.
        status: status.filter(|status| (300..600).contains(status) && *status != 304),
        body,
        headers,
        ..StepOut::default()
    }
}

fn think(before: &mut StepOut, gap_ms: f64) {
    if gap_ms >= THINK_MIN_MS {
        before.think = Some(format!("{:.0}ms", gap_ms.min(THINK_MAX_MS)));
    }
}

/// Host with port, and path with query.
fn split(url: &str) -> Option<(&str, &str)> {
    let rest = url
        .strip_prefix("https://")
        .or(url.strip_prefix("http://"))?;
    let rest = rest.split('#').next().unwrap_or(rest);
    match rest.find(['/', '?']) {
        Some(at) if rest[at..].starts_with('/') => Some((&rest[..at], &rest[at..])),
        Some(_) => None,
        None => Some((rest, "/")),
    }
}

/// Milliseconds since midnight of `2026-01-02T03:04:05.678Z`; all times of a file have one zone.
fn clock_ms(time: &str) -> Option<f64> {
    let (_, clock) = time.split_once('T')?;
    let end = clock.find(['Z', '+', '-']).unwrap_or(clock.len());
    let mut fields = clock[..end].split(':');
    let mut next = || fields.next()?.parse::<f64>().ok();
    let (hours, minutes, seconds) = (next()?, next()?, next()?);
    Some(((hours * 60.0 + minutes) * 60.0 + seconds) * 1e3)
}
