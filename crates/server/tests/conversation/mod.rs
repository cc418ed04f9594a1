//! Runs the cases of one directory and reports which of them differ, and where.

mod case;
mod client;
mod http2;
pub mod notation;
mod tree;
mod upstream;

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use headway_server::metrics::Snapshot;
use headway_test_support::skip;
use rustls::version::TLS13;

use case::{Case, Need, Step};
use client::Client;
use notation::Names;
use tree::Tree;
use upstream::Upstream;

use crate::support::{Served, config};
use crate::tls::tools::{Certified, TlsStream, shake_hands, speak, tls_settings};

/// The directory of the cases.
pub fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// How conversations are held.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way<'a> {
    /// As they are written.
    Written,
    /// With another preset, whose budgets differ: only the bytes must agree.
    Preset(&'a str),
    /// By TLS. Calls differ.
    Tls,
    /// By HTTP/2, if HTTP/2 has such requests: only responses must agree.
    Http2,
}

impl<'a> Way<'a> {
    fn preset(self) -> Option<&'a str> {
        match self {
            Way::Preset(preset) => Some(preset),
            Way::Written | Way::Tls | Way::Http2 => None,
        }
    }
}

/// Runs every conversation of a directory; fails with a list of those that differ.
pub fn run_area(area: &str, way: Way<'_>) {
    let only = std::env::var("CONVERSATION").ok();
    let mut failures = Vec::new();
    let mut held = 0;
    let mut skipped = false;
    let mut foreign = 0;
    for path in cases(area) {
        let name = format!("{area}/{}", path.file_stem().unwrap_or_default().display());
        if only.as_ref().is_some_and(|only| *only != name) {
            continue;
        }
        held += 1;
        match run_case(&path, &name, way) {
            Ok(Verdict::Held) => println!("conversation {name} ... ok"),
            Ok(Verdict::Skipped) => skipped = true,
            Ok(Verdict::Foreign) => {
                println!("conversation {name} ... not for HTTP/2");
                foreign += 1;
            }
            Err(difference) => {
                println!("conversation {name} ... FAILED");
                failures.push(format!("{name}:\n{difference}"));
            }
        }
    }
    if skipped {
        // conversations/permissions needs: a user other than root, who may read every file
        skip(&format!("conversations/{area}"), "root may read every file");
    }
    // If nothing could be compared, nothing would be tested.
    assert!(
        2 * foreign <= held,
        "{foreign} of {held} are not for HTTP/2"
    );
    let failed = failures.len();
    assert!(
        failures.is_empty(),
        "{failed} of {held} conversations in {area} failed\n{}",
        failures.join("\n")
    );
}

fn cases(area: &str) -> Vec<PathBuf> {
    let directory = data().join(area);
    let entries = std::fs::read_dir(&directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} has no case", directory.display());
    paths
}

/// The result of a case that did not fail.
enum Verdict {
    Held,
    Skipped,
    /// HTTP/2 has no such requests.
    Foreign,
}

