//! How one setting is read, from a value of the file or from the text of an option.
//!
//! Both go through [`Value::parse`], so that the same text means the same in both places and is
//! answered with the same message.

use std::collections::BTreeMap;
use std::path::PathBuf;
use toml::Spanned;
use toml::de::{DeInteger, DeValue};

use super::error::{Findings, SECRETS};
use super::strategy::{Sandbox, SendMethod};
use super::units::{AcceptBatch, Bytes, Helpers, ListenAddress, Millis, OneOrMany};
use super::variables;
use super::{AcmeChallenge, CipherSuite, ClientCertificate, Handshakes, Offload, TlsVersion};
use super::{
    EarlyReject, Endpoint, ErrorFormat, ErrorLevel, EtagSource, Fallback, FileMode, HeaderAction,
    ListenerMode, LogFormat, Network, Percent, StatusRange, Streams, Symlinks,
};

/// The description of a type of setting, for messages, help and the reference.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// The type's name in the reference.
    pub name: &'static str,
    /// The unit of a number without one; empty where there is none.
    pub unit: &'static str,
    /// The placeholder for the value in the help.
    pub placeholder: &'static str,
    /// The allowed values, as a text after "is not".
    pub expected: &'static str,
    /// The TOML values from which the setting is read.
    pub accepts: Accepts,
    /// Whether an option may be repeated.
    pub is_list: bool,
}

impl Form {
    /// A table of the file, which has no option.
    pub(crate) const TABLE: Form = Form {
        name: "table",
        unit: "",
        placeholder: "TABLE",
        expected: "a table",
        accepts: Accepts::Table,
        is_list: false,
    };
}

/// Which values of TOML a type takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepts {
    /// `true` and `false`; on the command line `on` and `off`.
    Boolean,
    /// Whole numbers.
    Number,
    /// Text in quotes.
    Text,
    /// Text in quotes or a whole number.
    TextOrNumber,
    /// A table.
    Table,
}

/// A value of the file, and the key that it was written for.
#[derive(Clone, Copy)]
pub(crate) struct Written<'v, 't> {
    /// The value.
    pub value: &'v Spanned<DeValue<'t>>,
    /// The key with its tables, for messages.
    pub path: &'v str,
    /// The key alone.
    pub key: &'v str,
    /// A value that is allowed, as TOML.
    pub example: &'v str,
}

/// A type that a setting can have.
pub(crate) trait Value: Sized {
    const FORM: Form;

    /// Reads the text of an option, or of a string, number or boolean in the file.
    fn parse(text: &str) -> Result<Self, String>;

    /// Reads the texts of an option that was given once or several times: the last one counts.
    fn parse_all(texts: &[String]) -> Result<Self, String> {
        Self::parse(texts.last().map_or("", String::as_str))
    }

    /// Adds the value of an included file; `false` if there can be only one.
    fn merge(_: &mut Self, _: Self) -> bool {
        false
    }

    /// Reads a value of the file; what is wrong with it is added to the findings.
    fn read(from: Written<'_, '_>, to: &mut Findings<'_>) -> Option<Self> {
        scalar(from, to)
    }
}

fn scalar<T: Value>(from: Written<'_, '_>, to: &mut Findings<'_>) -> Option<T> {
    let span = from.value.span();
    let read = match (from.value.get_ref(), T::FORM.accepts) {
        (DeValue::String(text), Accepts::Text | Accepts::TextOrNumber) => {
            let text = variables::expand(text, |name| std::env::var(name).ok());
            text.and_then(|text| T::parse(&text))
        }
        (DeValue::Integer(number), Accepts::Number | Accepts::TextOrNumber) => {
            T::parse(&decimal(number))
        }
        (DeValue::Boolean(is_on), Accepts::Boolean) => T::parse(if *is_on { "on" } else { "off" }),
        (found, accepts) => {
            let quoted = matches!(found, DeValue::String(text) if T::parse(text).is_ok());
            let shown = match from.path.starts_with(SECRETS) {
                true => "the value".to_owned(),
                false => to.excerpt(span.clone()),
            };
            let (key, example) = (from.key, from.example);
            Err(match accepts {
                Accepts::Number if quoted => {
                    format!("{shown} is text; write the number without quotes: {key} = {example}")
                }
                _ => {
                    let expected = T::FORM.expected;
                    format!("{shown} is not {expected}; example: {key} = {example}")
                }
            })
        }
    };
    read.map_err(|problem| to.usage_error(from.path, Some(span), problem))
        .ok()
}

