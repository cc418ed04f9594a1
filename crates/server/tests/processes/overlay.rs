//! A root on an overlay, as containers have them: its pages are seen, and are sent without a
//! helper.

use std::fs;

use headway_test_support::disks::Mount;
use headway_test_support::server::Server;

use crate::clients::*;

const FILE_BYTES: usize = 3 << 20;

/// Needs: root: mounts an overlay
#[test]
fn resident_chunks_are_sent_by_the_loop_when_the_root_is_an_overlay() {
    const NAME: &str = "resident_chunks_are_sent_by_the_loop_when_the_root_is_an_overlay";
    for (send, resident_least) in [("copy", 1), ("sendfile", (FILE_BYTES >> 18) as u64)] {
        if let Err(why) = serve_from_overlay(send, resident_least) {
            return skip(NAME, &why);
        }
    }
}

/// The error says why there is no overlay here.
fn serve_from_overlay(send: &str, resident_least: u64) -> Result<(), String> {
    let layers = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for layer in ["lower", "upper", "work"] {
        fs::create_dir(layers.path().join(layer)).unwrap();
    }
    let below = layers.path().join("lower/large");
    fs::write(&below, contents(1, FILE_BYTES)).unwrap();
    let root = Mount::overlay(layers.path())?;
    // Fewer windows of its own than the file has, so that the page cache is asked again.
    let options = [
        "--workers",
        "1",
        "--response-cache-max",
        "1MiB",
        "--chunk-cache-max",
        "2MiB",
        "--content-store-max",
        "0",
        "--send",
        send,
    ];
    let server = Server::start(program(), root.path(), &options);
    assert!(get(&server.address, "/large") == (200, contents(1, FILE_BYTES)));
    let before = server.status();
    assert!(get(&server.address, "/large") == (200, contents(1, FILE_BYTES)));
    let after = server.status();
    let grown = |name| counter(&after, name) - counter(&before, name);
    assert_eq!(
        grown("chunks_cold"),
        0,
        "{send}: memory is known to hold it"
    );
    assert!(grown("chunks_resident") >= resident_least, "{send}");

    // Cold pages are not taken for warm ones.
    let file = fs::File::open(&below).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    assert!(get(&server.address, "/large") == (200, contents(1, FILE_BYTES)));
    let cold = counter(&server.status(), "chunks_cold") - counter(&after, "chunks_cold");
    assert!(cold > 0, "a helper reads them in");

    // A file that is written moves to the upper layer.
    fs::write(root.path().join("large"), contents(2, FILE_BYTES)).unwrap();
    server.wait_for("the new version", |server| {
        get(&server.address, "/large") == (200, contents(2, FILE_BYTES))
    });
    Ok(())
}
