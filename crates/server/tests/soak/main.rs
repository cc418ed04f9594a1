//! A server under load while faults are injected at random from one seed. Clients which share no
//! code with the server check each byte of each response.
//!
//! A response may only fail in a way that a fault explains which was active then, by the table in
//! [`journal`]. All else is lost. At the end the processes must hold what they held at the start.
//!
//! `scripts/soak` runs it for an hour; without that it takes 20 seconds. The seed
//! decides about faults and requests, but not when threads run, so a run cannot be repeated exactly.
//!
//! Not injected: steps of the real-time clock, which no namespace separates from the machine's. The
//! simulation has those.

mod client;
mod faults;
mod journal;
mod load;
mod machine;
mod report;
mod server;
mod site;
mod upstream;
mod wanted;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use headway_base::random::{Draw, SplitMix64};
use headway_test_support::disks::Disk;

use crate::faults::Target;
use crate::journal::Journal;
use crate::load::{Client, Load, MANNERS, Results};
use crate::report::Report;
use crate::server::{Holdings, Paths, Server, metrics, sum_of};
use crate::site::Site;
use crate::upstream::Upstreams;
use crate::wanted::{DISK_FILES, disk_file};

/// Needs: root, namespaces
#[test]
fn no_response_is_lost_while_faults_are_injected_at_random() {
    match std::env::var_os(machine::INSIDE) {
        Some(directory) => run_for_a_while(Path::new(&directory)),
        None => machine::run_inside("no_response_is_lost_while_faults_are_injected_at_random"),
    }
}

fn number_from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

fn run_for_a_while(directory: &Path) {
    machine::end_with_parent();
    let seconds = number_from_environment("HEADWAY_SOAK_SECONDS", 20);
    let seed = number_from_environment("HEADWAY_SOAK_SEED", 1);
    let paths = Paths::create(directory);
    let site = Site::create(directory);
    let upstreams = Upstreams::start();
    let disk = make_disk(directory);
    let disk_path = disk.as_ref().map(|(disk, _)| disk.path());
    let server = Server::start(&paths, &site, disk_path);
    let output = std::env::var_os("HEADWAY_SOAK_OUTPUT").map(PathBuf::from);
    let journal_path = output.as_deref().unwrap_or(directory).join("journal");
    let journal = Journal::new(&journal_path);
    let results = Results::default();
    let target = Target {
        journal: &journal,
        server: &server,
        site: &site,
        paths: &paths,
        upstreams: &upstreams,
        disk: disk.as_ref(),
        locks: Default::default(),
    };
    let load = |has_ended| Load {
        site: &site,
        journal: &journal,
        results: &results,
        has_ended,
    };

    // What the processes hold at rest, after some load and no fault.
    let has_ended = AtomicBool::new(false);
    run_load(&load(&has_ended), seed, Duration::from_secs(3), None);
    let before = wait_for_rest(None);
    let lost_without_faults = results.lost.load(Ordering::SeqCst);
    assert_eq!(
        (lost_without_faults, &*results.lines.lock().unwrap()),
        (0, &Vec::new())
    );

    let has_ended = AtomicBool::new(false);
    let metrics_seen = run_load(
        &load(&has_ended),
        seed + 1,
        Duration::from_secs(seconds),
        Some(&target),
    );
    let after = wait_for_rest(Some(&before));
    let leaks = after.leaks_since(&before);
    let stopped = server.stop();
    let report = Report {
        seconds,
        seed,
        results: &results,
        journal: &journal,
        before: &before,
        after: &after,
        leaks: &leaks,
        metrics: &metrics_seen,
        restarts: server.restarts.load(Ordering::SeqCst),
        messages: fs::read_to_string(directory.join("server.err")).unwrap_or_default(),
        stopped: stopped.err(),
        left: processes_left(),
    };
    report.write(output.as_deref());
    drop(disk);
    report.judge();
}

