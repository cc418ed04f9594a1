//! Mistakes in `[[header]]` and `[[location]]`, each with its line and key.

use super::mistakes::Mistake;

pub(super) const MISTAKES_OF_TABLES: &[Mistake] = &[
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
        &["location.redirect", "needs a prefix"],
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
