//! Sends batches to the collector, one request for each.
//!
//! A collector that is busy or cannot be reached is tried again, after a time which doubles. Meanwhile the queue fills, and
//! drops what does not fit. What a collector refuses is dropped at once.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use headway_base::error_line::json;
use headway_config::OtlpConfig;
use headway_http_client::{Client, RequestError, Timeouts};
use http::{Request, Response};

use crate::batches::Batches;

const TIMEOUTS: Timeouts = Timeouts {
    connect: Duration::from_secs(5),
    io: Duration::from_secs(10),
    response: Duration::from_secs(10),
};
/// Tries of a batch in all.
const ATTEMPTS_MAX: u32 = 4;
const PAUSE: Duration = Duration::from_secs(1);
/// A collector may not ask for a longer pause.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// What sends batches to a collector.
pub(crate) struct Exporter {
    client: Client,
    config: OtlpConfig,
    /// What is before the spans in each request.
    begin: Vec<u8>,
}

const END: &[u8] = b"]}]}]}";

/// Why a batch has not arrived.
enum Failure {
    /// It may be tried again, after this time.
    Passing(String, Option<Duration>),
    Lasting(String),
}

impl Exporter {
    pub(crate) fn new(config: OtlpConfig) -> Result<Exporter, RequestError> {
        let authorities: Option<&PathBuf> = config.authorities.as_ref();
        let client = match config.endpoint.starts_with("https:") {
            true => Client::new(authorities.map(PathBuf::as_path), TIMEOUTS)?,
            false => Client::without_tls(TIMEOUTS),
        };
        let attribute = |key: &str, value: &str| {
            format!(
                "{{\"key\":\"{key}\",\"value\":{{\"stringValue\":{}}}}}",
                json(value)
            )
        };
        let node = rustix::system::uname();
        let name = node.nodename().to_string_lossy();
        let begin = format!(
            "{{\"resourceSpans\":[{{\"resource\":{{\"attributes\":[{},{},{}]}},\"scopeSpans\":[{{\"scope\":\
             {{\"name\":\"headway\",\"version\":\"{}\"}},\"spans\":[",
            attribute("service.name", &config.service_name),
            attribute("host.name", &name),
            attribute("telemetry.sdk.name", "headway"),
            env!("CARGO_PKG_VERSION")
        );
        Ok(Exporter {
            client,
            config,
            begin: begin.into_bytes(),
        })
    }

    /// Sends batches until the end.
    pub(crate) fn run(&self, batches: &Batches) {
        while let Some(batch) = batches.take() {
            self.send(&batch, batches);
        }
    }

    fn send(&self, batch: &[Box<[u8]>], batches: &Batches) {
        let (spans, body) = (batch.len() as u64, self.body(batch));
        let mut pause = PAUSE;
        for attempt in 1.. {
            match self.try_send(&body) {
                Ok(rejected) => {
                    let rejected = rejected.min(spans);
                    let why = (rejected > 0).then(|| "the collector has rejected spans".to_owned());
                    return batches.finish(spans - rejected, rejected, why);
                }
                Err(Failure::Passing(why, wanted)) => {
                    let length = wanted.unwrap_or(pause).min(PAUSE_MAX);
                    pause *= 2;
                    // At the end there is no time for another try.
                    if attempt == ATTEMPTS_MAX || batches.pause(length) {
                        return batches.finish(0, spans, Some(why));
                    }
                }
                Err(Failure::Lasting(why)) => return batches.finish(0, spans, Some(why)),
            }
        }
    }

    fn body(&self, batch: &[Box<[u8]>]) -> Bytes {
        let mut body = self.begin.clone();
        for (at, span) in batch.iter().enumerate() {
            if at > 0 {
                body.push(b',');
            }
            body.extend_from_slice(span);
        }
        body.extend_from_slice(END);
        body.into()
    }

    /// Returns how many spans the collector has rejected.
    fn try_send(&self, body: &Bytes) -> Result<u64, Failure> {
        let mut request = Request::post(&self.config.endpoint);
        request = request.header("content-type", "application/json");
        for (name, value) in &self.config.headers {
            request = request.header(name, value);
        }
        let request = request.body(body.clone());
        let request = request.map_err(|error| Failure::Lasting(error.to_string()))?;
        let response = self.client.exchange(&request);
        let response = response.map_err(|error| Failure::Passing(error.to_string(), None))?;
        let status = response.status().as_u16();
        let endpoint = &self.config.endpoint;
        match status {
            200..300 => Ok(rejected_spans(response.body())),
            // As OTLP/HTTP says.
            429 | 502 | 503 | 504 => Err(Failure::Passing(
                format!("{endpoint} answered {status}"),
                retry_after(&response),
            )),
            _ => Err(Failure::Lasting(format!("{endpoint} answered {status}"))),
        }
    }
}

/// The number in a partial success.
fn rejected_spans(body: &[u8]) -> u64 {
    let Ok(answer) = serde_json::from_slice::<serde_json::Value>(body) else {
        return 0;
    };
    let rejected = &answer["partialSuccess"]["rejectedSpans"];
    // JSON of Protobuf has 64-bit numbers as text.
    let text = rejected.as_str().and_then(|text| text.parse().ok());
    rejected.as_u64().or(text).unwrap_or(0)
}

fn retry_after(response: &Response<Bytes>) -> Option<Duration> {
    let value = response.headers().get(http::header::RETRY_AFTER)?;
    let seconds = value.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_success_has_a_number_in_either_form() {
        for (body, expected) in [
            ("", 0),
            ("{}", 0),
            ("{\"partialSuccess\":{}}", 0),
            ("{\"partialSuccess\":{\"rejectedSpans\":3}}", 3),
            ("{\"partialSuccess\":{\"rejectedSpans\":\"4\"}}", 4),
        ] {
            assert_eq!(rejected_spans(body.as_bytes()), expected, "{body}");
        }
    }
}