/// Numbers of any base; one that is too long for the widest type stays as it is.
fn decimal(number: &DeInteger<'_>) -> String {
    match i128::from_str_radix(number.as_str(), number.radix()) {
        Ok(number) => number.to_string(),
        Err(_) => number.to_string(),
    }
}

macro_rules! numbers {
    ($($type:ty),*) => { $(
        impl Value for $type {
            const FORM: Form = Form {
                name: "number",
                unit: "",
                placeholder: "N",
                expected: "a whole number",
                accepts: Accepts::Number,
                is_list: false,
            };

            fn parse(text: &str) -> Result<Self, String> {
                match text.parse::<i128>() {
                    Err(_) => Err(format!("`{text}` is not a whole number, such as 16")),
                    Ok(number) => <$type>::try_from(number).map_err(|_| match number {
                        ..0 => format!("{number} is negative; write 0 or more"),
                        _ => format!("{number} is too large; write at most {}", <$type>::MAX),
                    }),
                }
            }
        }
    )* };
}

numbers!(u32, u64, usize, i64);

impl Value for bool {
    const FORM: Form = Form {
        name: "boolean",
        unit: "",
        placeholder: "on|off",
        expected: "true or false",
        accepts: Accepts::Boolean,
        is_list: false,
    };

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "on" => Ok(true),
            "off" => Ok(false),
            other => Err(format!("`{other}` is not on or off")),
        }
    }
}

macro_rules! texts {
    ($($type:ty: $name:literal, $placeholder:literal, $unit:literal, $accepts:ident, $expected:literal;)*) => { $(
        impl Value for $type {
            const FORM: Form = Form {
                name: $name,
                unit: $unit,
                placeholder: $placeholder,
                expected: $expected,
                accepts: Accepts::$accepts,
                is_list: false,
            };

            fn parse(text: &str) -> Result<Self, String> {
                text.parse::<$type>().map_err(|error| error.to_string())
            }
        }
    )* };
}

