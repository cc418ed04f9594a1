//! The bytes of requests: which document is next, to which target, and the request header.
//!
//! Heads are put together from pieces that were formatted before the run, in one buffer that all
//! connections share. A request that leaves in two parts is put together again for the second.

use super::conversation::Client;
use super::part::Part;
use super::plan::{Document, Draws, Plan, Protocol, RequestOrder, Target};

/// Draws documents and targets, and forms requests.
pub(crate) struct RequestBuilder {
    order: DocumentOrder,
    documents: u32,
    /// Request lines, `GET /path HTTP/1.1`, of all documents one after the other.
    lines: Vec<u8>,
    /// Where each document's line ends.
    ends: Vec<usize>,
    /// The request headers, by target: of a request that keeps its connection, and of the last one.
    headers: Vec<[Vec<u8>; 2]>,
    /// The body of every request.
    body: Vec<u8>,
    targets: WeightedRoundRobin,
    /// The request being sent.
    buffer: Vec<u8>,
}

enum DocumentOrder {
    /// The next one, and how many further the one after it is.
    RoundRobin(u32, u32),
    Drawn(Box<dyn Draws>),
}

impl DocumentOrder {
    fn next(&mut self, documents: u32) -> u32 {
        match self {
            DocumentOrder::RoundRobin(next, step) => {
                let document = *next;
                *next = (document + *step) % documents;
                document
            }
            DocumentOrder::Drawn(draws) => draws.next(),
        }
    }
}

impl RequestBuilder {
    /// The plan has been checked.
    pub(super) fn new(plan: &Plan, part: Part) -> RequestBuilder {
        let (mut lines, mut ends) = (Vec::new(), Vec::new());
        let (method, version) = (plan.method.name(), plan.protocol.version());
        for Document { path, .. } in &plan.work.documents {
            lines.extend_from_slice(format!("{method} {path} {version}\r\n").as_bytes());
            ends.push(lines.len());
        }
        let documents = ends.len() as u32;
        let mut requests = RequestBuilder {
            order: match &plan.work.order {
                RequestOrder::RoundRobin => {
                    let [first, step] = [part.before_first(), part.count()];
                    DocumentOrder::RoundRobin(first % documents, step % documents)
                }
                RequestOrder::Drawn(popularity) => {
                    DocumentOrder::Drawn(popularity.draws(part.seed(plan.seed)))
                }
            },
            documents,
            lines,
            ends,
            headers: plan
                .targets
                .iter()
                .map(|target| headers(plan, target))
                .collect(),
            body: plan.body.clone(),
            targets: WeightedRoundRobin::new(&plan.targets),
            buffer: Vec::with_capacity(4096 + plan.body.len()),
        };
        // So that parts do not all begin with the first target.
        for _ in 0..part.before_first() {
            requests.targets.next();
        }
        requests
    }

    /// The next document.
    ///
    /// # Panics
    /// When a popularity draws an index that is no document's.
    pub(super) fn draw(&mut self) -> u32 {
        let document = self.order.next(self.documents);
        assert!(
            document < self.documents,
            "a popularity drew document {document} of {}",
            self.documents
        );
        document
    }

    /// The target of the next request.
    pub(super) fn next_target(&mut self) -> u8 {
        self.targets.next()
    }

    /// Puts the header of the PROXY protocol before the request that was built last.
    pub(super) fn prepend(&mut self, header: Vec<u8>) -> &[u8] {
        self.buffer.splice(0..0, header);
        &self.buffer
    }

    /// Builds the bytes of a request.
    pub(super) fn form(&mut self, document: u32, target: u8, last: bool) -> &[u8] {
        let index = document as usize;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        let headers = &self.headers[usize::from(target)][usize::from(last)];
        self.buffer.clear();
        self.buffer
            .extend_from_slice(&self.lines[start..self.ends[index]]);
        self.buffer.extend_from_slice(headers);
        self.buffer.extend_from_slice(&self.body);
        &self.buffer
    }

