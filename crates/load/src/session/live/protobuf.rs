//! The few parts of Protobuf that the messages of metrics need.
//!
//! Source: the encoding page of Protocol Buffers.

/// The wire types.
const VARINT: u64 = 0;
const FIXED_64: u64 = 1;
const BYTES: u64 = 2;

/// A field of bytes, of text or of a message.
pub(super) fn bytes(out: &mut Vec<u8>, field: u64, value: &[u8]) {
    varint(out, field << 3 | BYTES);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

/// A number of variable length.
pub(super) fn number(out: &mut Vec<u8>, field: u64, value: u64) {
    varint(out, field << 3 | VARINT);
    varint(out, value);
}

/// `fixed64`.
pub(super) fn fixed(out: &mut Vec<u8>, field: u64, value: u64) {
    varint(out, field << 3 | FIXED_64);
    out.extend(value.to_le_bytes());
}

/// `double`.
pub(super) fn double(out: &mut Vec<u8>, field: u64, value: f64) {
    fixed(out, field, value.to_bits());
}

/// `repeated fixed64` in the packed form.
pub(super) fn packed(out: &mut Vec<u8>, field: u64, values: impl Iterator<Item = u64>) {
    let values: Vec<u8> = values.flat_map(u64::to_le_bytes).collect();
    bytes(out, field, &values);
}

/// A number alone. One is before each block of Snappy.
pub(super) fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
