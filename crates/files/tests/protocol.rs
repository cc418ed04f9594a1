//! Every message survives the journey, and no bytes whatever do harm.

use headway_files::protocol::{
    CUSTOM_JOB_BYTES_MAX, CustomResult, FETCH_BYTES_MAX, INLINE_RESULT_BYTES_MAX,
    MESSAGE_BYTES_MAX, OpenMode, PATH_BYTES_MAX, REPLY_BYTES_MAX, Reply, Request, decode_reply,
    decode_request, encode_reply, encode_request,
};
use headway_files::{Failure, Meta, RawAnswer, RootId, RuleKind, Symlinks};
use proptest::prelude::*;
use std::borrow::Cow;
use std::rc::Rc;

fn encoded(request: &Request<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_request(request, &mut bytes);
    bytes
}

fn encoded_reply(reply: &Reply) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_reply(reply, &mut bytes);
    bytes
}

fn meta() -> impl Strategy<Value = Meta> {
    let stamp = || (any::<i64>(), any::<u32>());
    (any::<u64>(), stamp(), stamp(), any::<u64>(), any::<u64>()).prop_map(
        |(size, modified, changed, device, inode)| Meta {
            size,
            modified,
            changed,
            device,
            inode,
        },
    )
}

fn failure() -> impl Strategy<Value = Failure> {
    prop::sample::select(vec![
        Failure::NotFound,
        Failure::NameTooLong,
        Failure::Forbidden,
        Failure::NotRegular,
        Failure::Exhausted,
        Failure::Io,
        Failure::Overloaded,
        Failure::GivenUp,
        Failure::Changed,
    ])
}

fn answer() -> impl Strategy<Value = RawAnswer<Meta>> {
    let sibling = || prop::option::of(meta());
    let siblings = (sibling(), sibling(), sibling());
    prop_oneof![
        (meta(), any::<Option<u16>>(), siblings).prop_map(|(file, index, (br, zstd, gzip))| {
            RawAnswer::File {
                file,
                index,
                siblings: [br, zstd, gzip],
                unusable: 2,
            }
        }),
        Just(()).prop_map(|()| RawAnswer::Redirect),
        Just(()).prop_map(|()| RawAnswer::Directory),
        failure().prop_map(RawAnswer::Failed),
    ]
}

fn brought() -> impl Strategy<Value = Result<CustomResult<Meta>, Failure>> {
    let payload = prop::collection::vec(any::<u8>(), 0..=INLINE_RESULT_BYTES_MAX);
    prop_oneof![
        payload.prop_map(|payload| Ok(CustomResult::Inline(payload.into()))),
        meta().prop_map(|meta| Ok(CustomResult::File(meta))),
        failure().prop_map(Err),
    ]
}

