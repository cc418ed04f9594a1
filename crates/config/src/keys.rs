//! The keys of a configuration file: one declaration gives the field, its reader and its entry in
//! the reference.

use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::Findings;
use super::hints;
use super::value::{Accepts, Form, Value, Written};

/// A setting: its value and where it was written; `None` where it was not.
pub type Setting<T> = Option<Spanned<T>>;

/// Groups of keys, in the order of the help and the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Topic {
    /// Addresses and processes.
    Serving,
    /// Files and response headers.
    Files,
    /// New and open connections.
    Connections,
    /// TLS.
    Tls,
    /// Timeouts.
    Timeouts,
    /// Sizes of requests.
    Limits,
    /// Caches and memory.
    Caches,
    /// Helper processes.
    Helpers,
    /// Access log, status page and tracing.
    Logs,
    /// Methods of the papers, for comparisons.
    Research,
    /// Keys of `[[host]]`.
    Host,
    /// Keys of `[[header]]`.
    Header,
    /// Keys of `[[cors]]`.
    Cors,
    /// Keys of `[[location]]`: which requests, and which handler.
    Location,
    /// Limits of a location.
    LocationLimits,
    /// Programs that the server starts.
    Programs,
    /// FastCGI, SCGI and HTTP upstreams.
    Upstreams,
}

impl Topic {
    /// The heading above the group.
    pub fn title(self) -> &'static str {
        match self {
            Topic::Serving => "Serving",
            Topic::Files => "Files",
            Topic::Connections => "Connections",
            Topic::Tls => "TLS",
            Topic::Timeouts => "Timeouts",
            Topic::Limits => "Limits per request",
            Topic::Caches => "Caches",
            Topic::Helpers => "Helpers",
            Topic::Logs => "Logs and status",
            Topic::Research => "Research",
            Topic::Host => "Virtual hosts",
            Topic::Header => "Response headers",
            Topic::Cors => "Pages of other origins",
            Topic::Location => "Locations",
            Topic::LocationLimits => "Limits of a location",
            Topic::Programs => "Programs started by the server",
            Topic::Upstreams => "Upstreams",
        }
    }
}

/// One key of the configuration file.
#[derive(Clone, Debug)]
pub struct Key {
    /// The table that the key belongs to, such as `host`; empty for the top level.
    pub table: &'static str,
    /// The key in the file, which is also the name of its option.
    pub name: String,
    /// The type of its value.
    pub form: Form,
    /// The group in the help and the reference.
    pub topic: Topic,
    /// The effect, in one line.
    pub summary: String,
    /// Further facts; may be empty.
    pub detail: String,
    /// The value when the key is not set: a value of the file, or a description where it contains a
    /// space.
    pub default: &'static str,
    /// A value that is allowed, as TOML.
    pub example: &'static str,
}

impl Key {
    pub(crate) fn new<T: Value>(
        table: &'static str,
        field: &str,
        text: &str,
        topic: Topic,
        default: &'static str,
        example: &'static str,
    ) -> Key {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let mut parts = lines
            .split(|line| line.is_empty())
            .map(|part| part.join(" "));
        Key {
            table,
            name: field.replace('_', "-"),
            form: T::FORM,
            topic,
            summary: parts
                .next()
                .unwrap_or_default()
                .trim_end_matches('.')
                .into(),
            detail: parts
                .filter(|part| !part.is_empty())
                .collect::<Vec<_>>()
                .join(" "),
            default,
            example,
        }
    }

    /// Whether the key can only be written in a file.
    pub fn is_table(&self) -> bool {
        self.form.accepts == Accepts::Table
    }

    /// Whether the key is also an option of the command line.
    pub fn is_option(&self) -> bool {
        matches!(self.table, "" | "research") && !self.is_table() && self.name != "include"
    }

    /// The key in its file.
    pub fn example_line(&self) -> String {
        format!("{} = {}", self.name, self.example)
    }
}

/// A table of the configuration file.
pub(crate) trait Table: Default {
    /// The name of the table; empty for the top level.
    const NAME: &'static str;

    /// All keys of the table.
    fn keys() -> Vec<Key>;

