//! The application's logic: from a request to a response, and the three jobs that may wait for a
//! disk.
//!
//! [`decide`] needs only the tables. It returns a [`PageResponse`], or a job for the caller: append
//! a record, rebuild the files, read the log. A server's loop passes the job to a helper and
//! continues with [`posted`], [`was_reset`] or [`fetched`]. A process that may block calls
//! [`answer`], which does everything through its [`Files`].

use std::fmt;
use std::io;

use crate::file::FileName;
use crate::page::{self, PageFields, TAIL};
use crate::placeholder::PATH_BYTES;
use crate::post::Entry;
use crate::request::{Operation, Request, RequestError, parse};
use crate::scan;
use crate::tables::{Ads, Reset, ShownAd, User};

/// The two tables. A server keeps them in memory; a program that serves one request reads the line
/// it needs.
pub trait Lookup {
    /// The user with this number, if there is one.
    ///
    /// # Errors
    /// The table could not be read.
    fn user(&mut self, id: u32) -> io::Result<Option<User>>;

    /// All advertisements.
    ///
    /// # Errors
    /// The table could not be read.
    fn ads(&mut self) -> io::Result<&Ads>;
}

/// The application's files, for a process that may block.
pub trait Files: Lookup {
    /// Appends a record and returns its number, from 1. Records of concurrent processes are
    /// serialized.
    ///
    /// # Errors
    /// It could not be written.
    fn append(&mut self, entry: &Entry) -> io::Result<u64>;

    /// Rebuilds the tables and empties the log.
    ///
    /// # Errors
    /// They could not be written.
    fn reset(&mut self, reset: &Reset) -> io::Result<()>;

    /// The whole log.
    ///
    /// # Errors
    /// It could not be read.
    fn log(&mut self) -> io::Result<Vec<u8>>;
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageResponse {
    /// The status.
    pub status: u16,
    /// The header fields except Content-Length, which the caller knows.
    pub fields: Vec<(&'static str, String)>,
    /// The body, in order.
    pub pieces: Vec<BodyPiece>,
}

/// A piece of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodyPiece {
    /// Bytes as they are.
    Bytes(Vec<u8>),
    /// A file of the set, unchanged.
    File(FileName),
    /// A file of the set with this name in its placeholders ([`scan::Scanner::replace`]). It has
    /// the file's length.
    Scanned(FileName, [u8; PATH_BYTES]),
}

/// What to do for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestAction {
    /// Send this response.
    Response(PageResponse),
    /// Append this entry, then send [`posted`].
    Post(Entry),
    /// Rebuild the files, then send [`was_reset`].
    Reset(Reset),
    /// Read the log, then send [`fetched`].
    Fetch,
}

/// Decides what to do for a request.
///
/// # Errors
/// A table could not be read.
pub fn decide(request: &Request<'_>, tables: &mut dyn Lookup) -> io::Result<RequestAction> {
    Ok(match parse(request) {
        Ok(Operation::Standard(file)) => {
            RequestAction::Response(wrap_in_page(request, BodyPiece::File(file)))
        }
        Ok(Operation::Custom {
            file,
            user,
            last_ad,
        }) => RequestAction::Response(custom(request, tables, file, user, last_ad)?),
        Ok(Operation::Post(entry)) => RequestAction::Post(entry),
        Ok(Operation::Reset(reset)) => RequestAction::Reset(reset),
        Ok(Operation::Fetch) => RequestAction::Fetch,
        Err(refusal) => RequestAction::Response(error_response(refusal)),
    })
}

/// Decides what to do for a request, and does it.
///
/// # Errors
/// A file of the application could not be read or written; the client should get a 500.
pub fn answer(request: &Request<'_>, files: &mut impl Files) -> io::Result<PageResponse> {
    Ok(match decide(request, files)? {
        RequestAction::Response(response) => response,
        RequestAction::Post(entry) => posted(request, &entry, files.append(&entry)?),
        RequestAction::Reset(reset) => {
            files.reset(&reset)?;
            was_reset(request, &reset)
        }
        RequestAction::Fetch => fetched(request, files.log()?),
    })
}

