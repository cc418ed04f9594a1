//! Responses as the application sends them, correct and altered, and the outcome that a client
//! reports.

use super::*;
use headway_load::fileset::{Manifest, Shape};
use headway_specweb::application::{BodyPiece, Lookup, RequestAction, decide, posted};
use headway_specweb::request::{Method, Request};
use std::io;

fn client_state(manifest: &Manifest) -> SharedClientState {
    let reset = Reset {
        users: 4,
        seed: 9,
        time_s: 1_700_000_000,
        expired_percent: 10,
    };
    let documents = manifest.files().map(|file| Document {
        path: file.path.to_owned(),
        size_bytes: Some(file.size_bytes),
        class: file.class,
        checksum: Some(manifest.checksum(file.index)),
    });
    SharedClientState {
        documents: documents.collect(),
        popularity: FilePopularity::new(manifest),
        ads: Ads::generate(&reset),
        reset,
        paths: ["/dynamic".to_owned(), "/cgi".to_owned()],
        static_only: false,
        posts: Posts::new(4),
    }
}

struct Tables<'a>(&'a SharedClientState);

impl Lookup for Tables<'_> {
    fn user(&mut self, id: u32) -> io::Result<Option<User>> {
        Ok(User::generate(&self.0.reset, id))
    }

    fn ads(&mut self) -> io::Result<&Ads> {
        Ok(&self.0.ads)
    }
}

/// What a server would send: cookies, and the body.
fn served(
    request: &str,
    manifest: &Manifest,
    knowledge: &SharedClientState,
    number: u64,
) -> (Vec<String>, Vec<u8>) {
    let (head, body) = request.split_once("\r\n\r\n").expect("a head");
    let mut parts = head.split(' ');
    let (method, target) = (
        parts.next().expect("a method"),
        parts.next().expect("a target"),
    );
    let (script, query) = target.split_once('?').unwrap_or((target, ""));
    let content = |name: &str| {
        let file = manifest
            .files()
            .find(|file| file.path == name)
            .expect("a file");
        let mut bytes = vec![0; file.size_bytes as usize];
        manifest.content(file.index).fill(0, &mut bytes);
        bytes
    };
    if script != "/dynamic" && script != "/cgi" {
        return (Vec::new(), content(script));
    }
    let cookie = head
        .lines()
        .find_map(|line| line.strip_prefix("Cookie: "))
        .unwrap_or("");
    let request = Request {
        method: if method == "POST" {
            Method::Post
        } else {
            Method::Get
        },
        query,
        cookie,
        body: body.as_bytes(),
        server: "test",
        client: "127.0.0.1",
        script,
        now_s: 1_700_000_000,
    };
    let response = match decide(&request, &mut Tables(knowledge)).expect("tables") {
        RequestAction::Response(response) => response,
        RequestAction::Post(entry) => posted(&request, &entry, number),
        other => panic!("{other:?}"),
    };
    assert_eq!(response.status, 200, "{head}");
    let mut out = Vec::new();
    for piece in &response.pieces {
        match piece {
            BodyPiece::Bytes(bytes) => out.extend_from_slice(bytes),
            BodyPiece::File(name) => out.extend(content(&name.to_string())),
            BodyPiece::Scanned(name, ad) => {
                let mut bytes = content(&name.to_string());
                Scanner::new().replace(&mut bytes, ad);
                out.extend(bytes);
            }
        }
    }
    let cookies = response
        .fields
        .into_iter()
        .filter(|(name, _)| *name == "Set-Cookie");
    (cookies.map(|(_, value)| value).collect(), out)
}

/// Asks until a request of this kind, and for a file of this class, has been answered; the response
/// goes through `change`.
fn outcome_of(
    kind: RequestKind,
    class: u8,
    change: impl Fn(&mut Vec<String>, &mut Vec<u8>),
) -> Outcome {
    let manifest = Manifest::new("/nowhere", Shape::SpecWeb99Dynamic { directories: 2 }, 1);
    let clients = Clients {
        knowledge: Arc::new(client_state(&manifest)),
        seed: 3,
    };
    let mut client = clients.client(2);
    for number in 1..100_000 {
        client.choose(0);
        let wanted = client.facts().class == kind.class(class);
        let mut request = Vec::new();
        client.form(b"Host: test\r\n\r\n", &mut request);
        let request = String::from_utf8(request).expect("text");
        let (mut cookies, mut body) = served(&request, &manifest, &clients.knowledge, number);
        if wanted {
            change(&mut cookies, &mut body);
        }
        cookies
            .iter()
            .for_each(|cookie| client.field("set-cookie", cookie.as_bytes()));
        body.chunks(1000).for_each(|piece| client.body(piece));
        let outcome = client.judge(200, body.len() as u64);
        client.ended(outcome);
        if wanted {
            return outcome;
        }
        assert_eq!(outcome, Outcome::Ok, "{request}");
    }
    panic!("no such request was drawn");
}

