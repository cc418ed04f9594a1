//! The keys of the configuration file as Markdown, from their declaration in the server.

use headway_server::config::keys::{Key, Topic};
use headway_server::config::value::Accepts;
use std::fmt::Write;

use crate::command_line::wrapped;

/// The sections of these keys, by topic.
pub fn sections(mut keys: Vec<Key>) -> String {
    let mut out = String::new();
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
        section(&mut out, key);
    }
    out
}

/// The name of a key with its table.
pub fn title(key: &Key) -> String {
    match key.table {
        "" | "research" => key.name.clone(),
        table => format!("{table}.{}", key.name),
    }
}

/// What is to be known before the keys of a topic.
fn introduction(topic: Topic) -> Option<&'static str> {
    Some(match topic {
        Topic::Research => {
            "These keys rebuild the servers of the papers for comparisons. `headway-lab serve` has them, `headway serve` \
             does not. They stand in the table `[research]`, and are options as well."
        }
        Topic::Host => {
            "Each `[[host]]` table is a virtual host. It inherits from the top level what it leaves out. \
             The first host is the default; a `root` at the top level makes a default host of its own."
        }
        Topic::Header => {
            "Each `[[header]]` table is a rule: it changes one header of the responses that match. At the top level it is \
             for every host, as `[[host.header]]` for the host above it. Where several rules set one header, the most exact \
             one wins. A rule of the host is more exact than one of all hosts. Next counts the longer prefix, then the \
             longer suffix, then a media type, then fewer statuses. Of equal rules the later one wins."
        }
        Topic::Cors => {
            "Each `[[cors]]` table says which pages of other origins may read responses of some paths (CORS). At the top \
             level it is for every host, as `[[host.cors]]` for the host above it. One rule counts for a path: that of the \
             host, then that with the longest prefix. The server answers preflights by itself, and replaces what an \
             upstream says about origins."
        }
        Topic::Location => {
            "Each `[[location]]` table sends the requests of some paths to a handler. At the top level it applies \
             to every host, as `[[host.location]]` to the host above it. It needs `prefix` or `suffix`, and exactly \
             one handler: `files`, `cgi`, `direct`, `fastcgi`, `scgi`, `proxy`, `redirect` or `application`."
        }
        _ => return None,
    })
}

fn section(out: &mut String, key: &Key) {
    let _ = write!(out, "\n### {}\n\n", title(key));
    let text = match key.detail.as_str() {
        "" => format!("{}.", key.summary),
        detail => format!("{}. {detail}", key.summary),
    };
    let _ = writeln!(out, "{}", wrapped("", &text));
    let unit = match key.form.unit {
        "" => String::new(),
        unit => format!(" ({unit})"),
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
    // All other options are called as their key.
    let option = match (key.is_option(), key.name.as_str()) {
        (true, "root") => " · option: the argument `DIR`",
        _ => "",
    };
    let kind = key.form.name;
    let facts = format!("{kind}{list}{unit} · default: {default} · example: `{example}`{option}");
    let _ = write!(out, "{}", wrapped("", &facts));
}
