//! Requests as frames. Their headers are encoded before the run, and joined for each stream.

use super::super::conversation::RequestParts;
use super::super::plan::Plan;
use super::super::protocol::UNFIT_HEADERS;
use super::{frames, hpack};

/// The longest header block of a request, which must fit into one frame.
pub(in super::super) const HEADER_BYTES_MAX: usize = frames::PAYLOAD_BYTES_MAX;

/// The encoded requests of a run.
#[derive(Debug)]
pub(crate) struct RequestFrames {
    /// The encoded headers before the path: method, scheme, authority.
    before: Vec<u8>,
    /// The encoded paths of all documents, one after the other.
    paths: Vec<u8>,
    /// The end of each path in `paths`.
    ends: Vec<usize>,
    /// The encoded headers after the path.
    after: Vec<u8>,
    /// The body of every request.
    pub body: Vec<u8>,
    is_tls: bool,
    authority: String,
    /// The headers that all requests of clients have, unless a request replaces them.
    common: Vec<(String, String)>,
}

impl RequestFrames {
    /// The plan has one target.
    pub(super) fn new(plan: &Plan) -> RequestFrames {
        let target = &plan.targets[0];
        let host = given(plan, "host").unwrap_or(&target.host);
        let mut before = Vec::new();
        let is_tls = target.tls.is_some();
        hpack::put_target(&mut before, plan.method.name(), is_tls, host.as_bytes());
        let (mut paths, mut ends) = (Vec::new(), Vec::new());
        for document in &plan.work.documents {
            hpack::put_path(&mut paths, document.path.as_bytes());
            ends.push(paths.len());
        }
        RequestFrames {
            before,
            paths,
            ends,
            after: after(plan),
            body: plan.body.clone(),
            is_tls,
            authority: host.to_owned(),
            common: common(plan),
        }
    }

    /// Appends the header of a request for this document. Returns whether a body follows.
    pub(super) fn put(&self, out: &mut Vec<u8>, document: u32, id: u32) -> bool {
        let has_body = !self.body.is_empty();
        let index = document as usize;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        let path = &self.paths[start..self.ends[index]];
        let parts = [&self.before[..], path, &self.after[..]];
        let flags = match has_body {
            false => frames::END_HEADERS | frames::END_STREAM,
            true => frames::END_HEADERS,
        };
        let length = parts.iter().map(|part| part.len()).sum();
        frames::put_header(out, length, frames::HEADERS, flags, id);
        parts.iter().for_each(|part| out.extend_from_slice(part));
        has_body
    }

    /// Appends the header of a client's request. Returns whether a body follows.
    pub(super) fn put_parts(&self, out: &mut Vec<u8>, parts: &RequestParts<'_>, id: u32) -> bool {
        let own = |name: &str| {
            let mut headers = parts.headers.iter();
            headers.find(|(own, _)| own.eq_ignore_ascii_case(name))
        };
        let authority = own("host").map_or(self.authority.as_bytes(), |(_, value)| value);
        let mut block = Vec::with_capacity(512);
        hpack::put_target(&mut block, parts.method.name(), self.is_tls, authority);
        hpack::put_path(&mut block, parts.path);
        for (name, value) in &parts.headers {
            let name = name.to_ascii_lowercase();
            if name != "host" && !UNFIT_HEADERS.contains(&name.as_str()) {
                hpack::put_header(&mut block, &name, value.trim_ascii());
            }
        }
        if let Some(body) = parts.body {
            hpack::put_header(&mut block, "content-length", body.len().to_string());
        }
        for (name, value) in self.common.iter().filter(|(name, _)| own(name).is_none()) {
            hpack::put_header(&mut block, name, value);
        }
        let has_body = parts.body.is_some_and(|body| !body.is_empty());
        put_block(out, &block, id, has_body);
        has_body
    }
}

/// The length of the longest header block of a plan's requests.
pub(in super::super) fn header_bytes(plan: &Plan) -> usize {
    let requests = RequestFrames::new(plan);
    let starts = [0].iter().chain(&requests.ends);
    let lengths = requests
        .ends
        .iter()
        .zip(starts)
        .map(|(end, start)| end - start);
    requests.before.len() + lengths.max().unwrap_or(0) + requests.after.len()
}

/// Appends a header block, in as many frames as it needs.
fn put_block(out: &mut Vec<u8>, block: &[u8], id: u32, has_body: bool) {
    let mut left = block.len();
    for (at, piece) in block.chunks(frames::PAYLOAD_BYTES_MAX).enumerate() {
        left -= piece.len();
        let kind = if at == 0 {
            frames::HEADERS
        } else {
            frames::CONTINUATION
        };
        let mut flags = if left == 0 { frames::END_HEADERS } else { 0 };
        if at == 0 && !has_body {
            flags |= frames::END_STREAM;
        }
        frames::put_header(out, piece.len(), kind, flags, id);
        out.extend_from_slice(piece);
    }
}

/// The headers of the plan, with names in lower case.
fn common(plan: &Plan) -> Vec<(String, String)> {
    let mut common = Vec::new();
    if given(plan, "user-agent").is_none() {
        let agent = format!("headway-load/{}", env!("CARGO_PKG_VERSION"));
        common.push(("user-agent".to_owned(), agent));
    }
    let headers = plan.headers.iter();
    let headers = headers.filter(|(name, _)| !name.eq_ignore_ascii_case("host"));
    common.extend(headers.map(|(name, value)| {
        // HTTP/2 does not allow white space around a value (RFC 9113 section 8.2.1).
        (name.to_ascii_lowercase(), value.trim().to_owned())
    }));
    common
}

fn given<'a>(plan: &'a Plan, name: &str) -> Option<&'a str> {
    let mut headers = plan.headers.iter();
    let found = headers.find(|(given, _)| given.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value.as_str())
}

/// Encodes the headers after the path. They are those of HTTP/1.1, except `Host`, which is `:authority` here.
fn after(plan: &Plan) -> Vec<u8> {
    let mut block = Vec::new();
    if given(plan, "user-agent").is_none() {
        let version = env!("CARGO_PKG_VERSION");
        let agent = format!("headway-load/{version}");
        hpack::put_header(&mut block, "user-agent", agent);
    }
    if !plan.body.is_empty() && given(plan, "content-type").is_none() {
        let form = "application/x-www-form-urlencoded";
        hpack::put_header(&mut block, "content-type", form);
    }
    if !plan.body.is_empty() || plan.method.expects_body() {
        let length = plan.body.len().to_string();
        hpack::put_header(&mut block, "content-length", &length);
    }
    for (name, value) in &plan.headers {
        if !name.eq_ignore_ascii_case("host") {
            // HTTP/2 does not allow white space around a value (RFC 9113 section 8.2.1).
            hpack::put_header(&mut block, &name.to_ascii_lowercase(), value.trim());
        }
    }
    block
}
