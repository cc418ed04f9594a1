//! The page around a file: the format of every dynamic response, with a writer for servers and a
//! checker for clients.
//!
//! A few lines name the server, the client's address, the script and the query; then the file
//! follows in `<pre>`. The published rules ask for such a page; its wording is Headway's. Values
//! from outside are escaped, so that no query can insert markup.
//!
//! [`Check`] takes a page in pieces of any size and keeps at most one line. It knows the query and
//! the length of the content, and accepts any server, address and script, because only the server
//! knows them.

use headway_base::html::escaped;

/// The page after the content.
pub const TAIL: &[u8] = b"\n</pre></body></html>\n";

const FIRST: &str = "<html><head><title>SPECweb99-like response</title></head><body>\n";
const LAST: &str = "<pre>\n";
const NAMES: [&str; 4] = ["server", "client", "script", "query"];
const LINE_END: &str = "</p>\n";

/// Lines before the content.
const HEADER_LINES: usize = NAMES.len() + 2;

/// Longest line of a page's head; a longer one is invalid.
const LINE_BYTES_MAX: usize = 4096;

/// The values in a page's head.
#[derive(Clone, Copy, Debug, Default)]
pub struct PageFields<'a> {
    /// The server's name.
    pub server: &'a str,
    /// The client's address.
    pub client: &'a str,
    /// The path without the query.
    pub script: &'a str,
    /// The query; empty for a POST.
    pub query: &'a str,
}

/// Everything before the content.
pub fn head(fields: &PageFields<'_>) -> Vec<u8> {
    let mut text = FIRST.to_owned();
    let values = [fields.server, fields.client, fields.script, fields.query];
    for (name, value) in NAMES.iter().zip(values) {
        text += &line(name, value);
    }
    (text + LAST).into_bytes()
}

fn line(name: &str, value: &str) -> String {
    // A line is one value: a line end in it would break the format.
    let value = value.replace(char::is_control, " ");
    format!("<p>{name} = {}{LINE_END}", escaped(&value))
}

/// Position of the next byte in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    /// In this line of the head.
    Line(usize),
    /// In the content, of which this many bytes are missing.
    Content(u64),
    /// In the tail, of which this many bytes have come.
    Tail(usize),
    /// Not a page, or not the requested one.
    Wrong,
}

/// Checks a page as it arrives. Its memory is reused for the next page.
#[derive(Clone, Debug)]
pub struct Check {
    position: Position,
    line: Vec<u8>,
    /// The expected line with the query.
    query: String,
    content_bytes: u64,
}

impl Default for Check {
    fn default() -> Check {
        Check {
            position: Position::Wrong,
            line: Vec::with_capacity(256),
            query: String::with_capacity(128),
            content_bytes: 0,
        }
    }
}

impl Check {
    /// Starts with the page of another request. The query needs no escaping: it is a name of the
    /// set, or empty.
    pub fn restart(&mut self, query: std::fmt::Arguments<'_>, content_bytes: u64) {
        use std::fmt::Write as _;
        self.position = Position::Line(0);
        self.line.clear();
        self.query.clear();
        // Writing to a String cannot fail.
        let _ = write!(self.query, "<p>query = {query}{LINE_END}");
        self.content_bytes = content_bytes;
    }

