//! The rules of `[[header]]`: what they change in the header of a response.
//!
//! They act on the lines that are written already, so they are the last step of a header. They apply
//! from the most general to the most exact; so a more exact rule replaces what a general one has
//! set, and two that only differ in their values are not both sent.

use headway_config::{Config, HeaderAction, HeaderRule, StatusRange};
use headway_files::RootId;
use headway_http::response::{FieldLines, HeadWriter, field_lines};

const CONTENT_TYPE: &str = "Content-Type";

/// All rules, the most exact last.
pub(crate) struct HeaderRules {
    rules: Vec<Rule>,
    needs_media: bool,
}

struct Rule {
    /// Only for this virtual host.
    host: Option<RootId>,
    /// Without the leading slash.
    prefix: Vec<u8>,
    suffix: Vec<u8>,
    /// Media type, or its kind with the slash; empty for any.
    media: String,
    when: Vec<StatusRange>,
    action: HeaderAction,
    name: String,
    line: FieldLines,
}

impl HeaderRules {
    /// The rules of all hosts and of each.
    pub(crate) fn of(config: &Config) -> Self {
        let hsts = config.tls.as_ref().and_then(|tls| tls.hsts_seconds);
        let hsts = hsts.map(HeaderRule::of_hsts);
        let of_all = hsts.iter().chain(&config.headers).map(|rule| (None, rule));
        let of_one = (0..).zip(&config.hosts).flat_map(|(number, host)| {
            let rules = host.headers.iter();
            rules.map(move |rule| (Some(RootId(number)), rule))
        });
        Self::new(of_all.chain(of_one).collect())
    }

    fn new(mut rules: Vec<(Option<RootId>, &HeaderRule)>) -> Self {
        rules.sort_by_key(|(host, rule)| (host.is_some(), rule.exactness()));
        Self {
            needs_media: rules.iter().any(|(_, rule)| !rule.content_type.is_empty()),
            rules: rules
                .into_iter()
                .map(|(host, rule)| Rule::new(host, rule))
                .collect(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether a rule asks for the media type. A 304 and some 206 do not name it.
    pub(crate) fn needs_media(&self) -> bool {
        self.needs_media
    }

    /// Changes the header that `writer` has written, of a host's response for a relative path.
    /// `media`: the type of the content, if its header does not say it.
    pub(crate) fn apply<'o>(
        &self,
        mut writer: HeadWriter<'o>,
        host: RootId,
        path: &[u8],
        media: Option<&str>,
    ) -> HeadWriter<'o> {
        let status = writer.status();
        let media = match self.needs_media {
            false => Vec::new(),
            true => {
                let written = writer.value(CONTENT_TYPE);
                let media = media.map(str::as_bytes).or(written);
                media.map_or_else(Vec::new, without_parameters)
            }
        };
        for rule in &self.rules {
            if rule.matches(host, status, path, &media) {
                writer = rule.apply(writer);
            }
        }
        writer
    }
}

impl Rule {
    fn new(host: Option<RootId>, from: &HeaderRule) -> Self {
        let prefix = from.prefix.strip_prefix('/').unwrap_or(&from.prefix);
        let media = from.content_type.strip_suffix('*');
        Self {
            host,
            prefix: prefix.into(),
            suffix: from.suffix.as_bytes().into(),
            media: media.unwrap_or(&from.content_type).into(),
            when: from.when.clone(),
            action: from.action,
            name: from.name.clone(),
            line: field_lines([(&from.name, &from.value)]),
        }
    }

    fn matches(&self, host: RootId, status: u16, path: &[u8], media: &[u8]) -> bool {
        let is_media = match self.media.ends_with('/') {
            true => media.starts_with(self.media.as_bytes()),
            false => self.media.is_empty() || media == self.media.as_bytes(),
        };
        is_media
            && self.host.is_none_or(|own| own == host)
            && path.starts_with(&self.prefix)
            && path.ends_with(&self.suffix)
            && self.when.iter().any(|some| some.contains(status))
    }

    fn apply<'o>(&self, writer: HeadWriter<'o>) -> HeadWriter<'o> {
        match self.action {
            HeaderAction::Append => writer.lines(&self.line),
            HeaderAction::Remove => writer.remove(&self.name),
            HeaderAction::Set if !self.may_set(&writer) => writer,
            HeaderAction::Set => writer.remove(&self.name).lines(&self.line),
        }
    }

    /// The type of content can be set where there is content, and not that of several ranges, which
    /// is about their boundary.
    fn may_set(&self, writer: &HeadWriter<'_>) -> bool {
        !self.name.eq_ignore_ascii_case(CONTENT_TYPE)
            || writer
                .value(CONTENT_TYPE)
                .is_some_and(|own| !own.starts_with(b"multipart/byteranges"))
    }
}

