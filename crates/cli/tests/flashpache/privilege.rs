//! The service's privileges are those of the user that root has named. Apache's files do not depend
//! on what the service may read.

use super::client;
use super::command::{backend, may_mount, stderr_text};
use super::conversations::{Tree, masked};
use super::faults::built;
use super::support::{
    Apache, Backend, base, clients, exchange, folder, is_root, make_cold, skip, wait_until,
};
use super::tree::stamp;
use headway_os::fd_passing::{Wait, receive_with_descriptors};
use rustix::fs::{Gid, Uid};
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with,
};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

/// Numbers that no system gives to a person; the tables of a name space of the test's own have
/// them.
const USER: u32 = 4711;
const FURTHER: u32 = 4712;

/// In the place of what follows, with the tables of users and groups that the folder has.
const WITH_TABLES: &str =
    r#"mount --bind "$0/passwd" /etc/passwd && mount --bind "$0/group" /etc/group && exec "$@""#;

/// Tables with one more user, which is in another group.
fn make_tables(folder: &Path) {
    for (name, line) in [
        (
            "passwd",
            format!("hw-reader:x:{USER}:{USER}::/nonexistent:/bin/false\n"),
        ),
        (
            "group",
            format!("hw-reader:x:{USER}:\nhw-further:x:{FURTHER}:hw-reader\n"),
        ),
    ] {
        let table = fs::read_to_string(Path::new("/etc").join(name)).unwrap();
        fs::write(folder.join(name), table + &line).unwrap();
    }
}

/// What the kernel says of every thread of a process: all of its users, groups, further groups and
/// capabilities.
fn rights(pid: i32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let status = |task: fs::DirEntry| fs::read_to_string(task.path().join("status")).unwrap();
    let kept = |status: String| {
        let lines = status.lines().filter(|line| {
            ["Uid:", "Gid:", "Groups:", "CapPrm:", "CapEff:"]
                .iter()
                .any(|name| line.starts_with(name))
        });
        lines
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect::<Vec<_>>()
            .join("; ")
    };
    tasks.map(|task| kept(status(task.unwrap()))).collect()
}

