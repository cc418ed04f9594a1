//! Spans for OpenTelemetry: the collector, and which requests are sampled.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use std::str::FromStr;

use super::error::Findings;
use super::ranges::{span, value};
use super::settings::Settings;
use super::tls;

/// Where spans go by default below the endpoint (OTLP/HTTP).
const TRACES: &str = "/v1/traces";
const SCHEMES: [&str; 2] = ["http://", "https://"];
/// What is printed in the place of the value of a header, which may be a token.
pub(super) const HIDDEN: &str = "(hidden)";

/// The spans of requests.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtlpConfig {
    /// The URL of the collector for spans.
    pub endpoint: String,
    /// The part of new traces that is sampled.
    pub sampling: Percent,
    /// The name of the service.
    pub service_name: String,
    /// Headers of each request to the collector.
    pub headers: Vec<(String, String)>,
    /// Certificates of authorities for the collector; `None` for those of the system.
    pub authorities: Option<PathBuf>,
}

/// Without the values of headers.
impl std::fmt::Debug for OtlpConfig {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| &**name).collect();
        out.debug_struct("OtlpConfig")
            .field("endpoint", &self.endpoint)
            .field("sampling", &self.sampling)
            .field("service_name", &self.service_name)
            .field("headers", &names)
            .field("authorities", &self.authorities)
            .finish()
    }
}

/// A part of a whole, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Percent(pub u32);

impl Percent {
    const ALL: Percent = Percent(1_000_000);

    /// The part of all numbers of 56 bits that are below this.
    pub fn threshold_56(self) -> u64 {
        ((u128::from(self.0) << 56) / 1_000_000) as u64
    }
}

impl FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Percent, String> {
        let invalid = || format!("`{text}` is not a percentage, such as \"10%\" or \"0.5%\"");
        let number = text.strip_suffix('%').unwrap_or(text).trim_end();
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty()
            || whole.len() > 3
            || part.len() > 4
            || !is_number(whole)
            || !is_number(part)
        {
            return Err(invalid());
        }
        let whole: u32 = whole.parse().map_err(|_| invalid())?;
        let part: u32 = format!("{part:0<4}").parse().map_err(|_| invalid())?;
        match whole * 10_000 + part {
            millionths @ ..=1_000_000 => Ok(Percent(millionths)),
            _ => Err(format!("`{text}` is more than 100%")),
        }
    }
}

impl std::fmt::Display for Percent {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (whole, part) = (self.0 / 10_000, self.0 % 10_000);
        let part = format!("{part:04}");
        match part.trim_end_matches('0') {
            "" => write!(out, "{whole}%"),
            part => write!(out, "{whole}.{part}%"),
        }
    }
}

/// Returns how spans are exported, if they are.
pub(super) fn otlp(from: &Settings, to: &mut Findings<'_>) -> Option<OtlpConfig> {
    let Some(item) = &from.otlp_endpoint else {
        report_without_endpoint(from, to);
        return None;
    };
    let written = item.get_ref().trim_end_matches('/');
    let rest = SCHEMES
        .iter()
        .find_map(|scheme| written.strip_prefix(scheme));
    let authority = rest.map(|rest| rest.split('/').next().unwrap_or(""));
    let is_plain = |c: char| c.is_ascii_graphic() && !"?#\"<>\\^`{|}@".contains(c);
    if authority.is_none_or(str::is_empty) || !written.chars().all(is_plain) {
        let problem = format!(
            "`{}` is not the URL of a collector, such as http://127.0.0.1:4318",
            item.get_ref()
        );
        to.usage_error("otlp-endpoint", Some(item.span()), problem);
    }
    if from.otlp_ca.is_some() && written.starts_with(SCHEMES[0]) {
        let problem =
            "the collector is reached without TLS; write https in otlp-endpoint, or remove it";
        to.usage_error("otlp-ca", span(&from.otlp_ca), problem.into());
    }
    if value(&from.trace_context) == Some(false) {
        let problem =
            "spans need the trace of each request; remove trace-context, or otlp-endpoint";
        to.usage_error("trace-context", span(&from.trace_context), problem.into());
    }
    let headers = from.otlp_headers.as_ref();
    let headers = headers.map(|item| item.get_ref().clone().into_iter().collect());
    let headers: Vec<(String, String)> = headers.unwrap_or_default();
    for (name, value) in &headers {
        let is_token =
            |byte: u8| byte.is_ascii_alphanumeric() || b"-_.!#$%&'*+^`|~".contains(&byte);
        let is_value = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
        if name.is_empty() || !name.bytes().all(is_token) || !value.bytes().all(is_value) {
            let problem = format!("`{name}` and its value do not make a header");
            to.usage_error("otlp-headers", span(&from.otlp_headers), problem);
        }
        if value == HIDDEN {
            let problem = format!("the value of `{name}` was hidden by --check; write it here");
            to.usage_error("otlp-headers", span(&from.otlp_headers), problem);
        }
    }
    Some(OtlpConfig {
        endpoint: match written.ends_with(TRACES) {
            true => written.to_owned(),
            false => format!("{written}{TRACES}"),
        },
        sampling: value(&from.otlp_sampling).unwrap_or(Percent::ALL),
        service_name: (from.otlp_service_name.as_ref())
            .map_or_else(|| "headway".into(), |item| item.get_ref().clone()),
        headers,
        authorities: (from.otlp_ca.as_ref()).map(|item| tls::file("otlp-ca", item, to)),
    })
}

/// Reports settings without an effect.
fn report_without_endpoint(from: &Settings, to: &mut Findings<'_>) {
    if from.has_faults {
        return;
    }
    for (key, position) in [
        ("otlp-sampling", span(&from.otlp_sampling)),
        ("otlp-service-name", span(&from.otlp_service_name)),
        ("otlp-headers", span(&from.otlp_headers)),
        ("otlp-ca", span(&from.otlp_ca)),
    ] {
        if position.is_some() {
            let problem = "there is no collector; set otlp-endpoint as well";
            to.usage_error(key, position, problem.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentage_is_written_as_it_is_read() {
        for (text, millionths, shown) in [
            ("100%", 1_000_000, "100%"),
            ("10", 100_000, "10%"),
            ("0.5%", 5_000, "0.5%"),
            ("0.0001%", 1, "0.0001%"),
            ("0%", 0, "0%"),
        ] {
            let percent: Percent = text.parse().unwrap();
            assert_eq!(
                (percent.0, percent.to_string().as_str()),
                (millionths, shown)
            );
            assert_eq!(shown.parse(), Ok(percent));
        }
        for text in ["", "%", "101%", "-1", "1e1", "0.00001%", "ten", "1.-1"] {
            assert!(text.parse::<Percent>().is_err(), "{text}");
        }
        assert_eq!(Percent::ALL.threshold_56(), 1 << 56);
        assert_eq!(Percent(500_000).threshold_56(), 1 << 55);
    }
}
