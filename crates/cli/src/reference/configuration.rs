//! The keys of the configuration file as Markdown, from their declaration in the server.

use headway_cli_support::command_line::wrapped;
use headway_cli_support::keys;
use headway_server::config::KnownExtensions;
use headway_server::config::keys::reference;

const INTRODUCTION: &str = "\
`headway serve --config FILE` reads a TOML file. Every key of the top level except a table is also an option `--KEY`, \
which takes precedence. A key's type has the unit of a bare number in parentheses. This page is generated from the code.

`headway serve --config FILE --check` validates a file and prints the effective settings; `--json` prints them as \
JSON under the same keys. All mistakes of a file are reported at once, each with its line.

The keys that rebuild the servers of the papers are in the research book (`docs/research`).";

const VALUES: &str = concat!(
    "| type | how it is written |\n",
    "|---|---|\n",
    "| time | `\"500ms\"`, `\"10s\"`, `\"5m\"`, `\"1h\"`, or a number |\n",
    "| size | `\"64KiB\"`, `\"1MB\"` (1,000,000 bytes), or a number |\n",
    "| text | in quotes. `${NAME}` is an environment variable, `${NAME:-DEFAULT}` one which may be missing, `$${` is `${` |\n",
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

/// The page of the guide.
pub fn page() -> String {
    let mut out = String::from("# Configuration\n\n");
    for paragraph in INTRODUCTION.split("\n\n") {
        out += &wrapped("", paragraph);
        out.push('\n');
    }
    out += &format!("## Values\n\n{VALUES}\n## Example\n\n{EXAMPLE}");
    out += &keys::sections(reference(KnownExtensions::NONE));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_page_has_every_key_once_and_none_for_research() {
        let page = page();
        for key in reference(KnownExtensions::NONE) {
            let heading = format!("\n### {}\n", keys::title(&key));
            assert_eq!(page.matches(&heading).count(), 1, "{heading}");
        }
        assert!(!page.contains("preset") && !page.contains("fork-in-server"));
        assert!(
            page.lines().all(|line| line.chars().count() <= 120),
            "{page}"
        );
    }
}
