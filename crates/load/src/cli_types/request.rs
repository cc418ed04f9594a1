//! What a request says besides its path: `-X HEAD`, `-H 'Accept: text/html'`, `--bearer`; and the
//! numbers that other load generators know.

use std::str::FromStr;

use base64::Engine;
use base64::prelude::BASE64_STANDARD as STANDARD;

use crate::engine::{Method, is_token};
use headway_latency::run::AgentInfo;

/// A request header as it is written on the command line: `Name: value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// An HTTP token.
    pub name: String,
    /// Without the spaces around it.
    pub value: String,
}

/// A name and a password, as the `Authorization` header has them (RFC 7617).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Basic(pub Header);

/// A token, as the `Authorization` header has it (RFC 6750).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bearer(pub Header);

/// A cookie as the `Cookie` header has it: `NAME=VALUE` (RFC 6265).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cookie(pub String);

/// A number of threads, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threads(pub u32);

/// The seed of a random stream: any whole number from 0 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub u64);

/// Which of several clients this one is: `2/8` is the third of eight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agent(pub AgentInfo);

/// Headers that the client sets itself, and what to use instead.
const OWN_HEADERS: [(&str, &str); 3] = [
    (
        "connection",
        "limit the requests of a connection with --requests-per-connection",
    ),
    ("content-length", "it follows from --data or --data-file"),
    (
        "transfer-encoding",
        "a body has a length, from --data or --data-file",
    ),
];

impl FromStr for Header {
    type Err = String;

    fn from_str(text: &str) -> Result<Header, String> {
        let Some((name, value)) = text.split_once(':') else {
            return Err(format!(
                "`{text}` is not a header; write its name, a colon and its value: 'Accept: text/html'"
            ));
        };
        let (name, value) = (name.trim(), value.trim());
        if !is_token(name) {
            return Err(format!("`{name}` is not the name of a header"));
        }
        if value.bytes().any(|byte| byte.is_ascii_control()) {
            return Err(format!("{name}: a header value has no control characters"));
        }
        let own = OWN_HEADERS
            .iter()
            .find(|(own, _)| own.eq_ignore_ascii_case(name));
        match own {
            Some((_, instead)) => Err(format!("{name} cannot be set: {instead}")),
            None => Ok(Header {
                name: name.to_owned(),
                value: value.to_owned(),
            }),
        }
    }
}

impl FromStr for Basic {
    type Err = String;

    fn from_str(text: &str) -> Result<Basic, String> {
        if !text.contains(':') {
            return Err("write a name, a colon and a password".to_owned());
        }
        if text.bytes().any(|byte| byte.is_ascii_control()) {
            return Err("a name and a password have no control characters".to_owned());
        }
        Ok(Basic(authorization("Basic", &STANDARD.encode(text))))
    }
}

impl FromStr for Bearer {
    type Err = String;

    fn from_str(text: &str) -> Result<Bearer, String> {
        match !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(Bearer(authorization("Bearer", text))),
            false => Err("a token is not empty, and has no spaces".to_owned()),
        }
    }
}

impl FromStr for Agent {
    type Err = String;

    fn from_str(text: &str) -> Result<Agent, String> {
        let numbers = text.split_once('/');
        let numbers = numbers.map(|(index, count)| (index.parse::<u32>(), count.parse::<u32>()));
        match numbers {
            Some((Ok(index), Ok(count))) if index < count => Ok(Agent(AgentInfo { index, count })),
            Some((Ok(_), Ok(count))) if count > 0 => Err(format!(
                "`{text}`: agents are numbered from 0, so the last is {}/{count}",
                count - 1
            )),
            _ => Err(format!("`{text}` is not INDEX/COUNT, as in 0/8")),
        }
    }
}

impl FromStr for Cookie {
    type Err = String;

    fn from_str(text: &str) -> Result<Cookie, String> {
        let is_name = |(name, _): (&str, &str)| is_token(name);
        let fits = |byte: u8| byte.is_ascii_graphic() && !b"\",;\\".contains(&byte);
        // The value may be in quotes.
        let value = text.split_once('=').map_or("", |(_, value)| value);
        let quoted = value
            .strip_prefix('"')
            .and_then(|value| value.strip_suffix('"'));
        let is_value = quoted.unwrap_or(value).bytes().all(fits);
        match text.split_once('=').is_some_and(is_name) && is_value {
            true => Ok(Cookie(text.to_owned())),
            false => Err("write NAME=VALUE, without spaces, commas and semicolons".to_owned()),
        }
    }
}

fn authorization(scheme: &str, value: &str) -> Header {
    Header {
        name: "Authorization".to_owned(),
        value: format!("{scheme} {value}"),
    }
}

impl FromStr for Method {
    type Err = String;

