//! The CGI/1.1 interface (RFC 3875) of the application: variables in, a response with header fields
//! out.
//!
//! FastCGI and direct programs get the same variables; for them [`answered`] returns the response
//! before any of it is written.
//!
//! [`run`] is the whole CGI program except for its surroundings, so that tests pass a map as
//! environment and bytes as standard input. A body is read up to its declared length; one above the
//! limit is rejected unread. All files are opened before the first byte is sent, so that a missing
//! file is a 404 and not a truncated page.

use std::fs::File;
use std::io::{self, Read, Write};

use crate::application::{BodyPiece, PageResponse, answer};
use crate::placeholder::PATH_BYTES;
use crate::request::{BODY_BYTES_MAX, Method, Request};
use crate::scan::Scanner;
use crate::state::State;
use crate::state_directory::now_s;

/// Size of a read from a file.
const BUFFER_BYTES: usize = 64 * 1024;

/// The CGI variables that the application needs.
#[derive(Clone, Debug, Default)]
pub struct Variables {
    method: String,
    query: String,
    cookie: String,
    content_length: String,
    server: String,
    client: String,
    script: String,
}

impl Variables {
    /// Reads the variables from an environment; missing ones are empty.
    pub fn of(get: impl Fn(&str) -> Option<String>) -> Variables {
        let value = |name| get(name).unwrap_or_default();
        Variables {
            method: value("REQUEST_METHOD"),
            query: value("QUERY_STRING"),
            cookie: value("HTTP_COOKIE"),
            content_length: value("CONTENT_LENGTH"),
            server: value("SERVER_SOFTWARE"),
            client: value("REMOTE_ADDR"),
            script: value("SCRIPT_NAME"),
        }
    }

    /// The server's name and version, SERVER_SOFTWARE.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Reads the body; `None` if it is too long or incomplete.
    fn body(&self, input: &mut dyn Read) -> Option<Vec<u8>> {
        let length: usize = match self.content_length.as_str() {
            "" => 0,
            digits => digits.parse().ok()?,
        };
        if length > BODY_BYTES_MAX {
            return None;
        }
        let mut body = vec![0; length];
        input.read_exact(&mut body).ok()?;
        Some(body)
    }

    fn request<'a>(&'a self, body: &'a [u8]) -> Request<'a> {
        Request {
            method: match self.method.as_str() {
                "GET" => Method::Get,
                "POST" => Method::Post,
                _ => Method::Other,
            },
            query: &self.query,
            cookie: &self.cookie,
            body,
            server: &self.server,
            client: &self.client,
            script: &self.script,
            now_s: now_s(),
        }
    }
}

/// A response with open files: its length is known, and no file can be missing any more.
#[derive(Debug)]
pub struct Opened {
    /// The status.
    pub status: u16,
    /// The header fields except Content-Length.
    pub fields: Vec<(&'static str, String)>,
    /// Length of the body.
    pub length: u64,
    pieces: Vec<OpenedPiece>,
}

#[derive(Debug)]
enum OpenedPiece {
    Bytes(Vec<u8>),
    File(File, u64),
    Scanned(File, u64, [u8; PATH_BYTES]),
}

impl Opened {
    fn new(response: PageResponse, state: &State) -> io::Result<Opened> {
        let open = |piece| -> io::Result<OpenedPiece> {
            Ok(match piece {
                BodyPiece::Bytes(bytes) => OpenedPiece::Bytes(bytes),
                BodyPiece::File(name) => {
                    let (file, size_bytes) = state.open(name)?;
                    OpenedPiece::File(file, size_bytes)
                }
                BodyPiece::Scanned(name, ad) => {
                    let (file, size_bytes) = state.open(name)?;
                    OpenedPiece::Scanned(file, size_bytes, ad)
                }
            })
        };
        let pieces = response.pieces.into_iter().map(open);
        let pieces = pieces.collect::<io::Result<Vec<OpenedPiece>>>()?;
        let length = |piece: &OpenedPiece| match piece {
            OpenedPiece::Bytes(bytes) => bytes.len() as u64,
            OpenedPiece::File(_, size_bytes) | OpenedPiece::Scanned(_, size_bytes, _) => {
                *size_bytes
            }
        };
        Ok(Opened {
            status: response.status,
            fields: response.fields,
            length: pieces.iter().map(length).sum(),
            pieces,
        })
    }

