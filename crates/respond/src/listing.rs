//! Renders directory listings. This runs in a helper process, because a directory may have
//! thousands of entries.

use headway_base::html::escaped;
use headway_files::{Directory, EntryKind};
use headway_http::path::normalise;

/// Renders the page of a directory.
pub fn render(directory: &Directory) -> Vec<u8> {
    let title = escaped(&String::from_utf8_lossy(&directory.path));
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>Index of /{title}</title>\n\
         <style>:root{{color-scheme:light dark}}body{{font:16px/1.5 system-ui,sans-serif;margin:2rem}}\
         td{{padding:0 1.5rem 0 0}}td+td{{text-align:right;font-variant-numeric:tabular-nums}}</style>\n\
         <h1>Index of /{title}</h1>\n<table>\n"
    );
    if !directory.path.is_empty() {
        page.push_str("<tr><td><a href=\"../\">../</a><td><td>\n");
    }
    let served = directory.entries.iter().filter(|entry| is_served(entry));
    for entry in served {
        row(&mut page, entry);
    }
    page.push_str("</table>\n");
    if directory.truncated {
        page.push_str("<p>Not all entries are shown.</p>\n");
    }
    page.push_str("</html>\n");
    page.into_bytes()
}

/// Whether a request for the entry by its link would be a request for its name: paths with control
/// characters, for example, are refused.
fn is_served(entry: &headway_files::DirectoryEntry) -> bool {
    let link = super::encode_path(&entry.name);
    normalise(link.as_bytes()).is_ok_and(|path| *path.bytes == entry.name[..])
}

fn row(page: &mut String, entry: &headway_files::DirectoryEntry) {
    let slash = if entry.kind == EntryKind::Directory {
        "/"
    } else {
        ""
    };
    // "./" keeps a name with a colon from being read as a scheme.
    // An ampersand is safe in a URI, but not in an attribute: `a&lt.txt` would become `a<.txt`.
    let link = escaped(&super::encode_path(&entry.name));
    let name = escaped(&String::from_utf8_lossy(&entry.name));
    let size = if slash.is_empty() {
        entry.size.to_string()
    } else {
        String::from("–")
    };
    let date = headway_http::date::format(entry.modified);
    let date = String::from_utf8_lossy(&date);
    page.push_str(&format!(
        "<tr><td><a href=\"./{link}{slash}\">{name}{slash}</a><td>{size}<td>{date}\n"
    ));
}