    fn from_str(text: &str) -> Result<Method, String> {
        let mut known = Method::ALL.into_iter();
        known
            .find(|method| method.name().eq_ignore_ascii_case(text))
            .ok_or_else(|| {
                let names = Method::ALL.map(Method::name).join(", ");
                format!("`{text}` requests cannot be sent; these can: {names}")
            })
    }
}

/// More loops than this are surely a mistake.
pub(crate) const THREADS_MAX: u32 = 256;

impl FromStr for Threads {
    type Err = String;

    fn from_str(text: &str) -> Result<Threads, String> {
        match text.parse() {
            Ok(number) if (1..=THREADS_MAX).contains(&number) => Ok(Threads(number)),
            _ => Err(format!(
                "`{text}` is not a number of threads, from 1 to {THREADS_MAX}"
            )),
        }
    }
}

impl FromStr for Seed {
    type Err = String;

    fn from_str(text: &str) -> Result<Seed, String> {
        text.parse()
            .map(Seed)
            .map_err(|_| format!("`{text}` is not a seed; write a whole number from 0 on"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_is_name_and_value_when_parsed() {
        let header = |name: &str, value: &str| Header {
            name: name.to_owned(),
            value: value.to_owned(),
        };
        assert_eq!(
            "Accept:  text/html ".parse(),
            Ok(header("Accept", "text/html"))
        );
        assert_eq!("X-Empty:".parse(), Ok(header("X-Empty", "")));
        assert_eq!("X: a:b".parse(), Ok(header("X", "a:b")));
    }

    #[test]
    fn agent_is_one_of_a_number_from_0() {
        let parsed = |text: &str| text.parse::<Agent>();
        let third = AgentInfo { index: 2, count: 3 };
        assert_eq!(parsed("2/3"), Ok(Agent(third)));
        assert!(
            parsed("3/3")
                .expect_err("there is none")
                .contains("the last is 2/3")
        );
        for text in ["0/0", "1", "/", "-1/3", "1/3/5"] {
            let error = parsed(text).expect_err(text);
            assert!(error.contains("INDEX/COUNT"), "{error}");
        }
    }

    #[test]
    fn cookie_is_a_name_and_a_value() {
        for text in ["a=b", "a=", "a=b=c", "a=\"b\""] {
            assert_eq!(text.parse(), Ok(Cookie(text.to_owned())));
        }
        for text in ["a", "=b", "a=b; c=d", "a=b c", "a b=c", "a=\"", "a=b\r\n"] {
            assert!(text.parse::<Cookie>().is_err(), "{text}");
        }
    }

    #[test]
    fn header_is_an_error_when_it_is_malformed_or_set_by_the_client() {
        let cases = [
            ("Accept", "a colon"),
            (": x", "not the name"),
            ("A B: x", "not the name"),
            ("A: x\r\nB: y", "control characters"),
            ("connection: close", "--requests-per-connection"),
            ("Content-Length: 3", "--data"),
        ];
        for (text, part) in cases {
            let error = text.parse::<Header>().expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn method_is_known_when_parsed() {
        assert_eq!("HEAD".parse(), Ok(Method::Head));
        assert_eq!("GET".parse(), Ok(Method::Get));
        assert_eq!("post".parse(), Ok(Method::Post));
        let error = "CONNECT".parse::<Method>().expect_err("a tunnel");
        assert!(error.contains("GET, HEAD, POST"), "{error}");
    }

    #[test]
    fn authorization_is_that_of_the_standards() {
        // The example of RFC 7617 section 2.
        let basic: Basic = "Aladdin:open sesame"
            .parse()
            .expect("a name and a password");
        assert_eq!(basic.0.value, "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
        let bearer: Bearer = "mF_9.B5f-4.1JqM".parse().expect("a token");
        assert_eq!(bearer.0.value, "Bearer mF_9.B5f-4.1JqM");
    }

    #[test]
    fn secret_is_an_error_when_it_is_malformed_and_is_not_repeated() {
        for (text, part) in [("hunter2", "a colon"), ("a:hunter2\n", "control")] {
            let error = text.parse::<Basic>().expect_err(text);
            assert!(
                error.contains(part) && !error.contains("hunter2"),
                "{error}"
            );
        }
        for text in ["", "hunter 2", "hunter\n2"] {
            let error = text.parse::<Bearer>().expect_err("no token");
            assert!(!error.contains("hunter"), "{error}");
        }
    }

    #[test]
    fn threads_are_a_number_from_1_to_256() {
        assert_eq!("1".parse(), Ok(Threads(1)));
        assert_eq!("256".parse(), Ok(Threads(256)));
        for text in ["0", "257", "-1", "all"] {
            assert!(text.parse::<Threads>().unwrap_err().contains("1 to 256"));
        }
    }

    #[test]
    fn seed_is_an_error_when_it_is_negative() {
        assert_eq!("7".parse(), Ok(Seed(7)));
        assert!("-1".parse::<Seed>().unwrap_err().contains("from 0 on"));
    }
}
