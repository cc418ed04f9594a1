//! Apache's descriptors with the module: none is kept, and what happens when there is none left.

use super::faults::{FILES, NumberedFiles, built};
use super::support::{Apache, TIMEOUT, exchange, is_root, make_cold, wait_until};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

/// Makes a file longer than what the module reads at once, owned by its user. For such a file the
/// kernel counts the pages without beginning to read them, so that the service is asked even with a
/// quick disk.
pub fn give_to_apache(file: &Path) {
    fs::write(file, "x".repeat(96 << 10)).unwrap();
    if is_root() {
        let given = Command::new("chown").arg("www-data").arg(file).status();
        assert!(given.unwrap().success(), "{}", file.display());
    }
}

/// Needs: the programs apache2 and apxs: scripts/setup
#[test]
fn descriptors_of_apache_stay_as_many_when_thousands_of_files_were_sent() {
    let Some(module) =
        built("descriptors_of_apache_stay_as_many_when_thousands_of_files_were_sent")
    else {
        return;
    };
    let served = NumberedFiles::new();
    // Half of them are sent by their descriptors, the others from memory.
    for number in (0..FILES).step_by(2) {
        give_to_apache(&served.file(number));
    }
    let backend = served.backend();
    // One thread in one process, so that it is known which one has served.
    let one = "HeadwayEnable On\nServerLimit 1\nStartServers 1\nThreadsPerChild 1\nMaxRequestWorkers 1\nKeepAlive On\n\
               MaxKeepAliveRequests 0\n";
    let apache = Apache::start("worker", &served.configuration(&module, one));
    let child = || {
        let path = format!("/proc/{0}/task/{0}/children", apache.pid().as_raw_nonzero());
        let children = fs::read_to_string(path).unwrap();
        children.trim().to_owned()
    };
    let descriptors = || {
        fs::read_dir(format!("/proc/{}/fd", child()))
            .unwrap()
            .count()
    };
    let of_service = || {
        let path = format!("/proc/{}/fd", backend.pid().as_raw_nonzero());
        fs::read_dir(path).unwrap().count()
    };
    let rounds = |count: usize| {
        for _ in 0..count {
            let requests = (0..FILES).map(|number| {
                make_cold(&served.file(number));
                format!("GET /f{number} HTTP/1.1\r\nHost: x\r\n\r\nGET /none HTTP/1.1\r\nHost: x\r\n\r\n")
            });
            let last = "GET /f0 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".into();
            let requests: String = requests.chain([last]).collect();
            let response = exchange(&apache.address, requests.as_bytes());
            let text = String::from_utf8_lossy(&response);
            assert_eq!(text.matches("HTTP/1.1 200 ").count(), FILES + 1);
        }
    };
    // As many requests as one likes: a million take some minutes.
    let wanted = std::env::var("HEADWAY_REQUESTS").map_or(2000, |text| text.parse().unwrap());
    let count = usize::div_ceil(wanted, 2 * FILES + 1);
    // Each requested file is kept open, and nothing else except Apache's connection and those to
    // helpers.
    let most_of_service = of_service() + FILES + 32;
    rounds(2);
    let (before, who) = (descriptors(), child());
    rounds(count);
    assert_eq!(child(), who);
    // A connection that has just been closed may still linger.
    wait_until("descriptors are left", || descriptors() <= before);
    wait_until("descriptors of the service are left", || {
        of_service() <= most_of_service
    });
    let (opened, answered) = (apache.counter("Opened"), apache.counter("Answered"));
    println!(
        "{} requests on {count} connections: {before} descriptors before, {} after, {} of the service; {opened} files opened, the service asked {answered} times",
        count * (2 * FILES + 1),
        descriptors(),
        of_service()
    );
    // All large ones on a kernel that counts pages (6.5). Otherwise the probe begins the reading,
    // and a quick disk may finish it.
    assert!(answered > (count * FILES / 10) as u64);
    assert!(opened >= (count * 2 * FILES) as u64);
}

/// A kept connection to Apache.
struct KeepAliveConnection(BufReader<TcpStream>);

impl KeepAliveConnection {
    fn open(apache: &Apache) -> KeepAliveConnection {
        let stream = TcpStream::connect(&apache.address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        KeepAliveConnection(BufReader::new(stream))
    }

    /// The status and the body of the response to a method with its target.
    fn request(&mut self, what: &str) -> (String, String) {
        let request = format!("{what} HTTP/1.1\r\nHost: x\r\n\r\n");
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        let (mut head, mut length) = (String::new(), 0);
        while !head.ends_with("\r\n\r\n") {
            let begun = head.len();
            assert!(self.0.read_line(&mut head).unwrap() > 0, "{head:?}");
            if let Some(text) = head[begun..].strip_prefix("Content-Length: ") {
                length = text.trim_end().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        (head[9..12].to_owned(), String::from_utf8(body).unwrap())
    }
}

#[test]
fn apache_answers_as_without_the_module_when_it_has_no_descriptor_left() {
    let name = "apache_answers_as_without_the_module_when_it_has_no_descriptor_left";
    let Some(module) = built(name) else { return };
    let served = NumberedFiles::new();
    let _backend = served.backend();
    let one = |on: &str| {
        let more = format!(
            "HeadwayEnable {on}\nServerLimit 1\nStartServers 1\nThreadsPerChild 1\nMaxRequestWorkers 1\n\
             KeepAlive On\nKeepAliveTimeout 30\n"
        );
        served.configuration(&module, &more)
    };
    // None for a file; one, but none for a connection to the service.
    for (spare, status) in [(0, "403"), (1, "200")] {
        let responses = ["Off", "On"].map(|on| {
            let apache = Apache::start("worker", &one(on));
            let mut client = KeepAliveConnection::open(&apache);
            // Nothing is opened for these, and before the second response what the first one needed
            // is given back.
            let statuses = [(); 2].map(|()| client.request("OPTIONS *").0);
            assert_eq!(statuses, ["200", "200"]);
            leave_descriptors(&apache, spare);
            [1, 2].map(|number| {
                make_cold(&served.file(number));
                client.request(&format!("GET /f{number}"))
            })
        });
        assert_eq!(responses[0], responses[1], "{spare} descriptors");
        assert_eq!(responses[0][1].0, status, "{spare} descriptors");
    }
}

/// Lets the one process that serves open as many files as are said, and no more.
fn leave_descriptors(apache: &Apache, spare: usize) {
    let path = format!("/proc/{0}/task/{0}/children", apache.pid().as_raw_nonzero());
    let child = fs::read_to_string(path).unwrap();
    let child = child.trim();
    // A new file gets the first number that is free.
    let opened = fs::read_dir(Path::new("/proc").join(child).join("fd")).unwrap();
    let opened: Vec<_> = opened.map(|one| one.unwrap().file_name()).collect();
    let is_free = |number: &u32| !opened.contains(&number.to_string().into());
    let limit = (0..).filter(is_free).nth(spare).unwrap();
    // Its own user may do that; root may not everywhere.
    let own_user = [
        "setpriv",
        "--reuid=www-data",
        "--regid=www-data",
        "--clear-groups",
    ];
    let own_user = if is_root() { &own_user[..] } else { &[] };
    let nofile = format!("--nofile={limit}");
    let command = [own_user, &["prlimit", "--pid", child, &nofile]].concat();
    let limited = Command::new(command[0]).args(&command[1..]).status();
    assert!(limited.unwrap().success(), "{command:?}");
}
