//! What the parts of a lab do to a program inside.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::Instant;

use crate::common;

use super::support::{Lab, can, headway_lab, name, skip, text, traces_of, wait_until};

const MIB: u64 = 1 << 20;

/// Needs: root: makes a lab (FUSE, loop device, control group)
#[test]
fn cache_is_bounded_when_three_times_the_limit_is_read() {
    let test = "cache_is_bounded_when_three_times_the_limit_is_read";
    if !can(test, &["disk", "memory limit"]) {
        return;
    }
    let parts = "--disk nvme --disk-size 256MiB --memory 32MiB";
    let lab = Lab::up(&parts.split(' ').collect::<Vec<_>>());
    let fill = format!(
        "fill {} -- dd if=/dev/zero of=big bs=1M count=96 status=none",
        lab.name
    );
    let fill: Vec<&str> = fill.split(' ').collect();
    let output = headway_lab(&fill).output().expect("started");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let mount = lab.status()["disk"]["mount_point"]
        .as_str()
        .expect("a path")
        .to_owned();
    let big = format!("{mount}/big");
    let resident = || {
        let command = format!("fincore --bytes --noheadings --output RES {big}");
        let output = lab.answer("client", &command.split(' ').collect::<Vec<_>>());
        output.parse::<u64>().expect("a number of bytes")
    };
    let read = format!("dd if={big} of=/dev/null bs=1M status=none");
    let read: Vec<&str> = read.split(' ').collect();
    assert_eq!(resident(), 0, "a disk that was just loaded is cold");

    lab.answer("server", &read);
    let memory = &lab.status()["memory"];
    assert_eq!(memory["limit_bytes"], 32 * MIB);
    assert!(
        memory["used_bytes"].as_u64().expect("a number") <= 32 * MIB,
        "{memory}"
    );
    let kept = resident();
    assert!(
        (4 * MIB..=32 * MIB).contains(&kept),
        "{kept} bytes are resident"
    );
    let peak = memory["peak_bytes"].as_u64().unwrap_or(0);
    assert!(peak <= 32 * MIB, "{memory}");

    // The same read outside the server's group leaves far more in the page cache, so the limit was
    // the cause. It may be less than all: pages that the server's group read still count against
    // its limit.
    lab.answer("client", &read);
    let kept = resident();
    assert!(kept > 64 * MIB, "{kept} bytes are resident");
    let output = headway_lab(&["cool", &lab.name]).output().expect("started");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(resident(), 0);
}

/// Looks at 40,000 files twice, and says how many reads of the disk the second look took. They are
/// in many directories: a walk keeps the names of one in its own memory.
fn reads_of_a_second_look(memory: &str) -> u64 {
    let parts = [
        "--disk",
        "nvme",
        "--disk-size",
        "512MiB",
        "--memory",
        memory,
    ];
    let lab = Lab::up(&parts);
    let fill = "mkdir many && cd many && seq -f %03g 0 399 | xargs mkdir && \
                seq -f %05g 0 39999 | sed 's,...,&/,' | xargs touch";
    let load = ["fill", &lab.name, "--", "sh", "-c", fill];
    let output = headway_lab(&load).output().expect("started");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let mount = lab.status()["disk"]["mount_point"]
        .as_str()
        .expect("a path")
        .to_owned();
    let reads = || {
        let status = lab.status();
        let reads = status["disk"]["totals"]["reads"].as_u64();
        reads.unwrap_or_else(|| panic!("no reads in {status}"))
    };
    // Of each of them the inode: its size.
    let look = ["find", &format!("{mount}/many"), "-size", "+1M"];
    lab.answer("server", &look);
    let before = reads();
    lab.answer("server", &look);
    reads() - before
}

