//! Response headers that can be configured: `Server`, rules for others, and media types.
//!
//! Names and values are checked here once, so that no value can end its line and begin another
//! header (RFC 9110 section 5.5).

use std::ops::Range;
use toml::Spanned;

use super::error::Findings;
use super::keys::{Setting, Tables};
use super::ranges::{tables, value};
use super::settings::{HeaderSettings, Settings};
use super::{HeaderAction, HeaderRule, StatusRange};

/// Headers that frame the message or state what only the server knows.
const OWN_HEADERS: &[&str] = &[
    "accept-ranges",
    "allow",
    "connection",
    "content-encoding",
    "content-length",
    "content-range",
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

/// The rules of the top level or of a host.
pub(super) fn rules(
    from: &Setting<Tables<HeaderSettings>>,
    to: &mut Findings<'_>,
) -> Vec<HeaderRule> {
    let written = tables(from).iter();
    written
        .filter_map(|item| rule(item.get_ref(), item.span(), to))
        .collect()
}

fn rule(own: &HeaderSettings, span: Range<usize>, to: &mut Findings<'_>) -> Option<HeaderRule> {
    let text = |item: &Setting<String>| item.as_ref().map(|item| item.get_ref().clone());
    let action = value(&own.action).unwrap_or_default();
    let is_removed = action == HeaderAction::Remove;
    let written = text(&own.value).or_else(|| is_removed.then(String::new));
    let (Some(name), Some(value)) = (text(&own.name), written) else {
        if !own.has_faults {
            let problem = "a header needs a name and a value: name = \"Cache-Control\", value = \"max-age=60\"";
            to.usage_error("header", Some(span), problem.into());
        }
        return None;
    };
    let when = own.when.as_ref().map(|list| list.get_ref().0.clone());
    let rule = HeaderRule {
        prefix: text(&own.prefix).unwrap_or_else(|| "/".into()),
        suffix: text(&own.suffix).unwrap_or_default(),
        content_type: text(&own.content_type)
            .unwrap_or_default()
            .to_ascii_lowercase(),
        when: when.unwrap_or_else(|| vec![StatusRange::SUCCESS]),
        action,
        name,
        value,
    };
    check_rule(&rule, own, span, to);
    Some(rule)
}

fn check_rule(rule: &HeaderRule, own: &HeaderSettings, span: Range<usize>, to: &mut Findings<'_>) {
    let name = &rule.name;
    let mut usage_error = |key: &str, item: &Setting<String>, problem: String| {
        let position = item.as_ref().map_or(span.clone(), Spanned::span);
        to.usage_error(key, Some(position), problem);
    };
    if !rule.prefix.starts_with('/') {
        let problem = format!("the prefix `{}` does not begin with a slash", rule.prefix);
        usage_error("header.prefix", &own.prefix, problem);
    }
    if !is_media_range(&rule.content_type) {
        let problem = format!(
            "`{}` is not a media type, such as text/html or image/*; write it without parameters",
            rule.content_type
        );
        usage_error("header.content-type", &own.content_type, problem);
    }
    let is_content_type = name.eq_ignore_ascii_case("content-type");
    if !is_token(name) {
        let problem = format!("`{name}` is not a header name, such as Cache-Control");
        usage_error("header.name", &own.name, problem);
    } else if OWN_HEADERS.contains(&name.to_ascii_lowercase().as_str()) {
        let problem = format!("{name} is set by the server itself");
        usage_error("header.name", &own.name, problem);
    } else if is_content_type && rule.action != HeaderAction::Set {
        let problem = format!("{name} can only be set, with action = \"set\"");
        usage_error("header.name", &own.name, problem);
    }
    let removes = rule.action == HeaderAction::Remove;
    if removes && !rule.value.is_empty() {
        let problem = format!("{name} is removed, so it has no value; leave the value out");
        usage_error("header.value", &own.value, problem);
    } else if !is_value(&rule.value) {
        let problem = format!("the value of {name} has a control or non-ASCII character");
        usage_error("header.value", &own.value, problem);
    }
    if rule.when.is_empty() {
        let problem = "an empty list matches no response; without `when` the rule is for success";
        to.usage_error(
            "header.when",
            own.when.as_ref().map(Spanned::span),
            problem.into(),
        );
    }
}

/// A media type without parameters, all of a kind, or nothing.
fn is_media_range(text: &str) -> bool {
    text.is_empty()
        || text
            .split_once('/')
            .is_some_and(|(main, sub)| is_token(main) && main != "*" && is_token(sub))
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
pub(super) fn is_token(text: &str) -> bool {
    let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    !text.is_empty() && text.chars().all(token)
}

fn is_value(text: &str) -> bool {
    text.chars()
        .all(|c| c.is_ascii_graphic() || c == ' ' || c == '\t')
}
