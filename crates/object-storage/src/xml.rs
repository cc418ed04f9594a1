//! What is between two tags. Answers of S3 are flat, have no attributes that matter, and a fixed set of names.

/// The contents of all elements with this name, which does not contain itself.
pub(crate) fn elements<'t>(text: &'t str, name: &str) -> Vec<&'t str> {
    let (begin, end) = (format!("<{name}>"), format!("</{name}>"));
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once(&begin) {
        let Some((content, after)) = after.split_once(&end) else {
            break;
        };
        found.push(content);
        rest = after;
    }
    found
}

/// The text of the first element with this name.
pub(crate) fn text(of: &str, name: &str) -> Option<String> {
    elements(of, name).first().map(|content| decoded(content))
}

/// Without entities.
fn decoded(content: &str) -> String {
    let mut parts = content.split('&');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (entity, after) = part.split_once(';').unwrap_or((part, ""));
        match character(entity) {
            Some(character) => out.push(character),
            None => out.push('\u{fffd}'),
        }
        out.push_str(after);
    }
    out
}

fn character(entity: &str) -> Option<char> {
    match entity {
        "amp" => Some('&'),
        "lt" => Some('<'),
        "gt" => Some('>'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        _ => {
            let number = entity.strip_prefix('#')?;
            let code = match number.strip_prefix('x') {
                Some(hex) => u32::from_str_radix(hex, 16),
                None => number.parse(),
            };
            char::from_u32(code.ok()?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_found_and_decoded() {
        let answer = "<?xml version=\"1.0\"?><A xmlns=\"b\"><Part><ETag>&quot;x&#34;</ETag></Part><Part><ETag>y</ETag>\
             </Part><Key>a&amp;b&lt;&#x41;&nothing;</Key><Empty/></A>";
        let parts = elements(answer, "Part");
        assert_eq!(parts.len(), 2);
        assert_eq!(text(parts[0], "ETag").as_deref(), Some("\"x\""));
        assert_eq!(text(answer, "Key").as_deref(), Some("a&b<A\u{fffd}"));
        assert_eq!(text(answer, "Empty"), None);
        assert_eq!(text("<Key>cut", "Key"), None);
    }
}
