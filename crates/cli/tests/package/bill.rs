//! The bill of materials (CycloneDX) has the fields which its schema requires, and all crates with their checksums.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use headway_test_support::skip;
use serde_json::Value;

use super::{lacks, package};

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key]
        .as_str()
        .unwrap_or_else(|| panic!("{key} of {value}"))
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key]
        .as_array()
        .unwrap_or_else(|| panic!("{key} of {value}"))
}

/// `urn:uuid:` and a UUID.
fn is_serial_number(text: &str) -> bool {
    let parts: Vec<&str> = text.split([':', '-']).collect();
    let is_hex = |part: &&str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let lengths: Vec<usize> = parts[2..].iter().map(|part| part.len()).collect();
    parts[..2] == ["urn", "uuid"] && lengths == [8, 4, 4, 4, 12] && parts[2..].iter().all(is_hex)
}

/// Needs: dpkg and python3
#[test]
fn bill_of_materials_is_valid_and_names_every_crate_of_the_program() {
    if let Some(needed) = lacks() {
        return skip(
            "bill_of_materials_is_valid_and_names_every_crate_of_the_program",
            needed,
        );
    }
    let path = package(".cdx.json").expect("a bill of materials");
    let bill: Value = serde_json::from_slice(&fs::read(path).expect("the file")).expect("JSON");
    assert_eq!(text(&bill, "bomFormat"), "CycloneDX");
    assert_eq!(text(&bill, "specVersion"), "1.5");
    assert_eq!(bill["version"], 1);
    assert!(is_serial_number(text(&bill, "serialNumber")));
    let product = &bill["metadata"]["component"];
    assert_eq!(text(product, "type"), "application");
    assert_eq!(text(product, "name"), "headway");
    let mut references = BTreeSet::from([text(product, "bom-ref")]);
    let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.lock");
    let lock = fs::read_to_string(lock).expect("Cargo.lock");
    for component in list(&bill, "components") {
        let (name, version) = (text(component, "name"), text(component, "version"));
        assert_eq!(text(component, "type"), "library");
        let purl = format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"));
        assert_eq!(text(component, "purl"), purl);
        assert!(
            references.insert(text(component, "bom-ref")),
            "{purl} twice"
        );
        let licence = text(&list(component, "licenses")[0], "expression");
        assert!(!licence.is_empty() && !licence.contains('/'), "{licence}");
        if !name.starts_with("headway-") {
            let hash = &list(component, "hashes")[0];
            assert_eq!(text(hash, "alg"), "SHA-256");
            let entry = format!("name = \"{name}\"\nversion = \"{version}\"\n");
            let entry = lock
                .split("[[package]]\n")
                .find(|it| it.starts_with(&entry));
            let sum = format!("checksum = \"{}\"", text(hash, "content"));
            assert!(entry.is_some_and(|entry| entry.contains(&sum)), "{purl}");
        }
    }
    for dependency in list(&bill, "dependencies") {
        assert!(references.contains(text(dependency, "ref")));
        for other in list(dependency, "dependsOn") {
            assert!(references.contains(other.as_str().expect("a reference")));
        }
    }
    // One of our own, one for TLS, one of the C library; and none which only tests have.
    let has = |name: &str| {
        let start = format!("pkg:cargo/{name}@");
        references.iter().any(|it| it.starts_with(&start))
    };
    assert!(has("headway-server") && has("rustls") && has("headway-debox-c"));
    assert!(!has("proptest") && !has("headway-test-support") && !has("headway-lab"));
}