#[test]
fn every_response_of_the_application_is_right_when_nothing_is_changed() {
    for kind in RequestKind::ALL {
        for class in 0..3 {
            assert_eq!(
                outcome_of(kind, class, |_, _| ()),
                Outcome::Ok,
                "{kind:?} {class}"
            );
        }
    }
}

#[test]
fn wrong_page_is_found_when_anything_in_it_differs() {
    let last_byte = |_: &mut Vec<String>, body: &mut Vec<u8>| {
        let at = body.len() - 100;
        body[at] ^= 1;
    };
    for kind in RequestKind::ALL {
        assert_eq!(outcome_of(kind, 1, last_byte), Outcome::Content, "{kind:?}");
    }
    let torn = |_: &mut Vec<String>, body: &mut Vec<u8>| body.truncate(body.len() - 1);
    assert_eq!(outcome_of(RequestKind::Static, 1, torn), Outcome::Length);
    assert_eq!(outcome_of(RequestKind::Standard, 1, torn), Outcome::Content);
    assert_eq!(outcome_of(RequestKind::Cgi, 1, torn), Outcome::Content);
}

#[test]
fn wrong_ad_is_found_in_file_and_cookie() {
    let other_ad = |_: &mut Vec<String>, body: &mut Vec<u8>| {
        let text = String::from_utf8_lossy(body).into_owned();
        let at = text.find("ad src=\"/dir0000").expect("a place") + "ad src=\"/dir0000".len();
        body[at] = if body[at] == b'9' { b'8' } else { b'9' };
    };
    assert_eq!(
        outcome_of(RequestKind::Custom, 1, other_ad),
        Outcome::Content
    );
    let not_scanned = |_: &mut Vec<String>, body: &mut Vec<u8>| {
        let text = String::from_utf8_lossy(body).into_owned();
        let at = text.find("ad src=\"").expect("a place") + "ad src=\"".len();
        body[at..at + PATH_BYTES].copy_from_slice(&PLACEHOLDER);
    };
    assert_eq!(
        outcome_of(RequestKind::Custom, 2, not_scanned),
        Outcome::Content
    );
    let no_cookie = |cookies: &mut Vec<String>, _: &mut Vec<u8>| cookies.clear();
    assert_eq!(
        outcome_of(RequestKind::Custom, 0, no_cookie),
        Outcome::Content
    );
    assert_eq!(
        outcome_of(RequestKind::Post, 0, no_cookie),
        Outcome::Content
    );
    let other_cookie = |cookies: &mut Vec<String>, _: &mut Vec<u8>| {
        cookies[0] = cookies[0].replace("Ad_weight=", "Ad_weight=1");
    };
    assert_eq!(
        outcome_of(RequestKind::Custom, 0, other_cookie),
        Outcome::Content
    );
}

#[test]
fn record_number_must_grow_when_a_client_posts_again() {
    let first = |cookies: &mut Vec<String>, _: &mut Vec<u8>| {
        cookies[0] = "posted_cookie=record=0; Path=/".to_owned();
    };
    assert_eq!(outcome_of(RequestKind::Post, 0, first), Outcome::Content);
    let later = |cookies: &mut Vec<String>, _: &mut Vec<u8>| cookies[0].push_str("; Path=/");
    assert_eq!(outcome_of(RequestKind::Post, 0, later), Outcome::Ok);
}

#[test]
fn acknowledged_posts_are_counted_and_open_ones_listed() {
    let posts = Posts::new(3);
    posts.sent[1].store(2, Ordering::Relaxed);
    posts.ended(1, 1, true);
    posts.ended(1, 2, false);
    assert_eq!(
        (posts.sent(), posts.acknowledged(), posts.open()),
        (vec![0, 2, 0], 1, vec![(1, 2)])
    );
}