    /// The bytes of a request that its client makes.
    pub(super) fn form_for(&mut self, client: &dyn Client, target: u8, last: bool) -> &[u8] {
        let headers = &self.headers[usize::from(target)][usize::from(last)];
        self.buffer.clear();
        client.form(headers, &mut self.buffer);
        &self.buffer
    }
}

fn headers(plan: &Plan, target: &Target) -> [Vec<u8>; 2] {
    let version = env!("CARGO_PKG_VERSION");
    let given = |name: &str| {
        let mut names = plan.headers.iter().map(|(name, _)| name);
        names.any(|given| given.eq_ignore_ascii_case(name))
    };
    let mut keep = String::new();
    if !given("host") {
        keep.push_str(&format!("Host: {}\r\n", target.host));
    }
    if !given("user-agent") {
        keep.push_str(&format!("User-Agent: headway-load/{version}\r\n"));
    }
    // As curl does, whatever the body is.
    if !plan.body.is_empty() && !given("content-type") {
        keep.push_str("Content-Type: application/x-www-form-urlencoded\r\n");
    }
    if !plan.body.is_empty() || plan.method.expects_body() {
        keep.push_str(&format!("Content-Length: {}\r\n", plan.body.len()));
    }
    for (name, value) in &plan.headers {
        keep.push_str(&format!("{name}: {value}\r\n"));
    }
    let last = format!("{keep}Connection: close\r\n\r\n");
    if plan.protocol == Protocol::Http10 {
        keep.push_str("Connection: keep-alive\r\n");
    }
    keep.push_str("\r\n");
    [keep.into_bytes(), last.into_bytes()]
}

/// Smooth weighted round robin, as in nginx: each step adds every target's weight to its credit,
/// and the target with the highest credit is chosen and pays the sum of the weights.
struct WeightedRoundRobin {
    weights: Vec<i64>,
    credit: Vec<i64>,
}

impl WeightedRoundRobin {
    fn new(targets: &[Target]) -> WeightedRoundRobin {
        WeightedRoundRobin {
            weights: targets.iter().map(|target| target.weight.into()).collect(),
            credit: vec![0; targets.len()],
        }
    }

    fn next(&mut self) -> u8 {
        let mut richest = 0;
        if self.weights.len() > 1 {
            for (index, weight) in self.weights.iter().enumerate() {
                self.credit[index] += weight;
                if self.credit[index] > self.credit[richest] {
                    richest = index;
                }
            }
            self.credit[richest] -= self.weights.iter().sum::<i64>();
        }
        richest as u8
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Address, Work};
    use super::*;

    fn target(weight: u32) -> Target {
        let address = Address::Inet(([127, 0, 0, 1], 80).into());
        Target {
            weight,
            ..Target::new(address, "example.org:8080")
        }
    }

    #[test]
    fn request_has_line_host_and_headers_when_built() {
        let mut plan = Plan::closed(target(1), Work::paths(["/a", "/b?c=d"]), 1);
        plan.headers.push(("Accept".into(), "*/*".into()));
        let mut requests = RequestBuilder::new(&plan, Part::WHOLE);
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(
            text(requests.form(1, 0, false)),
            format!(
                "GET /b?c=d HTTP/1.1\r\nHost: example.org:8080\r\nUser-Agent: headway-load/{version}\r\nAccept: */*\r\n\r\n"
            )
        );
        let last = text(requests.form(0, 0, true));
        assert!(
            last.starts_with("GET /a HTTP/1.1\r\n")
                && last.ends_with("\r\nConnection: close\r\n\r\n")
        );
        assert_eq!([(); 5].map(|()| requests.draw()), [0, 1, 0, 1, 0]);
    }