    /// A response without files.
    fn without_files(response: PageResponse) -> Opened {
        let bytes = |piece| match piece {
            BodyPiece::Bytes(bytes) => Some(OpenedPiece::Bytes(bytes)),
            BodyPiece::File(_) | BodyPiece::Scanned(..) => None,
        };
        Opened {
            status: response.status,
            length: response.length(|_| None).unwrap_or(0),
            fields: response.fields,
            pieces: response.pieces.into_iter().filter_map(bytes).collect(),
        }
    }

    /// Writes the body, exactly [`Opened::length`] bytes.
    ///
    /// # Errors
    /// The output is closed, or a file has become shorter, so the response cannot be completed.
    pub fn write_body(self, output: &mut dyn Write) -> io::Result<()> {
        for piece in self.pieces {
            match piece {
                OpenedPiece::Bytes(bytes) => output.write_all(&bytes)?,
                OpenedPiece::File(file, size_bytes) => {
                    copy(file, size_bytes, output, &mut |_| ())?;
                }
                OpenedPiece::Scanned(file, size_bytes, ad) => {
                    let mut scanner = Scanner::new();
                    copy(file, size_bytes, output, &mut |bytes| {
                        scanner.replace(bytes, &ad)
                    })?;
                }
            }
        }
        Ok(())
    }
}

/// The response to a request, and an error for the log. There is always a response.
pub fn answered(
    variables: &Variables,
    state: &mut State,
    input: &mut dyn Read,
) -> (Opened, Option<io::Error>) {
    let Some(body) = variables.body(input) else {
        let text = "the body is too long or incomplete";
        return (Opened::without_files(PageResponse::plain(400, text)), None);
    };
    let text = "a file of the application cannot be used; see the server's log";
    let response = match answer(&variables.request(&body), state) {
        Ok(response) => response,
        Err(error) => {
            return (
                Opened::without_files(PageResponse::plain(500, text)),
                Some(error),
            );
        }
    };
    match Opened::new(response, state) {
        Ok(opened) => (opened, None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            (Opened::without_files(PageResponse::missing()), None)
        }
        Err(error) => {
            let response = PageResponse::plain(500, "a document cannot be read");
            (Opened::without_files(response), Some(error))
        }
    }
}

/// The head of a CGI response (RFC 3875, section 6).
pub fn head(response: &Opened) -> String {
    let mut head = format!(
        "Status: {} {}\r\n",
        response.status,
        phrase(response.status)
    );
    for (name, value) in &response.fields {
        head += &format!("{name}: {value}\r\n");
    }
    head + &format!("Content-Length: {}\r\n\r\n", response.length)
}

/// Answers one request.
///
/// # Errors
/// A table, the log or a document could not be used; the client got a 500 if nothing had been sent.
/// Or the output is closed.
pub fn run(
    variables: &Variables,
    state: &mut State,
    input: &mut dyn Read,
    output: &mut dyn Write,
) -> io::Result<()> {
    let (response, error) = answered(variables, state, input);
    let head = head(&response);
    // Head and start of the body in one write: the server reads once for most files.
    let mut output = io::BufWriter::with_capacity(BUFFER_BYTES, output);
    output.write_all(head.as_bytes())?;
    response.write_body(&mut output)?;
    output.flush()?;
    error.map_or(Ok(()), Err)
}

/// Copies exactly the promised number of bytes; fewer are an error, which cuts the response short.
fn copy(
    mut file: File,
    size_bytes: u64,
    output: &mut dyn Write,
    change: &mut dyn FnMut(&mut [u8]),
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES.min(size_bytes as usize)];
    let mut missing = size_bytes;
    while missing > 0 {
        let most = buffer.len().min(missing as usize);
        let count = match file.read(&mut buffer[..most]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        change(&mut buffer[..count]);
        output.write_all(&buffer[..count])?;
        missing -= count as u64;
    }
    Ok(())
}

/// The reason phrase of a status.
pub fn phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        _ => "Internal Server Error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::TAIL;
    use crate::placeholder::{BEGIN, END, PLACEHOLDER};
    use crate::scan;
    use crate::state_directory::StateDirectory;
    use crate::tables::Reset;