#[test]
fn inodes_and_dentries_are_bounded_when_more_names_are_looked_up_than_fit() {
    let test = "inodes_and_dentries_are_bounded_when_more_names_are_looked_up_than_fit";
    if !can(test, &["disk", "memory limit"]) {
        return;
    }
    // An inode and a dentry are 1.3 kB in memory: 52 MB in all, and 10 MB of the tables on the
    // disk.
    let (little, enough) = (
        reads_of_a_second_look("24MiB"),
        reads_of_a_second_look("256MiB"),
    );
    assert!(little > 50, "{little} reads");
    assert!(enough < 10, "{enough} reads though everything fits");
}

/// Needs: root: makes a lab; xfs in the kernel
#[test]
fn server_reads_xfs_when_the_lab_is_configured_for_it() {
    let test = "server_reads_xfs_when_the_lab_is_configured_for_it";
    if !can(test, &["disk", "memory limit"]) {
        return;
    }
    let parts = [
        "--disk",
        "nvme",
        "--disk-size",
        "320MiB",
        "--filesystem",
        "xfs",
        "--memory",
        "64MiB",
        "--fileset",
        "6MB",
    ];
    let lab = Lab { name: name() };
    let output = lab.making(&parts).output().expect("started");
    let stderr = text(&output.stderr);
    if stderr.contains("needs the program mkfs.xfs") || stderr.contains("xfs in the kernel") {
        return skip(test, stderr.lines().next().unwrap_or_default());
    }
    assert!(output.status.success(), "{stderr}");
    let status = lab.status();
    let mount = status["disk"]["mount_point"].as_str().expect("a path");
    assert_eq!(
        lab.answer("server", &["stat", "--file-system", "--format=%T", mount]),
        "xfs"
    );
    let set = format!("{mount}/set");
    let headway = common::headway().to_str().expect("a name of letters");
    lab.answer("server", &[headway, "fileset", "verify", &set]);
    let disk = &lab.status()["disk"];
    let read = disk["totals"]["read_bytes"].as_u64().expect("a number");
    assert!(read > 5_000_000, "{disk}");
}

/// Needs: root: makes a lab (network name space, veth, tbf)
#[test]
fn rate_is_kept_when_bytes_cross_the_link() {
    let test = "rate_is_kept_when_bytes_cross_the_link";
    if !can(test, &["link"]) {
        return;
    }
    let lab = Lab::up(&["--link", "100Mbit"]);
    let link = lab.status()["link"].clone();
    let clients = link["client_ips"].as_array().expect("addresses").clone();
    assert_eq!((clients.len(), &clients[0]), (16, &link["client_ip"]));
    let last = clients[15].as_str().expect("an address");
    std::net::UdpSocket::bind((last, 0)).expect("the machine has it");
    let (_server, _root, address) = served(&lab);

    // Whatever else the machine does can only make a transfer slower, so the fastest of some is the
    // link's.
    let rate = (0..4)
        .map(|_| bits_per_second(&lab, &address))
        .fold(0.0, f64::max);
    assert!((0.9e8..=1.1e8).contains(&rate), "{rate} bit/s");
    let status = lab.status();
    assert_eq!(status["link"]["to_client"]["drops"], 0);
    assert!(
        status["processes"].as_array().expect("a list").len() >= 2,
        "{status}"
    );
}

/// Starts a server with a file of 4 MB inside of a lab, and gives its address.
fn served(lab: &Lab) -> (Ended, tempfile::TempDir, String) {
    let root = tempfile::tempdir().expect("a directory");
    std::fs::write(root.path().join("big"), vec![7; 4_000_000]).expect("written");
    let ready = root.path().join("ready");
    let address = format!(
        "{}:0",
        lab.status()["link"]["server_ip"]
            .as_str()
            .expect("an address")
    );
    let arguments = [
        common::headway().to_str().expect("a name of letters"),
        "serve",
        &root.path().display().to_string(),
        "--listen",
        &address,
        "--user",
        "root",
        "--workers",
        "1",
        "--ready-file",
        &ready.display().to_string(),
    ];
    let mut server = Ended(
        lab.exec("server", &arguments)
            .stderr(Stdio::null())
            .spawn()
            .expect("started"),
    );
    let mut listening = serde_json::Value::Null;
    wait_until("the server is ready", || {
        assert!(
            server.0.try_wait().expect("asked").is_none(),
            "the server ended"
        );
        let text = std::fs::read(&ready).unwrap_or_default();
        listening = serde_json::from_slice(&text).unwrap_or_default();
        listening["listen"][0].is_string()
    });
    let address = listening["listen"][0].as_str().expect("an address");
    (server, root, address.to_owned())
}