    #[test]
    fn host_and_user_agent_are_replaced_when_they_are_given_with_head() {
        let mut plan = Plan::closed(target(1), Work::paths(["/a"]), 1);
        plan.method = super::super::method::Method::Head;
        plan.headers.push(("host".into(), "other".into()));
        plan.headers.push(("User-Agent".into(), "me".into()));
        assert_eq!(
            RequestBuilder::new(&plan, Part::WHOLE).form(0, 0, false),
            b"HEAD /a HTTP/1.1\r\nhost: other\r\nUser-Agent: me\r\n\r\n"
        );
    }

    #[test]
    fn connection_is_asked_to_be_kept_only_in_http_1_0() {
        let mut plan = Plan::closed(target(1), Work::paths(["/a"]), 1);
        plan.headers = vec![("User-Agent".into(), "me".into())];
        plan.protocol = Protocol::Http10;
        let mut requests = RequestBuilder::new(&plan, Part::WHOLE);
        let head = "GET /a HTTP/1.0\r\nHost: example.org:8080\r\nUser-Agent: me\r\n";
        let kept = format!("{head}Connection: keep-alive\r\n\r\n");
        assert_eq!(requests.form(0, 0, false), kept.as_bytes());
        let last = format!("{head}Connection: close\r\n\r\n");
        assert_eq!(requests.form(0, 0, true), last.as_bytes());
    }

    #[test]
    fn body_has_length_and_type_when_there_is_one() {
        let mut plan = Plan::closed(target(1), Work::paths(["/a"]), 1);
        plan.method = super::super::method::Method::Post;
        plan.headers.push(("User-Agent".into(), "me".into()));
        let formed = |plan: &Plan| {
            String::from_utf8(
                RequestBuilder::new(plan, Part::WHOLE)
                    .form(0, 0, false)
                    .to_vec(),
            )
            .unwrap()
        };
        let head = "POST /a HTTP/1.1\r\nHost: example.org:8080\r\n";
        assert_eq!(
            formed(&plan),
            format!("{head}Content-Length: 0\r\nUser-Agent: me\r\n\r\n")
        );
        plan.body = b"a=1".to_vec();
        let form = "Content-Type: application/x-www-form-urlencoded\r\n";
        assert_eq!(
            formed(&plan),
            format!("{head}{form}Content-Length: 3\r\nUser-Agent: me\r\n\r\na=1")
        );
        plan.headers = vec![("content-type".into(), "text/plain".into())];
        let text = formed(&plan);
        assert!(text.contains("\r\ncontent-type: text/plain\r\n") && !text.contains(form));
    }

    #[test]
    fn targets_are_chosen_by_weight_when_weights_differ() {
        let mut targets = WeightedRoundRobin::new(&[target(3), target(1)]);
        let chosen: Vec<u8> = (0..8).map(|_| targets.next()).collect();
        assert_eq!(chosen, [0, 0, 1, 0, 0, 0, 1, 0]);
        let mut even = WeightedRoundRobin::new(&[target(1), target(1), target(1)]);
        assert_eq!([(); 6].map(|()| even.next()), [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn parts_of_a_run_ask_for_the_documents_of_one_loop_and_for_targets_by_weight() {
        let mut plan = Plan::closed(target(3), Work::paths(["/a", "/b", "/c"]), 1);
        plan.targets.push(target(1));
        let drawn = |part: Part| {
            let mut requests = RequestBuilder::new(&plan, part);
            let mut next = || (requests.draw(), requests.next_target());
            (0..8).map(|_| next()).unzip::<_, _, Vec<_>, Vec<_>>()
        };
        let (whole, _) = drawn(Part::WHOLE);
        for (index, part) in Part::all(2).enumerate() {
            let (documents, targets) = drawn(part);
            let expected: Vec<_> = whole.iter().skip(index).step_by(2).copied().collect();
            assert_eq!(documents[..4], expected[..]);
            assert_eq!(targets.iter().filter(|target| **target == 0).count(), 6);
        }
    }
}
