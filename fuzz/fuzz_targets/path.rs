//! Any bytes as a request target.
#![no_main]

use headway_http::path::{COMPONENT_BYTES_MAX, PATH_BYTES_MAX, normalise};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|target: &[u8]| {
    let Ok(path) = normalise(target) else { return };
    let bytes = &*path.bytes;
    assert!(bytes.len() <= PATH_BYTES_MAX);
    assert!(bytes.iter().all(|byte| !byte.is_ascii_control()));
    if !bytes.is_empty() {
        for component in bytes
            .strip_suffix(b"/")
            .unwrap_or(bytes)
            .split(|byte| *byte == b'/')
        {
            assert!(!matches!(component, b"" | b"." | b".."));
            assert!(component.len() <= COMPONENT_BYTES_MAX);
        }
    }
    let again = normalise(&escaped(bytes)).map(|again| (again.bytes.into_owned(), again.hidden));
    assert_eq!(again, Ok((bytes.to_vec(), path.hidden)));
});

/// Escapes every byte but the slash, so that nothing but decoding is left to do.
fn escaped(path: &[u8]) -> Vec<u8> {
    let mut target = b"/".to_vec();
    for byte in path {
        match byte {
            b'/' => target.push(b'/'),
            _ => target.extend_from_slice(format!("%{byte:02x}").as_bytes()),
        }
    }
    target
}
