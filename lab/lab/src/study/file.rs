//! The written form of a study, before any of its names mean anything.
//!
//! Places in the text are kept where a later check may have to point at them.

use serde::Deserialize;
use std::collections::BTreeMap;
use toml::Spanned;

use super::scaled::{Scale, Scaled};
use headway_latency::study::result::PaperCell;

/// A whole file, a study or `common.toml`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct File {
    pub number: Option<u32>,
    pub name: Option<Spanned<String>>,
    pub title: String,
    pub source: String,
    pub question: String,
    pub notes: Vec<String>,
    pub differences: Vec<String>,
    pub server: BTreeMap<String, Spanned<ServerTable>>,
    pub environment: BTreeMap<String, Spanned<EnvironmentTable>>,
    pub workload: BTreeMap<String, Spanned<WorkloadTable>>,
    pub scale: BTreeMap<Spanned<String>, ScaleTable>,
    pub measure: Vec<Spanned<MeasureTable>>,
    pub table: Vec<Spanned<Table>>,
    pub figure: Vec<Spanned<Figure>>,
    pub claim: Vec<Spanned<Claim>>,
}

/// A server, `[server.NAME]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct ServerTable {
    pub kind: String,
    pub label: Option<String>,
    pub workers: Option<Scaled<usize>>,
    pub processes: Option<Scaled<usize>>,
    pub helpers: Option<Scaled<Helpers>>,
    pub access_log: bool,
    pub arguments: Vec<String>,
    pub connections: Option<Scaled<usize>>,
    pub accept_limit: Option<usize>,
}

/// A number of helpers, or the word `adaptive`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "a number of helpers or \"adaptive\"")]
pub enum Helpers {
    Number(usize),
    Word(String),
}

/// An environment, `[environment.NAME]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EnvironmentTable {
    pub extends: Option<String>,
    pub lab: Option<bool>,
    pub set: Option<Scaled<String>>,
    pub files: Option<Scaled<FilesTable>>,
    pub profile: Option<String>,
    pub disk: Option<Scaled<String>>,
    pub filesystem: Option<String>,
    pub overlay: Option<String>,
    pub writers: Option<Scaled<WritersTable>>,
    pub memory: Option<Scaled<String>>,
    pub link: Option<Scaled<String>>,
    #[serde(rename = "client-link")]
    pub client_link: Option<Scaled<String>>,
    pub cpu: Option<Scaled<f64>>,
    pub fill: Option<Scaled<u64>>,
    #[serde(rename = "listen-queue")]
    pub listen_queue: Option<Scaled<u32>>,
}

/// `files = { count = 1, file-size = "2kB" }`: equal files in place of a profile's; without a size,
/// many small ones.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct FilesTable {
    pub count: u64,
    pub file_size: Option<String>,
}

/// `writers = { publish = 20, append = 20, dirty = "5MB" }`, per second.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WritersTable {
    pub publish: f64,
    pub append: f64,
    pub dirty: Option<String>,
}

/// A workload, `[workload.NAME]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct WorkloadTable {
    pub connections: Option<Scaled<u64>>,
    pub idle: Option<Scaled<u64>>,
    pub requests_per_connection: Option<Scaled<u64>>,
    pub timeout: Option<Scaled<String>>,
    pub first_pause: Option<Scaled<String>>,
    pub bandwidth: Option<Scaled<String>>,
    /// `http` or `https`.
    pub scheme: Option<String>,
    /// `http/1.1` or `h2`.
    pub protocol: Option<String>,
    /// Requests that a connection of `h2` carries at once.
    pub streams: Option<Scaled<u64>>,
}

impl WorkloadTable {
    /// Requests at once on a connection of HTTP/2; `None` for HTTP/1.1.
    pub(super) fn streams_at(&self, scale: Scale) -> Result<Option<u64>, String> {
        let streams = self.streams.as_ref().map(|streams| *streams.at(scale));
        match (self.protocol.as_deref(), streams) {
            (None | Some("http/1.1"), None) => Ok(None),
            (None | Some("http/1.1"), Some(_)) => Err(
                "streams are for protocol = \"h2\"; leave streams out, or set this protocol"
                    .to_owned(),
            ),
            (Some("h2"), Some(0)) => Err("streams must be at least 1".to_owned()),
            // Servers speak HTTP/2 without TLS in different ways, if at all.
            (Some("h2"), _) if self.scheme.as_deref() != Some("https") => {
                Err("protocol \"h2\" needs scheme = \"https\"".to_owned())
            }
            (Some("h2"), _) if self.first_pause.is_some() || self.bandwidth.is_some() => Err(
                "protocol \"h2\" has no first-pause and no bandwidth; leave them out".to_owned(),
            ),
            (Some("h2"), streams) => Ok(Some(streams.unwrap_or(1))),
            (Some(other), _) => Err(format!("protocol {other:?}: write http/1.1 or h2")),
        }
    }
}

/// Lengths at a scale, `[scale.quick]`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScaleTable {
    pub repeats: Option<u32>,
    pub seconds: Option<f64>,
    pub warmup: Option<f64>,
    #[serde(rename = "closed-warmup")]
    pub closed_warmup: Option<f64>,
    #[serde(rename = "closed-seconds")]
    pub closed_seconds: Option<f64>,
}

/// A measure, `[[measure]]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MeasureTable {
    pub name: String,
    pub environment: String,
    pub workload: String,
    pub servers: Option<Scaled<Vec<String>>>,
    pub points: Option<Scaled<Vec<String>>>,
    pub observe: Option<String>,
    pub fault: Option<FaultTable>,
    pub probe: Option<ProbeTable>,
    pub repeats: Option<Scaled<u32>>,
    pub seconds: Option<Scaled<f64>>,
    pub warmup: Option<Scaled<f64>>,
    pub order: Option<String>,
    #[serde(rename = "knee-mean")]
    pub knee_mean: Option<Scaled<String>>,
    pub optional: bool,
}

/// `fault = { kind = "stall", at = "3s", for = "10s" }`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultTable {
    pub kind: String,
    pub at: Scaled<String>,
    #[serde(rename = "for")]
    pub length: Scaled<String>,
    #[serde(default)]
    pub factor: Option<f64>,
}

/// `probe = { count = 50, file-size = "8kB", rate = 100 }`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ProbeTable {
    pub count: u64,
    pub file_size: String,
    pub rate: f64,
}

/// A table of results, `[[table]]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Table {
    pub title: String,
    pub unit: String,
    pub digits: Option<u8>,
    pub corner: String,
    pub columns: Vec<String>,
    pub keys: Vec<String>,
    pub draw: Option<String>,
    pub log: bool,
    pub paper: Vec<Spanned<PaperRow>>,
    pub ours: Vec<Spanned<OurRow>>,
}

/// A row as the paper prints it, `[[table.paper]]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PaperRow {
    pub row: String,
    pub cells: Vec<PaperCell>,
}

/// A row of ours, `[[table.ours]]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OurRow {
    pub row: String,
    pub beside: Option<String>,
    pub each: Vec<String>,
    pub cell: Option<Spanned<String>>,
    pub cells: Vec<Spanned<String>>,
    pub absent: Option<String>,
}

/// A figure, `[[figure]]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Figure {
    pub title: String,
    pub kind: String,
    pub measure: String,
    pub servers: Vec<String>,
    pub points: Vec<String>,
}

/// A claim, `[[claim]]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Claim {
    pub text: String,
    pub source: String,
    pub rule: Option<Spanned<String>>,
    pub explain: Option<String>,
    pub expected: Option<String>,
    pub untestable: Option<String>,
}
