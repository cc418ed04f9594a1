//! What a server has sent, parsed by the client of the simulation, which shares no code with it.

/// The header of a response.
#[derive(Debug)]
pub struct Head {
    pub status: u16,
    fields: Vec<(String, String)>,
    /// The length of the header itself.
    pub length: usize,
}

impl Head {
    /// Parses a header; `None` while it is not complete.
    ///
    /// # Errors
    /// What no server may send.
    pub fn parse(bytes: &[u8]) -> Result<Option<Head>, String> {
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
            return match bytes.len() > 100_000 {
                true => Err("a header without an end".to_owned()),
                false => Ok(None),
            };
        };
        let text = std::str::from_utf8(&bytes[..end]).map_err(|_| "a header that is no text")?;
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap_or_default();
        let status = first
            .strip_prefix("HTTP/1.1 ")
            .and_then(|rest| rest.get(..3))
            .and_then(|code| code.parse().ok())
            .ok_or_else(|| format!("no status line: {first:?}"))?;
        let fields = lines
            .map(|line| {
                let (name, value) = line
                    .split_once(": ")
                    .ok_or_else(|| format!("no header: {line:?}"))?;
                Ok((name.to_ascii_lowercase(), value.to_owned()))
            })
            .collect::<Result<Vec<_>, String>>()?;
        let head = Head {
            status,
            fields,
            length: end + 4,
        };
        for name in [
            "content-length",
            "date",
            "etag",
            "last-modified",
            "content-range",
        ] {
            if head
                .fields
                .iter()
                .filter(|(known, _)| known == name)
                .count()
                > 1
            {
                return Err(format!("two headers called {name}"));
            }
        }
        Ok(Some(head))
    }

    pub fn field(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// How many bytes of content follow.
    ///
    /// # Errors
    /// The message does not say it.
    pub fn content_length(&self, is_head_request: bool) -> Result<usize, String> {
        if is_head_request || matches!(self.status, 204 | 304) {
            return Ok(0);
        }
        self.stated_length()
            .ok_or_else(|| format!("no length of the content: {self:?}"))
    }

    /// The `Content-Length`.
    pub fn stated_length(&self) -> Option<usize> {
        self.field("content-length")?.parse().ok()
    }

    /// Whether the server says that it closes.
    pub fn closes(&self) -> bool {
        self.field("connection")
            .is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }
}

/// The parts of a multipart/byteranges response: the content range of each, and its bytes.
///
/// # Errors
/// What no server may send.
pub fn parts<'b>(head: &Head, content: &'b [u8]) -> Result<Vec<(String, &'b [u8])>, String> {
    let kind = head.field("content-type").unwrap_or_default();
    let boundary = kind
        .strip_prefix("multipart/byteranges; boundary=")
        .ok_or_else(|| format!("206 with the type {kind:?} and no range"))?;
    let delimiter = format!("\r\n--{}", boundary.trim_matches('"'));
    // The first delimiter may lack its line end.
    let mut rest = content;
    let mut parts = Vec::new();
    let first = delimiter.trim_start().as_bytes();
    rest = rest
        .strip_prefix(delimiter.as_bytes())
        .or_else(|| rest.strip_prefix(first))
        .ok_or("the content does not begin with its boundary")?;
    while let Some(part) = rest.strip_prefix(b"\r\n") {
        let end = part
            .windows(4)
            .position(|window| window == b"\r\n\r\n")
            .ok_or("a part without a header")?;
        let text = String::from_utf8_lossy(&part[..end]).to_ascii_lowercase();
        let range = text
            .split("\r\n")
            .find_map(|line| line.strip_prefix("content-range: "))
            .ok_or_else(|| format!("a part without a range: {text}"))?;
        let length = range_bytes(range).ok_or_else(|| format!("no range: {range}"))?;
        let bytes = part
            .get(end + 4..end + 4 + length)
            .ok_or("a part that is cut off")?;
        parts.push((range.to_owned(), bytes));
        rest = part[end + 4 + length..]
            .strip_prefix(delimiter.as_bytes())
            .ok_or("no boundary behind a part")?;
    }
    match rest {
        b"--" | b"--\r\n" => Ok(parts),
        _ => Err("no end of the parts".to_owned()),
    }
}

/// `bytes 3-5/10` has 3 bytes.
fn range_bytes(range: &str) -> Option<usize> {
    let (first, rest) = range.strip_prefix("bytes ")?.split_once('-')?;
    let last = rest.split('/').next()?;
    (last.parse::<usize>().ok()? + 1).checked_sub(first.parse().ok()?)
}