/// A media type in lower case.
fn without_parameters(media: &[u8]) -> Vec<u8> {
    let end = media.iter().position(|byte| *byte == b';');
    let bare = &media[..end.unwrap_or(media.len())];
    bare.trim_ascii_end().to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use headway_http::{Status, Version};

    use super::*;

    fn rule(prefix: &str, name: &str, value: &str) -> HeaderRule {
        HeaderRule {
            prefix: prefix.into(),
            suffix: String::new(),
            content_type: String::new(),
            when: vec![StatusRange::SUCCESS],
            action: HeaderAction::Set,
            name: name.into(),
            value: value.into(),
        }
    }

    /// The lines after the status line of a response for `path`, which has a type and an own cookie.
    fn written(rules: &[HeaderRule], status: Status, path: &str) -> String {
        let rules = HeaderRules::new(rules.iter().map(|rule| (None, rule)).collect());
        let mut out = b"earlier".to_vec();
        let writer = HeadWriter::new(&mut out, Version::Http11, status)
            .field("Content-Type", "Text/HTML; charset=utf-8")
            .field("Set-Cookie", "own");
        rules.apply(writer, RootId(0), path.as_bytes(), None).end();
        let text = String::from_utf8(out).unwrap();
        let (_, lines) = text.split_once("\r\n").unwrap();
        let lines = lines.strip_suffix("\r\n\r\n").unwrap();
        let own = "Content-Type: Text/HTML; charset=utf-8\r\nSet-Cookie: own";
        lines.replace(own, "(own)").replace("\r\n", "; ")
    }

    #[test]
    fn more_exact_rule_replaces_a_general_one_in_any_order() {
        let general = rule("/", "Cache-Control", "no-cache");
        let exact = rule("/static/", "cache-control", "immutable");
        for rules in [
            [general.clone(), exact.clone()],
            [exact.clone(), general.clone()],
        ] {
            let at = |path| written(&rules, Status::OK, path);
            assert_eq!(at("static/a.js"), "(own); cache-control: immutable");
            assert_eq!(at("a.js"), "(own); Cache-Control: no-cache");
        }
    }

    #[test]
    fn later_rule_replaces_an_earlier_one_that_is_as_exact() {
        let rules = [rule("/", "A", "1"), rule("/", "A", "2")];
        assert_eq!(written(&rules, Status::OK, "x"), "(own); A: 2");
    }

    #[test]
    fn rules_are_for_the_statuses_they_name() {
        let cached = rule("/", "Cache-Control", "immutable");
        let always = HeaderRule {
            when: vec!["404".parse().unwrap(), "success".parse().unwrap()],
            ..rule("/", "X-Frame-Options", "DENY")
        };
        let rules = [cached, always];
        let at = |status| written(&rules, status, "x");
        // The rule for more statuses is the more general one.
        for status in [Status::OK, Status::NOT_MODIFIED, Status::PARTIAL_CONTENT] {
            let both = "(own); X-Frame-Options: DENY; Cache-Control: immutable";
            assert_eq!(at(status), both);
        }
        assert_eq!(at(Status::NOT_FOUND), "(own); X-Frame-Options: DENY");
        assert_eq!(at(Status::FORBIDDEN), "(own)");
    }

    #[test]
    fn rules_are_for_the_suffix_and_the_media_type_they_name() {
        let scripts = HeaderRule {
            suffix: ".js".into(),
            ..rule("/", "A", "script")
        };
        let text = HeaderRule {
            content_type: "text/*".into(),
            ..rule("/", "B", "text")
        };
        let page = HeaderRule {
            content_type: "text/html".into(),
            ..rule("/", "C", "page")
        };
        let image = HeaderRule {
            content_type: "image/*".into(),
            ..rule("/", "D", "image")
        };
        let rules = [scripts, text, page, image];
        let lines = written(&rules, Status::OK, "a.js");
        assert!(
            lines.contains("A: script") && lines.contains("B: text") && lines.contains("C: page")
        );
        assert!(!lines.contains("D: image"), "{lines}");
        assert!(!written(&rules, Status::OK, "a.jsx").contains("A: script"));
    }

    #[test]
    fn rule_of_a_host_is_for_that_host_and_more_exact_than_all_others() {
        let exact = rule("/static/", "A", "all");
        let own = rule("/", "A", "own");
        let rules = HeaderRules::new(vec![(Some(RootId(1)), &own), (None, &exact)]);
        let of = |host| {
            let mut out = Vec::new();
            let writer = HeadWriter::new(&mut out, Version::Http11, Status::OK);
            rules.apply(writer, RootId(host), b"static/a", None).end();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(of(0), "HTTP/1.1 200 OK\r\nA: all\r\n\r\n");
        assert_eq!(of(1), "HTTP/1.1 200 OK\r\nA: own\r\n\r\n");
    }

    #[test]
    fn headers_are_appended_and_removed() {
        let append = HeaderRule {
            action: HeaderAction::Append,
            ..rule("/", "Set-Cookie", "more")
        };
        let remove = HeaderRule {
            action: HeaderAction::Remove,
            ..rule("/a/", "set-cookie", "")
        };
        let rules = [append, remove];
        assert_eq!(written(&rules, Status::OK, "b"), "(own); Set-Cookie: more");
        let kept = "Content-Type: Text/HTML; charset=utf-8";
        assert_eq!(written(&rules, Status::OK, "a/b"), kept);
    }

    #[test]
    fn media_type_is_replaced_where_there_is_one() {
        let rule = rule("/", "Content-Type", "text/plain");
        let rules = HeaderRules::new(vec![(None, &rule)]);
        let head = |own: Option<&str>| {
            let mut out = Vec::new();
            let writer = HeadWriter::new(&mut out, Version::Http11, Status::OK)
                .field_if_some("Content-Type", own);
            rules.apply(writer, RootId(0), b"a", None).end();
            String::from_utf8(out).unwrap().replace("\r\n", "|")
        };
        assert_eq!(
            head(Some("a/b")),
            "HTTP/1.1 200 OK|Content-Type: text/plain||"
        );
        assert_eq!(head(None), "HTTP/1.1 200 OK||");
        let several = "multipart/byteranges; boundary=x";
        assert_eq!(
            head(Some(several)),
            format!("HTTP/1.1 200 OK|Content-Type: {several}||")
        );
    }
}