/// A disk whose reads can be made to fail; none where that is not possible.
fn make_disk(directory: &Path) -> Option<(Disk, Vec<u8>)> {
    let fill = |path: &Path| {
        for at in 0..DISK_FILES {
            fs::write(path.join(at.to_string()), disk_file(at)).expect("a file");
        }
    };
    let made = Disk::new(directory, 16 << 20, fill).and_then(|mut disk| {
        disk.make_cold()?;
        Ok(disk)
    });
    match made {
        Ok(disk) => {
            let image = disk.image();
            Some((disk, image))
        }
        Err(why) => {
            println!("no disk that breaks: {why}");
            None
        }
    }
}

/// Runs the clients, and faults if there is a target; gives the last metrics of each server.
fn run_load(
    load: &Load<'_>,
    seed: u64,
    length: Duration,
    target: Option<&Target<'_>>,
) -> Vec<String> {
    let mut seeds = SplitMix64(seed);
    let faults_have_ended = AtomicBool::new(false);
    let mut seen = Vec::new();
    std::thread::scope(|scope| {
        let changing = seeds.next_u64();
        scope.spawn(move || load.site.keep_changing(changing, load.has_ended));
        for (manner, count) in MANNERS {
            for _ in 0..count {
                let client = Client::new(load, manner, seeds.next_u64());
                scope.spawn(move || client.run());
            }
        }
        let mut injectors = Vec::new();
        if let Some(target) = target {
            let has_ended = &faults_have_ended;
            scope.spawn(move || target.server.keep_running(load.journal, load.has_ended));
            for pause_ms in [2_000, 5_000] {
                let own = seeds.next_u64();
                injectors.push(scope.spawn(move || target.inject(own, pause_ms, has_ended)));
            }
        }
        seen = watch(length);
        faults_have_ended.store(true, Ordering::SeqCst);
        for injector in injectors {
            injector.join().expect("an injector");
        }
        // Clients see the end of the last fault.
        std::thread::sleep(Duration::from_secs(2));
        add_metrics(&mut seen);
        load.has_ended.store(true, Ordering::SeqCst);
    });
    seen
}

/// Looks at the metrics while the run lasts; gives the last ones of each start of the server.
fn watch(length: Duration) -> Vec<String> {
    let begun = Instant::now();
    let mut seen = Vec::new();
    while begun.elapsed() < length {
        std::thread::sleep(Duration::from_secs(1).min(length - begun.elapsed().min(length)));
        add_metrics(&mut seen);
    }
    seen
}

/// Adds the metrics of now, in place of earlier ones of the same start of the server.
fn add_metrics(seen: &mut Vec<String>) {
    let start = |text: &str| sum_of(text, "process_start_time_seconds");
    if let Some(now) = metrics() {
        if seen.last().is_some_and(|last| start(last) == start(&now)) {
            seen.pop();
        }
        seen.push(now);
    }
}

/// Waits until nothing is in progress: no connections, and no deleted file. What does not go in time
/// is seen by the comparison.
fn wait_for_rest(before: Option<&Holdings>) -> Holdings {
    let begun = Instant::now();
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let holdings = Holdings::look();
        let is_done = match before {
            Some(before) => holdings.leaks_since(before).is_empty(),
            None => holdings.deleted.is_empty() && holdings.close_wait == 0,
        };
        if is_done && begun.elapsed() > Duration::from_secs(3)
            || begun.elapsed() > Duration::from_secs(90)
        {
            return holdings;
        }
    }
}

/// The processes which run although the server has ended; they get a moment.
fn processes_left() -> Vec<String> {
    let begun = Instant::now();
    loop {
        let running = machine::processes()
            .into_iter()
            .filter(|process| !process.is_zombie);
        let left: Vec<String> = running.map(|process| process.command_line).collect();
        if left.is_empty() || begun.elapsed() > Duration::from_secs(5) {
            return left;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