fn run_case(path: &Path, name: &str, way: Way<'_>) -> Result<Verdict, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let mut case = Case::parse(&text)?;
    if case.needs == Some(Need::User) && rustix::process::geteuid().is_root() {
        return Ok(Verdict::Skipped);
    }
    let update = std::env::var_os("UPDATE_CONVERSATIONS").is_some() && way == Way::Written;
    let tree = Tree::make(&case.tree).map_err(|error| format!("making the tree: {error}"))?;
    if let Some(preset) = way.preset() {
        case.config = format!("research.preset = {preset:?}\n{}", case.config);
        case.any_lead = true;
        case.calls.clear();
        case.counters.clear();
    }
    let own = case
        .config
        .replace("{base}", &tree.base().display().to_string());
    let mut upstream = own.contains("{upstream}").then(Upstream::new);
    let address = upstream.as_ref().map(Upstream::address);
    let own = own.replace("{upstream}", address.as_deref().unwrap_or_default());
    let own = with_quick_start(own, way.preset());
    let certified = (way == Way::Tls).then(|| over_tls(&mut case, &tree));
    let own = match &certified {
        Some(_) => tls_settings(tree.base(), &own),
        None => own,
    };
    let mut served = Served::start(config(&tree.root(), &own));
    for warm in &case.warm {
        served.get(warm);
    }
    let names = Names::of(&tree, address);
    if way == Way::Http2 {
        return match http2::run_conversation(&case, served.connect(), &names)? {
            true => Ok(Verdict::Held),
            false => Ok(Verdict::Foreign),
        };
    }
    let mut client = match &certified {
        Some(certified) => Client::new(connect_over_tls(&served, certified)),
        None => Client::new(served.connect()),
    };
    let before = accepted(&mut served, case.warm.len() as u64 + 1);
    let spoken = run_conversation(&mut case, &mut client, upstream.as_mut(), &names, update);
    let after = served.snapshot();
    spoken?;
    if client.is_cut != (way == Way::Tls && CUT.contains(&name)) {
        return Err(format!("the end is cut: {}", client.is_cut));
    }
    if let Some(upstream) = upstream {
        upstream.has_no_more(&names)?;
    }
    if update {
        std::fs::write(path, case.to_string()).map_err(|error| error.to_string())?;
    }
    within_budget(&case, &before, &after)?;
    Ok(Verdict::Held)
}

/// Conversations whose last response is cut: by TLS their end is not marked.
const CUT: &[&str] = &["gateway/chunked-ends-early", "gateway/ends-early"];

/// Prepares a case and its tree for TLS.
fn over_tls(case: &mut Case, tree: &Tree) -> Certified {
    let certified = Certified::new();
    certified.write(tree.base());
    case.calls.clear();
    for step in &mut case.steps {
        match step {
            Step::Send(text) => swap_schemes(text),
            Step::Forwarded(text) => {
                for key in ["proto=http", "X-Forwarded-Proto: http"] {
                    *text = text.replace(&format!("{key}\n"), &format!("{key}s\n"));
                }
                *text = text.replace("Referer: http:", "Referer: https:");
            }
            _ => {}
        }
    }
    certified
}

/// Puts the scheme of TLS into request lines that name that of HTTP in the clear, and the other way round.
fn swap_schemes(text: &mut String) {
    let swapped = text
        .split_inclusive('\n')
        .map(|line| match line.contains(" http://") {
            _ if line.starts_with("Origin:") => line.to_owned(),
            true => line.replace(" http://", " https://"),
            false => line
                .replace(" https://", " http://")
                .replace(" HTTPS://", " http://"),
        });
    *text = swapped.collect();
}

/// A client whose handshake is done.
fn connect_over_tls(served: &Served, certified: &Certified) -> TlsStream {
    let stream = TcpStream::connect(served.tls_address.expect("TLS")).expect("connect");
    stream.set_nodelay(true).expect("set_nodelay");
    let mut stream = speak(stream, Arc::new(certified.clients(&TLS13)));
    shake_hands(&mut stream);
    stream
}

/// The configuration with settings that make the tests fast, where it has no others.
///
/// A worker touches and locks the memory of its caches before it serves. With a deferred accept it
/// would see a client that has sent nothing only after a second. The micro-servers have no caches.
fn with_quick_start(config: String, preset: Option<&str>) -> String {
    let settings = [
        ("response-cache-max", "\"4MiB\""),
        ("chunk-cache-max", "\"2MiB\""),
        ("defer-accept", "false"),
        // Tells files of the same size and time apart.
        ("etag", "\"inode\""),
    ];
    let caches = !matches!(preset, Some("accept1" | "cm"));
    let missing = settings
        .iter()
        .filter(|(key, _)| !config.contains(key) && (caches || *key != "response-cache-max"));
    let lines: String = missing
        .map(|(key, value)| format!("{key} = {value}\n"))
        .collect();
    lines + &config
}

