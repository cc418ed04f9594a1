//! Any frames and header blocks of HTTP/2: nghttp2 makes the same of them, but for the differences that
//! `crates/http2/tests/oracles/differences.rs` names.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[cfg(nghttp2)]
#[path = "../../crates/http2/tests/oracles/differences.rs"]
mod differences;
#[cfg(nghttp2)]
#[path = "../../crates/http2/tests/oracles/ours.rs"]
mod ours;
#[cfg(nghttp2)]
#[path = "../../crates/http2/tests/oracles/outcome.rs"]
mod outcome;

#[cfg(nghttp2)]
mod oracle {
    use std::ffi::{CStr, c_char, c_int, c_void};

    use headway_http2::hpack::Decoder;

    use super::differences::{NGHTTP2, compare};
    use super::outcome::{Headers, Step, begin, encode, headers, parse};

    // crates/http2/tests/oracles/nghttp2.c, nghttp2 and libc.
    unsafe extern "C" {
        fn oracle_run(input: *const u8, bytes: usize, outcome: *mut *mut c_char) -> usize;
        fn oracle_hpack(inflater: *mut c_void, block: *const u8, bytes: usize) -> *mut c_char;
        fn nghttp2_hd_inflate_new(inflater: *mut *mut c_void) -> c_int;
        fn nghttp2_hd_inflate_del(inflater: *mut c_void);
        fn free(memory: *mut c_void);
    }

    /// A text of the oracle, which is freed.
    fn taken(text: *mut c_char) -> Option<String> {
        if text.is_null() {
            return None;
        }
        // SAFETY: the oracle returns a string that ends with a zero, and which is ours to free.
        let copy = unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned();
        // SAFETY: it comes of realloc, and is not used any more.
        unsafe { free(text.cast()) };
        Some(copy)
    }

    /// Frames: each has its kind, its flags, its stream, the length of its payload, and the payload.
    pub(super) fn frames(mut bytes: &[u8]) {
        let mut steps = begin();
        while let [kind, flags, stream, length, rest @ ..] = bytes {
            let (payload, rest) = rest.split_at(rest.len().min(usize::from(*length)));
            bytes = rest;
            // PRIORITY_UPDATE is 16.
            steps.push(match kind % 19 {
                18 => Step::Answer(u32::from(*stream)),
                kind => {
                    let header = [0, 0, payload.len() as u8, kind, *flags, 0, 0, 0, *stream];
                    Step::Feed([&header, payload].concat())
                }
            });
        }
        let case = encode(&steps);
        let mut text = std::ptr::null_mut();
        // SAFETY: the case is whole, and the oracle fills the pointer.
        unsafe { oracle_run(case.as_ptr(), case.len(), &mut text) };
        let theirs = parse(&taken(text).unwrap()).remove(0);
        if let Err(text) = compare(NGHTTP2, &steps, &super::ours::run(&steps), &theirs) {
            panic!("{text}");
        }
    }

    /// Header blocks of one connection, each with its length first.
    pub(super) fn blocks(mut bytes: &[u8]) {
        let (mut decoder, mut inflater) = (Decoder::default(), std::ptr::null_mut());
        // SAFETY: it fills the pointer.
        assert_eq!(unsafe { nghttp2_hd_inflate_new(&mut inflater) }, 0);
        while let [length, rest @ ..] = bytes {
            let (block, rest) = rest.split_at(rest.len().min(usize::from(*length)));
            bytes = rest;
            let mut own = Headers::new();
            let decoded = decoder.decode(block, |name, value| {
                own.push((name.to_vec(), value.to_vec()));
                true
            });
            // SAFETY: the inflater is there until the end of this function, and the block is a slice.
            let text = unsafe { oracle_hpack(inflater, block.as_ptr(), block.len()) };
            let theirs = taken(text).map(|text| {
                headers(&text.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>())
            });
            assert_eq!(decoded.ok().map(|()| own), theirs, "{}", block.escape_ascii());
            if theirs.is_none() {
                break;
            }
        }
        // SAFETY: it is not used any more.
        unsafe { nghttp2_hd_inflate_del(inflater) };
    }
}

fuzz_target!(|bytes: &[u8]| {
    #[cfg(nghttp2)]
    match bytes.split_first() {
        Some((0..128, bytes)) => oracle::frames(bytes),
        Some((_, bytes)) => oracle::blocks(bytes),
        None => {}
    }
    #[cfg(not(nghttp2))]
    panic!("libnghttp2-dev was not there when this was built ({} bytes)", bytes.len());
});