/// Needs: root: makes a lab (network name space, veth, htb)
#[test]
fn each_client_address_has_a_rate_of_its_own_with_client_link() {
    let test = "each_client_address_has_a_rate_of_its_own_with_client_link";
    if !can(test, &["link"]) {
        return;
    }
    let lab = Lab::up(&["--link", "1Gbit", "--client-link", "40Mbit"]);
    let link = lab.status()["link"].clone();
    assert_eq!(link["client_bits_per_second"], 40_000_000);
    let addresses = link["client_ips"].as_array().expect("addresses");
    let address = |at: usize| -> std::net::Ipv4Addr {
        addresses[at]
            .as_str()
            .and_then(|text| text.parse().ok())
            .expect("an address")
    };
    let (_server, _root, server) = served(&lab);
    let server = server.parse().expect("an address");
    // Whatever else the machine does can only make a transfer slower, so the fastest of some is the
    // link's.
    let rate = |from: &[usize]| {
        let once = |_| rate_of(server, from.iter().map(|at| address(*at)).collect());
        (0..4).map(once).fold(0.0, f64::max)
    };
    for (from, expected) in [
        (&[0][..], 4.0e7),
        (&[15], 4.0e7),
        // Two of them do not share a rate, and two connections of one do.
        (&[3, 9], 8.0e7),
        (&[9, 9], 4.0e7),
    ] {
        let found = rate(from);
        assert!(
            (0.85 * expected..=1.1 * expected).contains(&found),
            "{from:?}: {found} bit/s"
        );
    }
    let status = lab.status();
    assert_eq!(status["link"]["to_client"]["drops"], 0);
    let sent = status["link"]["to_client"]["bytes"].as_u64();
    assert!(sent.is_some_and(|bytes| bytes > 24 * 4_000_000), "{status}");
}

/// Fetches the file from each of these addresses at once; bytes of all by the time of the last.
fn rate_of(server: std::net::SocketAddr, from: Vec<std::net::Ipv4Addr>) -> f64 {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let begun = Instant::now();
    let fetch = move |from: std::net::Ipv4Addr| {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        bind(&socket, &std::net::SocketAddrV4::new(from, 0)).expect("bound");
        connect(&socket, &server).expect("connected");
        let mut connection = TcpStream::from(socket);
        write!(connection, "GET /big HTTP/1.0\r\n\r\n").expect("sent");
        let mut body = Vec::new();
        connection.read_to_end(&mut body).expect("received");
        assert!(body.len() > 4_000_000);
        body.len()
    };
    let fetches: Vec<_> = from
        .into_iter()
        .map(|from| std::thread::spawn(move || fetch(from)))
        .collect();
    let bytes: usize = fetches
        .into_iter()
        .map(|fetch| fetch.join().expect("fetched"))
        .sum();
    bytes as f64 * 8.0 / begun.elapsed().as_secs_f64()
}

