//! Any bytes as the manifest of a file set: the first part up to a zero byte is the manifest, the rest its list.
#![no_main]

use std::path::PathBuf;

use headway_load::fileset::{MANIFEST_NAME, Manifest};
use libfuzzer_sys::fuzz_target;

/// The name of the list beside a manifest of a site's log.
const LIST_NAME: &str = ".headway-fileset.list";

fuzz_target!(|bytes: &[u8]| {
    let folder = PathBuf::from(format!("/dev/shm/headway-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder in memory");
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    for name in [MANIFEST_NAME, LIST_NAME] {
        let part = parts.next().unwrap_or_default();
        std::fs::write(folder.join(name), part).expect("a file in memory");
    }
    match Manifest::load(&folder) {
        Ok(manifest) => {
            for file in manifest.files().take(1000) {
                assert!(!file.path.split('/').any(|part| part == ".."), "{}", file.path);
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
