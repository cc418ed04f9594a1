//! Sending when the kernel seals. The sockets here are plain ones in place of kernel TLS, so that any kernel can run
//! the tests: what would be sealed arrives as it was given.

use headway_tls::{Cipher, Direction, Established, Records, Stage};

use super::*;

fn offloaded() -> Client {
    let direction = Direction {
        key: vec![1; 16],
        iv: [2; 12],
        sequence: 0,
        secret: vec![3; 32],
    };
    let established = Established::with_keys(true, Cipher::Aes128Gcm, direction.clone(), direction);
    let mut client = Client::new();
    client.stage = Stage::Open(Box::new(Records::new(&established).unwrap()));
    client.offload(false);
    client
}

fn sender(method: (SendMethod, Option<SendVariant>)) -> Sender {
    Sender {
        client: Some(offloaded()),
        ..Sender::new(method)
    }
}

/// A header and a file behind it.
fn response(file: &Rc<OpenFile>) -> Outgoing {
    let mut outgoing = Outgoing::default();
    outgoing.pieces.push_back(Piece::bytes(b"header".to_vec()));
    let piece = Piece::File(file.clone(), 0..file.meta().size);
    outgoing.pieces.push_back(piece);
    outgoing
}

#[test]
fn whole_files_are_given_to_a_kernel_that_seals_by_every_method() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let content = numbered(3 << 20);
    fs::write(&path, &content).unwrap();
    let file = open(&path);
    for method in METHODS {
        let mut ends = ends();
        let arrived = sender(*method).send_all(&mut response(&file), &mut ends, 1 << 20);
        assert!(arrived == [b"header", &content[..]].concat(), "{method:?}");
    }
}

#[test]
fn response_is_finished_when_there_is_room_for_what_the_kernel_holds_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    fs::write(&path, numbered(16 << 20)).unwrap();
    let (file, mut ends, mut waits) = (open(&path), ends(), 0);
    let (mut outgoing, mut sender) = (response(&file), sender(COPY));
    let mut some = vec![0; 16 << 10];
    loop {
        let progress = sender.tick(&mut outgoing, &ends, 1 << 20).progress;
        match progress {
            SendProgress::Finished => break,
            SendProgress::SocketFull | SendProgress::QuantumSpent => {}
            _ => panic!("a resident response does not fail"),
        }
        waits += u32::from(outgoing.pieces.is_empty());
        assert!(
            sender.client.as_ref().is_some_and(Client::has_unsent) || !outgoing.pieces.is_empty()
        );
        let _ = ends.client.read(&mut some);
    }
    assert!(waits > 0, "all was in the socket, which was full");
    assert!(!sender.client.as_ref().unwrap().has_unsent());
}

#[test]
fn end_follows_the_data_unsealed() {
    let mut ends = ends();
    let mut client = offloaded();
    let sealer = Sealer {
        client: &mut client,
        buffer: &mut Vec::new(),
        now_ms: 1,
        sealing_ns: &mut 0,
    };
    let tracer = Tracer::disabled();
    let sent = send_whole(&ends.server, Some(sealer), None, b"data", true, &tracer);
    assert_eq!(sent, Ok(4));
    client.seal_end();
    assert!(client.has_unsent());
    assert_eq!(flush(&mut client, &ends.server, &tracer), Ok(true));
    assert!(!client.has_unsent());
    let mut arrived = Vec::new();
    ends.rest(&mut arrived);
    assert_eq!(arrived, b"data\x01\x00", "the alert close_notify");
}