/// The worker's counters once it has accepted this many connections: from here on it works for the
/// last client.
fn accepted(served: &mut Served, connections: u64) -> Snapshot {
    loop {
        let snapshot = served.snapshot();
        if snapshot.counters.connections_accepted == connections {
            return snapshot;
        }
        // Each look costs the worker a turn and a long message.
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs the steps in order. When updating, the expected bytes become the received ones.
fn run_conversation(
    case: &mut Case,
    client: &mut Client,
    mut upstream: Option<&mut Upstream>,
    names: &Names,
    update: bool,
) -> Result<(), String> {
    for at in 0..case.steps.len() {
        // Only the bytes before the server closes are certain to be the last ones.
        let last = matches!(case.steps.get(at + 1), Some(Step::Close));
        let step = &mut case.steps[at];
        if let Some(upstream) = &mut upstream
            && upstream.run(step, names, update)?
        {
            continue;
        }
        match step {
            Step::Forwarded(_) | Step::Reply(_) | Step::Hangup => {
                return Err("the configuration names no `{upstream}`".into());
            }
            Step::Send(text) => client.send(&names.parse(text)?)?,
            Step::Pause => client.pause(),
            Step::Shut => client.shut()?,
            Step::Expect(expected) => {
                let said = client.receive(names, (!update).then_some(&**expected), last)?;
                if update {
                    *expected = said;
                } else if said != *expected && (!case.any_lead || leads(&said) != leads(expected)) {
                    return Err(difference(expected, &said));
                }
            }
            Step::Close => client.is_closed(names)?,
            Step::Open => client.is_open(names)?,
        }
    }
    Ok(())
}

/// Moves `Connection: close` to the front of each header, so that cached responses, which have it
/// there, and other responses compare equal.
///
/// Where the difference matters, the cases in `budgets` check the counters.
fn leads(text: &str) -> String {
    const CLOSE: &str = "Connection: close\n";
    let mut heads = text.split("HTTP/1.1 200 OK\n");
    let mut led = heads.next().unwrap_or_default().to_owned();
    for head in heads {
        let (fields, body) = head.split_once("\n\n").unwrap_or((head, ""));
        let lead = match fields.contains(CLOSE) {
            true => CLOSE,
            false => "",
        };
        let others = fields.replacen(CLOSE, "", 1);
        led.push_str(&format!("HTTP/1.1 200 OK\n{lead}{others}\n\n{body}"));
    }
    led
}

fn within_budget(case: &Case, before: &Snapshot, after: &Snapshot) -> Result<(), String> {
    let calls =
        |snapshot: &Snapshot, call: &String| snapshot.trace.calls.get(call).copied().unwrap_or(0);
    for (call, most) in &case.calls {
        if !headway_metrics::calls::Call::ALL
            .iter()
            .any(|known| known.name() == call)
        {
            return Err(format!(
                "there is no system call `{call}` in the worker's counts"
            ));
        }
        let made = calls(after, call) - calls(before, call);
        if made > *most {
            return Err(format!(
                "{made} calls of {call}, at most {most} are allowed"
            ));
        }
    }
    let counters = |snapshot: &Snapshot| -> BTreeMap<&str, u64> {
        snapshot
            .counters
            .series()
            .iter()
            .map(|series| (series.key, series.value))
            .collect()
    };
    let (before, after) = (counters(before), counters(after));
    for (counter, growth) in &case.counters {
        let value = |counters: &BTreeMap<&str, u64>| counters.get(&**counter).copied();
        let (Some(from), Some(to)) = (value(&before), value(&after)) else {
            return Err(format!("there is no counter `{counter}`"));
        };
        if to - from != *growth {
            return Err(format!("{counter} grew by {}, not by {growth}", to - from));
        }
    }
    Ok(())
}

/// Both texts, marked where they differ. Equal lines before and after are left out.
fn difference(expected: &str, said: &str) -> String {
    let (expected, said): (Vec<_>, Vec<_>) = (expected.lines().collect(), said.lines().collect());
    let same = expected
        .iter()
        .zip(&said)
        .take_while(|(one, other)| one == other)
        .count();
    let mut text = format!("    the first {same} lines agree\n");
    for line in &expected[same..] {
        text.push_str(&format!("  - {line}\n"));
    }
    for line in &said[same..] {
        text.push_str(&format!("  + {line}\n"));
    }
    text
}
