use super::*;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let digit = |byte: u8| (byte as char).to_digit(16).unwrap() as u8;
    let pairs = digits.chunks_exact(2);
    pairs
        .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
        .collect()
}

fn of(hex: &str) -> Result<Header, Malformed> {
    let header = read(&mut Decoder::default(), &bytes(hex), &mut None, None)?;
    match header.is_malformed || header.status == 0 {
        true => Err(Malformed),
        false => Ok(header),
    }
}

#[test]
fn status_length_and_server_are_read_from_all_representations() {
    let header = |status, length| {
        Ok(Header {
            status,
            length,
            is_malformed: false,
        })
    };
    for (hex, expected) in [
        ("88", header(200, None)),
        ("20 88", header(200, None)),
        ("48 82 6402", header(302, None)),
        ("08 03 343139", header(419, None)),
        ("18 03 343139", header(419, None)),
        // content-length: 1234, with an indexed name in three forms, and with a literal name.
        ("88 0f0d 04 31323334", header(200, Some(1234))),
        ("88 5c 04 31323334", header(200, Some(1234))),
        ("88 1f0d 04 31323334", header(200, Some(1234))),
        (
            "88 00 0e 636f6e74656e742d6c656e677468 04 31323334",
            header(200, Some(1234)),
        ),
        ("8d 00 01 61 01 62", header(404, None)),
    ] {
        assert_eq!(of(hex), expected, "{hex}");
    }
    let mut server = None;
    assert!(
        read(
            &mut Decoder::default(),
            &bytes("88 76 03 612f31 76 03 622f32"),
            &mut server,
            None
        )
        .is_ok()
    );
    assert_eq!(server.as_deref(), Some("a/1"));
}

#[test]
fn invalid_block_is_malformed() {
    for hex in [
        "",
        "0f0d 01 31",
        "88 88",
        "80",
        "be",
        "7e 01 61",
        "88 20",
        "3fe21f 88",
        "88 0f0d 02 31",
        "88 0f0d 02 2d31",
        "88 0f0d 01 31 0f0d 01 32",
        "88 0f0d 14 3939393939393939393939393939393939393939",
        "88 ff8080808080",
        "48 05 3939393939",
    ] {
        assert_eq!(of(hex), Err(Malformed), "{hex}");
    }
}

#[test]
fn dynamic_table_lasts_from_one_block_to_the_next() {
    let mut decoder = Decoder::default();
    let mut of = |hex| read(&mut decoder, &bytes(hex), &mut None, None);
    assert_eq!(of("48 03 343139").map(|header| header.status), Ok(419));
    assert_eq!(of("be").map(|header| header.status), Ok(419));
    assert!(of("bf").is_err());
}

#[test]
fn request_is_written_as_literals() {
    let mut block = Vec::new();
    put_target(&mut block, "GET", true, b"www.example.com");
    put_path(&mut block, b"/sample/path");
    assert_eq!(
        block,
        bytes("82 87 01 0f 7777772e6578616d706c652e636f6d 04 0c 2f73616d706c652f70617468")
    );
    block.clear();
    put_target(&mut block, "PUT", false, b"a");
    put_path(&mut block, b"/");
    put_header(&mut block, "x", "y".repeat(300));
    let head = bytes("02 03 505554 86 01 01 61 84 00 01 78 7f ad01");
    assert_eq!(block[..head.len()], head);
    assert_eq!(block.len(), head.len() + 300);
}
