//! A request allocates nothing when clients judge the responses.

#[path = "../../../crates/load/tests/support/allocations.rs"]
mod allocations;
#[path = "../../../crates/load/tests/support/mod.rs"]
mod support;

use std::sync::Arc;

use allocations::watch;
use headway_load::engine::{Document, Mode};
use headway_load::fileset::{FilePopularity, Manifest, Shape};
use headway_specweb::{Ads, Reset};
use headway_specweb_client::client::{Clients, Posts, SharedClientState};
use support::{Server, closed, response, send};

#[test]
fn no_allocation_per_request_when_clients_check_responses() {
    // Static files are right, and the application is none: every page is wrong, and is looked at as
    // far as it goes.
    let manifest = Manifest::new("/nowhere", Shape::SpecWeb99Dynamic { directories: 1 }, 1);
    let first = manifest.files().next().expect("a file");
    let mut content = vec![0; first.size_bytes as usize];
    manifest.content(first.index).fill(0, &mut content);
    let bytes = response(&String::from_utf8(content).expect("text"));
    let server = Server::start(move |_| send(bytes.clone()));
    let documents = manifest.files().map(|file| Document {
        path: file.path.to_owned(),
        size_bytes: Some(file.size_bytes),
        class: file.class,
        checksum: Some(manifest.checksum(file.index)),
    });
    let reset = Reset {
        users: 4,
        seed: 1,
        time_s: 1_700_000_000,
        expired_percent: 10,
    };
    let mut plan = closed(&server, 9000);
    plan.mode = Mode::Closed { connections: 4 };
    plan.conversation = Some(Box::new(Clients {
        knowledge: Arc::new(SharedClientState {
            documents: documents.collect(),
            popularity: FilePopularity::new(&manifest),
            ads: Ads::generate(&reset),
            reset,
            paths: ["/dynamic".to_owned(), "/cgi".to_owned()],
            static_only: false,
            posts: Posts::new(4),
        }),
        seed: 1,
    }));
    let watch = watch(&plan);
    assert!(
        watch.rows >= 8000 && watch.errors < watch.rows,
        "{} rows",
        watch.rows
    );
    // Four of five requests open a connection, and the server runs in the same process: if it
    // closes descriptors late, our table grows. That is a few allocations in thousands of requests,
    // not one per request.
    let grown = watch.after - watch.before.expect("a thousand rows");
    assert!(grown <= 8, "{grown} allocations");
}
