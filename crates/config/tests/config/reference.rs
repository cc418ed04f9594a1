//! The reference of the configuration against the settings that take effect.

use headway_config::keys::{Key, reference};
use headway_config::{Config, Environment, Settings};
use std::path::Path;

use super::good;
use crate::{HERE, RESEARCH_SERVER};

#[test]
fn default_of_the_reference_is_the_effective_setting() {
    let large = Environment {
        nofile: 1 << 20,
        ..HERE
    };
    let config = Config::check(&Settings::default(), None, &large)
        .unwrap()
        .config;
    let printed: toml::Table = toml::from_str(&config.to_toml()).unwrap();
    let literal = |key: &Key| !key.is_table() && !key.default.contains(' ');
    for key in reference(RESEARCH_SERVER) {
        let table = match key.table {
            "" => Some(&printed),
            "research" => printed["research"].as_table(),
            _ => None,
        };
        let Some(value) = table
            .and_then(|table| table.get(&key.name))
            .filter(|_| literal(&key))
        else {
            continue;
        };
        let value = match value {
            toml::Value::Array(list) => list[0].clone(),
            value => value.clone(),
        };
        let shown = value.as_str().map_or(value.to_string(), str::to_owned);
        assert_eq!(shown, key.default, "{}", key.name);
    }
}

#[test]
fn default_of_a_location_in_the_reference_is_the_effective_setting() {
    let text = "root = \"site\"\n[[location]]\nprefix = \"/a/\"\ncgi = true\n\
                [[location]]\nprefix = \"/b/\"\nproxy = \"127.0.0.1:1\"";
    let printed: toml::Table = toml::from_str(&good(text).to_toml()).unwrap();
    let locations = printed["host"][0]["location"].as_array().unwrap().clone();
    for key in reference(RESEARCH_SERVER) {
        if key.table != "location" || key.default.contains(' ') {
            continue;
        }
        for value in locations
            .iter()
            .filter_map(|location| location.get(&key.name))
        {
            if ["prefix", "cgi", "proxy", "variables"].contains(&key.name.as_str()) {
                continue;
            }
            let shown = value.as_str().map_or(value.to_string(), str::to_owned);
            assert_eq!(shown, key.default, "{}", key.name);
        }
    }
}

#[test]
fn example_of_the_reference_is_accepted() {
    for key in reference(RESEARCH_SERVER) {
        if key.is_table() && key.form.is_list {
            continue;
        }
        let heading = match key.table {
            "" => String::new(),
            "research" => "[research]\n".into(),
            table => format!("[[{table}]]\n"),
        };
        let text = format!("{heading}{}", key.example_line());
        let read = Settings::from_toml_with(&text, Path::new("/headway.toml"), RESEARCH_SERVER);
        assert!(read.is_ok(), "{text}: {read:?}");
    }
}
