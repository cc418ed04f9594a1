//! Status codes with their reason phrases and ready-made status lines.
//!
//! Only the statuses that Headway sends exist here, so every [`Status`] has a phrase.
//!
//! ```
//! use headway_http::Status;
//! assert_eq!(Status::NOT_FOUND.to_string(), "404 Not Found");
//! assert_eq!(Status::from_code(206), Some(Status::PARTIAL_CONTENT));
//! ```
//!
//! Source: RFC 9110 section 15, RFC 6585 (429, 431), RFC 5842 (508).

use std::fmt;

/// A status code that this server sends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Status(u16);

macro_rules! statuses {
    ($($name:ident $code:literal $phrase:literal;)+) => {
        impl Status {
            $(
                #[doc = concat!(stringify!($code), " ", $phrase)]
                pub const $name: Status = Status($code);
            )+

            /// All statuses in ascending order.
            pub const ALL: &'static [Status] = &[$(Status::$name),+];

            /// The status with this number, if Headway sends it.
            pub const fn from_code(code: u16) -> Option<Status> {
                match code {
                    $($code => Some(Status::$name),)+
                    _ => None,
                }
            }

            /// The reason phrase, such as `Not Found`.
            pub const fn phrase(self) -> &'static str {
                match self.0 {
                    $($code => $phrase,)+
                    _ => "",
                }
            }

            /// The status line after the version, with its line end: ` 404 Not Found\r\n`.
            ///
            /// A ready-made string avoids formatting the number in every response.
            pub(crate) const fn line(self) -> &'static str {
                match self.0 {
                    $($code => concat!(" ", stringify!($code), " ", $phrase, "\r\n"),)+
                    _ => " 500 Internal Server Error\r\n",
                }
            }
        }
    };
}

statuses! {
    CONTINUE 100 "Continue";
    OK 200 "OK";
    NO_CONTENT 204 "No Content";
    PARTIAL_CONTENT 206 "Partial Content";
    MOVED_PERMANENTLY 301 "Moved Permanently";
    FOUND 302 "Found";
    SEE_OTHER 303 "See Other";
    NOT_MODIFIED 304 "Not Modified";
    TEMPORARY_REDIRECT 307 "Temporary Redirect";
    PERMANENT_REDIRECT 308 "Permanent Redirect";
    BAD_REQUEST 400 "Bad Request";
    FORBIDDEN 403 "Forbidden";
    NOT_FOUND 404 "Not Found";
    METHOD_NOT_ALLOWED 405 "Method Not Allowed";
    NOT_ACCEPTABLE 406 "Not Acceptable";
    REQUEST_TIMEOUT 408 "Request Timeout";
    LENGTH_REQUIRED 411 "Length Required";
    PRECONDITION_FAILED 412 "Precondition Failed";
    CONTENT_TOO_LARGE 413 "Content Too Large";
    URI_TOO_LONG 414 "URI Too Long";
    RANGE_NOT_SATISFIABLE 416 "Range Not Satisfiable";
    EXPECTATION_FAILED 417 "Expectation Failed";
    MISDIRECTED_REQUEST 421 "Misdirected Request";
    TOO_MANY_REQUESTS 429 "Too Many Requests";
    REQUEST_HEADER_FIELDS_TOO_LARGE 431 "Request Header Fields Too Large";
    INTERNAL_SERVER_ERROR 500 "Internal Server Error";
    NOT_IMPLEMENTED 501 "Not Implemented";
    BAD_GATEWAY 502 "Bad Gateway";
    SERVICE_UNAVAILABLE 503 "Service Unavailable";
    GATEWAY_TIMEOUT 504 "Gateway Timeout";
    HTTP_VERSION_NOT_SUPPORTED 505 "HTTP Version Not Supported";
    LOOP_DETECTED 508 "Loop Detected";
}

impl Status {
    /// The status code as a number.
    pub const fn code(self) -> u16 {
        self.0
    }

    /// Whether the status is 4xx or 5xx.
    pub const fn is_error(self) -> bool {
        self.0 >= 400
    }

    /// Whether a response never has a body, whatever the method: 1xx, 204 and 304 (RFC 9112 section
    /// 6.3, case 1).
    pub const fn is_bodiless(self) -> bool {
        self.0 < 200 || self.0 == 204 || self.0 == 304
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, self.phrase())
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::Status;

    #[test]
    fn status_line_matches_code_and_phrase_for_every_status() {
        for status in Status::ALL {
            assert_eq!(
                status.line(),
                format!(" {} {}\r\n", status.code(), status.phrase())
            );
            assert_eq!(Status::from_code(status.code()), Some(*status));
        }
        assert_eq!(Status::from_code(299), None);
    }
}
