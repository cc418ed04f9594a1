//! The keys of the configuration file as Markdown, from their declaration in the server.

use headway_server::config::keys::{Key, Topic, reference};
use headway_server::config::value::Accepts;
use std::fmt::Write;

use headway_cli_support::command_line::wrapped;

const INTRODUCTION: &str = "\
`headway serve --config FILE` reads a TOML file. Every key of the top level is also an option of the command line, \
which takes precedence. This page is generated from the code.

`headway serve --config FILE --check` validates a file and prints the effective settings; `--json` prints them as \
JSON under the same keys. All mistakes of a file are reported at once, each with its line.

The keys that rebuild the servers of the papers are in the research book (`docs/research`).";

const VALUES: &str = concat!(
    "| type | how it is written |\n",
    "|---|---|\n",
    "| time | `\"500ms\"`, `\"10s\"`, `\"5m\"`, `\"1h\"`, or a number of seconds |\n",
    "| size | `\"64KiB\"`, `\"1MB\"` (1,000,000 bytes), or a number of bytes |\n",
    "| boolean | `true` or `false`; on the command line `--name`, `--name=on` or `--name=off` |\n",
    "| address | `\"127.0.0.1:8080\"`, `\"[::1]:8080\"`, `\":8080\"` (all IPv4 addresses) or `8080` (this machine only) |\n",
    "| path | text; a relative path starts at the directory of the file |\n",
    "| list | one value, or several in brackets: `[\"a\", \"b\"]`; on the command line the option is repeated |\n",
);

const EXAMPLE: &str = "\
```toml
listen = \":8080\"
root = \"/srv/www\"
status = 9090
log = \"/var/log/headway/access.log\"

[error-pages]
404 = \"/srv/errors/404.html\"

[mime-types]
md = \"text/markdown\"

[[header]]
prefix = \"/assets/\"
name = \"Cache-Control\"
value = \"max-age=31536000, immutable\"

[[host]]
names = [\"example.com\", \"*.example.com\"]
root = \"/srv/example\"

[[host.location]]
prefix = \"/app/\"
proxy = [\"127.0.0.1:3000\", \"127.0.0.1:3001\"]
```
";

/// The page of the guide: every key but those for research.
pub fn page() -> String {
    let mut out = String::from("# Configuration\n\n");
    for paragraph in INTRODUCTION.split("\n\n") {
        out += &wrapped("", paragraph);
        out.push('\n');
    }
    out += &format!("## Values\n\n{VALUES}\n## Example\n\n{EXAMPLE}");
    topics(&mut out, |topic| topic != Topic::Research);
    out
}

/// The page of the research book: the keys for research.
pub fn research_page() -> String {
    let mut out = String::from("# Configuration for research\n");
    topics(&mut out, |topic| topic == Topic::Research);
    out
}

fn topics(out: &mut String, wanted: impl Fn(Topic) -> bool) {
    let mut keys = reference();
    keys.retain(|key| wanted(key.topic));
    keys.sort_by_key(|key| key.topic);
    let mut topic = None;
    for key in &keys {
        if topic != Some(key.topic) {
            topic = Some(key.topic);
            let _ = write!(out, "\n## {}\n", key.topic.title());
            if let Some(about) = introduction(key.topic) {
                let _ = write!(out, "\n{}", wrapped("", about));
            }
        }
        section(out, key);
    }
}

/// What is to be known before the keys of a topic.
fn introduction(topic: Topic) -> Option<&'static str> {
    Some(match topic {
        Topic::Research => {
            "These keys rebuild the servers of the papers for comparisons. A server for users needs none."
        }
        Topic::Host => {
            "Each `[[host]]` table is a virtual host. It inherits from the top level what it leaves out. \
             The first host is the default; a `root` at the top level makes a default host of its own."
        }
        Topic::Header => "Each `[[header]]` table adds one header to the responses below a path.",
        Topic::Location => {
            "Each `[[location]]` table sends the requests of some paths to a handler. At the top level it applies \
             to every host, as `[[host.location]]` to the host above it. It needs `prefix` or `suffix`, and exactly \
             one handler: `files`, `cgi`, `direct`, `pipe`, `fastcgi`, `scgi`, `proxy` or `application`."
        }
        _ => return None,
    })
}

fn section(out: &mut String, key: &Key) {
    let table = match key.table {
        "" => String::new(),
        table => format!("{table}."),
    };
    let _ = write!(out, "\n### {table}{}\n\n", key.name);
    let text = match key.detail.as_str() {
        "" => format!("{}.", key.summary),
        detail => format!("{}. {detail}", key.summary),
    };
    let _ = writeln!(out, "{}", wrapped("", &text));
    let unit = match key.form.unit {
        "" => String::new(),
        unit => format!(" (without a unit: {unit})"),
    };
    let list = match (key.form.is_list, key.form.accepts) {
        (true, Accepts::Table) | (false, _) => "",
        (true, _) => " or list",
    };
    let default = match key.default.contains(' ') || key.default == "none" {
        true => key.default.to_owned(),
        false => format!("`{}`", key.default),
    };
    let example = match key.form.accepts {
        Accepts::Table if key.form.is_list => key.example.to_owned(),
        _ => key.example_line(),
    };
    let option = match (key.table.is_empty() && !key.is_table(), key.name.as_str()) {
        (false, _) => String::new(),
        (true, "root") => " · option: the argument `DIR`".to_owned(),
        (true, name) => format!(" · option: `--{name}`"),
    };
    let kind = key.form.name;
    let facts = format!("{kind}{list}{unit} · default: {default} · example: `{example}`{option}");
    let _ = write!(out, "{}", wrapped("", &facts));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_page_has_every_key_once() {
        let page = page() + &research_page();
        for key in reference() {
            let heading = match key.table {
                "" => format!("\n### {}\n", key.name),
                table => format!("\n### {table}.{}\n", key.name),
            };
            assert_eq!(page.matches(&heading).count(), 1, "{heading}");
        }
        assert!(
            page.lines().all(|line| line.chars().count() <= 120),
            "{page}"
        );
    }
}
