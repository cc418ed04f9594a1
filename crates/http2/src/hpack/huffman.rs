//! The Huffman code of header strings (RFC 7541, 5.2 and B).
//!
//! The code is canonical: codes of the same length ascend with their symbols, and longer codes follow. So the lengths
//! determine all codes.

/// The code lengths of all bytes. The code of EOS has 30 bits, and must not occur.
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5,
    5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6,
    6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22,
    23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22,
    21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20,
    22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19,
    21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22,
    22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];
const LENGTH_MAX: usize = 30;
/// Codes up to this length are found by one look-up in a table.
const SHORT_BITS: u32 = 9;

struct Code {
    codes: [u32; 256],
    /// Symbols in the order of their codes.
    symbols: [u8; 256],
    /// For each length: the number after its last code.
    ends: [u32; LENGTH_MAX + 1],
    /// For each length: what to add to a code to get its index in `symbols`.
    places: [i32; LENGTH_MAX + 1],
    /// For each value of the next bits: a symbol and its length. The length is 0 if the code is longer.
    short: [(u8, u8); 1 << SHORT_BITS],
}

static CODE: Code = code();

const fn code() -> Code {
    let mut made = Code {
        codes: [0; 256],
        symbols: [0; 256],
        ends: [0; LENGTH_MAX + 1],
        places: [0; LENGTH_MAX + 1],
        short: [(0, 0); 1 << SHORT_BITS],
    };
    let (mut next, mut place, mut length) = (0_u32, 0_i32, 1);
    while length <= LENGTH_MAX {
        next <<= 1;
        made.places[length] = place - next as i32;
        let mut symbol = 0;
        while symbol < 256 {
            if LENGTHS[symbol] as usize == length {
                made.codes[symbol] = next;
                made.symbols[place as usize] = symbol as u8;
                if length <= SHORT_BITS as usize {
                    let free = SHORT_BITS as usize - length;
                    let mut rest = 0;
                    while rest < 1 << free {
                        made.short[((next as usize) << free) + rest] = (symbol as u8, length as u8);
                        rest += 1;
                    }
                }
                (next, place) = (next + 1, place + 1);
            }
            symbol += 1;
        }
        made.ends[length] = next;
        length += 1;
    }
    made
}

/// Decodes a string and appends it to `text`. An error if the code is not valid.
pub(crate) fn decode(bytes: &[u8], text: &mut Vec<u8>) -> Result<(), ()> {
    // The next bits are the highest ones.
    let (mut bits, mut count) = (0_u64, 0_u32);
    let mut rest = bytes;
    loop {
        while count <= 56
            && let [byte, others @ ..] = rest
        {
            bits |= u64::from(*byte) << (56 - count);
            (count, rest) = (count + 8, others);
        }
        let (symbol, length) = CODE.short[(bits >> (64 - SHORT_BITS)) as usize];
        let (symbol, length) = match length {
            0 => match long(bits) {
                Some(found) => found,
                // EOS, or less than a symbol.
                None => break,
            },
            _ => (symbol, u32::from(length)),
        };
        if length > count {
            break;
        }
        text.push(symbol);
        bits <<= length;
        count -= length;
    }
    // The padding is the first bits of EOS: all ones, and less than a byte.
    let is_filled = count < 8 && bits == !(u64::MAX >> count);
    if is_filled { Ok(()) } else { Err(()) }
}

fn long(bits: u64) -> Option<(u8, u32)> {
    for length in SHORT_BITS + 1..=LENGTH_MAX as u32 {
        let code = (bits >> (64 - length)) as u32;
        if code < CODE.ends[length as usize] {
            let place = CODE.places[length as usize] + code as i32;
            return Some((CODE.symbols[place as usize], length));
        }
    }
    None
}

/// The length of the code of a string, in bytes.
pub(crate) fn encoded_bytes(text: &[u8]) -> usize {
    let bits: usize = text
        .iter()
        .map(|byte| usize::from(LENGTHS[usize::from(*byte)]))
        .sum();
    bits.div_ceil(8)
}

/// Appends the code of a string.
pub(crate) fn encode(text: &[u8], bytes: &mut Vec<u8>) {
    let (mut bits, mut count) = (0_u64, 0_u32);
    for byte in text {
        let length = u32::from(LENGTHS[usize::from(*byte)]);
        bits = bits << length | u64::from(CODE.codes[usize::from(*byte)]);
        count += length;
        if count >= 32 {
            count -= 32;
            bytes.extend_from_slice(&((bits >> count) as u32).to_be_bytes());
        }
    }
    if count > 0 {
        // The padding is the first bits of EOS.
        let filled = bits << (64 - count) | u64::MAX >> count;
        bytes.extend_from_slice(&filled.to_be_bytes()[..count.div_ceil(8) as usize]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(text: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(text, &mut bytes);
        assert_eq!(bytes.len(), encoded_bytes(text));
        bytes
    }

    fn decoded(bytes: &[u8]) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        decode(bytes, &mut text).ok().map(|()| text)
    }

    #[test]
    fn code_is_that_of_the_standard() {
        // RFC 7541, C.4 and C.6.
        for (text, code) in [
            (
                "www.example.com",
                &[
                    0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff,
                ][..],
            ),
            ("no-cache", &[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf]),
            ("302", &[0x64, 0x02]),
            ("private", &[0xae, 0xc3, 0x77, 0x1a, 0x4b]),
            ("", &[]),
        ] {
            assert_eq!(encoded(text.as_bytes()), code);
            assert_eq!(decoded(code).as_deref(), Some(text.as_bytes()));
        }
        assert_eq!(CODE.codes[22], 0x3fff_fffe);
        assert_eq!(CODE.codes[249], 0x0fff_fffe);
    }

    #[test]
    fn invalid_code_is_an_error() {
        // A whole byte of padding, padding that is not ones, and EOS.
        for code in [
            &[0x64, 0x02, 0xff][..],
            &[0x64, 0x00, 0x00],
            &[0xff],
            &[0xff; 4],
            &[0xff; 9],
        ] {
            assert_eq!(decoded(code), None, "{code:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_the_same_after_encoding_and_decoding(text in prop::collection::vec(any::<u8>(), 0..80)) {
            prop_assert_eq!(decoded(&encoded(&text)), Some(text));
        }

        #[test]
        fn any_code_is_an_error_or_the_code_of_its_text(code in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(text) = decoded(&code) {
                prop_assert_eq!(encoded(&text), code);
            }
        }
    }
}
