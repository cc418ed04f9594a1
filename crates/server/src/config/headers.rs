//! Response fields a person may set: `Server`, extra fields by path, media types.
//!
//! What goes into a response head is checked here once, so that no value can end a line and begin
//! another field (RFC 9110 section 5.5).

use super::error::Findings;
use super::settings::Settings;
use super::{ExtraHeader, check::value};

/// Fields that frame the message or state facts the server alone knows.
const OWN_FIELDS: &[&str] = &[
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
        let problem = "a Server header is given and hidden at once; drop one of the two";
        to.wrong("server-header", Some(item.span()), problem.into());
    }
    let text = item.get_ref();
    if text.is_empty() || !is_value(text) {
        let problem = "must be visible ASCII; use hide-server-header to leave the header out";
        to.wrong("server-header", Some(item.span()), problem.into());
    }
    Some(text.clone())
}

pub(super) fn extra(from: &Settings, to: &mut Findings<'_>) -> Vec<ExtraHeader> {
    let written = from.header.as_deref().unwrap_or_default();
    for item in written {
        let (field, place) = (item.get_ref(), Some(item.span()));
        if !field.prefix.starts_with('/') {
            let problem = format!("the prefix `{}` does not begin with a slash", field.prefix);
            to.wrong("header", place.clone(), problem);
        }
        if !is_token(&field.name) {
            to.wrong(
                "header",
                place.clone(),
                format!("`{}` is not a header name", field.name),
            );
        }
        if OWN_FIELDS.contains(&field.name.to_ascii_lowercase().as_str()) {
            let problem = format!("{} is set by the server itself", field.name);
            to.wrong("header", place.clone(), problem);
        }
        if !is_value(&field.value) {
            let problem = format!(
                "the value of {} has a control or non-ASCII character",
                field.name
            );
            to.wrong("header", place, problem);
        }
    }
    let plain = |item: &toml::Spanned<super::settings::HeaderSettings>| {
        let field = item.get_ref().clone();
        ExtraHeader {
            prefix: field.prefix,
            name: field.name,
            value: field.value,
        }
    };
    written.iter().map(plain).collect()
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
            let problem = format!("`{extension}` is not a file name extension; write \".md\"");
            to.wrong("mime-types", Some(item.span()), problem);
        }
        let (main, sub) = kind.split_once('/').unwrap_or((kind, ""));
        let sub = sub.split(';').next().unwrap_or("").trim_end();
        if !is_token(main) || !is_token(sub) || !is_value(kind) {
            let problem = format!("`{kind}` is not a media type; write \"text/markdown\"");
            to.wrong("mime-types", Some(item.span()), problem);
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
