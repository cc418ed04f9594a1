//! Whatever arrives, in whatever pieces.

use headway_tls::{
    Cipher, Direction, Established, HEADER_BYTES, PLAINTEXT_BYTES_MAX, RECORD_BYTES_MAX, Received,
    Splitter,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::forger::Forger;
use crate::support::{client_side, open_stage, open_with_room};

fn established(is_13: bool, cipher: Cipher) -> Established {
    let direction = |byte| Direction {
        key: vec![byte; if cipher == Cipher::Aes128Gcm { 16 } else { 32 }],
        iv: [byte; 12],
        sequence: 1,
        secret: vec![byte; if cipher == Cipher::Aes256Gcm { 48 } else { 32 }],
    };
    Established::with_keys(is_13, cipher, direction(1), direction(2))
}

fn any_established() -> impl Strategy<Value = Established> {
    let ciphers = [
        Cipher::Aes128Gcm,
        Cipher::Aes256Gcm,
        Cipher::Chacha20Poly1305,
    ];
    (any::<bool>(), prop::sample::select(ciphers.to_vec()))
        .prop_map(|(is_13, cipher)| established(is_13, cipher))
}

/// Bytes that are more or less like records.
fn any_input() -> impl Strategy<Value = Vec<u8>> {
    let text = vec(any::<u8>(), 0..200);
    let record = (20..24_u8, text.clone()).prop_map(|(kind, text)| {
        let [high, low] = (text.len() as u16).to_be_bytes();
        [&[kind, 3, 3, high, low], &text[..]].concat()
    });
    let piece = prop_oneof![8 => record, 1 => text];
    vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_with_arbitrary_room_bring_no_more_than_the_room(
        established in any_established(),
        inputs in vec(any_input(), 1..4),
        room in 0..300_usize,
    ) {
        let mut server = open_stage(&established);
        for input in inputs {
            let mut out = vec![0; room];
            if let Received::Data(length) = server.open(&input, &mut out) {
                prop_assert!(length <= room);
            }
        }
    }

    /// What opens, since it is sealed with the right keys, is as arbitrary.
    #[test]
    fn arbitrary_texts_of_all_types_bring_no_more_than_the_room(
        established in any_established(),
        texts in vec((20..25_u8, vec(any::<u8>(), 0..20)), 1..8),
        room in 0..100_usize,
    ) {
        let mut forger = Forger::new(&established);
        let records: Vec<_> = texts.iter().map(|(kind, text)| forger.record(*kind, text)).collect();
        let mut server = open_stage(&established);
        let mut out = vec![0; room];
        if let Received::Data(length) = server.open(&records.concat(), &mut out) {
            prop_assert!(length <= room);
            let data: usize = texts.iter().filter(|(kind, _)| *kind == 23).map(|(_, text)| text.len()).sum();
            prop_assert!(length <= data);
        }
    }

    #[test]
    fn splitting_of_arbitrary_bytes_stays_inside(input in any_input()) {
        let (whole, is_other) = Splitter::whole_records(&input);
        prop_assert!(whole <= input.len());
        let expected = match is_other {
            true => Splitter::NoRecord,
            false => Splitter::Partial,
        };
        prop_assert_eq!(Splitter::look(&input[whole..]), expected);
    }

    #[test]
    fn data_does_not_depend_on_how_it_arrives(
        established in any_established(),
        lengths in vec(prop_oneof![0..100_usize, 0..PLAINTEXT_BYTES_MAX + 1], 1..12),
        cuts in vec(0..40_000_usize, 0..12),
        extra_room in 0..20_000_usize,
    ) {
        let mut client = client_side(&established);
        let (mut stream, mut data) = (Vec::new(), Vec::new());
        for (at, length) in lengths.iter().enumerate() {
            let text = vec![at as u8; *length];
            client.seal(&[&text], &mut stream).unwrap();
            data.extend(text);
        }
        let mut server = open_stage(&established);
        let room = RECORD_BYTES_MAX - HEADER_BYTES + extra_room;
        let (mut opened, mut rest) = (Vec::new(), &stream[..]);
        for cut in cuts.into_iter().chain([usize::MAX]) {
            let (now, later) = rest.split_at(cut.min(rest.len()));
            let (part, last) = open_with_room(&mut server, now, room);
            prop_assert_eq!(last, Received::Nothing);
            opened.extend(part);
            rest = later;
        }
        prop_assert!(opened == data);
        prop_assert!(!server.has_input() && !server.has_unsent());
    }

    #[test]
    fn sealed_parts_open_to_the_same_data(
        established in any_established(),
        parts in vec(vec(any::<u8>(), 0..3_000), 0..100),
        pauses in vec(0..3_000_u64, 1..3),
    ) {
        let mut server = open_stage(&established);
        let mut mirrored = established.clone();
        std::mem::swap(&mut mirrored.receive, &mut mirrored.send);
        let mut client = open_stage(&mirrored);
        let (mut now_ms, mut sealed) = (0, Vec::new());
        for pause in &pauses {
            now_ms += pause;
            server.seal(parts.iter().map(Vec::as_slice), now_ms, &mut sealed).unwrap();
        }
        let (opened, last) = open_with_room(&mut client, &sealed, RECORD_BYTES_MAX);
        prop_assert_eq!(last, Received::Nothing);
        prop_assert!(opened == parts.concat().repeat(pauses.len()));
    }
}