fn children(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let lists =
        tasks.map(|task| fs::read_to_string(task.unwrap().path().join("children")).unwrap());
    lists
        .flat_map(|list| {
            list.split_whitespace()
                .map(|pid| pid.parse().unwrap())
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Needs: root, and the program unshare
#[test]
fn service_and_helpers_are_the_user_with_its_groups_when_root_has_named_one() {
    const NAME: &str = "service_and_helpers_are_the_user_with_its_groups_when_root_has_named_one";
    if !may_mount() {
        return skip(NAME, "root, and the program unshare");
    }
    let served = client::ServedFiles::new(2);
    let tables = folder();
    make_tables(tables.path());
    let [further, own] = &served.files[..] else {
        unreachable!()
    };
    fs::set_permissions(further, fs::Permissions::from_mode(0o640)).unwrap();
    chown(further, Some(0), Some(FURTHER)).unwrap();
    fs::set_permissions(own, fs::Permissions::from_mode(0o600)).unwrap();
    let under = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        WITH_TABLES,
        tables.path().to_str().unwrap(),
    ];
    let options = ["--user", "hw-reader", "--allow-user", "root"];
    let backend = Backend::start_under(&under, &options, &served.root(), &served.socket());
    wait_until("no helper", || {
        backend.counter(r#"helpers{state="idle"}"#) == 1
    });

    let pid = backend.pid().as_raw_nonzero().get();
    let helpers = children(pid);
    assert_eq!(helpers.len(), 1);
    let threads = [rights(pid), rights(helpers[0])].concat();
    assert!(threads.len() > 4, "{threads:?}");
    let none = "0000000000000000";
    let expected = format!(
        "Uid: {USER} {USER} {USER} {USER}; Gid: {USER} {USER} {USER} {USER}; Groups: {USER} {FURTHER}; CapPrm: {none}; CapEff: {none}"
    );
    for thread in threads {
        assert_eq!(thread, expected);
    }
    // Root's client may read both; of the service's helper the further group opens one, and nothing
    // the other.
    served.files.iter().for_each(|file| make_cold(file));
    assert!(served.run(&["5000", "open"], &served.files).is_right());
    assert_eq!(
        (
            backend.counter(r#"answers_total{result="done"}"#),
            backend.counter("cache_descriptors")
        ),
        (2, 1)
    );
    // The user itself may ask without being named.
    let strange = served.files[0].join("below");
    let answers = served.run(&["5000", "as", &USER.to_string()], &[strange]);
    assert_eq!(answers.count("answered"), 1);
}

/// Needs: root, who alone has to name a user
#[test]
fn service_does_not_start_when_root_names_no_user() {
    const NAME: &str = "service_does_not_start_when_root_names_no_user";
    if !is_root() {
        return skip(NAME, "root, who alone has to name a user");
    }
    let folder = folder();
    let socket = folder.path().join("socket");
    let root = folder.path().to_str().unwrap();
    let refused = Command::new(env!("CARGO_BIN_EXE_headway"))
        .args(["backend", "--root", root, "--socket"])
        .arg(&socket)
        // A service that starts ends with this.
        .args(["--", "true"])
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(2), "{}", stderr_text(&refused));
    assert!(
        stderr_text(&refused).contains("--user www-data"),
        "{}",
        stderr_text(&refused)
    );
    assert!(!socket.exists());
    let run = |options: &[&str], command: &[&str]| {
        let socket = ["--socket", socket.to_str().unwrap()];
        let options = [&socket, options, &["--"], command].concat();
        let output = backend(folder.path(), &options).output().unwrap();
        assert!(
            output.status.success(),
            "{options:?}: {}",
            stderr_text(&output)
        );
        output
    };
    assert_eq!(stderr_text(&run(&["--user", "root"], &["true"])), "");
    // What is started beside it is the same user, in the group that was named.
    for (user, expected) in [
        ("4711:4712", "4711 4712 4712\n"),
        ("nobody:4712", "65534 4712 4712\n"),
    ] {
        let output = run(
            &["--user", user],
            &["sh", "-c", "echo $(id -u) $(id -g) $(id -G)"],
        );
        assert_eq!(stderr_text(&output), "", "{user}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{user}");
    }
}

/// Needs: root, to become another user
#[test]
fn user_option_is_a_usage_error_when_another_user_than_root_gives_it() {
    const NAME: &str = "user_option_is_a_usage_error_when_another_user_than_root_gives_it";
    if !is_root() {
        return skip(NAME, "root, to become another user");
    }
    let folder = folder();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let socket = folder.path().join("socket");
    let run = |user: &str| {
        let options = [
            "--socket",
            socket.to_str().unwrap(),
            "--user",
            user,
            "--",
            "true",
        ];
        let open = backend(folder.path(), &options);
        let mut command = Command::new("setpriv");
        command.args(["--reuid=4711", "--regid=4711", "--clear-groups"]);
        command
            .arg(open.get_program())
            .args(open.get_args())
            .output()
            .unwrap()
    };
    let refused = run("4712:4712");
    assert_eq!(refused.status.code(), Some(2), "{}", stderr_text(&refused));
    assert!(
        stderr_text(&refused).contains("only root can become 4712:4712"),
        "{}",
        stderr_text(&refused)
    );
    assert!(!socket.exists());
    // The user that it already is.
    let same = run("4711:4711");
    assert_eq!((same.status.code(), &*stderr_text(&same)), (Some(0), ""));
}

/// A message in the layout of the protocol, with any version, kind and flags.
fn message(form: [u8; 3], read_in: u64, path: &Path) -> Vec<u8> {
    let [version, kind, flags] = form;
    let mut bytes = b"HWOF".to_vec();
    bytes.extend([version, 0, kind, flags]);
    bytes.extend(7_u64.to_le_bytes());
    bytes.extend(read_in.to_le_bytes());
    bytes.extend(path.as_os_str().as_bytes());
    bytes
}

/// Sends a message on a connection of its own. The answer, empty at the end of the connection.
fn answer(socket: &Path, message: &[u8]) -> Vec<u8> {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let client = socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
    connect(&client, &SocketAddrUnix::new(socket).unwrap()).unwrap();
    send(&client, message, SendFlags::NOSIGNAL).unwrap();
    let mut bytes = [0; 200];
    match receive_with_descriptors(&client, &mut bytes, 64, Wait::Block) {
        Ok(Some(received)) => {
            assert!(
                received.descriptors.is_empty(),
                "a descriptor for {message:?}"
            );
            bytes[..received.length].to_vec()
        }
        // A reset is an end with something unread.
        _ => Vec::new(),
    }
}

/// All answers to all forms of message about a path, and what opening the path says.
fn answers(socket: &Path, path: &Path) -> (BTreeSet<Vec<u8>>, Option<ErrorKind>) {
    let any = (0..=u8::MAX).flat_map(|any| [[any, 1, 0], [1, any, 0], [1, 1, any]]);
    let forms = any.map(|form| message(form, 1 << 20, path));
    let sizes = [0, 1, u64::MAX].map(|read_in| message([1, 1, 0], read_in, path));
    let answers = forms.chain(sizes).map(|message| answer(socket, &message));
    let opened = fs::File::open(path).err().map(|error| error.kind());
    (answers.collect(), opened)
}

/// Needs: root, to be two users
#[test]
fn no_right_is_gained_when_another_user_sends_every_form_of_message_to_roots_service() {
    const NAME: &str =
        "no_right_is_gained_when_another_user_sends_every_form_of_message_to_roots_service";
    const NOBODY: u32 = 65534;
    if !is_root() {
        return skip(NAME, "root, to be two users");
    }
    let served = client::ServedFiles::new(2);
    let [public, secret] = &served.files[..] else {
        unreachable!()
    };
    fs::set_permissions(secret, fs::Permissions::from_mode(0o600)).unwrap();
    let closed = served.root().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::write(closed.join("file"), "x").unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    let denied = Some(ErrorKind::PermissionDenied);
    let paths = [
        (public.clone(), None),
        (secret.clone(), denied),
        (closed.join("file"), denied),
        (closed.join("none"), denied),
        (served.root().join("none"), Some(ErrorKind::NotFound)),
    ];
    let backend = Backend::start_with(&["--user", "root"], &served.root(), &served.socket());
    // Whatever a file is, the answers are the same: closed, done, another version.
    let expected = BTreeSet::from([
        Vec::new(),
        b"HWOF\x01\0\x01\0\x07\0\0\0\0\0\0\0".to_vec(),
        b"HWOF\x01\0\x04\0\x07\0\0\0\0\0\0\0".to_vec(),
    ]);
    let as_nobody = || {
        // These are of the calling thread only.
        set_thread_groups(&[]).unwrap();
        let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        set_thread_res_gid(group, group, group).unwrap();
        set_thread_res_uid(user, user, user).unwrap();
        for (path, opened) in &paths {
            let found = answers(&served.socket(), path);
            assert_eq!(found, (expected.clone(), *opened), "{path:?}");
        }
    };
    std::thread::scope(|scope| scope.spawn(as_nobody).join().unwrap());
    // The service could open them all: it did not answer for lack of rights.
    let done = backend.counter(r#"answers_total{result="done"}"#);
    assert_eq!(
        (done, backend.counter("cache_descriptors")),
        (paths.len() as u64 * 6, 3)
    );
}

/// Needs: root, to become another user
#[test]
fn service_does_not_start_when_its_user_cannot_reach_a_root() {
    const NAME: &str = "service_does_not_start_when_its_user_cannot_reach_a_root";
    if !is_root() {
        return skip(NAME, "root, to become another user");
    }
    let folder = folder();
    let root = folder.path().join("closed/root");
    fs::create_dir_all(&root).unwrap();
    let closed = fs::Permissions::from_mode(0o700);
    fs::set_permissions(folder.path().join("closed"), closed).unwrap();
    let socket = folder.path().join("socket");
    let options = ["--socket", socket.to_str().unwrap(), "--user", "4711:4711"];
    let refused = backend(&root, &[&options[..], &["--", "true"]].concat());
    let refused = { refused }.output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{}", stderr_text(&refused));
    assert!(
        stderr_text(&refused).contains("as user 4711:4711: cannot open the root"),
        "{}",
        stderr_text(&refused)
    );
}

const GROUP_OF_APACHE: &str = "www-data";
const GROUP_OF_SERVICE: &str = "nogroup";

/// Files for both, for Apache alone and for the service alone.
fn fill(root: &Path) {
    let site = root.join("site");
    let large: Vec<u8> = (0..300_000_usize).map(|at| (at % 251) as u8).collect();
    for folder in ["apaches", "services"] {
        fs::create_dir_all(site.join(folder)).unwrap();
        fs::write(site.join(folder).join("file.txt"), folder).unwrap();
    }
    for (name, contents) in [
        ("both.txt", &b"for both"[..]),
        ("apaches.txt", b"for Apache alone"),
        ("apaches.bin", &large),
        ("services.txt", b"for the service alone"),
        ("nobodys.txt", b"for nobody"),
    ] {
        fs::write(site.join(name), contents).unwrap();
    }
    stamp(root);
    for (name, mode, owner) in [
        ("apaches", 0o750, format!("root:{GROUP_OF_APACHE}")),
        ("apaches.txt", 0o640, format!("root:{GROUP_OF_APACHE}")),
        ("apaches.bin", 0o640, format!("root:{GROUP_OF_APACHE}")),
        ("services", 0o750, format!("root:{GROUP_OF_SERVICE}")),
        ("services.txt", 0o640, format!("root:{GROUP_OF_SERVICE}")),
        ("nobodys.txt", 0o600, "root:root".into()),
    ] {
        let path = site.join(name);
        let given = Command::new("chown")
            .arg(owner)
            .arg(&path)
            .status()
            .unwrap();
        assert!(given.success(), "{name}");
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
}

/// Each line with the status that Apache gives it.
const REQUESTS: [(&str, &str); 14] = [
    ("GET /both.txt", "200"),
    ("GET /apaches.txt", "200"),
    ("HEAD /apaches.txt", "200"),
    ("GET /apaches.bin", "200"),
    ("GET /apaches.bin|Range: bytes=100000-100099", "206"),
    ("GET /apaches.txt|If-None-Match: *", "304"),
    ("GET /apaches/file.txt", "200"),
    ("GET /apaches/none.txt", "404"),
    ("GET /apaches", "301"),
    ("GET /services.txt", "403"),
    ("HEAD /services.txt", "403"),
    ("GET /services/file.txt", "403"),
    ("GET /services/none.txt", "403"),
    ("GET /nobodys.txt", "403"),
];

fn responses(apache: &Apache) -> Vec<String> {
    let response = |line: &str| {
        let (start, field) = line.split_once('|').unwrap_or((line, "X: y"));
        let request =
            format!("{start} HTTP/1.1\r\nHost: site.test\r\nConnection: close\r\n{field}\r\n\r\n");
        let response = masked(&exchange(&apache.address, request.as_bytes()));
        // A character for each byte, so that any difference is seen.
        response.into_iter().map(char::from).collect()
    };
    REQUESTS.iter().map(|(line, _)| response(line)).collect()
}

/// Needs: root, to become two users; the programs apache2 and apxs: scripts/setup
#[test]
fn responses_are_apaches_own_when_the_service_is_another_user_with_other_rights() {
    let name = "responses_are_apaches_own_when_the_service_is_another_user_with_other_rights";
    let Some(module) = built(name) else { return };
    if !is_root() {
        return skip(name, "root, to become two other users");
    }
    let mut tree = Tree::filled(fill);
    for mpm in ["prefork", "event"] {
        let site = |root: &Path| format!("{}DocumentRoot {}/site\n", base(), root.display());
        let stock = Apache::start(mpm, &site(&tree.make_cold()));
        let expected = responses(&stock);
        drop(stock);
        for ((line, status), response) in REQUESTS.iter().zip(&expected) {
            assert!(
                response.starts_with(&format!("HTTP/1.1 {status} ")),
                "{line}: {response}"
            );
        }

        let root = tree.make_cold();
        let sockets = folder();
        let socket = sockets.path().join("socket");
        let backend = Backend::start_with(&["--user", "nobody"], &root, &socket);
        let more = format!(
            "LoadModule headway_module {}\nHeadwayBackend {}\nHeadwayEnable On\n",
            module.display(),
            socket.display()
        );
        let apache = Apache::start(mpm, &(site(&root) + &more));
        for state in ["cold", "warm"] {
            for (((line, _), expected), actual) in
                REQUESTS.iter().zip(&expected).zip(responses(&apache))
            {
                assert_eq!(*expected, actual, "{mpm}, {state}: {line}");
            }
        }
        assert!(apache.counter("Answered") >= 5, "the disk was warm");
        assert_eq!(apache.counter("Fallbacks"), 0);
        // Asked again for Apache's own files, now with known names, it still may not open them.
        let before = backend.counter(r#"answers_total{result="done"}"#);
        wait_until("the service gets no further request", || {
            for name in ["apaches.txt", "apaches.bin"] {
                make_cold(&root.join("site").join(name));
            }
            assert_eq!(responses(&apache), expected);
            backend.counter(r#"answers_total{result="done"}"#) > before
        });
        assert!(rights(backend.pid().as_raw_nonzero().get())[0].starts_with("Uid: 65534 "));
        drop((apache, backend));
    }
}

#[test]
fn requested_bytes_are_in_memory_when_the_service_may_not_probe_residency() {
    let name = "requested_bytes_are_in_memory_when_the_service_may_not_probe_residency";
    let Ok(libraries) = clients() else {
        return skip(name, "the clients' libraries");
    };
    if !is_root() {
        return skip(name, "root, to make a name cold");
    }
    const LENGTH: usize = 5_000_000;
    let mut tree = Tree::filled(|root| fs::write(root.join("long"), vec![b'x'; LENGTH]).unwrap());
    let Tree::Disk(_) = tree else {
        return skip(name, "a disk of its own, whose names can be made cold");
    };
    let root = tree.make_cold();
    let sockets = folder();
    let socket = sockets.path().join("socket");
    let options = [
        "--user",
        "nobody",
        "--allow-user",
        "root",
        "--prefetch-max",
        "8MiB",
    ];
    let backend = Backend::start_with(&options, &root, &socket);
    let status = Command::new("sh")
        .args(["-c", "exec 3<\"$0\""])
        .arg(root.join("long"))
        .env("LD_PRELOAD", libraries.join("libheadway_preload.so"))
        .env("HEADWAY_OPEN_SOCKET", &socket)
        .env("HEADWAY_OPEN_PREFIXES", &root)
        .env("HEADWAY_OPEN_READ_IN", "8000000")
        .status()
        .unwrap();
    assert!(status.success());
    assert_eq!(backend.counter("requests_total"), 1);
    let file = fs::File::open(root.join("long")).unwrap();
    match headway_os::residency::mincore(&file, 0, LENGTH as u64) {
        Ok(pages) => assert_eq!(pages as usize, LENGTH.div_ceil(4096)),
        Err(why) => skip(name, &format!("mincore: {why}")),
    }
    drop((file, backend));
}
