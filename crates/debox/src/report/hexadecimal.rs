//! Addresses as text, `"0xffffffff81000100"`: most readers of JSON keep numbers as doubles and
//! would round a kernel address, and people compare them with /proc/kallsyms.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

pub(super) fn serialize<S: Serializer>(
    addresses: &[u64],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(addresses.iter().map(|address| format!("{address:#x}")))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<u64>, D::Error> {
    let texts: Vec<String> = Vec::deserialize(deserializer)?;
    texts.iter().map(|text| parse(text)).collect()
}

fn parse<E: Error>(text: &str) -> Result<u64, E> {
    text.strip_prefix("0x")
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .ok_or_else(|| {
            E::custom(format!(
                "`{text}` is not an address such as 0xffffffff81000100"
            ))
        })
}