    fn state() -> (tempfile::TempDir, State) {
        let directory = tempfile::tempdir().expect("a directory");
        let state = State::new(directory.path(), None);
        let reset = Reset {
            users: 5,
            seed: 1,
            time_s: 1_700_000_000,
            expired_percent: 0,
        };
        let own = StateDirectory::of_set(directory.path());
        own.make(&reset).expect("the files");
        std::fs::create_dir(directory.path().join("dir00000")).expect("a directory");
        let file = [b"before ", BEGIN, &PLACEHOLDER, END, b" behind"].concat();
        std::fs::write(directory.path().join("dir00000/class1_1"), file).expect("a file");
        (directory, state)
    }

    fn answered(state: &mut State, variables: &[(&str, &str)], input: &[u8]) -> (String, String) {
        let get = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let mut output = Vec::new();
        let mut input = input;
        let _ = run(&Variables::of(get), state, &mut input, &mut output);
        let text = String::from_utf8(output).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        let length = format!("Content-Length: {}", body.len());
        assert!(head.ends_with(&length), "{head}\n{}", body.len());
        (head.to_owned(), body.to_owned())
    }

    #[test]
    fn cgi_page_is_complete_for_an_existing_file() {
        let (_place, mut state) = state();
        let query = ("QUERY_STRING", "/dir00000/class1_1");
        let (head, body) = answered(&mut state, &[("REQUEST_METHOD", "GET"), query], b"");
        assert!(
            head.starts_with("Status: 200 OK\r\nContent-Type: text/html\r\n"),
            "{head}"
        );
        assert!(
            body.contains("before <img ad src=\"/dir00000/class0_0\"> behind"),
            "{body}"
        );
        assert!(body.as_bytes().ends_with(TAIL));
        let cookie = ("HTTP_COOKIE", "my_cookie=user_id=10002&last_ad=100");
        let (head, body) = answered(&mut state, &[("REQUEST_METHOD", "GET"), query, cookie], b"");
        let found = head.split("found_cookie=Ad_id=").nth(1).expect("a cookie");
        let ad: u32 = found
            .split('&')
            .next()
            .and_then(|ad| ad.parse().ok())
            .expect("a number");
        let name = String::from_utf8(scan::ad_name(ad).to_vec()).expect("text");
        assert!(
            body.contains(&format!("before <img ad src=\"{name}\"> behind")),
            "{body}"
        );
    }

    #[test]
    fn cgi_status_explains_the_error() {
        let (directory, mut state) = state();
        let mut status = |variables: &[(&str, &str)], input: &[u8]| {
            let (head, _) = answered(&mut state, variables, input);
            head.split(' ')
                .nth(1)
                .map(str::to_owned)
                .unwrap_or_default()
        };
        let get = ("REQUEST_METHOD", "GET");
        let post = ("REQUEST_METHOD", "POST");
        assert_eq!(
            status(&[get, ("QUERY_STRING", "/dir00000/class1_2")], b""),
            "404"
        );
        assert_eq!(status(&[("REQUEST_METHOD", "PUT")], b""), "405");
        assert_eq!(
            status(&[post, ("CONTENT_LENGTH", "5000")], &[b'x'; 5000]),
            "400"
        );
        assert_eq!(status(&[post, ("CONTENT_LENGTH", "50")], b"dir=0"), "400");
        let body = b"dir=0&class=1&file=1&client=0&serial=1";
        let length = body.len().to_string();
        assert_eq!(status(&[post, ("CONTENT_LENGTH", &length)], body), "200");
        assert_eq!(
            status(&[get, ("QUERY_STRING", "command/Fetch")], b""),
            "200"
        );
        std::fs::remove_dir_all(directory.path().join(".specweb99")).expect("the state");
        assert_eq!(
            status(&[get, ("QUERY_STRING", "command/Fetch")], b""),
            "500"
        );
    }
}