texts! {
    String: "text", "TEXT", "", Text, "text in quotes";
    Millis: "time", "TIME", "seconds", TextOrNumber, "a time, such as \"500ms\", \"10s\" or 10 (seconds)";
    Bytes: "size", "SIZE", "bytes", TextOrNumber, "a size, such as \"64KiB\" or 65536 (bytes)";
    Helpers: "number, range or \"io_uring\"", "N|MIN-MAX|io_uring", "", TextOrNumber, "a number, a range such as \"1-16\", or \"io_uring\"";
    AcceptBatch: "number or \"auto\"", "N|auto", "", TextOrNumber, "a number or \"auto\"";
    ListenAddress: "address", "ADDR", "", TextOrNumber, "an address, such as \"127.0.0.1:8080\"";
    Endpoint: "address", "ADDR", "", TextOrNumber, "an address, such as \"127.0.0.1:8080\"";
    FileMode: "mode", "MODE", "", Text, "a mode, such as \"660\"";
    Network: "network", "NETWORK", "", Text, "an address, a network such as \"10.0.0.0/8\", \"private\" or \"unix\"";
    Fallback: "path", "PATH", "", Text, "a path such as \"/index.html\" or \"$path.html\"";
    EtagSource: "choice", "mtime-size|inode|content", "", Text, "\"mtime-size\", \"inode\" or \"content\"";
    HeaderAction: "choice", "set|append|remove", "", Text, "\"set\", \"append\" or \"remove\"";
    StatusRange: "status", "STATUS", "", TextOrNumber, "\"success\", \"error\", \"any\", a class such as \"4xx\", or a status such as 404";
    Symlinks: "choice", "inside|owner|none|any", "", Text, "\"inside\", \"owner\", \"none\" or \"any\"";
    SendMethod: "choice", "METHOD", "", Text, "one of the methods in quotes";
    Sandbox: "choice", "on|off|required", "", Text, "\"on\", \"off\" or \"required\"";
    ErrorLevel: "choice", "error|warn|info|debug", "", Text, "\"error\", \"warn\", \"info\" or \"debug\"";
    ErrorFormat: "choice", "text|json", "", Text, "\"text\" or \"json\"";
    EarlyReject: "choice", "off|503|reset", "", TextOrNumber, "\"off\", \"503\" or \"reset\"";
    Percent: "percentage", "PERCENT", "percent", TextOrNumber, "a percentage, such as \"10%\"";
    ListenerMode: "choice", "MODE", "", Text, "one of the modes in quotes";
    LogFormat: "choice or template", "FORMAT", "", Text, "\"common\", \"combined\", \"json\" or a template";
    Handshakes: "choice", "process|inline", "", Text, "\"process\" or \"inline\"";
    Offload: "choice", "off|kernel", "", Text, "\"off\" or \"kernel\"";
    TlsVersion: "choice", "1.2|1.3", "", Text, "\"1.2\" or \"1.3\"";
    CipherSuite: "choice", "SUITE", "", Text, "one of the suites in quotes";
    AcmeChallenge: "choice", "http-01|tls-alpn-01", "", Text, "\"http-01\" or \"tls-alpn-01\"";
    ClientCertificate: "choice", "required|optional", "", Text, "\"required\" or \"optional\"";
    Streams: "choice", "socket|pipe", "", Text, "\"socket\" or \"pipe\"";
}

pub(crate) use texts;

impl Value for PathBuf {
    const FORM: Form = Form {
        name: "path",
        placeholder: "PATH",
        expected: "a path in quotes",
        ..<String as Value>::FORM
    };

    /// Joined with a directory, the empty path would be that directory.
    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("a path is not empty; leave the setting out".into());
        }
        match text.contains('\0') {
            true => Err("a path has no null byte".into()),
            false => Ok(text.into()),
        }
    }
}

impl<T: Value> Value for OneOrMany<T> {
    const FORM: Form = Form {
        is_list: true,
        ..T::FORM
    };

    fn parse(text: &str) -> Result<Self, String> {
        Ok(OneOrMany(vec![T::parse(text)?]))
    }

    fn parse_all(texts: &[String]) -> Result<Self, String> {
        let all: Result<_, _> = texts.iter().map(|text| T::parse(text)).collect();
        all.map(OneOrMany)
    }

    fn read(from: Written<'_, '_>, to: &mut Findings<'_>) -> Option<Self> {
        let DeValue::Array(list) = from.value.get_ref() else {
            return T::read(from, to).map(|one| OneOrMany(vec![one]));
        };
        let all: Vec<Option<T>> = list
            .iter()
            .map(|value| T::read(Written { value, ..from }, to))
            .collect();
        all.into_iter().collect::<Option<Vec<T>>>().map(OneOrMany)
    }
}

impl<T: Value> Value for BTreeMap<String, T> {
    const FORM: Form = Form::TABLE;

    fn parse(_: &str) -> Result<Self, String> {
        Err("write it in the configuration file".into())
    }

    fn read(from: Written<'_, '_>, to: &mut Findings<'_>) -> Option<Self> {
        let DeValue::Table(table) = from.value.get_ref() else {
            return scalar(from, to);
        };
        let mut all = BTreeMap::new();
        // The example of the table is one entry in braces.
        let example = from.example.trim_matches(['{', '}', ' ']);
        let (key, example) = example.split_once(" = ").unwrap_or((from.key, example));
        for (name, value) in table {
            let path = format!("{}.{}", from.path, name.get_ref());
            let entry = Written {
                value,
                path: &path,
                key,
                example,
            };
            if let Some(read) = T::read(entry, to) {
                all.insert(name.get_ref().to_string(), read);
            }
        }
        Some(all)
    }
}
