//! Where figures per second go: `csv=FILE`, `prometheus=URL`, `otlp=URL`.

use std::path::PathBuf;
use std::str::FromStr;

use headway_latency::export::Format;
use http::Uri;

/// An output of figures per second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeriesOutput {
    /// A file with a line per second.
    File(Format, PathBuf),
    /// A server that takes metrics.
    Metrics(MetricsReceiver),
}

/// A server that takes metrics while a run goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsReceiver {
    /// What it understands.
    pub protocol: MetricsProtocol,
    /// Where metrics are sent.
    pub url: String,
}

/// How metrics are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsProtocol {
    /// Prometheus remote write 1.0.
    RemoteWrite,
    /// OTLP over HTTP, in Protobuf.
    Otlp,
}

const FORMS: &str = "write csv=FILE, json=FILE, hdr=FILE, prometheus=URL or otlp=URL";

/// Where a collector takes metrics if a URL has no path.
const OTLP_PATH: &str = "/v1/metrics";

impl FromStr for SeriesOutput {
    type Err = String;

    fn from_str(text: &str) -> Result<SeriesOutput, String> {
        let Some((kind, target)) = text
            .split_once('=')
            .filter(|(_, target)| !target.is_empty())
        else {
            return Err(format!(
                "{FORMS}; the directory of a run is the value of --output"
            ));
        };
        let file = |format| Ok(SeriesOutput::File(format, target.into()));
        match kind {
            "csv" => file(Format::Csv),
            "json" => file(Format::JsonLines),
            "hdr" => file(Format::HdrLog),
            "prometheus" => receiver(MetricsProtocol::RemoteWrite, target),
            "otlp" => receiver(MetricsProtocol::Otlp, target),
            _ => Err(format!("`{kind}` is not a kind of output; {FORMS}")),
        }
    }
}

fn receiver(protocol: MetricsProtocol, url: &str) -> Result<SeriesOutput, String> {
    let parsed = url.parse::<Uri>().ok();
    let scheme = parsed.as_ref().and_then(Uri::scheme_str);
    let authority = parsed.as_ref().and_then(Uri::authority);
    let url = match (scheme, authority) {
        (Some("http" | "https"), Some(authority)) if authority.as_str().contains('@') => {
            return Err("the URL may not have a user name or a password".to_owned());
        }
        (Some("http" | "https"), Some(_)) => url,
        _ => {
            let example = match protocol {
                MetricsProtocol::RemoteWrite => {
                    "for Prometheus it is http://HOST:9090/api/v1/write"
                }
                MetricsProtocol::Otlp => "for a collector it is http://HOST:4318",
            };
            return Err(format!("{url} is not the URL of a receiver; {example}"));
        }
    };
    let has_path = parsed.is_some_and(|url| url.path() != "/");
    let url = match protocol {
        MetricsProtocol::Otlp if !has_path => format!("{}{OTLP_PATH}", url.trim_end_matches('/')),
        _ => url.to_owned(),
    };
    Ok(SeriesOutput::Metrics(MetricsReceiver { protocol, url }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_a_file_or_a_receiver() {
        let parsed = |text: &str| text.parse::<SeriesOutput>();
        let file = |format, path: &str| Ok(SeriesOutput::File(format, path.into()));
        assert_eq!(parsed("csv=a=b.csv"), file(Format::Csv, "a=b.csv"));
        assert_eq!(parsed("json=x"), file(Format::JsonLines, "x"));
        assert_eq!(parsed("hdr=/tmp/x"), file(Format::HdrLog, "/tmp/x"));
        let url = "https://metrics.example/api/v1/push";
        let receiver = |protocol, url: &str| {
            let url = url.to_owned();
            Ok(SeriesOutput::Metrics(MetricsReceiver { protocol, url }))
        };
        let expected = receiver(MetricsProtocol::RemoteWrite, url);
        assert_eq!(parsed(&format!("prometheus={url}")), expected);
        for (given, url) in [
            ("http://[::1]:4318", "http://[::1]:4318/v1/metrics"),
            ("https://host/", "https://host/v1/metrics"),
            (
                "https://host/otlp/v1/metrics",
                "https://host/otlp/v1/metrics",
            ),
        ] {
            let expected = receiver(MetricsProtocol::Otlp, url);
            assert_eq!(parsed(&format!("otlp={given}")), expected);
        }
        for (wrong, part) in [
            ("run", "--output"),
            ("csv=", "csv=FILE"),
            ("influxdb=x", "`influxdb`"),
            ("prometheus=localhost:9090", "api/v1/write"),
            ("prometheus=http://a:b@host/", "password"),
            ("otlp=localhost:4318", "HOST:4318"),
        ] {
            let error = parsed(wrong).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
