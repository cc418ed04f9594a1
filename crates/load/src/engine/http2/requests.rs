//! Requests as frames. Their headers are encoded before the run, and joined for each stream.

use super::super::plan::Plan;
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
}

impl RequestFrames {
    /// The plan has one target.
    pub(super) fn new(plan: &Plan) -> RequestFrames {
        let target = &plan.targets[0];
        let host = given(plan, "host").unwrap_or(&target.host);
        let mut before = Vec::new();
        hpack::put_target(&mut before, plan.method.name(), target.tls.is_some(), host);
        let (mut paths, mut ends) = (Vec::new(), Vec::new());
        for document in &plan.work.documents {
            hpack::put_path(&mut paths, &document.path);
            ends.push(paths.len());
        }
        RequestFrames {
            before,
            paths,
            ends,
            after: after(plan),
            body: plan.body.clone(),
        }
    }

    /// Appends the header of a request for this document.
    pub(super) fn put(&self, out: &mut Vec<u8>, document: u32, id: u32, is_last: bool) {
        let index = document as usize;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        let path = &self.paths[start..self.ends[index]];
        let parts = [&self.before[..], path, &self.after[..]];
        let flags = match is_last {
            true => frames::END_HEADERS | frames::END_STREAM,
            false => frames::END_HEADERS,
        };
        let length = parts.iter().map(|part| part.len()).sum();
        frames::put_header(out, length, frames::HEADERS, flags, id);
        parts.iter().for_each(|part| out.extend_from_slice(part));
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
        hpack::put_header(&mut block, "user-agent", &format!("headway-load/{version}"));
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
