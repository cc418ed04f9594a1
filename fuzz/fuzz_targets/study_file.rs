//! Any text as the file of a study: a plan, or one mistake with its line.
#![no_main]

use headway_lab::study::{Loaded, Plan, Scale};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    // The shared entries are at the end of the input, so that they are changed as well.
    let (text, common) = text.split_once('\0').unwrap_or((text, ""));
    let loaded = Loaded {
        file: "study.toml".to_owned(),
        text: text.to_owned(),
        common: common.to_owned(),
    };
    for scale in [Scale::Quick, Scale::Full] {
        match loaded.at(scale) {
            Ok(study) => {
                let plan = Plan::new(&[study], &[]);
                assert!(plan.load_s() >= 0.0);
            }
            Err(mistake) => assert!(!mistake.to_string().is_empty()),
        }
    }
});