fn reply() -> impl Strategy<Value = Reply> {
    let job = any::<u64>;
    prop_oneof![
        (job(), answer()).prop_map(|(job, answer)| {
            let content = None;
            Reply::LookedUp {
                job,
                answer,
                content,
            }
        }),
        (job(), any::<u32>()).prop_map(|(job, errno)| Reply::ReadIn { job, errno }),
        (
            job(),
            prop::result::maybe_ok(prop::option::of(meta()), failure())
        )
            .prop_map(|(job, answer)| Reply::Listed { job, answer }),
        (job(), prop::result::maybe_ok(meta(), 1_u32..))
            .prop_map(|(job, content)| Reply::Copy { job, content }),
        job().prop_map(|job| Reply::Closed { job }),
        job().prop_map(|job| Reply::Touched { job }),
        (job(), brought()).prop_map(|(job, answer)| Reply::Custom { job, answer }),
        (job(), 1_u32..).prop_map(|(job, errno)| {
            let content = Err(errno);
            Reply::Fetched { job, content }
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn request_comes_back_equal_when_decoded(
        (job, root, offset, length) in any::<(u64, u32, u64, u64)>(),
        (version, siblings, dotfiles) in any::<(u16, bool, bool)>(),
        path in prop::collection::vec(any::<u8>(), 0..PATH_BYTES_MAX),
        names in prop::collection::vec(".{0,20}", 0..10),
    ) {
        let id = RootId(root);
        let index = names.iter().map(|name| Cow::Borrowed(name.as_str())).collect();
        let kinds = [
            RuleKind::PublicBelow,
            RuleKind::InternalBelow,
            RuleKind::PublicSuffix,
            RuleKind::InternalSuffix,
        ];
        let texts = names.iter().map(|name| Cow::Borrowed(name.as_str()));
        let rules = kinds.into_iter().cycle().zip(texts).collect();
        for request in [
            Request::Hello { version, roots: root },
            Request::Root { root: id, siblings, dotfiles, symlinks: Symlinks::Owner, index, rules },
            Request::Lookup { job, root: id, want: OpenMode::TouchOnly, path: &path },
            Request::Lookup { job, root: id, want: OpenMode::Open, path: &path },
            Request::Lookup { job, root: id, want: OpenMode::OpenAndPrefetch(offset), path: &path },
            Request::Lookup { job, root: id, want: OpenMode::OpenAndRead, path: &path },
            Request::ReadIn { job, offset, length },
            Request::List { job, root: id, path: &path },
            Request::Copy { job, offset, length },
            Request::CopyChecked { job, sent: length, checksum: job, offset, length },
            Request::DeferClose { job },
            Request::Release { job },
            Request::Spool { job, offset, length, directory: &path },
            Request::OpenRoot { job, path: &path },
            Request::Custom { job, payload: &path },
            Request::Fetch { job, length: root % (FETCH_BYTES_MAX as u32 + 1) },
        ] {
            let bytes = encoded(&request);
            prop_assert!(bytes.len() <= MESSAGE_BYTES_MAX);
            prop_assert_eq!(decode_request(&bytes), Ok(request));
        }
    }

    #[test]
    fn reply_comes_back_equal_when_decoded(reply in reply()) {
        let bytes = encoded_reply(&reply);
        prop_assert!(bytes.len() <= REPLY_BYTES_MAX);
        prop_assert_eq!(decode_reply(&bytes), Ok(reply));
    }

    #[test]
    fn contents_come_back_equal_when_decoded(
        job: u64,
        file in meta(),
        content in prop::collection::vec(any::<u8>(), 0..2000),
    ) {
        let answer = RawAnswer::File { file, index: None, siblings: [None; 3], unusable: 0 };
        let resolved = Reply::LookedUp { job, answer, content: Some(content.clone().into()) };
        prop_assert_eq!(decode_reply(&encoded_reply(&resolved)), Ok(resolved));
        let fetched = Reply::Fetched { job, content: Ok(content.into()) };
        prop_assert_eq!(decode_reply(&encoded_reply(&fetched)), Ok(fetched));
    }

    #[test]
    fn reply_is_malformed_when_cut_or_extended(reply in reply(), cut: prop::sample::Index) {
        let mut bytes = encoded_reply(&reply);
        prop_assert!(decode_reply(&bytes[..cut.index(bytes.len())]).is_err());
        bytes.push(0);
        prop_assert!(decode_reply(&bytes).is_err());
    }

    #[test]
    fn message_has_one_encoding_when_random_bytes_are_decoded(
        kind in prop_oneof![0_u8..12, 127_u8..138],
        rest in prop::collection::vec(prop_oneof![0_u8..5, any::<u8>()], 0..260),
    ) {
        let bytes = [vec![kind], rest].concat();
        if let Ok(request) = decode_request(&bytes) {
            prop_assert_eq!(encoded(&request), bytes.clone());
        }
        if let Ok(reply) = decode_reply(&bytes) {
            prop_assert_eq!(encoded_reply(&reply), bytes);
        }
    }
}

#[test]
fn encoding_is_the_documented_one_when_a_resolve_is_sent() {
    let request = Request::Lookup {
        job: 0x0102,
        root: RootId(3),
        want: OpenMode::OpenAndPrefetch(0x0405),
        path: b"a/b",
    };
    let mut expected = vec![3, 2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0];
    expected.extend([2, 5, 4, 0, 0, 0, 0, 0, 0, b'a', b'/', b'b']);
    assert_eq!(encoded(&request), expected);
    let reply = Reply::ReadIn { job: 1, errno: 5 };
    assert_eq!(
        encoded_reply(&reply),
        [130, 1, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0]
    );
}

#[test]
fn contents_are_refused_when_they_are_longer_than_any_that_is_fetched() {
    let content: Rc<[u8]> = vec![7; FETCH_BYTES_MAX].into();
    let meta = Meta {
        size: FETCH_BYTES_MAX as u64,
        modified: (1, 2),
        changed: (3, 4),
        device: 5,
        inode: 6,
    };
    let file = |siblings| RawAnswer::File {
        file: meta,
        index: None,
        siblings,
        unusable: 0,
    };
    let resolved = |answer| Reply::LookedUp {
        job: 1,
        answer,
        content: Some(content.clone()),
    };
    let fetched = Reply::Fetched {
        job: 1,
        content: Ok(content.clone()),
    };
    for longest in [fetched, resolved(file([None; 3]))] {
        let mut bytes = encoded_reply(&longest);
        assert!(bytes.len() <= REPLY_BYTES_MAX);
        assert_eq!(decode_reply(&bytes), Ok(longest));
        bytes.push(7);
        assert!(decode_reply(&bytes).is_err());
    }
    // Contents belong to one file.
    for answer in [file([Some(meta), None, None]), RawAnswer::Directory] {
        assert!(decode_reply(&encoded_reply(&resolved(answer))).is_err());
    }
    let length = FETCH_BYTES_MAX as u32;
    for (length, fits) in [(length, true), (length + 1, false), (u32::MAX, false)] {
        let request = encoded(&Request::Fetch { job: 1, length });
        assert_eq!(decode_request(&request).is_ok(), fits, "{length}");
    }
}

#[test]
fn path_is_cut_when_no_system_call_would_take_it() {
    let path = vec![b'x'; 100_000];
    let bytes = encoded(&Request::List {
        job: 1,
        root: RootId(0),
        path: &path,
    });
    let Ok(Request::List { path, .. }) = decode_request(&bytes) else {
        panic!()
    };
    assert_eq!(path.len(), PATH_BYTES_MAX);
}

#[test]
fn message_is_malformed_when_it_is_not_in_the_table() {
    let long = vec![3; MESSAGE_BYTES_MAX + 1];
    let no_utf8 = [
        2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0xff, 0, 0, 0, 0,
    ];
    let flag = [2, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let links = [2, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0];
    let many_names = [2, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
    let custom_job = [&[10][..], &[0; CUSTOM_JOB_BYTES_MAX + 9]].concat();
    let mut utf8 = no_utf8;
    utf8[16] = b'a';
    assert!(decode_request(&utf8).is_ok());
    for bytes in [
        &[][..],
        &[0],
        &[9],
        &[129],
        &long,
        &no_utf8,
        &flag,
        &links,
        &many_names,
        &custom_job,
    ] {
        assert!(
            decode_request(bytes).is_err(),
            "{:?}",
            &bytes[..bytes.len().min(12)]
        );
    }
}

#[test]
fn reply_is_malformed_when_a_flag_is_neither_0_nor_1() {
    // Of the index, of three precompressed files, and of the contents.
    const FLAGS: usize = 5;
    let file = Meta {
        size: 1,
        modified: (2, 3),
        changed: (4, 5),
        device: 6,
        inode: 7,
    };
    let reply = Reply::LookedUp {
        job: 0,
        answer: RawAnswer::File {
            file,
            index: None,
            siblings: [None; 3],
            unusable: 0,
        },
        content: None,
    };
    let bytes = encoded_reply(&reply);
    assert!(bytes.ends_with(&[0; FLAGS]));
    for position in bytes.len() - FLAGS..bytes.len() {
        let mut changed = bytes.clone();
        changed[position] = 2;
        assert!(decode_reply(&changed).is_err(), "{position}");
    }
}