fn custom(
    request: &Request<'_>,
    tables: &mut dyn Lookup,
    file: FileName,
    id: u32,
    last_ad: Option<u32>,
) -> io::Result<PageResponse> {
    let Some(user) = tables.user(id)? else {
        return Ok(error_response(RequestError {
            status: 400,
            reason: "the cookie my_cookie names no user",
        }));
    };
    let shown = tables.ads()?.choose(user, last_ad, request.now_s);
    let content = match file.has_placeholders() {
        true => BodyPiece::Scanned(file, scan::ad_name(shown.ad)),
        false => BodyPiece::File(file),
    };
    let mut response = wrap_in_page(request, content);
    response
        .fields
        .push(("Set-Cookie", FoundCookie(&shown).to_string()));
    Ok(response)
}

/// The cookie that tells the client which advertisement it was shown.
#[derive(Clone, Copy, Debug)]
pub struct FoundCookie<'a>(pub &'a ShownAd);

impl fmt::Display for FoundCookie<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ShownAd {
            ad,
            weight,
            expired,
        } = self.0;
        let expired = u8::from(*expired);
        write!(
            out,
            "found_cookie=Ad_id={ad}&Ad_weight={weight}&Expired={expired}"
        )
    }
}

/// The response to a post that became the record with this number.
pub fn posted(request: &Request<'_>, entry: &Entry, number: u64) -> PageResponse {
    let mut response = wrap_in_page(request, BodyPiece::File(entry.file));
    response.fields.push(("Set-Cookie", posted_cookie(number)));
    response
}

/// The cookie that tells the client the number of its record.
pub fn posted_cookie(number: u64) -> String {
    format!("posted_cookie=record={number}")
}

/// The response to a reset.
pub fn was_reset(request: &Request<'_>, reset: &Reset) -> PageResponse {
    let text = format!(
        "{} users, {} advertisements, an empty log",
        reset.users,
        crate::tables::ADS
    );
    wrap_in_page(request, BodyPiece::Bytes(text.into_bytes()))
}

/// The response to a fetch.
pub fn fetched(request: &Request<'_>, log: Vec<u8>) -> PageResponse {
    wrap_in_page(request, BodyPiece::Bytes(log))
}

/// A page with this content.
fn wrap_in_page(request: &Request<'_>, content: BodyPiece) -> PageResponse {
    let head = page::head(&PageFields {
        server: request.server,
        client: request.client,
        script: request.script,
        query: request.query,
    });
    PageResponse {
        status: 200,
        fields: vec![("Content-Type", "text/html".to_owned())],
        pieces: vec![
            BodyPiece::Bytes(head),
            content,
            BodyPiece::Bytes(TAIL.to_vec()),
        ],
    }
}

fn error_response(refusal: RequestError) -> PageResponse {
    let mut response = PageResponse::plain(refusal.status, refusal.reason);
    if refusal.status == 405 {
        response.fields.push(("Allow", "GET, POST".to_owned()));
    }
    response
}

impl PageResponse {
    /// A plain-text response with this status.
    pub fn plain(status: u16, text: &str) -> PageResponse {
        PageResponse {
            status,
            fields: vec![("Content-Type", "text/plain".to_owned())],
            pieces: vec![BodyPiece::Bytes(format!("{text}\n").into_bytes())],
        }
    }

    /// The response if a file of the page does not exist.
    pub fn missing() -> PageResponse {
        PageResponse::plain(404, "the file set has no such file")
    }

