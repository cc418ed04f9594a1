//! What goes on the wire: which document next, to which target, and the bytes of its request.
//!
//! Heads are put together from pieces that were formatted before the run, in one buffer that all
//! connections share. A request that leaves in two parts is put together again for the second.

use super::conversation::Client;
use super::plan::{Document, Draws, Order, Plan, Target};

/// Draws documents and targets, and forms requests.
pub(crate) struct Requests {
    order: Stream,
    documents: u32,
    /// `GET /path HTTP/1.1`, all documents one after the other.
    lines: Vec<u8>,
    /// Where each document's line ends.
    ends: Vec<usize>,
    /// The fields, by target: of a request that keeps its connection, and of the last one.
    fields: Vec<[Vec<u8>; 2]>,
    deal: Deal,
    /// The request being sent.
    buffer: Vec<u8>,
}

enum Stream {
    RoundRobin(u32),
    Drawn(Box<dyn Draws>),
}

impl Requests {
    /// The plan has been checked.
    pub fn new(plan: &Plan) -> Requests {
        let (mut lines, mut ends) = (Vec::new(), Vec::new());
        for Document { path, .. } in &plan.work.documents {
            lines.extend_from_slice(format!("GET {path} HTTP/1.1\r\n").as_bytes());
            ends.push(lines.len());
        }
        Requests {
            order: match &plan.work.order {
                Order::RoundRobin => Stream::RoundRobin(0),
                Order::Drawn(popularity) => Stream::Drawn(popularity.draws(plan.seed)),
            },
            documents: ends.len() as u32,
            lines,
            ends,
            fields: plan
                .targets
                .iter()
                .map(|target| fields(plan, target))
                .collect(),
            deal: Deal::new(&plan.targets),
            buffer: Vec::with_capacity(4096),
        }
    }

    /// The next document.
    ///
    /// # Panics
    /// When a popularity draws an index that is no document's.
    pub fn draw(&mut self) -> u32 {
        let document = match &mut self.order {
            Stream::RoundRobin(next) => {
                let document = *next;
                *next = (document + 1) % self.documents;
                document
            }
            Stream::Drawn(draws) => draws.next(),
        };
        assert!(
            document < self.documents,
            "a popularity drew document {document} of {}",
            self.documents
        );
        document
    }

    /// The target whose turn it is.
    pub fn deal(&mut self) -> u8 {
        self.deal.next()
    }

    /// The bytes of a request.
    pub fn form(&mut self, document: u32, target: u8, last: bool) -> &[u8] {
        let index = document as usize;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        let fields = &self.fields[usize::from(target)][usize::from(last)];
        self.buffer.clear();
        self.buffer
            .extend_from_slice(&self.lines[start..self.ends[index]]);
        self.buffer.extend_from_slice(fields);
        &self.buffer
    }

    /// The bytes of a request that its client makes.
    pub fn form_for(&mut self, client: &dyn Client, target: u8, last: bool) -> &[u8] {
        let fields = &self.fields[usize::from(target)][usize::from(last)];
        self.buffer.clear();
        client.form(fields, &mut self.buffer);
        &self.buffer
    }
}

fn fields(plan: &Plan, target: &Target) -> [Vec<u8>; 2] {
    let version = env!("CARGO_PKG_VERSION");
    let mut keep = format!(
        "Host: {}\r\nUser-Agent: headway-load/{version}\r\n",
        target.host
    );
    for (name, value) in &plan.fields {
        keep.push_str(&format!("{name}: {value}\r\n"));
    }
    let last = format!("{keep}Connection: close\r\n\r\n");
    keep.push_str("\r\n");
    [keep.into_bytes(), last.into_bytes()]
}

/// Deals turns by weight, evenly interleaved: each turn everyone gains its weight, and the richest
/// pays all of it ("smooth" weighted round robin, as nginx has it).
struct Deal {
    weights: Vec<i64>,
    credit: Vec<i64>,
}

impl Deal {
    fn new(targets: &[Target]) -> Deal {
        Deal {
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
    fn request_has_line_host_and_fields_when_formed() {
        let mut plan = Plan::closed(target(1), Work::paths(["/a", "/b?c=d"]), 1);
        plan.fields.push(("Accept".into(), "*/*".into()));
        let mut requests = Requests::new(&plan);
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
    fn turns_follow_the_weights_when_targets_differ() {
        let mut deal = Deal::new(&[target(3), target(1)]);
        let turns: Vec<u8> = (0..8).map(|_| deal.next()).collect();
        assert_eq!(turns, [0, 0, 1, 0, 0, 0, 1, 0]);
        let mut even = Deal::new(&[target(1), target(1), target(1)]);
        assert_eq!([(); 6].map(|()| even.next()), [0, 1, 2, 0, 1, 2]);
    }
}