/// Fetches the file once and divides the bytes that the link counted by the time they took.
fn bits_per_second(lab: &Lab, address: &str) -> f64 {
    let sent = || {
        lab.status()["link"]["to_client"]["bytes"]
            .as_u64()
            .expect("a number")
    };
    let mut connection = TcpStream::connect(address).expect("connected");
    let before = sent();
    let begun = Instant::now();
    write!(connection, "GET /big HTTP/1.0\r\n\r\n").expect("sent");
    let mut body = Vec::new();
    connection.read_to_end(&mut body).expect("received");
    let seconds = begun.elapsed().as_secs_f64();
    assert!(body.len() > 4_000_000);
    (sent() - before) as f64 * 8.0 / seconds
}

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Needs: root: makes a lab
#[test]
fn program_is_inside_every_part_when_it_is_started_on_the_servers_side() {
    let test = "program_is_inside_every_part_when_it_is_started_on_the_servers_side";
    if !can(test, &["memory limit", "CPU quota", "link"]) {
        return;
    }
    let lab = Lab::up(&[
        "--memory",
        "64MiB",
        "--cpu-share",
        "0.5",
        "--link",
        "1Gbit",
        "--server-cpus",
        "0",
    ]);
    let look = "cat /proc/self/cgroup; readlink /proc/self/ns/net; grep Cpus_allowed_list /proc/self/status";
    let server = lab.answer("server", &["sh", "-c", look]);
    let client = lab.answer("client", &["sh", "-c", look]);
    let group = format!("/headway-lab-{}", lab.name);
    assert!(server.contains(&group), "{server}");
    assert!(!client.contains(&group), "{client}");
    assert!(server.ends_with("Cpus_allowed_list:\t0"), "{server}");
    let own = std::fs::read_link("/proc/self/ns/net").expect("there");
    let own = own.to_str().expect("text");
    assert!(
        !server.contains(own) && client.contains(own),
        "{server}\n{client}"
    );
    let addresses = lab.answer("server", &["ip", "-4", "-brief", "addr"]);
    let ip = lab.status()["link"]["server_ip"]
        .as_str()
        .expect("an address")
        .to_owned();
    assert!(addresses.contains(&ip), "{addresses}");
}

/// Needs: root: makes a lab (cpu controller)
#[test]
fn cpu_time_is_limited_by_cpu_share() {
    let test = "cpu_time_is_limited_by_cpu_share";
    if !can(test, &["CPU quota"]) {
        return;
    }
    let lab = Lab::up(&["--cpu-share", "0.25"]);
    // A loop of the shell's own, and what it took: a quarter of the time at most, less when the
    // machine is busy.
    let work = "i=0; while [ $i -lt 150000 ]; do i=$((i+1)); done; cat /proc/$$/stat";
    let begun = Instant::now();
    let stat = lab.answer("server", &["sh", "-c", work]);
    let elapsed = begun.elapsed().as_secs_f64();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .expect("fields")
        .split_whitespace()
        .collect();
    let ticks =
        fields[11].parse::<f64>().expect("user") + fields[12].parse::<f64>().expect("system");
    let share = ticks / 100.0 / elapsed;
    let quota = &lab.status()["quota"];
    assert!(
        quota["throttled_periods"].as_u64().expect("a number") > 0,
        "{quota}"
    );
    assert_eq!(quota["share"], 0.25);
    assert!(share < 0.33, "{share} of a CPU");
}