    /// Length of the body, given the lengths of its files; `None` if one of them does not exist.
    pub fn length(&self, mut size: impl FnMut(FileName) -> Option<u64>) -> Option<u64> {
        let of = |piece: &BodyPiece| match piece {
            BodyPiece::Bytes(bytes) => Some(bytes.len() as u64),
            BodyPiece::File(file) | BodyPiece::Scanned(file, _) => size(*file),
        };
        self.pieces.iter().map(of).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Method;
    use crate::tables::USER_FIRST;

    /// Tables after a reset, and a list of what was done.
    struct Memory {
        reset: Reset,
        ads: Ads,
        entries: Vec<Entry>,
    }

    impl Memory {
        fn new() -> Memory {
            let reset = Reset {
                users: 10,
                seed: 3,
                time_s: 1_700_000_000,
                expired_percent: 10,
            };
            Memory {
                ads: Ads::generate(&reset),
                reset,
                entries: Vec::new(),
            }
        }
    }

    impl Lookup for Memory {
        fn user(&mut self, id: u32) -> io::Result<Option<User>> {
            Ok(User::generate(&self.reset, id))
        }

        fn ads(&mut self) -> io::Result<&Ads> {
            Ok(&self.ads)
        }
    }

    impl Files for Memory {
        fn append(&mut self, entry: &Entry) -> io::Result<u64> {
            self.entries.push(*entry);
            Ok(self.entries.len() as u64)
        }

        fn reset(&mut self, reset: &Reset) -> io::Result<()> {
            self.reset = *reset;
            self.entries.clear();
            Ok(())
        }

        fn log(&mut self) -> io::Result<Vec<u8>> {
            Err(io::ErrorKind::NotFound.into())
        }
    }

    fn request<'a>(method: Method, query: &'a str, cookie: &'a str, body: &'a [u8]) -> Request<'a> {
        Request {
            method,
            query,
            cookie,
            body,
            server: "test/1",
            client: "127.0.0.1",
            script: "/x",
            now_s: 1_700_000_000,
        }
    }

    fn get(files: &mut Memory, query: &str, cookie: &str) -> PageResponse {
        answer(&request(Method::Get, query, cookie, b""), files).expect("an answer")
    }

    #[test]
    fn standard_get_wraps_the_file_in_a_page() {
        let response = get(&mut Memory::new(), "/dir00001/class2_3", "");
        let file = FileName::new(1, 2, 3).expect("a file");
        assert_eq!(
            (response.status, &response.pieces[1]),
            (200, &BodyPiece::File(file))
        );
        assert_eq!(
            response.length(|_| Some(1000)),
            response.length(|_| Some(0)).map(|rest| rest + 1000)
        );
        assert_eq!(response.length(|_| None), None);
        assert_eq!(response.fields.len(), 1, "no cookie: {:?}", response.fields);
    }

    #[test]
    fn custom_get_continues_after_the_advertisement_in_the_cookie() {
        let mut files = Memory::new();
        let user = files
            .user(USER_FIRST + 4)
            .expect("a table")
            .expect("a user");
        let mut last = None;
        for _ in 0..5 {
            let shown = files.ads.choose(user, last, 1_700_000_000);
            let cookie = match last {
                None => format!("my_cookie=user_id={}", USER_FIRST + 4),
                Some(last) => format!("my_cookie=user_id={}&last_ad={last}", USER_FIRST + 4),
            };
            let response = get(&mut files, "/dir00001/class2_3", &cookie);
            let file = FileName::new(1, 2, 3).expect("a file");
            assert_eq!(
                response.pieces[1],
                BodyPiece::Scanned(file, scan::ad_name(shown.ad))
            );
            assert_eq!(
                response.fields[1],
                ("Set-Cookie", FoundCookie(&shown).to_string())
            );
            assert_ne!(last, Some(shown.ad));
            last = Some(shown.ad);
        }
        let large = get(&mut files, "/dir00001/class3_3", "my_cookie=user_id=10004");
        assert!(
            matches!(large.pieces[1], BodyPiece::File(_)),
            "large files are not scanned"
        );
        assert_eq!(
            get(&mut files, "/dir00001/class2_3", "my_cookie=user_id=10010").status,
            400
        );
    }

    #[test]
    fn post_is_appended_once_and_its_number_returned() {
        let mut files = Memory::new();
        let body = b"dir=1&class=0&file=2&client=7&serial=1";
        let post = request(Method::Post, "", "", body);
        for number in 1..3 {
            let response = answer(&post, &mut files).expect("an answer");
            assert_eq!(response.fields[1], ("Set-Cookie", posted_cookie(number)));
        }
        assert_eq!((files.entries.len(), files.entries[0].client), (2, 7));
        let error_response =
            answer(&request(Method::Post, "", "", b"dir=1"), &mut files).expect("an answer");
        assert_eq!((error_response.status, files.entries.len()), (400, 2));
        let put = answer(&request(Method::Other, "", "", b""), &mut files).expect("an answer");
        assert_eq!((put.status, put.fields[1].0), (405, "Allow"));
    }

    #[test]
    fn unreadable_file_is_an_io_error() {
        let mut files = Memory::new();
        assert!(answer(&request(Method::Get, "command/Fetch", "", b""), &mut files).is_err());
        let reset = get(
            &mut files,
            "command/Reset&users=99&seed=1&time=5&expired=0",
            "",
        );
        assert_eq!((reset.status, files.reset.users), (200, 99));
    }
}
