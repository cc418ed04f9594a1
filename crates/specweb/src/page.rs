//! The page around a file: what every dynamic reply looks like, written for a client and checked by
//! one.
//!
//! A few lines name the server, the client's address, the script and the query, then the file
//! stands in `<pre>`. The published rules ask for such a page; its words are ours. What came from
//! outside is escaped, so that no query can put markup into it.
//!
//! [`Check`] takes a page in any pieces and holds one line of it at most. It knows the query and
//! the length of what is inside; server, address and script it takes as they are, since only the
//! server knows them.

/// Behind the content.
pub const TAIL: &[u8] = b"\n</pre></body></html>\n";

const FIRST: &str = "<html><head><title>SPECweb99-like reply</title></head><body>\n";
const LAST: &str = "<pre>\n";
const NAMES: [&str; 4] = ["server", "client", "script", "query"];
const LINE_END: &str = "</p>\n";

/// Lines before the content.
const LINES: usize = NAMES.len() + 2;

/// A line of a page's head may be as long as this; a longer one is none of ours.
const LINE_BYTES_MAX: usize = 4096;

/// The words of a page's head.
#[derive(Clone, Copy, Debug, Default)]
pub struct Words<'a> {
    /// What the server calls itself.
    pub server: &'a str,
    /// The client's address.
    pub client: &'a str,
    /// What was asked for, without the query.
    pub script: &'a str,
    /// The query; empty for a POST.
    pub query: &'a str,
}

/// Everything before the content.
pub fn head(words: &Words<'_>) -> Vec<u8> {
    let mut text = FIRST.to_owned();
    let values = [words.server, words.client, words.script, words.query];
    for (name, value) in NAMES.iter().zip(values) {
        text += &line(name, value);
    }
    (text + LAST).into_bytes()
}

fn line(name: &str, value: &str) -> String {
    format!("<p>{name} = {}{LINE_END}", escaped(value))
}

/// The characters that markup is made of become references; line ends and other controls, which
/// would break the form, blanks.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            _ if character.is_control() => out.push(' '),
            _ => out.push(character),
        }
    }
    out
}

/// Where in a page the next byte stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In this line of the head.
    Line(usize),
    /// So many bytes of the content are missing.
    Content(u64),
    /// So many bytes of the tail have come.
    Tail(usize),
    /// It is no page, or not the one that was asked for.
    Wrong,
}

/// A page on its way to a client. Its memory is kept from one page to the next.
#[derive(Clone, Debug)]
pub struct Check {
    place: Place,
    line: Vec<u8>,
    /// The line with the query, as it must be.
    query: String,
    content_bytes: u64,
}

impl Default for Check {
    fn default() -> Check {
        Check {
            place: Place::Wrong,
            line: Vec::with_capacity(256),
            query: String::with_capacity(128),
            content_bytes: 0,
        }
    }
}

impl Check {
    /// Begins with the page of another request. The query needs no escaping: it is a name of the
    /// set, or empty.
    pub fn restart(&mut self, query: std::fmt::Arguments<'_>, content_bytes: u64) {
        use std::fmt::Write as _;
        self.place = Place::Line(0);
        self.line.clear();
        self.query.clear();
        // A string takes everything.
        let _ = write!(self.query, "<p>query = {query}{LINE_END}");
        self.content_bytes = content_bytes;
    }

    /// Takes the next bytes, and hands on those of the content.
    pub fn take(&mut self, bytes: &[u8], content: &mut dyn FnMut(&[u8])) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let taken = match self.place {
                Place::Line(number) => self.take_line(number, rest),
                Place::Content(missing) => {
                    let count = missing.min(rest.len() as u64) as usize;
                    content(&rest[..count]);
                    self.place = after_content(missing - count as u64);
                    count
                }
                Place::Tail(come) => {
                    let count = rest.len().min(TAIL.len() - come);
                    let same = count > 0 && rest[..count] == TAIL[come..come + count];
                    self.place = if same {
                        Place::Tail(come + count)
                    } else {
                        Place::Wrong
                    };
                    count
                }
                Place::Wrong => return,
            };
            rest = &rest[taken..];
        }
    }

    /// Whether a whole page has come, and the right one as far as this knows it.
    pub fn is_whole(&self) -> bool {
        self.place == Place::Tail(TAIL.len())
    }

    fn take_line(&mut self, number: usize, bytes: &[u8]) -> usize {
        let end = memchr::memchr(b'\n', bytes);
        let count = end.map_or(bytes.len(), |end| end + 1);
        self.line.extend_from_slice(&bytes[..count]);
        if self.line.len() > LINE_BYTES_MAX {
            self.place = Place::Wrong;
        } else if end.is_some() {
            self.place = match self.is_line(number) {
                false => Place::Wrong,
                true if number + 1 == LINES => after_content(self.content_bytes),
                true => Place::Line(number + 1),
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

fn after_content(missing: u64) -> Place {
    match missing {
        0 => Place::Tail(0),
        _ => Place::Content(missing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WORDS: Words<'static> = Words {
        server: "test/1.0",
        client: "127.0.0.1",
        script: "/cgi-bin/x",
        query: "/dir00001/class0_1",
    };

    fn page(content: &[u8]) -> Vec<u8> {
        [&head(&WORDS), content, TAIL].concat()
    }

    /// Whether the page is whole, and its content.
    fn checked(page: &[u8], piece_bytes: usize, content_bytes: u64) -> (bool, Vec<u8>) {
        let (mut check, mut content) = (Check::default(), Vec::new());
        check.restart(format_args!("{}", WORDS.query), content_bytes);
        for piece in page.chunks(piece_bytes) {
            check.take(piece, &mut |bytes| content.extend_from_slice(bytes));
        }
        (check.is_whole(), content)
    }

    #[test]
    fn page_is_whole_when_it_comes_in_any_pieces() {
        for piece_bytes in [1, 2, 7, 64, 10_000] {
            let (whole, content) = checked(&page(b"hello\n</pre>"), piece_bytes, 12);
            assert!(whole, "{piece_bytes}");
            assert_eq!(content, b"hello\n</pre>");
        }
        assert!(checked(&page(b""), 5, 0).0);
    }

    #[test]
    fn page_is_wrong_when_anything_known_differs() {
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
    fn no_markup_and_no_line_is_added_when_words_are_hostile() {
        let hostile = Words {
            query: "<script>\"&\r\n<pre>\n",
            ..WORDS
        };
        let text = String::from_utf8(head(&hostile)).expect("text");
        assert_eq!(text.lines().count(), LINES);
        assert!(
            !text.contains("<script") && text.contains("&lt;script&gt;&quot;&amp;"),
            "{text}"
        );
    }

    proptest! {
        #[test]
        fn nothing_breaks_when_the_bytes_are_no_page(
            bytes in proptest::collection::vec(any::<u8>(), 0..300), piece_bytes in 1_usize..50
        ) {
            prop_assert!(!checked(&bytes, piece_bytes, 5).0);
        }
    }
}
