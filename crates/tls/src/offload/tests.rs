use super::*;
use crate::keys::Keys;

fn established(is_13: bool, cipher: Cipher, sequence: u64) -> Established {
    let direction = |byte, sequence| Direction {
        key: vec![byte; if cipher == Cipher::Aes128Gcm { 16 } else { 32 }],
        iv: [byte; 12],
        sequence,
        secret: vec![byte; if cipher == Cipher::Aes256Gcm { 48 } else { 32 }],
    };
    Established::with_keys(is_13, cipher, direction(1, 0), direction(2, sequence))
}

/// A connection for which the kernel seals, and what its client would seal with.
fn offloaded(rekeys: bool, established: &Established) -> (Client, Records) {
    let mut client = Client::new();
    client.stage = Stage::Open(Box::new(Records::new(established).unwrap()));
    client.offload(rekeys);
    let swapped = Established {
        receive: established.send.clone(),
        send: established.receive.clone(),
        ..established.clone()
    };
    (client, Records::new(&swapped).unwrap())
}

/// Takes the key update of a client that wants new keys in return.
fn take_update(server: &mut Client, client: &mut Records) {
    let mut sealed = Vec::new();
    let update = [24, 0, 0, 1, 1];
    client
        .send
        .seal(content::HANDSHAKE, &[&update], &mut sealed)
        .unwrap();
    client.send.update().unwrap();
    server.open(&sealed, &mut [0; 64]);
}

#[test]
fn kernel_gets_the_keys_with_which_the_handshake_has_ended() {
    let established = established(true, Cipher::Aes256Gcm, 7);
    let keys = established.send_keys();
    assert_eq!(
        (keys.is_13, keys.cipher),
        (true, kernel_tls::Cipher::Aes256Gcm)
    );
    assert_eq!(
        (keys.key, keys.iv, keys.sequence),
        (&[2; 32][..], [2; 12], 7)
    );
}

#[test]
fn end_waits_unsealed_with_its_type() {
    let (mut server, _) = offloaded(false, &established(false, Cipher::Aes128Gcm, 0));
    assert!(server.is_offloaded() && !server.has_unsent());
    server.seal_end();
    assert_eq!(
        server.next_record(),
        Some((content::ALERT, &[1, alert::CLOSE_NOTIFY][..]))
    );
    server.record_sent(|_| panic!("no new keys")).unwrap();
    assert_eq!(server.next_record(), None);
    assert!(!server.has_unsent());
    server.seal_end();
    assert!(!server.has_unsent(), "it has ended once");
}

#[test]
fn something_is_unsent_until_the_socket_has_room() {
    let (mut server, _) = offloaded(false, &established(true, Cipher::Aes128Gcm, 0));
    server.gave(10);
    assert!(server.has_unsent() && server.unsent().is_empty());
    server.settle();
    assert!(!server.has_unsent());
}

#[test]
fn connection_ends_when_the_client_wants_new_keys_and_the_kernel_cannot_change_them() {
    let (mut server, mut client) = offloaded(false, &established(true, Cipher::Aes128Gcm, 0));
    assert!(!server.must_end());
    take_update(&mut server, &mut client);
    assert!(server.must_end());
    assert_eq!(server.next_record(), None, "an update would be a lie");
    server.seal_end();
    assert_eq!(server.next_record().unwrap().0, content::ALERT);
}

#[test]
fn kernel_gets_the_next_keys_after_the_update_when_it_can_change_them() {
    for cipher in [
        Cipher::Aes128Gcm,
        Cipher::Aes256Gcm,
        Cipher::Chacha20Poly1305,
    ] {
        let established = established(true, cipher, 5);
        let (mut server, mut client) = offloaded(true, &established);
        take_update(&mut server, &mut client);
        assert!(!server.must_end());
        assert_eq!(
            server.next_record(),
            Some((content::HANDSHAKE, &[24, 0, 0, 1, 0][..]))
        );
        server.seal_end();
        let mut got = None;
        let mut set = |keys: &SendKeys<'_>| {
            got = Some((keys.key.to_vec(), keys.iv, keys.sequence));
            Ok(())
        };
        server.record_sent(&mut set).unwrap();
        // The client makes the same keys of the secret.
        let mut of_client = Keys::new(true, cipher, &established.send).unwrap();
        of_client.update().unwrap();
        let (_, next) = of_client.begun().unwrap();
        assert_eq!(got, Some((next.key.clone(), next.iv, 0)), "{cipher:?}");
        assert_eq!(server.next_record().unwrap().0, content::ALERT);
        server.record_sent(|_| panic!("once")).unwrap();
    }
}

#[test]
fn connection_ends_when_the_kernel_does_not_accept_new_keys() {
    let (mut server, mut client) = offloaded(true, &established(true, Cipher::Aes128Gcm, 0));
    take_update(&mut server, &mut client);
    assert_eq!(server.record_sent(|_| Err(Errno::BUSY)), Err(Errno::BUSY));
}

#[test]
fn keys_at_their_limit_are_replaced_or_end_the_connection() {
    let worn = |is_13, cipher| established(is_13, cipher, (1 << 23) - 3);
    for (is_13, rekeys, cipher, has_update, must_end) in [
        (true, true, Cipher::Aes128Gcm, true, false),
        (true, false, Cipher::Aes128Gcm, false, true),
        (false, false, Cipher::Aes256Gcm, false, true),
        (true, false, Cipher::Chacha20Poly1305, false, false),
    ] {
        let (mut server, _) = offloaded(rekeys, &worn(is_13, cipher));
        server.prepare().unwrap();
        assert!(!server.must_end() && server.next_record().is_none());
        // One full record and a byte: up to four records.
        server.gave(PLAINTEXT_BYTES_MAX as u64 + 1);
        server.prepare().unwrap();
        assert_eq!(
            (server.next_record().is_some(), server.must_end()),
            (has_update, must_end)
        );
    }
}

#[test]
fn keys_never_encrypt_more_records_than_their_limit() {
    let last = 23_726_566 - 3;
    for (cipher, is_allowed) in [(Cipher::Aes128Gcm, false), (Cipher::Chacha20Poly1305, true)] {
        let (mut server, _) = offloaded(false, &established(true, cipher, last));
        assert!(server.prepare().is_ok());
        server.gave(1);
        assert_eq!(server.prepare().is_ok(), is_allowed);
    }
}
