//! Response headers that can be configured: `Server`, additional ones by path, and media types.
//!
//! Names and values are checked here once, so that no value can end its line and begin another
//! header (RFC 9110 section 5.5).

use std::ops::Range;
use toml::Spanned;

use super::ExtraHeader;
use super::error::Findings;
use super::keys::Setting;
use super::ranges::{tables, value};
use super::settings::{HeaderSettings, Settings};

/// Headers that frame the message or state what only the server knows.
const OWN_HEADERS: &[&str] = &[
    "accept-ranges",
    "allow",
    "connection",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "date",
    "etag",
    "keep-alive",
    "last-modified",
    "location",
    "server",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "vary",
];

pub(super) fn server(from: &Settings, to: &mut Findings<'_>) -> Option<String> {
    let hidden = value(&from.hide_server_header).unwrap_or(false);
    let Some(item) = &from.server_header else {
        return (!hidden).then(|| "Headway".into());
    };
    if hidden {
        let problem = "it cannot be combined with hide-server-header; remove one of the two";
        to.usage_error("server-header", Some(item.span()), problem.into());
    }
    let text = item.get_ref();
    if text.is_empty() || !is_value(text) {
        let problem = "must be visible ASCII; use hide-server-header to leave the header out";
        to.usage_error("server-header", Some(item.span()), problem.into());
    }
    Some(text.clone())
}

pub(super) fn extra(from: &Settings, to: &mut Findings<'_>) -> Vec<ExtraHeader> {
    let written = tables(&from.header).iter();
    written
        .filter_map(|item| header(item.get_ref(), item.span(), to))
        .collect()
}

fn header(own: &HeaderSettings, span: Range<usize>, to: &mut Findings<'_>) -> Option<ExtraHeader> {
    let text = |item: &Setting<String>| item.as_ref().map(|item| item.get_ref().clone());
    let (Some(name), Some(value)) = (text(&own.name), text(&own.value)) else {
        if !own.has_faults {
            let problem = "a header needs a name and a value: name = \"Cache-Control\", value = \"max-age=60\"";
            to.usage_error("header", Some(span), problem.into());
        }
        return None;
    };
    let prefix = text(&own.prefix).unwrap_or_else(|| "/".into());
    let mut usage_error = |key: &str, item: &Setting<String>, problem: String| {
        let position = item.as_ref().map_or(span.clone(), Spanned::span);
        to.usage_error(key, Some(position), problem);
    };
    if !prefix.starts_with('/') {
        let problem = format!("the prefix `{prefix}` does not begin with a slash");
        usage_error("header.prefix", &own.prefix, problem);
    }
    if !is_token(&name) {
        let problem = format!("`{name}` is not a header name, such as Cache-Control");
        usage_error("header.name", &own.name, problem);
    } else if OWN_HEADERS.contains(&name.to_ascii_lowercase().as_str()) {
        usage_error(
            "header.name",
            &own.name,
            format!("{name} is set by the server itself"),
        );
    }
    if !is_value(&value) {
        let problem = format!("the value of {name} has a control or non-ASCII character");
        usage_error("header.value", &own.value, problem);
    }
    Some(ExtraHeader {
        prefix,
        name,
        value,
    })
}

pub(super) fn mime_types(from: &Settings, to: &mut Findings<'_>) -> Vec<(String, String)> {
    let Some(item) = &from.mime_types else {
        return Vec::new();
    };
    let mut media = Vec::new();
    for (extension, kind) in item.get_ref() {
        let bare = extension
            .strip_prefix('.')
            .unwrap_or(extension)
            .to_ascii_lowercase();
        if bare.is_empty() || bare.contains(['/', '\0']) {
            let problem = format!(
                "`{extension}` is not a file name extension; example: md = \"text/markdown\""
            );
            to.usage_error("mime-types", Some(item.span()), problem);
        }
        let (main, sub) = kind.split_once('/').unwrap_or((kind, ""));
        let sub = sub.split(';').next().unwrap_or("").trim_end();
        if !is_token(main) || !is_token(sub) || !is_value(kind) {
            let problem = format!("`{kind}` is not a media type; example: md = \"text/markdown\"");
            to.usage_error("mime-types", Some(item.span()), problem);
        }
        media.push((bare, kind.clone()));
    }
    media
}

/// RFC 9110 section 5.6.2.
fn is_token(text: &str) -> bool {
    let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    !text.is_empty() && text.chars().all(token)
}

fn is_value(text: &str) -> bool {
    text.chars()
        .all(|c| c.is_ascii_graphic() || c == ' ' || c == '\t')
}
