//! The parts of a page, as a test compares them.

use std::fs;
use std::path::Path;

/// The page's headings, figures and table columns against `tests/data/NAME.outline`.
pub fn assert_outline(name: &str, html: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/{name}.outline"));
    let found = outline(html);
    if std::env::var_os("HEADWAY_UPDATE_GOLDEN").is_some() {
        fs::create_dir_all(path.parent().expect("a file has a directory"))
            .expect("the directory of the outlines");
        fs::write(&path, &found).expect("the outline");
    }
    let wanted = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        found,
        wanted,
        "{}: HEADWAY_UPDATE_GOLDEN=1 writes it anew",
        path.display()
    );
}

fn outline(html: &str) -> String {
    let mut lines = Vec::new();
    for element in html.split('<').skip(1) {
        let (tag, text) = element.split_once('>').unwrap_or((element, ""));
        let name = tag.split(' ').next().unwrap_or_default();
        let id = tag
            .split("id=\"")
            .nth(1)
            .and_then(|rest| rest.split('"').next())
            .unwrap_or_default();
        match name {
            "h1" | "h2" => lines.push(format!("{name} {text}")),
            "figure" => lines.push(format!("  figure {id}")),
            "svg" if tag.contains("aria-label") => {
                let label = tag
                    .split("aria-label=\"")
                    .nth(1)
                    .and_then(|rest| rest.split('"').next());
                lines.push(format!("    drawing {}", label.unwrap_or_default()));
            }
            "summary" => lines.push("    numbers".into()),
            _ => {}
        }
    }
    lines.dedup();
    lines.join("\n") + "\n"
}

/// Every element that is opened is closed, in order. A browser would repair the page, each in its
/// own way.
pub fn assert_nested(html: &str) {
    let mut open: Vec<&str> = Vec::new();
    let style_end = html.find("</style>").expect("a style sheet");
    for element in html[style_end..].split('<').skip(1) {
        let (tag, text) = element.split_once('>').expect("a tag ends");
        assert!(!text.contains('>'), "a bare > after <{tag}");
        let name = tag
            .trim_start_matches('/')
            .split([' ', '/'])
            .next()
            .expect("a tag has a name");
        if tag.starts_with('/') {
            match open.pop() {
                Some(last) => assert_eq!(last, name, "closed out of order"),
                // The style sheet, the head, and what was opened before them.
                None => assert!(
                    ["style", "head", "html"].contains(&name),
                    "{name} was never opened"
                ),
            }
        } else if !tag.ends_with('/') && !["br", "meta", "path", "rect", "!doctype"].contains(&name)
            || (["path", "rect"].contains(&name) && !tag.ends_with('/'))
        {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "never closed: {open:?}");
}
