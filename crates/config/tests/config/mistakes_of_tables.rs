//! Mistakes in tables such as `[[header]]` and `[[location]]`, and of Unix sockets, each with its line and key.

use super::mistakes::Mistake;

pub(super) const MISTAKES_OF_TABLES: &[Mistake] = &[
    (
        "\nlisten-mode = \"600\"",
        2,
        &["listen-mode: there is no Unix socket"],
    ),
    (
        "listen = \"unix:s\"\nlisten-mode = \"rw-\"",
        2,
        &["listen-mode: `rw-` is not a mode as of chmod"],
    ),
    (
        "listen = \"unix:s\"\nlisten-mode = 660",
        2,
        &["listen-mode: `660` is not a mode, such as \"660\""],
    ),
    (
        "listen = \"unix:s\"\nlisten-owner = \"no-such-user\"",
        2,
        &["listen-owner: ", "no-such-user"],
    ),
    (
        "listen = [\"unix:s\", \"unix:./s\"]",
        1,
        &["is listed twice"],
    ),
    ("listen = \"unix:\"", 1, &["`unix:` has no path"]),
    (
        "listen = \"/run/s\"",
        1,
        &[
            "`/run/s` is not an address to listen on",
            "unix:/run/headway.sock",
        ],
    ),
    (
        "status = \"unix:/run/s\"",
        1,
        &["`unix:/run/s` is not an address to listen on"],
    ),
    (
        "listen = \"8080\"\n[[host]]\nroot = \".\"\nlisten = [\"8080\", \":8081\"]",
        4,
        &["host.listen: the server does not listen at 0.0.0.0:8081, only at 127.0.0.1:8080"],
    ),
    (
        "listen = [\"8080\", \"8081\"]\n[[host]]\nroot = \".\"\nlisten = \"8080\"",
        1,
        &["listen: no host is served at 127.0.0.1:8081"],
    ),
    (
        "otlp-endpoint = \"localhost:4318\"",
        1,
        &["otlp-endpoint: `localhost:4318` is not the URL of a collector"],
    ),
    (
        "otlp-sampling = \"10%\"",
        1,
        &["otlp-sampling: there is no collector; set otlp-endpoint"],
    ),
    (
        "otlp-endpoint = \"http://c\"\notlp-sampling = \"200%\"",
        2,
        &["otlp-sampling: `200%` is more than 100%"],
    ),
    (
        "otlp-endpoint = \"http://c\"\ntrace-context = false",
        2,
        &["trace-context: spans need the trace of each request"],
    ),
    (
        "otlp-endpoint = \"http://c\"\notlp-headers = { \"a b\" = \"c\" }",
        2,
        &["otlp-headers: `a b` and its value do not make a header"],
    ),
    (
        "otlp-endpoint = \"http://c\"\notlp-headers = { a = \"(hidden)\" }",
        2,
        &["otlp-headers: the value of `a` was hidden by --check; write it here"],
    ),
    (
        "error-log-level = \"notice\"",
        1,
        &["error-log-level: `notice` is not a level; write one of error, warn, info, debug"],
    ),
    (
        "[[host]]\nroot = \".\"\nlisten = []",
        3,
        &["host.listen: at least one address is needed"],
    ),
    (
        "listen = [\"8080\", \"8081\"]\n[[host]]\nroot = \".\"\nnames = \"a\"\n\
         [[host]]\nroot = \".\"\nlisten = \"8081\"",
        5,
        &["a host without names is never used"],
    ),
    (
        "listen = [\"8080\", \"8081\"]\n[[host]]\nroot = \".\"\nnames = \"a\"\n\
         [[host]]\nroot = \".\"\nlisten = \"8081\"\nnames = \"a\"",
        8,
        &["host.names: `a` is the name of two hosts"],
    ),
    ("[[cors]]\nprefix = \"/a/\"", 1, &["a rule needs origins"]),
    (
        "[[cors]]\norigins = \"*\"\ncredentials = true",
        2,
        &["cors.origins: browsers do not accept * with credentials"],
    ),
    (
        "[[cors]]\norigins = \"https://a.example\"\nheaders = \"*\"\ncredentials = true",
        3,
        &["cors.headers: browsers do not accept * with credentials"],
    ),
    (
        "[[cors]]\norigins = [\"*\", \"https://a.example\"]",
        2,
        &["cors.origins: * stands for all"],
    ),
    (
        "[[cors]]\norigins = \"https://a.example/\"",
        2,
        &["`https://a.example/` is not an origin"],
    ),
    (
        "[[host]]\nroot = \"site\"\nlog-format = \"json\"",
        3,
        &["host.log-format: there is a format but no file"],
    ),
    (
        "[[host]]\nroot = \"site\"\nlog = \"none/x.log\"",
        3,
        &["host.log: the directory ", "create it"],
    ),
    ("[[cors]]\norigins = []", 2, &["at least one origin"]),
    (
        "[[cors]]\norigins = \"*\"\nmethods = \"GET, PUT\"",
        3,
        &["`GET, PUT` is not a name of a header or method"],
    ),
    (
        "[[cors]]\norigins = \"*\"\nprefix = \"api\"",
        3,
        &["cors.prefix: the prefix `api` does not begin"],
    ),
    (
        "[[cors]]\norigins = \"*\"\nmax-age = \"2d\"",
        3,
        &["cors.max-age: 172800s is not within"],
    ),
    (
        "[[host]]\nroot = \"site\"\nnames = \"a.example\"\ncanonical = \"b.example\"",
        4,
        &["host.canonical: `b.example` is not one of names"],
    ),
    (
        "[[host]]\nroot = \"site\"\nnames = \"a.example\"\ncanonical = \"https://a.example/\"",
        4,
        &["host.canonical: `https://a.example/` is not a host name"],
    ),
    (
        "[[host]]\nroot = \"site\"\nnames = \"*.example\"\ncanonical = \"*.example\"",
        4,
        &["host.canonical: `*.example` is not a host name"],
    ),
    (
        "[[header]]\nprefix = \"x\"\nname = \"A\"\nvalue = \"b\"",
        2,
        &["header", "slash"],
    ),
    (
        "[[header]]\nname = \"A B\"\nvalue = \"b\"",
        2,
        &["header", "`A B` is not a header name"],
    ),
    (
        "[[header]]\nname = \"content-length\"\nvalue = \"0\"",
        2,
        &["set by the server itself"],
    ),
    (
        "[[header]]\nname = \"A\"\nvalue = \"b\\r\\nC: d\"",
        3,
        &["header", "control"],
    ),
    (
        "[[header]]\nname = \"A\"",
        1,
        &["a header needs a name and a value"],
    ),
    (
        "[[location]]\nprefix = \"/\"\nproxy = \"127.0.0.1:1\"\nstrip-prefix = true",
        4,
        &["location.strip-prefix", "needs a prefix"],
    ),
    (
        "[[location]]\nprefix = \"/a b/\"\nproxy = \"127.0.0.1:1\"\nstrip-prefix = true",
        4,
        &["location.strip-prefix", "letters, digits"],
    ),
    (
        "[[location]]\nprefix = \"/a/\"\nfastcgi = \"127.0.0.1:1\"\nstrip-prefix = true",
        4,
        &["location.strip-prefix", "only for proxy"],
    ),
    (
        "[[location]]\nsuffix = \".old\"\nredirect = \"/new/*\"",
        3,
        &["location.redirect", "needs a prefix or a path"],
    ),
    (
        "[[location]]\nprefix = \"/a/\"\nredirect = \"/a/b/*\"",
        3,
        &["location.redirect", "leads to itself"],
    ),
    (
        "[[location]]\nprefix = \"/a/\"\nredirect = \"/b/*\"\nredirect-status = 304",
        4,
        &["location.redirect-status", "not 301"],
    ),
    (
        "[[location]]\nprefix = \"/a/\"\nfiles = true\nredirect-status = 301",
        4,
        &["location.redirect-status", "only for redirect"],
    ),
    (
        "[[header]]\nname = \"ETag\"\naction = \"remove\"",
        2,
        &["set by the server itself"],
    ),
    (
        "[[header]]\nname = \"Content-Type\"\naction = \"remove\"",
        2,
        &["can only be set"],
    ),
    (
        "[[header]]\nname = \"A\"\naction = \"remove\"\nvalue = \"b\"",
        4,
        &["header.value", "leave the value out"],
    ),
    (
        "[[header]]\nname = \"A\"\nvalue = \"b\"\naction = \"add\"",
        4,
        &["header.action", "set, append, remove"],
    ),
    (
        "[[header]]\nname = \"A\"\nvalue = \"b\"\nwhen = \"sometimes\"",
        4,
        &["header.when", "a class such as 4xx"],
    ),
    (
        "[[header]]\nname = \"A\"\nvalue = \"b\"\nwhen = []",
        4,
        &["header.when", "matches no response"],
    ),
    (
        "[[header]]\nname = \"A\"\nvalue = \"b\"\ncontent-type = \"html\"",
        4,
        &["header.content-type", "text/html"],
    ),
];