    /// Reads the value of a key; `false` where there is no such key.
    fn set(&mut self, from: Written<'_, '_>, to: &mut Findings<'_>) -> bool;

    /// Takes every setting that `over` has, and keeps the others.
    fn replace(&mut self, over: Self);

    /// Adds the settings of an included file, and notes those which are there twice.
    fn merge(&mut self, other: Self, twice: &mut Vec<Twice>);

    /// Sets a key from the texts of its option; `None` where there is no such key.
    fn set_option(&mut self, key: &str, texts: &[String]) -> Option<Result<(), String>>;

    /// Notes that something in it could not be read.
    fn note_fault(&mut self);

    /// Reads all keys.
    fn read_table(table: &DeTable<'_>, path: &str, to: &mut Findings<'_>) -> Self {
        let mut all = Self::default();
        let keys = Self::keys();
        for (name, value) in table {
            let key = name.get_ref().as_ref();
            let own_path = match path {
                "" => key.to_owned(),
                path => format!("{path}.{key}"),
            };
            let known = keys.iter().find(|known| known.name == key);
            let is_research = known.is_some_and(|known| known.topic == Topic::Research);
            if is_research && to.research.is_none() {
                to.usage_error(&own_path, Some(name.span()), hints::ONLY_RESEARCH.into());
                all.note_fault();
                continue;
            }
            let faults = to.errors.len();
            let from = Written {
                value,
                path: &own_path,
                key,
                example: known.map_or("", |known| known.example),
            };
            if known.is_none() || !all.set(from, to) {
                let problem = hints::unknown(Self::NAME, key, &keys);
                to.usage_error(&own_path, Some(name.span()), problem);
            }
            if to.errors.len() > faults {
                all.note_fault();
            }
        }
        all
    }
}

/// Tables that may be there several times, such as `[[host]]`.
pub type Tables<T> = Vec<Spanned<T>>;

/// A key that two files set, with its positions.
pub(crate) struct Twice {
    pub(crate) key: String,
    pub(crate) first: Range<usize>,
    pub(crate) second: Range<usize>,
}

impl<T: Table> Value for Tables<T> {
    const FORM: Form = Form {
        name: "tables",
        unit: "",
        placeholder: "TABLE",
        expected: "a table",
        accepts: Accepts::Table,
        is_list: true,
    };

    fn parse(_: &str) -> Result<Self, String> {
        Err("write it in the configuration file".into())
    }

    fn merge(own: &mut Self, other: Self) -> bool {
        own.extend(other);
        true
    }

    fn read(from: Written<'_, '_>, to: &mut Findings<'_>) -> Option<Self> {
        let read = |value: &Spanned<DeValue<'_>>, to: &mut Findings<'_>| match value.get_ref() {
            DeValue::Table(table) => {
                let read = T::read_table(table, from.path, to);
                Some(Spanned::new(to.placed(value.span()), read))
            }
            _ => None,
        };
        let usage_error = |to: &mut Findings<'_>| {
            let problem = format!(
                "write it as a table: [[{}]] on a line of its own",
                from.path
            );
            to.usage_error(from.path, Some(from.value.span()), problem);
            None
        };
        match from.value.get_ref() {
            DeValue::Array(list) => {
                let all: Vec<_> = list.iter().map(|value| read(value, to)).collect();
                let all: Option<Vec<_>> = all.into_iter().collect();
                all.or_else(|| usage_error(to))
            }
            DeValue::Table(_) => {
                let problem = format!("use double brackets: [[{}]]", from.path);
                to.usage_error(from.path, Some(from.value.span()), problem);
                read(from.value, to).map(|one| vec![one])
            }
            _ => usage_error(to),
        }
    }
}

/// Declares a table: for each key its description, type, group, default and an example.
macro_rules! table {
    (
        $(#[$about:meta])* $table:ident, $named:literal
        { $( $(#[doc = $doc:literal])+ $field:ident: $type:ty, $topic:ident, $default:literal, $example:literal; )* }
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default)]
        pub struct $table {
            $( $(#[doc = $doc])+ pub $field: Setting<$type>, )*
            /// Whether something in it could not be read: what seems to be missing may be misspelt.
            pub has_faults: bool,
        }

        impl Table for $table {
            const NAME: &'static str = $named;

            fn keys() -> Vec<Key> {
                vec![ $( Key::new::<$type>(
                    $named, stringify!($field), concat!($($doc, "\n"),+), Topic::$topic, $default, $example,
                ), )* ]
            }

            fn set(&mut self, from: Written<'_, '_>, to: &mut Findings<'_>) -> bool {
                let field = from.key.replace('-', "_");
                $( if field == stringify!($field) {
                    let read = <$type as Value>::read(from, to);
                    let position = to.placed(from.value.span());
                    self.$field = read.map(|read| Spanned::new(position, read));
                    return true;
                } )*
                false
            }

            fn replace(&mut self, over: Self) {
                $( if over.$field.is_some() {
                    self.$field = over.$field;
                } )*
            }

            fn merge(&mut self, other: Self, twice: &mut Vec<Twice>) {
                self.has_faults |= other.has_faults;
                $( if let Some(other) = other.$field {
                    match &mut self.$field {
                        None => self.$field = Some(other),
                        Some(own) => {
                            let (first, second) = (own.span(), other.span());
                            if !<$type as Value>::merge(own.get_mut(), other.into_inner()) {
                                let key = stringify!($field).replace('_', "-");
                                twice.push(Twice { key, first, second });
                            }
                        }
                    }
                } )*
            }

            fn set_option(&mut self, key: &str, texts: &[String]) -> Option<Result<(), String>> {
                let field = key.replace('-', "_");
                $( if field == stringify!($field) {
                    let parsed = <$type as Value>::parse_all(texts);
                    return Some(parsed.map(|parsed| self.$field = Some(from_command_line(parsed))));
                } )*
                None
            }

            fn note_fault(&mut self) {
                self.has_faults = true;
            }
        }
    };
}

pub(crate) use table;

pub use super::settings::reference;