/// Needs: root: makes a lab
#[test]
fn exit_code_and_streams_are_the_commands_when_it_runs_inside() {
    let test = "exit_code_and_streams_are_the_commands_when_it_runs_inside";
    if !can(test, &["memory limit"]) {
        return;
    }
    let lab = Lab::up(&["--memory", "64MiB"]);
    let mut command = lab.exec("server", &["sh", "-c", "cat; echo bad >&2; exit 7"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    child
        .stdin
        .take()
        .expect("a pipe")
        .write_all(b"words")
        .expect("written");
    let output = child.wait_with_output().expect("ended");
    assert_eq!(
        (text(&output.stdout).as_str(), text(&output.stderr).as_str()),
        ("words", "bad\n")
    );
    assert_eq!(output.status.code(), Some(7));
    let absent = lab
        .exec("server", &["no-such-program"])
        .output()
        .expect("started");
    assert_eq!(absent.status.code(), Some(127));
    let directory = lab.exec("server", &["/"]).output().expect("started");
    assert_eq!(directory.status.code(), Some(126));
}

/// Needs: root: makes a lab
#[test]
fn programs_inside_end_when_the_lab_goes_down() {
    let test = "programs_inside_end_when_the_lab_goes_down";
    if !can(test, &["memory limit", "link"]) {
        return;
    }
    let lab = Lab::up(&["--memory", "64MiB", "--link", "1Gbit"]);
    // One that does not want to, with a child of its own.
    let stubborn = "trap '' TERM; echo up; sleep 600 & while :; do wait; done";
    let mut child = lab
        .exec("server", &["sh", "-c", stubborn])
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let mut line = [0; 3];
    child
        .stdout
        .as_mut()
        .expect("a pipe")
        .read_exact(&mut line)
        .expect("said so");
    let output = lab.down();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(!child.wait().expect("ended").success());
    assert_eq!(traces_of(&lab.name), Vec::<String>::new());
}

/// Needs: root: makes a lab
#[test]
fn programs_that_wait_for_a_stalled_disk_end_when_the_lab_goes_down() {
    let test = "programs_that_wait_for_a_stalled_disk_end_when_the_lab_goes_down";
    if !can(test, &["disk", "memory limit"]) {
        return;
    }
    let parts = [
        "--disk",
        "nvme",
        "--disk-size",
        "64MiB",
        "--memory",
        "64MiB",
    ];
    let lab = Lab::up(&parts);
    let fill = ["fill", &lab.name, "--", "mkdir", "-p", "a/b/c"];
    assert!(headway_lab(&fill).status().expect("started").success());
    let mount = lab.status()["disk"]["mount_point"].clone();
    let inode = format!("{}/a/b/c", mount.as_str().expect("a path"));
    let stall = ["disk", "--name", &lab.name, "stall", "60s"];
    assert!(headway_lab(&stall).status().expect("started").success());
    let mut reader = lab.exec("server", &["stat", &inode]);
    let mut reader = Ended(reader.stdout(Stdio::null()).spawn().expect("started"));
    // D: not even SIGKILL wakes it.
    let state = format!("/proc/{}/stat", reader.0.id());
    wait_until("it waits for the disk", || {
        let text = std::fs::read_to_string(&state).unwrap_or_default();
        text.contains("(stat) D ")
    });
    let output = lab.down();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(traces_of(&lab.name), Vec::<String>::new());
    // Told to end, or answered just before.
    reader.0.wait().expect("ended");
}

/// Needs: root: makes a lab
#[test]
fn disk_keeps_its_delays_and_its_holder_is_named_when_it_is_in_use() {
    let test = "disk_keeps_its_delays_and_its_holder_is_named_when_it_is_in_use";
    if !can(test, &["disk"]) {
        return;
    }
    let lab = Lab::up(&["--disk", "nvme", "--disk-size", "64MiB"]);
    let mount = lab.status()["disk"]["mount_point"]
        .as_str()
        .expect("a path")
        .to_owned();
    let before = lab.status()["disk"]["totals"]["elapsed_ns"]
        .as_u64()
        .expect("a number");
    // A process outside of the lab, so `down` may not end it.
    let mut holder = Ended(
        std::process::Command::new("sleep")
            .arg("600")
            .current_dir(&mount)
            .spawn()
            .expect("started"),
    );
    let named = format!("{} (sleep", holder.0.id());
    for arguments in [&["fill", &lab.name, "--", "true"][..], &["cool", &lab.name]] {
        let output = headway_lab(arguments).output().expect("started");
        assert_eq!(output.status.code(), Some(1));
        assert!(
            text(&output.stderr).contains(&named),
            "{}",
            text(&output.stderr)
        );
    }
    // A command to the disk would have reset the counts.
    let after = lab.status()["disk"]["totals"]["elapsed_ns"]
        .as_u64()
        .expect("a number");
    assert!(after > before);
    let output = lab.down();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains(&named),
        "{}",
        text(&output.stderr)
    );
    assert!(
        holder.0.try_wait().expect("asked").is_none(),
        "it was not the lab's to end"
    );
    drop(holder);
    let output = lab.down();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(traces_of(&lab.name), Vec::<String>::new());
}
