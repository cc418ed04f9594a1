//! Parses a request to the application: method, query, cookie and body become an [`Operation`] or
//! an error.
//!
//! A query is a name of the set, or `command/Fetch`, or
//! `command/Reset&users=…&seed=…&time=…&expired=…`. A GET with the cookie `my_cookie` is a custom
//! one. The body of a POST is `dir=…&class=…&file=…&client=…&serial=…`. Nothing is guessed: a
//! missing or invalid number is an error.

use crate::file::FileName;
use crate::post::Entry;
use crate::tables::{Reset, USERS_MAX};

/// Longest body; the benchmark's client sends a tenth of it.
pub const BODY_BYTES_MAX: usize = 1024;

/// The name of the client's cookie.
pub const COOKIE: &str = "my_cookie";

/// Most parameters of a query.
const PAIRS_MAX: usize = 16;

/// A method that the application supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Returns a page.
    Get,
    /// Appends a record and returns a page.
    Post,
    /// Anything else: 405.
    Other,
}

/// A request, as the server or CGI interface has parsed it.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The method.
    pub method: Method,
    /// The text after the `?`, as received.
    pub query: &'a str,
    /// The value of the `Cookie` field; empty without one.
    pub cookie: &'a str,
    /// The whole body.
    pub body: &'a [u8],
    /// The server's name.
    pub server: &'a str,
    /// The client's address.
    pub client: &'a str,
    /// The path before the `?`.
    pub script: &'a str,
    /// The current time, in seconds since 1970.
    pub now_s: u64,
}

/// The operation that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A page with a file.
    Standard(FileName),
    /// A page with a file and an advertisement for this user.
    Custom {
        /// The file.
        file: FileName,
        /// The user's number.
        user: u32,
        /// The advertisement shown last, if any.
        last_ad: Option<u32>,
    },
    /// A record in the log, and a page with a file.
    Post(Entry),
    /// New tables and an empty log.
    Reset(Reset),
    /// The log.
    Fetch,
}

/// Why a request is not answered with a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestError {
    /// 400, 404 or 405.
    pub status: u16,
    /// An explanation for people.
    pub reason: &'static str,
}

/// Parses a request.
///
/// # Errors
/// A [`RequestError`], which can be sent as a response.
pub fn parse(request: &Request<'_>) -> Result<Operation, RequestError> {
    match request.method {
        Method::Get => parse_get(request),
        Method::Post => parse_post(request),
        Method::Other => Err(RequestError {
            status: 405,
            reason: "only GET and POST are answered here",
        }),
    }
}

fn parse_get(request: &Request<'_>) -> Result<Operation, RequestError> {
    if let Some(command) = request.query.strip_prefix("command/") {
        return parse_command(command);
    }
    let file = FileName::parse(request.query).ok_or(RequestError {
        status: 404,
        reason: "the query is not a file of the set; write it as ?/dir00042/class1_5",
    })?;
    let Some(value) = cookie(request.cookie) else {
        return Ok(Operation::Standard(file));
    };
    let user = number(value, "user_id").ok_or(bad("the cookie my_cookie has no user_id"))?;
    let last_ad = number(value, "last_ad");
    Ok(Operation::Custom {
        file,
        user,
        last_ad,
    })
}

fn parse_post(request: &Request<'_>) -> Result<Operation, RequestError> {
    let body = std::str::from_utf8(request.body).map_err(|_| bad("the body is not text"))?;
    if body.len() > BODY_BYTES_MAX {
        return Err(bad("the body has more than 1024 bytes"));
    }
    let wrong = bad("the body is written dir=42&class=1&file=5&client=0&serial=1");
    let value = |name| number::<u32>(body.trim_end(), name).ok_or(wrong);
    let small = |name| u8::try_from(value(name)?).map_err(|_| wrong);
    let file =
        FileName::new(value("dir")?, small("class")?, small("file")?).ok_or(RequestError {
            status: 404,
            reason: "the body names no file of the set",
        })?;
    let entry = Entry {
        file,
        client: value("client")?,
        serial: value("serial")?,
        user: cookie(request.cookie)
            .and_then(|value| number(value, "user_id"))
            .unwrap_or(0),
    };
    // A record has nine digits for it.
    match entry.client <= 999_999_999 {
        true => Ok(Operation::Post(entry)),
        false => Err(wrong),
    }
}

fn parse_command(command: &str) -> Result<Operation, RequestError> {
    if command == "Fetch" {
        return Ok(Operation::Fetch);
    }
    let unknown = RequestError {
        status: 404,
        reason: "the commands are command/Reset&users=…&seed=…&time=…&expired=… and command/Fetch",
    };
    let parameters = command.strip_prefix("Reset&").ok_or(unknown)?;
    let value = |name| number::<u64>(parameters, name).ok_or(unknown);
    let users = u32::try_from(value("users")?).unwrap_or(u32::MAX);
    let expired_percent = u8::try_from(value("expired")?).unwrap_or(u8::MAX);
    if !(1..=USERS_MAX).contains(&users) || expired_percent > 100 {
        return Err(bad(
            "a reset makes 1 to 1000000 users, and 0 to 100 percent have run out",
        ));
    }
    Ok(Operation::Reset(Reset {
        users,
        seed: value("seed")?,
        time_s: value("time")?,
        expired_percent,
    }))
}

