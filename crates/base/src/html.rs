//! Text on its way into a page of HTML or SVG.

/// The text as element content or as an attribute in double quotes.
///
/// The five characters that end a text or an attribute become references. Characters that HTML
/// forbids (most controls) and those that reorder their neighbours on screen (bidirectional
/// overrides) become U+FFFD, so that a name cannot appear as another one.
///
/// ```
/// assert_eq!(headway_base::html::escaped("<b a='1'>&"), "&lt;b a=&#39;1&#39;&gt;&amp;");
/// ```
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(character),
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => out.push('\u{fffd}'),
            _ if character.is_control() || noncharacter(character) => out.push('\u{fffd}'),
            _ => out.push(character),
        }
    }
    out
}

/// Unicode's 66 noncharacters, which HTML calls parse errors.
fn noncharacter(character: char) -> bool {
    let code = u32::from(character);
    (0xfdd0..=0xfdef).contains(&code) || code & 0xfffe == 0xfffe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_text_is_escaped() {
        let hostile = "</title><script>alert(1)</script>\" onload='x' &amp;";
        let safe = escaped(hostile);
        assert!(!safe.contains(['<', '>', '"', '\'']), "{safe}");
        assert!(safe.ends_with("&amp;amp;"));
    }

    #[test]
    fn control_characters_in_a_name_are_replaced() {
        assert_eq!(
            escaped("a\u{202e}b\u{0}c\u{ffff}d\re\u{fdd0}"),
            "a\u{fffd}b\u{fffd}c\u{fffd}d\u{fffd}e\u{fffd}"
        );
        assert_eq!(escaped("naïve — µs 語\n"), "naïve — µs 語\n");
    }
}
