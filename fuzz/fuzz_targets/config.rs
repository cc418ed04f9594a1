//! Any text as a configuration file: settings, or mistakes that each have a message.
#![no_main]

use std::path::Path;

use headway_config::Settings;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match Settings::from_toml(text, Path::new("/srv/headway.toml")) {
        Ok(settings) => drop(settings),
        Err(mistakes) => {
            assert!(!mistakes.is_empty());
            for mistake in mistakes {
                assert!(!mistake.to_string().is_empty());
            }
        }
    }
});