/// The query of a reset, as [`parse`] reads it.
pub fn reset_query(reset: &Reset) -> String {
    let Reset {
        users,
        seed,
        time_s,
        expired_percent,
    } = reset;
    format!("command/Reset&users={users}&seed={seed}&time={time_s}&expired={expired_percent}")
}

/// The query that asks for the log.
pub const FETCH_QUERY: &str = "command/Fetch";

fn bad(reason: &'static str) -> RequestError {
    RequestError {
        status: 400,
        reason,
    }
}

/// The value of this application's cookie in a `Cookie` field (RFC 6265 section 4.2).
fn cookie(field: &str) -> Option<&str> {
    let pairs = field.split(';').take(PAIRS_MAX).map(str::trim);
    pairs
        .filter_map(|pair| pair.split_once('='))
        .find_map(|(name, value)| (name == COOKIE).then_some(value))
}

/// The number after a name in `name=number&name=number`. Digits only: no sign, no blank.
fn number<T: std::str::FromStr>(parameters: &str, name: &str) -> Option<T> {
    let pairs = parameters.split('&').take(PAIRS_MAX);
    let value = pairs
        .filter_map(|pair| pair.split_once('='))
        .find_map(|(found, value)| (found == name).then_some(value))?;
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    value.parse().ok().filter(|_| digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(query: &'static str, cookie: &'static str) -> Result<Operation, RequestError> {
        parse(&Request {
            query,
            cookie,
            ..plain()
        })
    }

    fn plain() -> Request<'static> {
        Request {
            method: Method::Get,
            query: "",
            cookie: "",
            body: b"",
            server: "test",
            client: "127.0.0.1",
            script: "/x",
            now_s: 0,
        }
    }

    fn post(body: &'static [u8]) -> Result<Operation, RequestError> {
        parse(&Request {
            method: Method::Post,
            body,
            cookie: "my_cookie=user_id=10003&last_ad=5",
            ..plain()
        })
    }

    fn file() -> FileName {
        FileName::new(42, 1, 5).expect("a file")
    }

    #[test]
    fn get_with_the_cookie_is_custom() {
        assert_eq!(
            get("/dir00042/class1_5", ""),
            Ok(Operation::Standard(file()))
        );
        assert_eq!(
            get("/dir00042/class1_5", "other=1; xmy_cookie=2"),
            Ok(Operation::Standard(file()))
        );
        let custom = |last_ad| {
            Ok(Operation::Custom {
                file: file(),
                user: 10_042,
                last_ad,
            })
        };
        assert_eq!(
            get(
                "/dir00042/class1_5",
                "a=b; my_cookie=user_id=10042&last_ad=17"
            ),
            custom(Some(17))
        );
        assert_eq!(
            get("/dir00042/class1_5", "my_cookie=user_id=10042"),
            custom(None)
        );
        let refused = get("/dir00042/class1_5", "my_cookie=hello").expect_err("no user");
        assert_eq!(refused.status, 400);
    }

    #[test]
    fn unknown_query_is_rejected() {
        for query in [
            "",
            "/",
            "/etc/passwd",
            "/dir00042/class1_5&x",
            "command/",
            "command/reset",
            "command/Fetch&x",
        ] {
            assert_eq!(get(query, "").expect_err(query).status, 404, "{query}");
        }
        let other = Request {
            method: Method::Other,
            ..plain()
        };
        assert_eq!(parse(&other).expect_err("no such method").status, 405);
    }

    #[test]
    fn reset_query_reads_back_as_written() {
        let reset = Reset {
            users: 300,
            seed: u64::MAX,
            time_s: 1_700_000_000,
            expired_percent: 10,
        };
        let query = reset_query(&reset);
        let request = Request {
            query: &query,
            ..plain()
        };
        assert_eq!(parse(&request), Ok(Operation::Reset(reset)));
        for (from, to) in [
            ("users=300", "users=0"),
            ("users=300", "users=1000001"),
            ("expired=10", "expired=101"),
            ("seed=", "sed="),
            ("users=300", "users=+3"),
        ] {
            let wrong = query.replace(from, to);
            let request = Request {
                query: &wrong,
                ..plain()
            };
            assert!(parse(&request).is_err(), "{wrong}");
        }
    }

    #[test]
    fn post_with_a_complete_body_is_an_entry() {
        let entry = Entry {
            file: file(),
            client: 3,
            serial: 8,
            user: 10_003,
        };
        assert_eq!(
            post(b"dir=42&class=1&file=5&client=3&serial=8"),
            Ok(Operation::Post(entry))
        );
        assert_eq!(
            post(b"dir=42&class=1&file=5&client=3&serial=8\r\n"),
            Ok(Operation::Post(entry))
        );
        let bodies: [&[u8]; 6] = [
            b"",
            b"dir=42&class=1&file=5&client=3",
            b"dir=42&class=1&file=5&client=-3&serial=8",
            b"dir=42&class=1&file=5&client=1000000000&serial=8",
            b"dir=42&class=257&file=5&client=3&serial=8",
            b"\xff",
        ];
        for body in bodies {
            let wrong = parse(&Request {
                method: Method::Post,
                body,
                ..plain()
            });
            assert_eq!(wrong.expect_err("no entry").status, 400, "{body:?}");
        }
        assert_eq!(
            post(b"dir=42&class=7&file=5&client=3&serial=8")
                .expect_err("no class 7")
                .status,
            404
        );
    }
}
