//! Where figures per second go: `csv=FILE`, `prometheus=URL`.

use std::path::PathBuf;
use std::str::FromStr;

use headway_latency::export::Format;
use http::Uri;

/// An output of figures per second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeriesOutput {
    /// A file with a line per second.
    File(Format, PathBuf),
    /// The URL of a server that takes metrics by Prometheus remote write.
    Prometheus(String),
}

const FORMS: &str = "write csv=FILE, json=FILE, hdr=FILE or prometheus=URL";

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
            "prometheus" => receiver(target),
            _ => Err(format!("`{kind}` is not a kind of output; {FORMS}")),
        }
    }
}

fn receiver(url: &str) -> Result<SeriesOutput, String> {
    let parsed = url.parse::<Uri>().ok();
    let scheme = parsed.as_ref().and_then(Uri::scheme_str);
    let authority = parsed.as_ref().and_then(Uri::authority);
    match (scheme, authority) {
        (Some("http" | "https"), Some(authority)) if authority.as_str().contains('@') => {
            Err("a name and a password in the URL are not possible".to_owned())
        }
        (Some("http" | "https"), Some(_)) => Ok(SeriesOutput::Prometheus(url.to_owned())),
        _ => Err(format!(
            "{url} is not the URL of a receiver; for Prometheus it is http://HOST:9090/api/v1/write"
        )),
    }
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
        let receiver = Ok(SeriesOutput::Prometheus(url.to_owned()));
        assert_eq!(parsed(&format!("prometheus={url}")), receiver);
        for (wrong, part) in [
            ("run", "--output"),
            ("csv=", "csv=FILE"),
            ("influxdb=x", "`influxdb`"),
            ("prometheus=localhost:9090", "api/v1/write"),
            ("prometheus=http://a:b@host/", "password"),
        ] {
            let error = parsed(wrong).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
