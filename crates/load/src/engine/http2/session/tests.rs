use headway_test_support::http2 as made;
use proptest::prelude::*;

use super::super::super::plan::{Address, Plan, Target, Work};
use super::super::requests::RequestFrames;
use super::*;

/// A session with its requests and the list of streams that have ended.
struct Conversation {
    session: Session,
    slots: Vec<ConnectionSlot>,
    ended: Vec<(u32, StreamEnd)>,
}

impl Conversation {
    fn new(requests: u32) -> Conversation {
        let target = Target::new(Address::Unix("/x".into()), "host");
        let frames = RequestFrames::new(&Plan::closed(target, Work::paths(["/"]), 1));
        let mut session = Session::new(None);
        session.waiting.extend(0..requests);
        while session.start(|_, id, out| frames.put(out, 0, id)).is_some() {}
        session.sent(session.output().len());
        Conversation {
            session,
            slots: (0..requests).map(|_| ConnectionSlot::new()).collect(),
            ended: Vec::new(),
        }
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        let mut to = Receiver {
            slots: &mut self.slots,
            server: &mut None,
            ended: &mut self.ended,
            now_ns: 1,
        };
        self.session.feed(bytes, &mut to)
    }
}

fn settings() -> Vec<u8> {
    made::settings(&[])
}

fn status(stream: u32, flags: u8) -> Vec<u8> {
    made::frame(made::HEADERS, made::END_HEADERS | flags, stream, &[0x88])
}

#[test]
fn windows_are_given_back_when_half_is_used() {
    let mut one = Conversation::new(1);
    one.feed(&[settings(), status(1, 0)].concat()).unwrap();
    let data = made::frame(made::DATA, 0, 1, &[0; 16_384]);
    let half = (frames::WINDOW_BYTES / 2 / 16_384) as usize;
    one.session.sent(one.session.output().len());
    for _ in 0..half - 1 {
        one.feed(&data).unwrap();
    }
    assert!(one.session.output().is_empty());
    one.feed(&data).unwrap();
    let bytes = frames::WINDOW_BYTES / 2;
    let expected = [made::window_update(0, bytes), made::window_update(1, bytes)].concat();
    assert_eq!(one.session.output(), expected);
    assert_eq!(one.slots[0].response.body_bytes, u64::from(bytes));
}

#[test]
fn memory_is_limited_when_the_server_sends_pings_and_does_not_read() {
    let mut one = Conversation::new(1);
    one.feed(&settings()).unwrap();
    let ping = made::frame(made::PING, 0, 0, b"12345678");
    let refused = (0..1 << 20)
        .map(|_| one.feed(&ping))
        .position(|fed| fed.is_err());
    let bytes = (refused.expect("a limit") + 1) * ping.len();
    assert!((1 << 20..1 << 21).contains(&bytes), "{bytes}");

    // A header block without an end, in empty and in full frames.
    for part in [&[][..], &[0; 16_384]] {
        let mut one = Conversation::new(1);
        one.feed(&[settings(), made::frame(made::HEADERS, 0, 1, &[0x88])].concat())
            .unwrap();
        let more = made::frame(made::CONTINUATION, 0, 1, part);
        assert!((0..100).any(|_| one.feed(&more).is_err()));
        assert!(one.session.block_bytes.len() <= 2 * HEADER_BYTES_MAX);
    }
}

#[test]
fn windows_may_shrink_and_may_not_overflow() {
    let initial = |bytes| made::settings(&[(made::INITIAL_WINDOW_SIZE, bytes)]);
    let mut one = Conversation::new(1);
    one.feed(&initial(0)).unwrap();
    assert_eq!(one.session.streams[0].window, 0);
    one.feed(&made::window_update(1, 100)).unwrap();
    one.feed(&initial(50)).unwrap();
    assert_eq!(one.session.streams[0].window, 150);
    let most = u32::MAX >> 1;
    assert!(one.feed(&made::window_update(0, most)).is_err());
    assert!(
        Conversation::new(1)
            .feed(&[settings(), made::window_update(0, 0)].concat())
            .is_err()
    );
    assert!(Conversation::new(1).feed(&initial(u32::MAX)).is_err());
    // On a stream it is an error of this stream only.
    let mut two = Conversation::new(2);
    two.feed(&[settings(), made::window_update(1, most)].concat())
        .unwrap();
    assert_eq!(two.ended, [(0, StreamEnd::Failed(Outcome::Malformed))]);
}

#[test]
fn frames_of_a_cancelled_stream_are_ignored() {
    let mut two = Conversation::new(2);
    // Cancelled in the middle of a frame.
    let data = made::frame(made::DATA, made::END_STREAM, 1, b"hello");
    two.feed(&[settings(), status(1, 0), data[..11].to_vec()].concat())
        .unwrap();
    two.session.sent(two.session.output().len());
    two.session.cancel(0, 1);
    assert_eq!(two.session.output(), made::reset(1));
    two.feed(&[&data[11..], &status(3, made::END_STREAM)].concat())
        .unwrap();
    assert_eq!(two.ended, [(1, StreamEnd::Whole { excess: false })]);
    assert_eq!(two.slots[0].response.body_bytes, 2);
    assert!(two.session.is_idle());
}

/// Frames of all kinds, some of which are valid.
fn almost_frames() -> impl Strategy<Value = Vec<u8>> {
    let frame = (
        0..11_u8,
        any::<u8>(),
        0..8_u32,
        proptest::collection::vec(any::<u8>(), 0..40),
    )
        .prop_map(|(kind, flags, stream, payload)| made::frame(kind, flags, stream, &payload));
    let good = prop_oneof![
        (1..8_u32, any::<bool>()).prop_map(|(stream, last)| status(stream, last.into())),
        (1..8_u32, 0..2_u8).prop_map(|(stream, flags)| made::frame(
            made::DATA,
            flags,
            stream,
            b"hello"
        )),
        (0..8_u32, 1..9_u32).prop_map(|(stream, bytes)| made::window_update(stream, bytes)),
        Just(made::frame(made::GOAWAY, 0, 0, &[0, 0, 0, 3, 0, 0, 0, 0])),
        (1..8_u32).prop_map(made::reset),
    ];
    let frames = proptest::collection::vec(prop_oneof![1 => frame, 4 => good], 0..12);
    frames.prop_map(|frames| [settings(), frames.concat()].concat())
}

proptest! {
    #[test]
    fn split_frames_have_the_same_effect_as_whole_ones(
        bytes in almost_frames(),
        cuts in proptest::collection::vec(1..30_usize, 1..20),
    ) {
        let (mut whole, mut pieces) = (Conversation::new(3), Conversation::new(3));
        let expected = whole.feed(&bytes);
        let (mut rest, mut fed) = (bytes.as_slice(), Ok(()));
        for cut in cuts.iter().cycle() {
            let (piece, behind) = rest.split_at((*cut).min(rest.len()));
            fed = fed.and_then(|()| pieces.feed(piece));
            rest = behind;
            if rest.is_empty() || fed.is_err() {
                break;
            }
        }
        prop_assert_eq!(fed, expected);
        prop_assert_eq!(&pieces.ended, &whole.ended);
        prop_assert_eq!(pieces.session.output(), whole.session.output());
        prop_assert!(pieces.session.input.len() <= frames::HEADER_BYTES + frames::PAYLOAD_BYTES_MAX);
    }
}