    /// Checks the next bytes, and passes those of the content on.
    pub fn take(&mut self, bytes: &[u8], content: &mut dyn FnMut(&[u8])) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let taken = match self.position {
                Position::Line(number) => self.take_line(number, rest),
                Position::Content(missing) => {
                    let count = missing.min(rest.len() as u64) as usize;
                    content(&rest[..count]);
                    self.position = after_content(missing - count as u64);
                    count
                }
                Position::Tail(come) => {
                    let count = rest.len().min(TAIL.len() - come);
                    let same = count > 0 && rest[..count] == TAIL[come..come + count];
                    self.position = if same {
                        Position::Tail(come + count)
                    } else {
                        Position::Wrong
                    };
                    count
                }
                Position::Wrong => return,
            };
            rest = &rest[taken..];
        }
    }

    /// Whether a whole page has come and nothing in it is wrong.
    pub fn is_whole(&self) -> bool {
        self.position == Position::Tail(TAIL.len())
    }

    fn take_line(&mut self, number: usize, bytes: &[u8]) -> usize {
        let end = memchr::memchr(b'\n', bytes);
        let count = end.map_or(bytes.len(), |end| end + 1);
        self.line.extend_from_slice(&bytes[..count]);
        if self.line.len() > LINE_BYTES_MAX {
            self.position = Position::Wrong;
        } else if end.is_some() {
            self.position = match self.is_line(number) {
                false => Position::Wrong,
                true if number + 1 == HEADER_LINES => after_content(self.content_bytes),
                true => Position::Line(number + 1),
            };
            self.line.clear();
        }
        count
    }

    fn is_line(&self, number: usize) -> bool {
        match number {
            0 => self.line == FIRST.as_bytes(),
            4 => self.line == self.query.as_bytes(),
            5 => self.line == LAST.as_bytes(),
            _ => {
                let name = NAMES[number - 1].as_bytes();
                let rest = self.line.strip_prefix(b"<p>");
                let rest = rest.and_then(|rest| rest.strip_prefix(name));
                rest.is_some_and(|rest| {
                    rest.starts_with(b" = ") && rest.ends_with(LINE_END.as_bytes())
                })
            }
        }
    }
}

fn after_content(missing: u64) -> Position {
    match missing {
        0 => Position::Tail(0),
        _ => Position::Content(missing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FIELDS: PageFields<'static> = PageFields {
        server: "test/1.0",
        client: "127.0.0.1",
        script: "/cgi-bin/x",
        query: "/dir00001/class0_1",
    };

    fn page(content: &[u8]) -> Vec<u8> {
        [&head(&FIELDS), content, TAIL].concat()
    }

    /// Whether the page is complete, and its content.
    fn checked(page: &[u8], piece_bytes: usize, content_bytes: u64) -> (bool, Vec<u8>) {
        let (mut check, mut content) = (Check::default(), Vec::new());
        check.restart(format_args!("{}", FIELDS.query), content_bytes);
        for piece in page.chunks(piece_bytes) {
            check.take(piece, &mut |bytes| content.extend_from_slice(bytes));
        }
        (check.is_whole(), content)
    }

    #[test]
    fn page_is_complete_however_it_is_split() {
        for piece_bytes in [1, 2, 7, 64, 10_000] {
            let (whole, content) = checked(&page(b"hello\n</pre>"), piece_bytes, 12);
            assert!(whole, "{piece_bytes}");
            assert_eq!(content, b"hello\n</pre>");
        }
        assert!(checked(&page(b""), 5, 0).0);
    }

    #[test]
    fn page_check_fails_when_any_known_part_differs() {
        let right = String::from_utf8(page(b"hello")).expect("text");
        assert!(checked(right.as_bytes(), 16, 5).0);
        for (from, to) in [
            ("SPECweb99-like", "Welcome"),
            ("<p>client =", "<p>cleint ="),
            ("/dir00001/class0_1", "/dir00002/class0_1"),
            ("hello", "hell"),
            ("hello", "hello!"),
            ("</body>", "</bdoy>"),
            ("</html>\n", "</html>"),
            ("</html>\n", "</html>\n\n"),
            ("<pre>\n", "<pre>"),
        ] {
            assert!(
                !checked(right.replace(from, to).as_bytes(), 16, 5).0,
                "{from}"
            );
        }
    }

    #[test]
    fn page_escapes_markup_and_line_ends() {
        let hostile = PageFields {
            query: "<script>\"&\r\n<pre>\n",
            ..FIELDS
        };
        let text = String::from_utf8(head(&hostile)).expect("text");
        assert_eq!(text.lines().count(), HEADER_LINES);
        assert!(
            !text.contains("<script") && text.contains("&lt;script&gt;&quot;&amp;"),
            "{text}"
        );
    }

    proptest! {
        #[test]
        fn page_check_survives_arbitrary_bytes(
            bytes in proptest::collection::vec(any::<u8>(), 0..300), piece_bytes in 1_usize..50
        ) {
            prop_assert!(!checked(&bytes, piece_bytes, 5).0);
        }
    }
}
